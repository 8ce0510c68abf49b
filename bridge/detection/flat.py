"""A model as one list of steps: branches, bodies and functions walked into, names made unique.

Nothing is changed or decided; a step knows its node and the If, Loop and calls it sits in. Values
have numbers instead of names, since branches may use one name for two things.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bridge.detection.spec import Shape
from bridge.model import Array, operator, place, skeleton, subgraphs

_MOST_ELEMENTS = 1024
_FOLDED = frozenset(
    {
        "Cast", "Concat", "Constant", "Gather", "Identity", "Reshape", "Slice", "Squeeze",
        "Unsqueeze",
    }
)  # fmt: skip
"""Enough to follow a threshold to its number; this is not an optimiser."""


@dataclass(frozen=True, slots=True)
class Step:
    """A node where it stands; `inputs` and `outputs` are value numbers, 0 is an absent input."""

    node: NodeProto
    scope: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def operator(self) -> str:
        """As messages spell it."""
        return operator(self.node)

    @property
    def name(self) -> str:
        """As messages spell it."""
        return place(self.node)


@dataclass(slots=True)
class Flat:
    """The steps of a model in order of execution, and what is known of its values.

    Attributes:
        origin: the step that makes a value. An If, Loop or call makes the values it passes out.
        passed: for those, the values of its bodies that may be passed out.
    """

    steps: list[Step] = field(default_factory=list)
    origin: dict[int, Step] = field(default_factory=dict)
    passed: dict[int, list[int]] = field(default_factory=dict)
    names: list[str] = field(default_factory=lambda: [""])
    constants: dict[int, Array] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def sources(self, value: int) -> Iterator[int]:
        """The values a value is made from."""
        if value in self.origin:
            yield from (source for source in self.origin[value].inputs if source)
        yield from self.passed.get(value, ())

    def ancestors(self, value: int) -> Iterator[int]:
        """The value and everything it depends on, near ones first."""
        seen = {value}
        pending = [value]
        for current in pending:
            yield current
            for source in self.sources(current):
                if source not in seen:
                    seen.add(source)
                    pending.append(source)


def flatten(model: onnx.ModelProto) -> Flat:
    """Walk a valid model; the argument is left alone."""
    typed = skeleton(model)
    with suppress(onnx.shape_inference.InferenceError):  # then only what is declared is known
        typed = onnx.shape_inference.infer_shapes(typed, data_prop=True)
    flat = Flat()
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    weights = {tensor.name for tensor in model.graph.initializer}
    _Walk(flat, functions, opsets).main(typed.graph, weights)
    return flat


@dataclass(frozen=True, slots=True)
class _Walk:
    flat: Flat
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
    opsets: dict[str, int]

    def main(self, graph: onnx.GraphProto, weights: set[str]) -> None:
        seen: ChainMap[str, int] = ChainMap()
        for value in graph.input:
            number = self._new(value.name, seen)
            if value.name not in weights:
                self.flat.inputs.append(number)
        self.flat.outputs = self._graph(graph, seen, ())

    def _new(self, name: str, seen: ChainMap[str, int]) -> int:
        self.flat.names.append(name)
        number = len(self.flat.names) - 1
        if name:
            seen[name] = number
        return number

    def _graph(
        self, graph: onnx.GraphProto, seen: ChainMap[str, int], scope: tuple[str, ...]
    ) -> list[int]:
        for tensor in graph.initializer:
            number = seen.maps[0].get(tensor.name) or self._new(tensor.name, seen)
            self.flat.shapes[number] = tuple(tensor.dims)
            if np.prod(tensor.dims, initial=1) <= _MOST_ELEMENTS:
                self.flat.constants[number] = numpy_helper.to_array(tensor)
        self._nodes(graph.node, seen, scope, {})
        for values in (graph.input, graph.value_info, graph.output):
            for value in values:
                kind = value.type.tensor_type
                number = seen.maps[0].get(value.name, 0)
                if number and kind.elem_type:
                    self.flat.types[number] = kind.elem_type
                if number and kind.HasField("shape"):
                    self.flat.shapes[number] = _shape(kind.shape)
        return [seen.get(value.name, 0) for value in graph.output]

    def _nodes(
        self,
        nodes: Iterable[NodeProto],
        seen: ChainMap[str, int],
        scope: tuple[str, ...],
        attributes: Mapping[str, AttributeProto],
    ) -> None:
        for raw in nodes:
            node = _with_attributes(raw, attributes)
            inputs = tuple(seen.get(name, 0) for name in node.input)
            bodies = [self._body(body, node, inputs, seen, scope) for body in subgraphs(node)]
            function = self.functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                bodies.append(self._call(function, node, inputs, scope))
            step = Step(node, scope, inputs, tuple(self._new(name, seen) for name in node.output))
            self.flat.steps.append(step)
            for index, output in enumerate(step.outputs):
                self.flat.origin[output] = step
                inner = [body[index] for body in bodies if index < len(body)]
                if inner:
                    self.flat.passed[output] = inner
            self._fold(step)

    def _body(
        self,
        body: onnx.GraphProto,
        node: NodeProto,
        inputs: tuple[int, ...],
        seen: ChainMap[str, int],
        scope: tuple[str, ...],
    ) -> list[int]:
        inner = seen.new_child()
        skip = 2 if node.op_type == "Loop" else 0
        for index, value in enumerate(body.input):
            number = self._new(value.name, inner)
            if skip <= index < len(inputs) and inputs[index]:
                self.flat.passed[number] = [inputs[index]]
        outputs = self._graph(body, inner, (*scope, place(node)))
        return outputs[1:] if node.op_type == "Loop" else outputs

    def _call(
        self,
        function: onnx.FunctionProto,
        node: NodeProto,
        inputs: tuple[int, ...],
        scope: tuple[str, ...],
    ) -> list[int]:
        seen = ChainMap(dict(zip(function.input, inputs, strict=False)))
        for name in function.input[len(inputs) :]:
            seen[name] = 0
        attributes = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
        inner = f"{place(node)} ({operator(node)})"
        self._nodes(function.node, seen, (*scope, inner), attributes)
        return [seen.get(name, 0) for name in function.output]

    def _fold(self, step: Step) -> None:
        known = self.flat.constants
        if step.node.domain or step.node.op_type not in _FOLDED or len(step.outputs) != 1:
            return
        if any(value and value not in known for value in step.inputs):
            return
        names = [f"i{index}" if value else "" for index, value in enumerate(step.inputs)]
        alone = NodeProto()
        alone.CopyFrom(step.node)
        alone.input[:] = names
        alone.output[:] = ["o"]
        feeds = {name: known[v] for name, v in zip(names, step.inputs, strict=True) if name}
        try:
            (value,) = ReferenceEvaluator(alone, opsets=self.opsets).run(None, feeds)
        except Exception:  # whatever a node of an untrusted model does: its value is not known
            return
        array = np.asarray(value)
        if array.size <= _MOST_ELEMENTS:
            known[step.outputs[0]] = array
            self.flat.shapes[step.outputs[0]] = array.shape


def _with_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """The node of a function body with the caller's attributes in place of references to them."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    resolved = NodeProto()
    resolved.CopyFrom(node)
    resolved.ClearField("attribute")
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            resolved.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            value = helper.get_attribute_value(given[attribute.ref_attr_name])
            resolved.attribute.append(helper.make_attribute(attribute.name, value))
    return resolved


def _shape(shape: onnx.TensorShapeProto) -> Shape:
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param) or None
        for dim in shape.dim
    )
