"""Weights stored as int8 or float16, arithmetic in float32.

Given    CONV_2D(x, w float32, b)
Result   CONV_2D(x, DEQUANTIZE(w int8, a scale per output channel), b)

Weights are constant, so that XNNPACK and the kernel of DEQUANTIZE alike work them out once, when a
file is loaded (`lite/kernels/dequantize.cc`: `float_dequantized_weights_initialized`). XNNPACK
takes a layer only if its bias is float32 beside int8 weights, and float16 beside float16 ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as generated
from numpy.typing import NDArray

from bridge.targets.tflite import schema
from bridge.targets.tflite.layers import CHANNEL_AXIS, bias_of, weights_of

INT8_MAX: Final = 127
_OVERHEAD: Final = 256
"""Bytes that one more tensor and operator take, about."""
_PER_CHANNEL: Final = 12
"""Bytes of a scale and a zero point."""
_VERSIONS: Final = {"int8": 5, "float16": 3}
"""Of DEQUANTIZE: 5 knows of channels, 3 of float16 (`op_version.cc`)."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Narrow:
    """A constant in its narrow type.

    Attributes:
        scales: one per output channel; None where the type is a float itself.
    """

    values: NDArray[Any]
    scales: Floats | None = None

    @property
    def nbytes(self) -> int:
        """What it takes in a file, scales and the operator that widens it included."""
        channels = 0 if self.scales is None else len(self.scales)
        return int(self.values.nbytes) + channels * _PER_CHANNEL + _OVERHEAD


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights are stored.

    Attributes:
        narrow: a constant and the axis of its output channels to what is stored.
        biases: whether biases are stored so, too.
    """

    narrow: Callable[[Floats, int], Narrow]
    biases: bool


class UnfitError(Exception):
    """Why a layer stays as it is."""


def as_int8(weights: Floats, axis: int) -> Narrow:
    """Symmetric int8: the scale of a channel is its largest weight over 127.

    Raises:
        UnfitError: they are not finite, or below what a float32 scale can tell from zero.
    """
    if not np.isfinite(weights).all():
        raise UnfitError("its weights are not finite")
    others = tuple(a for a in range(weights.ndim) if a != axis)
    peaks = np.abs(weights).max(axis=others)
    # A channel of zeros has any scale.
    scales = np.where(peaks > 0, peaks / np.float32(INT8_MAX), np.float32(1)).astype(np.float32)
    if not (scales >= np.finfo(np.float32).tiny).all():
        raise UnfitError("its weights are too small for a scale")
    # In float64: the nearest code, not one that a quotient of float32 rounds to.
    spread = scales.astype(np.float64).reshape(
        [-1 if a == axis else 1 for a in range(weights.ndim)]
    )
    codes = np.clip(np.rint(weights / spread), -INT8_MAX, INT8_MAX)
    return Narrow(codes.astype(np.int8), scales)


def as_float16(weights: Floats, axis: int) -> Narrow:
    """float16, rounded to nearest.

    Raises:
        UnfitError: one is beyond its range.
    """
    del axis
    limit = float(np.finfo(np.float16).max)
    if not (np.abs(weights) <= limit).all():
        raise UnfitError(f"it has weights beyond float16's range, {limit:.0f}")
    return Narrow(weights.astype(np.float16))


INT8: Final = Storage(as_int8, biases=False)
FLOAT16: Final = Storage(as_float16, biases=True)


def narrow_weights(
    content: bytes, places: Sequence[int], storage: Storage
) -> tuple[bytes, Mapping[int, str]]:
    """A network whose weights are narrow.

    Args:
        content: the flatbuffer.
        places: which of its operators; all have weights.
        storage: how their weights are stored.

    Returns:
        The flatbuffer, and for each of these operators that keeps its weights the reason.
    """
    editor = _Editor(content, storage)
    kept: dict[int, str] = {}
    for place in places:
        try:
            editor.narrow(place)
        except UnfitError as reason:
            kept[place] = str(reason)
    return editor.finish(), kept


class _Editor:
    """A network while its weights are made narrow."""

    def __init__(self, content: bytes, storage: Storage) -> None:
        self.model = schema.unpack(content)
        self.graph = self.model.subgraphs[0]
        self.storage = storage
        self.stored: dict[int, tuple[Narrow, int]] = {}
        self.places: list[int] = []

    def narrow(self, place: int) -> None:
        """Make the constants of an operator narrow, all or none of them.

        Raises:
            UnfitError: one does not fit, or it would take no less space.
        """
        operator = self.graph.operators[place]
        axis = CHANNEL_AXIS[schema.kind(self.model, operator)]
        weights = weights_of(operator)
        made = {weights: self._narrowed(weights, axis)}
        wide = self._floats(weights)
        if made[weights].nbytes >= wide.nbytes:
            dtype = made[weights].values.dtype
            raise UnfitError(f"its {wide.size} weights take no less space as {dtype}")
        if self.storage.biases and (bias := bias_of(self.model, operator)) is not None:
            made[bias] = self._narrowed(bias, 0)
        self.stored.update({index: (narrow, axis) for index, narrow in made.items()})
        self.places.append(place)

    def _narrowed(self, index: int, axis: int) -> Narrow:
        if index in self.stored:
            return self.stored[index][0]
        return self.storage.narrow(self._floats(index), axis)

    def _floats(self, index: int) -> Floats:
        tensor = self.graph.tensors[index]
        content = self.model.buffers[tensor.buffer].content
        if tensor.type != schema.TYPES["float32"] or content is None:
            raise UnfitError("its weights are no float32 constant")
        return np.frombuffer(content, np.float32).reshape(tuple(tensor.shape))

    def finish(self) -> bytes:
        """The file, weights first."""
        wide = {index: len(self.graph.tensors) + i for i, index in enumerate(self.stored)}
        for index in wide:
            old = self.graph.tensors[index]
            name = f"{schema.text(old.name)}/float32"
            self.graph.tensors.append(schema.tensor(name, tuple(old.shape), "float32", 0))
        for place in self.places:
            operator = self.graph.operators[place]
            moved = [wide.get(int(i), int(i)) for i in operator.inputs]
            operator.inputs = np.asarray(moved, np.int32)
        read = {int(i) for operator in self.graph.operators for i in operator.inputs}
        widening = [
            schema.operator(
                self._dequantize(narrow.values.dtype.name),
                (self._store(index, narrow, axis, own=index not in read),),
                (wide[index],),
            )
            for index, (narrow, axis) in self.stored.items()
        ]
        self.graph.operators = [*widening, *self.graph.operators]
        return schema.pack(self.model)

    def _store(self, index: int, narrow: Narrow, axis: int, *, own: bool) -> int:
        """Write a constant in place of the one it comes from, where that has no readers left."""
        old, dtype = self.graph.tensors[index], narrow.values.dtype.name
        buffer = len(self.model.buffers)
        self.model.buffers.append(schema.Buffer(narrow.values.tobytes()))
        name = f"{schema.text(old.name)}/{dtype}"
        stored = schema.tensor(name, narrow.values.shape, dtype, buffer)
        if narrow.scales is not None:
            stored.quantization = _quantization(narrow.scales, axis)
        if not own:
            self.graph.tensors.append(stored)
            return len(self.graph.tensors) - 1
        self.graph.tensors[index] = stored
        if all(tensor.buffer != old.buffer for tensor in self.graph.tensors):
            self.model.buffers[old.buffer] = schema.Buffer()
        return index

    def _dequantize(self, dtype: str) -> int:
        number, version = schema.builtin_code("DEQUANTIZE"), _VERSIONS[dtype]
        for place, code in enumerate(self.model.operatorCodes):
            if (code.builtinCode, code.version) == (number, version):
                return place
        self.model.operatorCodes.append(schema.operator_code(number, "", version))
        return len(self.model.operatorCodes) - 1


def _quantization(scales: Floats, axis: int) -> Any:
    result = generated.QuantizationParametersT()
    result.scale = scales
    result.zeroPoint = np.zeros(len(scales), np.int64)
    result.quantizedDimension = axis
    return result
