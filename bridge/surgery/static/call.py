"""A node of the source as a rule sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, helper, numpy_helper

from bridge.surgery.static.graph import Array, Graph
from bridge.surgery.static.integers import Int, Linear
from bridge.surgery.static.lattice import NoRuleError, Tensor, listed


@dataclass(frozen=True, slots=True)
class Call:
    """One node with its inputs resolved to tensors; an omitted input is None."""

    node: NodeProto
    inputs: tuple[Tensor | None, ...]

    @property
    def op_type(self) -> str:
        """Operator name."""
        return self.node.op_type

    def input(self, k: int) -> Tensor:
        """A required input.

        Raises:
            NoRuleError: it is missing.
        """
        if (x := self.optional(k)) is None:
            raise NoRuleError(f"input {k} is missing")
        return x

    def optional(self, k: int) -> Tensor | None:
        """An input that may be omitted."""
        return self.inputs[k] if k < len(self.inputs) else None

    def _attribute(self, name: str) -> AttributeProto | None:
        return next((a for a in self.node.attribute if a.name == name), None)

    def has(self, name: str) -> bool:
        """Whether an attribute is given."""
        return self._attribute(name) is not None

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        attribute = self._attribute(name)
        return attribute.i if attribute else default

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        attribute = self._attribute(name)
        return attribute.f if attribute else default

    def integers(self, name: str) -> list[int] | None:
        """A list of integers, None where it is not given."""
        attribute = self._attribute(name)
        return list(attribute.ints) if attribute else None

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        attribute = self._attribute(name)
        return attribute.s.decode() if attribute else default

    def tensor(self, name: str) -> Array | None:
        """A tensor attribute."""
        attribute = self._attribute(name)
        return numpy_helper.to_array(attribute.t) if attribute else None

    def graph(self, name: str) -> GraphProto:
        """A subgraph."""
        attribute = self._attribute(name)
        if attribute is None:
            raise NoRuleError(f"attribute {name} is missing")
        return attribute.g

    def axis(self, rank: int, default: int) -> int:
        """The attribute `axis`, counted from the front."""
        return self.integer("axis", default) % rank

    def with_inputs(self, *inputs: Tensor | None) -> "Call":
        """The same node on other inputs."""
        return replace(self, inputs=inputs)


type Rule = Callable[[Graph, Call], Tensor | tuple[Tensor, ...]]
"""Emits what computes a node's outputs and says what they mean."""


def copy_all(g: Graph, call: Call) -> tuple[Tensor, ...]:
    """The node itself on the call's inputs; dimensions dense."""
    attributes = sorted(call.node.attribute, key=lambda a: a.name)
    return g.emit_all(
        call.op_type, call.inputs, attributes, len(call.node.output), call.node.domain
    )


def copy(g: Graph, call: Call) -> Tensor:
    """The first output of the node itself on the call's inputs; dimensions dense."""
    return copy_all(g, call)[0]


def make_call(op_type: str, inputs: Sequence[Tensor | None], **attributes: Any) -> Call:
    """A call that stands for no source node, for rules in terms of other rules."""
    node = helper.make_node(op_type, [x.id if x else "" for x in inputs], [""], **attributes)
    return Call(node, tuple(inputs))


def elements(x: Tensor | None, what: str) -> list[Int]:
    """The integers in a tensor that says a shape, an axis or a limit.

    Raises:
        NoRuleError: they depend on the data other than through counts.
    """
    found = listed(x.values) if x is not None and x.values is not None else [None]
    numbers = [e for e in found if isinstance(e, int | Linear)]
    if len(numbers) < len(found):
        raise NoRuleError(f"{what} depends on the data, not on a number of rows alone")
    return numbers


def constants(x: Tensor | None, what: str) -> list[int]:
    """As `elements`, where no element may depend on a count.

    Raises:
        NoRuleError: one does.
    """
    found = elements(x, what)
    if any(isinstance(e, Linear) for e in found):
        raise NoRuleError(f"{what} depends on a number of rows")
    return [e for e in found if isinstance(e, int)]


def axes(call: Call, k: int = 1) -> list[int] | None:
    """Attribute or input `axes` (it moved from one to the other at opset 13 or 18)."""
    if call.has("axes"):
        return call.integers("axes")
    x = call.optional(k)
    return None if x is None else constants(x, "axes")
