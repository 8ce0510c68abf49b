"""What a rule of `rules` may know about a node's place, and how it reads and edits a node."""

from collections import ChainMap
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from bridge.errors import UnsupportedModelError
from bridge.model import operator, place
from bridge.static_model import Finding

OPSET = 17


@dataclass(slots=True)
class Names:
    """Tensor names in use, and what the rules leave behind for the whole model.

    Attributes:
        made: the constants that rules asked for, each held once.
        roundings: nodes whose spelling at 17 sums in another order under onnxruntime.
    """

    used: set[str]
    made: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = field(default_factory=dict)
    roundings: list[Finding] = field(default_factory=list)

    def fresh(self, wish: str) -> str:
        """A name nothing has, as near the wish as can be."""
        name, number = wish, 0
        while name in self.used:
            number += 1
            name = f"{wish}_{number}"
        self.used.add(name)
        return name

    def constant(self, array: NDArray[np.generic], wish: str) -> str:
        """The name of an initializer of these numbers, which is visible in every graph."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.made:
            self.made[key] = numpy_helper.from_array(array, self.fresh(wish))
        return self.made[key].name


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule may know about the place of a node: names seen there, their values and types."""

    version: int
    names: Names
    constants: ChainMap[str, TensorProto]
    types: ChainMap[str, onnx.TypeProto.Tensor]

    def inner(self, graph: onnx.GraphProto) -> "Scope":
        """The scope of a graph that a node of this scope owns."""
        return Scope(
            self.version,
            self.names,
            self.constants.new_child(constants(graph)),
            self.types.new_child(types(graph)),
        )

    def value(self, name: str) -> NDArray[np.generic] | None:
        """The numbers of a constant; None for any other tensor."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """Dimensions as far as they are known; None where not even the rank is."""
        found = self.types.get(name)
        if found is None or not found.HasField("shape"):
            tensor = self.constants.get(name)
            return None if tensor is None else tuple(tensor.dims)
        return tuple(d.dim_value if d.HasField("dim_value") else None for d in found.shape.dim)

    def rounds(self, node: NodeProto, why: str) -> None:
        """Note that a node keeps its meaning, but not every last bit of it."""
        what = f"{operator(node)}-{self.version} at opset {OPSET}: equal but for rounding, {why}"
        self.names.roundings.append(Finding(node=place(node), what=what, changed=True))

    def ints(self, wish: str, values: list[int]) -> str:
        """The name of an int64[len(values)] initializer."""
        return self.names.constant(np.array(values, np.int64), wish)


def constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """The initializers and Constant nodes of a graph."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        # A caller may feed something else for an input with an initializer.
        found.pop(value.name, None)
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain and node.attribute:
            attribute = node.attribute[0]
            if attribute.type == AttributeProto.TENSOR:
                found[node.output[0]] = attribute.t
            elif attribute.name in ("value_int", "value_ints"):
                ints = np.array(helper.get_attribute_value(attribute), np.int64)
                found[node.output[0]] = numpy_helper.from_array(ints)
            elif attribute.name in ("value_float", "value_floats"):
                floats = np.array(helper.get_attribute_value(attribute), np.float32)
                found[node.output[0]] = numpy_helper.from_array(floats)
    return found


def types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto.Tensor]:
    """The declared and inferred tensor types of a graph."""
    return {
        value.name: value.type.tensor_type
        for values in (graph.input, graph.value_info, graph.output)
        for value in values
        if value.type.HasField("tensor_type")
    }


def refusal(node: NodeProto, scope: Scope, reason: str) -> UnsupportedModelError:
    """The error that says which node has no exact spelling at 17, and why."""
    return UnsupportedModelError(
        f"{operator(node)} (node {place(node)}, opset {scope.version}) cannot be written at opset "
        f"{OPSET}: {reason}; export the model at opset {OPSET}"
    )


def attribute_of[T](node: NodeProto, name: str, default: T) -> T:
    """An attribute's value, or the default where the node does not have it."""
    for attribute in node.attribute:
        if attribute.name == name:
            value: T = helper.get_attribute_value(attribute)
            return value
    return default


def drop(node: NodeProto, *names: str) -> None:
    """Remove the attributes the node has of these."""
    for attribute in [a for a in node.attribute if a.name in names]:
        node.attribute.remove(attribute)


def take(node: NodeProto, name: str) -> list[int] | None:
    """The integers of an attribute, which is removed; None where the node does not have it."""
    value: int | list[int] | None = attribute_of(node, name, None)
    drop(node, name)
    if value is None:
        return None
    return [value] if isinstance(value, int) else list(value)


def put(node: NodeProto, name: str, value: object) -> None:
    """Set an attribute, new or in place of the one there."""
    drop(node, name)
    node.attribute.append(helper.make_attribute(name, value))


def input_of(node: NodeProto, index: int) -> str:
    """The input's tensor name, empty where it is absent."""
    return node.input[index] if index < len(node.input) else ""


def constant_ints(node: NodeProto, index: int, scope: Scope, what: str) -> list[int] | None:
    """A constant integer input; None where it is absent.

    Raises:
        UnsupportedModelError: it is computed.
    """
    name = input_of(node, index)
    if not name:
        return None
    value = scope.value(name)
    if value is None:
        raise refusal(node, scope, f"its {what} ({name}) are computed, not constant")
    return [int(v) for v in value.reshape(-1)]


def rank_of(node: NodeProto, scope: Scope) -> int:
    """The rank of the first input.

    Raises:
        UnsupportedModelError: it is not known.
    """
    dims = scope.dims(node.input[0])
    if dims is None:
        raise refusal(node, scope, f"the rank of its input {node.input[0]} is not known")
    return len(dims)
