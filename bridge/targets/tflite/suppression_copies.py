"""Which number of which tensor another tensor's numbers are copies of.

A tail gathers scores and boxes from where they lay before they were transposed, flattened or
joined for the suppression. That two such places hold the same number is decided here by moving
the numbers' own addresses through the operators that move numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bridge.static_model import TensorType, tensor_types

Addresses = NDArray[np.int64]

# Operators that move, and the inputs that they move; the others say where to.
_MOVERS: Final[Mapping[str, tuple[int, ...]]] = {
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Reshape": (0,),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
}
_MOST: Final = 1 << 24


@dataclass(slots=True)
class Copies:
    """Addresses of the numbers of a static model's tensors: equal addresses, equal numbers.

    A tensor that no mover makes has addresses of its own. In scores, -inf stands for what must not
    be selected: a Where that puts it in place of a number keeps that number's address.
    """

    makers: Mapping[str, onnx.NodeProto]
    constants: Mapping[str, onnx.TensorProto]
    types: Mapping[str, TensorType]
    opset: int
    _known: dict[str, Addresses] = field(default_factory=dict)
    _given: int = 0

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "Copies":
        """The addresses of a model's tensors; nothing is computed yet."""
        graph = model.graph
        return cls(
            makers={name: node for node in graph.node for name in node.output if name},
            constants={tensor.name: tensor for tensor in graph.initializer},
            types=tensor_types(model),
            opset=next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
        )

    def addresses(self, name: str) -> Addresses:
        """int64, in the tensor's own shape."""
        pending = [name]
        while pending:
            tensor = pending[-1]
            node = self.makers.get(tensor)
            moved = () if node is None else self._moved(node)
            missing = [source for source in moved if source not in self._known]
            if missing:
                pending += missing
                continue
            pending.pop()
            if node is None or not moved:
                self._known.setdefault(tensor, self._own(tensor))
            else:
                self._known |= zip(node.output, self._move(node, moved), strict=True)
        return self._known[name]

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of an initializer."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _own(self, name: str) -> Addresses:
        shape = self.types[name].shape
        first, self._given = self._given, self._given + prod(shape)
        return np.arange(first, self._given, dtype=np.int64).reshape(shape)

    def _moved(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The inputs whose numbers the node moves to where constants say; none: no mover."""
        if any(prod(self.types[name].shape) > _MOST for name in node.output if name):
            return ()
        if node.op_type == "Concat":
            return tuple(node.input)
        if node.op_type == "Where":
            hidden = self.constant(node.input[2])
            masks = hidden is not None and bool(np.all(hidden == -np.inf))
            shape = self.types[node.output[0]].shape
            return (node.input[1],) if masks and self.types[node.input[1]].shape == shape else ()
        if node.op_type == "Cast":
            same = self.types[node.input[0]].dtype == self.types[node.output[0]].dtype
            return (node.input[0],) if same else ()
        positions = _MOVERS.get(node.op_type, ())
        steered = [name for i, name in enumerate(node.input) if i not in positions and name]
        if not all(name in self.constants for name in steered):
            return ()
        return tuple(node.input[position] for position in positions)

    def _move(self, node: onnx.NodeProto, moved: tuple[str, ...]) -> list[Addresses]:
        if node.op_type in ("Cast", "Where"):
            return [self._known[moved[0]]]
        return self.move(node, {name: self._known[name] for name in moved})

    def move(self, node: onnx.NodeProto, numbers: Mapping[str, Addresses]) -> list[Addresses]:
        """What a mover makes of other numbers in place of its inputs."""
        graph = helper.make_graph(
            [node],
            "move",
            [
                helper.make_tensor_value_info(name, onnx.TensorProto.INT64, array.shape)
                for name, array in numbers.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output],
            [self.constants[x] for x in dict.fromkeys(node.input) if x in self.constants],
        )
        opset = [helper.make_opsetid("", self.opset)]
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opset))
        made = evaluator.run(None, dict(numbers))
        return [np.asarray(array, np.int64) for array in made]
