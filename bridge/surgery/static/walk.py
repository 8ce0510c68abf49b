"""The walk: one node of the source after the other, branches and loop bodies in place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, helper

from bridge.errors import UnsupportedModelError
from bridge.static_model import Finding
from bridge.surgery.static.call import Call, copy_all
from bridge.surgery.static.control import CONTROL
from bridge.surgery.static.facts import with_facts
from bridge.surgery.static.folding import fold
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Condition, Linear
from bridge.surgery.static.lattice import NoRuleError, Tensor, listed
from bridge.surgery.static.sequences import SEQUENCES, Value
from bridge.surgery.static.table import ALWAYS, RULES
from bridge.surgery.static.values import are_plain, evaluate

type Scope = dict[str, Value]
"""What names of the source stand for, within one graph."""

_MOST_NODES = 50_000  # about ten seconds; no detector comes near


@dataclass(slots=True)
class Walk:
    """The static graph and what is remembered of the source.

    Attributes:
        graph: what is emitted.
        findings: guards removed and loops unrolled.
        named: source name to tensor, inner names included; the first of equal names.
        labels: id to source name, for the names of the static model.
        origins: id to the source node whose result it is.
        made_for: id to the source name it was emitted for.
        walked: nodes interpreted, those of unrolled rounds included.
    """

    graph: Graph
    findings: list[Finding] = field(default_factory=list)
    named: dict[str, Tensor] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    origins: dict[str, NodeProto] = field(default_factory=dict)
    made_for: dict[str, str] = field(default_factory=dict)
    walked: int = 0

    def name_of(self, id_: str) -> str | None:
        """The source's name of a tensor, or of the longer one whose first rows it holds."""
        while id_ not in self.labels and id_ in self.graph.replaces:
            id_ = self.graph.replaces[id_]
        return self.labels.get(id_)

    def origin_of(self, node: NodeProto) -> NodeProto | None:
        """The source node whose result an emitted node makes."""
        for id_ in node.output:
            while id_ not in self.origins and id_ in self.graph.replaces:
                id_ = self.graph.replaces[id_]
            if id_ in self.origins:
                return self.origins[id_]
        return None

    def bind(self, scope: Scope, name: str, value: Value) -> None:
        """Let a name of the source stand for a tensor or a sequence."""
        scope[name] = value
        if isinstance(value, Tensor):
            self.named.setdefault(name, value)
            self.labels.setdefault(value.id, name)

    @contextmanager
    def emitting(self, name: str) -> Iterator[None]:
        """What is emitted inside is made for a name of the source."""
        first = len(self.graph.nodes)
        yield
        for node in self.graph.nodes[first:]:
            for id_ in node.output:
                self.made_for.setdefault(id_, name)


def walk(w: Walk, nodes: Iterable[NodeProto], scope: Scope) -> None:
    """Interpret nodes in order, adding their outputs to the scope.

    Raises:
        UnsupportedModelError: a node has no static form; the message names it.
    """
    for node in nodes:
        try:
            results = _results(w, node, scope)
        except NoRuleError as error:
            raise UnsupportedModelError(f"{describe(node)} {error}") from error
        for name, value in zip(node.output, results, strict=False):
            if name:
                if isinstance(value, Tensor):
                    w.origins.setdefault(value.id, node)
                w.bind(scope, name, value)


def _results(w: Walk, node: NodeProto, scope: Scope) -> Sequence[Value]:
    w.walked += 1
    if w.walked > _MOST_NODES:
        raise NoRuleError(f"is one of more than {_MOST_NODES} nodes when all loops are unrolled")
    values = [_lookup(scope, name) if name else None for name in node.input]
    call = Call(node, tuple(x if isinstance(x, Tensor) else None for x in values))
    if not node.domain and node.op_type in CONTROL:
        results, finding = CONTROL[node.op_type](
            w.graph, call, values, lambda graph, given: _subgraph(w, graph, {**scope, **given})
        )
        w.findings.append(finding)
        return results
    with w.emitting(node.output[0]):
        if not node.domain and node.op_type in SEQUENCES:
            return (SEQUENCES[node.op_type](w.graph, call, values),)
        if any(isinstance(x, tuple) for x in values):
            raise NoRuleError("reads a sequence of tensors, and there is no rule for that")
        return interpret(w.graph, call)


def describe(node: NodeProto) -> str:
    """A node by name and operator, for messages."""
    name = node.name or (node.output[0] if node.output else "")
    return f"node '{name}' ({node.domain or 'ai.onnx'}::{node.op_type})"


def _lookup(scope: Mapping[str, Value], name: str) -> Value:
    if name not in scope:
        raise NoRuleError(f"reads '{name}', which nothing before it makes")
    return scope[name]


def _subgraph(w: Walk, graph: GraphProto, scope: Scope) -> list[Value]:
    """The outputs of a branch or a loop body, interpreted in place."""
    for proto in graph.initializer:
        w.bind(scope, proto.name, w.graph.initializer(proto))
    walk(w, graph.node, scope)
    return [_lookup(scope, output.name) for output in graph.output]


def interpret(g: Graph, call: Call) -> tuple[Tensor, ...]:
    """What one node computes: constants folded, else its rule, or itself where nothing is masked.

    Raises:
        NoRuleError: rows reach an operator that has no rule, or its rule refuses.
    """
    if call.op_type == "Constant":
        return (_constant(g, call),)
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in call.node.attribute):
        raise NoRuleError("runs a body of its own, and there is no rule for that control flow")
    if (folded := fold(g, call)) is not None:
        return folded
    rule = RULES.get(call.op_type) if not call.node.domain else None
    if call.op_type in ALWAYS or any(map(_depends, call.inputs)):
        if rule is None:
            raise NoRuleError(
                "is reached by a data-dependent number of rows, and there is no rule for that; "
                "please report the model"
            )
        made = rule(g, call)
        results = made if isinstance(made, tuple) else (made,)
    else:
        results = copy_all(g, call)
    return _followed(g, call, results)


def _followed(g: Graph, call: Call, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    first, *others = results
    values = evaluate(g, call, first) if first.values is None else first.values
    if values is None:
        return (with_facts(g, call, first), *others)
    if are_plain(values):
        return (g.constant(values.astype(first.dtype)), *others)
    return (g.followed(first, values), *others)


def _depends(x: Tensor | None) -> bool:
    """Whether a tensor has masked rows, holds positions, or counts of rows."""
    if x is None:
        return False
    if x.groups or x.space is not None:
        return True
    return x.values is not None and any(isinstance(e, Linear | Condition) for e in listed(x.values))


def _constant(g: Graph, call: Call) -> Tensor:
    (attribute,) = call.node.attribute
    if attribute.name == "value":
        return g.initializer(attribute.t)
    if attribute.name not in ("value_int", "value_ints", "value_float", "value_floats"):
        raise NoRuleError(f"holds a {attribute.name}, which has no static form here")
    kind = np.float32 if "float" in attribute.name else np.int64
    return g.constant(np.asarray(helper.get_attribute_value(attribute), kind))
