"""The emitter: a static ONNX graph, node by node, into a `Builder`.

Types and shapes are exactly those that ONNX declares. A node that no function covers is refused by
name; nothing is approximated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge import static_nms
from bridge.static_model import TensorType
from bridge.static_nms import StaticNms
from bridge.targets.tflite import (
    operators_index,
    operators_layout,
    operators_math,
    operators_reduce,
    operators_types,
)
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.intervals import result_interval
from bridge.targets.tflite.node import Interval, Node

OPERATORS: Final[Mapping[str, Callable[[Node], Tensor | tuple[Tensor, ...]]]] = {
    **operators_index.OPERATORS,
    **operators_layout.OPERATORS,
    **operators_math.OPERATORS,
    **operators_reduce.OPERATORS,
    **operators_types.OPERATORS,
}

Suppress = Callable[[Builder, StaticNms, Tensor, Tensor], tuple[Tensor, Tensor]]


def covers(node: onnx.NodeProto) -> bool:
    """Whether the emitter has a function for this operator (not: for these types of it)."""
    return static_nms.is_call(node) or (
        node.domain in ("", "ai.onnx") and node.op_type in OPERATORS
    )


@dataclass(frozen=True, slots=True)
class Emitter:
    """Emits nodes in graph order; `tensors` and `intervals` grow with what they make.

    Attributes:
        types: the declared type of every tensor of the model.
        constants: the model's initializers by name.
        suppress: lowers one StaticNMS call to its rows (int64) and their count (int64).
    """

    builder: Builder
    types: Mapping[str, TensorType]
    constants: Mapping[str, onnx.TensorProto]
    suppress: Suppress
    tensors: dict[str, Tensor] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)

    def input(self, name: str) -> None:
        """Declare an input under the type the model gives it."""
        type_ = self.types[name]
        self.tensors[name] = self.builder.input(name, type_.shape, type_.dtype)

    def tensor(self, name: str) -> Tensor:
        """The handle of a tensor that is an input, a constant or made already."""
        if name not in self.tensors:
            self.tensors[name] = self.builder.constant(numpy_helper.to_array(self.constants[name]))
        return self.tensors[name]

    def emit(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Emit nodes, each after those it reads.

        Raises:
            UnsupportedModelError: a node that has no exact lowering, by name.
        """
        for proto in nodes:
            node = self._node(proto)
            if static_nms.is_call(proto):
                self._keep(proto, self._suppressed(proto))
            elif not covers(proto):
                raise node.unsupported("this operator", "keep it in front of the detection tail")
            else:
                made = OPERATORS[proto.op_type](node)
                made = (made,) if isinstance(made, Tensor) else made
                self._keep(proto, made)
                self._bound(proto, node, made)

    def _node(self, proto: onnx.NodeProto) -> Node:
        inputs = tuple(self.tensor(name) if name else None for name in proto.input)
        return Node(
            builder=self.builder,
            name=proto.name,
            op_type=proto.op_type,
            domain=proto.domain,
            inputs=inputs,
            intervals=tuple(
                self._interval(name, tensor)
                for name, tensor in zip(proto.input, inputs, strict=True)
            ),
            outputs=tuple(self.types.get(name, TensorType("", ())) for name in proto.output),
            attributes={a.name: _attribute(a) for a in proto.attribute},
        )

    def _interval(self, name: str, tensor: Tensor | None) -> Interval | None:
        if tensor is None or tensor.dtype.startswith("float"):
            return None
        value = self.builder.value(tensor)
        if value is not None and value.size:
            return Interval(int(value.min()), int(value.max()))
        return self.intervals.get(name, Interval.of_dtype(tensor.dtype))

    def _bound(self, proto: onnx.NodeProto, node: Node, made: Sequence[Tensor]) -> None:
        for position, name in enumerate(proto.output[: len(made)]):
            interval = result_interval(node, position) if name else None
            if interval is not None:
                self.intervals[name] = interval

    def _suppressed(self, proto: onnx.NodeProto) -> tuple[Tensor, Tensor]:
        call = static_nms.read_node(proto)
        boxes, scores = self.tensor(call.boxes), self.tensor(call.scores)
        self.intervals[call.selected] = Interval(0, max(scores.shape) - 1)
        self.intervals[call.count] = Interval(0, call.rows)
        return self.suppress(self.builder, call, boxes, scores)

    def _keep(self, proto: onnx.NodeProto, made: Sequence[Tensor]) -> None:
        for name, tensor in zip(proto.output, made, strict=False):
            if not name:
                continue
            declared = self.types[name]
            if (tensor.dtype, tensor.shape) != (declared.dtype, declared.shape):
                raise AssertionError(
                    f"{proto.op_type} '{proto.name}': {name} is {declared.dtype}{declared.shape} "
                    f"in ONNX and was emitted as {tensor.dtype}{tensor.shape}"
                )
            self.tensors[name] = tensor


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        array: NDArray[np.generic] = numpy_helper.to_array(value)
        return array
    return value
