"""The very codes of a quantised model's weights, in a network that was quantised anew.

A weight of such a model is a code times the step of its channel, so that the step can be read off
the float32 weights: it is what all of them are multiples of.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bridge.targets.tflite import schema
from bridge.targets.tflite.layers import CHANNEL_AXIS, bias_of, weights_of

_MOST: Final = 127
_NEAR: Final = 1e-3
"""How far a weight may be from a multiple; float32 puts it some 1e-5 off."""

Floats = NDArray[np.float32]


def with_codes(content: bytes, floats: bytes) -> tuple[bytes, list[int]]:
    """The network with the weights that its float32 weights stand for, and biases to match.

    Args:
        content: the network in int8.
        floats: the one in float32 that it was made of.

    Returns:
        The network, and which of its weighted operators keep weights that were rounded again: those
        that are no multiples of one step in int8.
    """
    narrow, wide = _Part(content), _Part(floats)
    again = []
    for number, (operator, exact) in enumerate(zip(narrow.weighted, wide.weighted, strict=True)):
        if narrow.type_of(weights_of(operator)) != "int8":
            continue
        axis = CHANNEL_AXIS[schema.kind(narrow.model, operator)]
        weights = wide.values(weights_of(exact))
        steps = common_steps(np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1))
        if steps is None:
            again.append(number)
            continue
        spread = steps.reshape([-1 if a == axis else 1 for a in range(weights.ndim)])
        codes = np.rint(weights / spread).astype(np.int8)
        narrow.store(weights_of(operator), codes, steps)
        bias, exact_bias = bias_of(narrow.model, operator), bias_of(wide.model, exact)
        if bias is not None and exact_bias is not None:
            step = narrow.step_of(narrow.input_of(operator)) * steps
            limits = np.iinfo(np.int32)
            sums = np.clip(np.rint(wide.values(exact_bias) / step), limits.min, limits.max)
            narrow.store(bias, sums.astype(np.int32), step)
    return schema.pack(narrow.model), again


def common_steps(channels: Floats) -> NDArray[np.float64] | None:
    """The largest step of each row that all its numbers are at most 127 multiples of.

    Args:
        channels: float32[C, N].

    Returns:
        float64[C]; None where a row has none. A row of zeros has step 1.
    """
    peaks = np.abs(channels).max(axis=1).astype(np.float64)
    found = np.where(peaks > 0, 0.0, 1.0)
    for multiple in range(1, _MOST + 1):
        open_rows = np.flatnonzero(found == 0)
        if not open_rows.size:
            break
        steps = peaks[open_rows] / multiple
        counts = channels[open_rows] / steps[:, None]
        fits = (np.abs(counts - np.rint(counts)) < _NEAR).all(axis=1)
        found[open_rows[fits]] = steps[fits]
    return found if (found > 0).all() else None


class _Part:
    """A network, and what it holds."""

    def __init__(self, content: bytes) -> None:
        self.model = schema.unpack(content)
        self.graph = self.model.subgraphs[0]
        self.weighted = [
            operator
            for operator in self.graph.operators
            if schema.kind(self.model, operator) in CHANNEL_AXIS
        ]

    def type_of(self, index: int) -> str:
        return schema.type_name(self.graph.tensors[index])

    def values(self, index: int) -> Floats:
        tensor = self.graph.tensors[index]
        content = self.model.buffers[tensor.buffer].content
        return np.frombuffer(content, np.float32).reshape(tuple(tensor.shape))

    def input_of(self, operator: Any) -> int:
        """What an operator with weights computes on."""
        transposed = schema.kind(self.model, operator) == "TRANSPOSE_CONV"
        return int(operator.inputs[2 if transposed else 0])

    def step_of(self, index: int) -> float:
        return float(self.graph.tensors[index].quantization.scale[0])

    def store(self, index: int, codes: NDArray[Any], steps: NDArray[np.float64]) -> None:
        """Other codes for a constant."""
        tensor = self.graph.tensors[index]
        old, tensor.buffer = tensor.buffer, len(self.model.buffers)
        if all(other.buffer != old for other in self.graph.tensors):
            self.model.buffers[old] = schema.Buffer()
        self.model.buffers.append(schema.Buffer(codes.tobytes()))
        tensor.quantization.scale = steps.astype(np.float32)
        tensor.quantization.zeroPoint = np.zeros(len(steps), np.int64)
