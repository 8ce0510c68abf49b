"""If and Loop: proven, and walked in place; otherwise refused."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from onnx import GraphProto

from bridge.static_model import Finding
from bridge.surgery.static.call import Call, constants
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import (
    INT64_MAX,
    Condition,
    Element,
    Linear,
    Test,
    Unknown,
    emptiness,
    is_negative,
    is_zero,
    negate,
    where_zero,
)
from bridge.surgery.static.lattice import NoRuleError, Tensor, count, listed, tagged
from bridge.surgery.static.rows import data
from bridge.surgery.static.sequences import Value

type Body = Callable[[GraphProto, dict[str, Value]], list[Value]]
"""Interprets a subgraph in place, given its inputs; its outputs."""

type ControlRule = Callable[
    [Graph, Call, Sequence[Value | None], Body], tuple[Sequence[Value], Finding]
]
"""The results of a node and what was done to it. The values hold sequences too, the call none."""

_MOST_ROUNDS = 256


def if_(
    g: Graph, call: Call, values: Sequence[Value | None], body: Body
) -> tuple[Sequence[Value], Finding]:
    """A decided condition: that branch. A test for zero rows: the branch for rows, if that is so.

    Given    If(n = 0): then 'nothing', else the rows' own results, n the count of a group
    Result   the else branch, provided that with n = 0 it gives what the then branch gives: an axis
             of rows is then as long as there, a count as great
    """
    del values
    element = _condition(call)
    branches = call.graph("then_branch"), call.graph("else_branch")
    if isinstance(element, bool):
        taken = branches[0 if element else 1]
        why = f"the condition is always {str(element).lower()}"
        return body(taken, {}), _finding(call, why)
    asked = emptiness(element) if isinstance(element, Condition) else None
    if asked is None:
        raise NoRuleError(
            "has a condition that depends on the data and is no test for zero rows; "
            "export the model so that one branch is chosen"
        )
    zeros, then_is_empty = asked
    empty, full = branches if then_is_empty else branches[::-1]
    results = body(full, {})
    for k, (nothing, result) in enumerate(zip(body(empty, {}), results, strict=True)):
        if not _equal_without_rows(g, nothing, result, zeros):
            raise NoRuleError(
                f"tests for zero rows, but output {k} of its branch for zero rows "
                f"({_spelt(nothing)}) is not what the other branch gives without rows"
            )
    return results, _finding(call, "without rows the branch for rows gives the same")


def _condition(call: Call) -> bool | Condition | None:
    values = call.input(0).values
    element = None if values is None or values.size != 1 else listed(values)[0]
    return element if isinstance(element, bool | Condition) else None


def _finding(call: Call, why: str) -> Finding:
    return Finding(call.node.name or call.node.output[0], f"remove-empty-if: {why}", changed=True)


def _spelt(value: Value) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"{len(value)} tensors"


def _equal_without_rows(g: Graph, nothing: Value, result: Value, zeros: frozenset[Unknown]) -> bool:
    """Whether both are the same in every run in which the unknowns are zero."""
    if isinstance(nothing, tuple) and isinstance(result, tuple):
        pairs = zip(nothing, result, strict=False)
        equal = all(_equal_without_rows(g, a, b, zeros) for a, b in pairs)
        return equal and len(nothing) == len(result)
    if isinstance(nothing, tuple) or isinstance(result, tuple):
        return False
    if nothing.id == result.id and nothing.dims == result.dims and nothing.space == result.space:
        return True
    shape = [where_zero(count(dim), zeros) for dim in result.dims]
    if nothing.dtype != result.dtype or shape != [
        where_zero(count(dim), zeros) for dim in nothing.dims
    ]:
        return False
    if 0 in shape:
        return True
    held = g.array(nothing)
    values = nothing.values if held is None else held.astype(object)
    if values is None or result.values is None or result.groups:
        return False
    elements = zip(listed(values), listed(result.values), strict=True)
    return all(a is not None and _without(a, zeros) == _without(b, zeros) for a, b in elements)


def _without(element: Element, zeros: frozenset[Unknown]) -> Element:
    """An element for the case that the unknowns are zero."""
    if isinstance(element, Linear):
        return where_zero(element, zeros)
    if isinstance(element, Condition):
        asked = where_zero(element.of, zeros)
        truth = is_zero(asked) if element.test is Test.ZERO else is_negative(asked)
        return negate(truth) if element.negated else truth
    return element


def loop(
    g: Graph, call: Call, values: Sequence[Value | None], body: Body
) -> tuple[Sequence[Value], Finding]:
    """Rounds whose number follows from constants, unrolled.

    After each round the condition must be known: a constant, or decided by the bounds of counts.
    Scan outputs are concatenated over the rounds; every round must give as many rows.
    """
    graph = call.graph("body")
    names = [value.name for value in graph.input]
    most = INT64_MAX
    if call.optional(0) is not None:
        most = constants(call.optional(0), "the number of rounds")[0]
    going = values[1] if len(values) > 1 else None
    carried = [value for value in values[2:] if value is not None]
    rounds: list[list[Value]] = []
    while len(rounds) < most and (going is None or _holds(going)):
        if len(rounds) == _MOST_ROUNDS:
            raise NoRuleError(f"has more rounds than the {_MOST_ROUNDS} that are unrolled")
        given: list[Value] = [g.constant(np.int64(len(rounds))), g.constant(np.bool_(True))]
        going, *results = body(graph, dict(zip(names, [*given, *carried], strict=True)))
        rounds.append(results[len(carried) :])
        carried = results[: len(carried)]
    scans = [
        _stacked(g, [collected[k] for collected in rounds])
        for k in range(len(graph.output) - 1 - len(carried))
    ]
    name = call.node.name or call.node.output[0]
    finding = Finding(name, f"unroll-loop: its {len(rounds)} rounds in a row", changed=True)
    return (*carried, *scans), finding


def _holds(going: Value) -> bool:
    """The condition of a loop, which must be known."""
    known = listed(going.values) if isinstance(going, Tensor) and going.values is not None else []
    if known not in ([True], [False]):
        raise NoRuleError("goes on for as long as a condition holds that depends on the data")
    return known == [True]


def _stacked(g: Graph, collected: list[Value]) -> Tensor:
    rounds = [x for x in collected if isinstance(x, Tensor)]
    if len(rounds) < len(collected):
        raise NoRuleError("collects sequences of tensors")
    if not rounds:
        raise NoRuleError("has no rounds, so the shape of what it collects is not known")
    dims = rounds[0].dims
    if any(x.dims != dims for x in rounds):
        raise NoRuleError("collects a different number of rows in every round")
    opened = [g.emit("Unsqueeze", [data(g, x), g.int64(0)]) for x in rounds]
    whole = opened[0] if len(opened) == 1 else g.emit("Concat", opened, axis=0)
    return tagged(whole, (len(rounds), *dims))


CONTROL: Mapping[str, ControlRule] = MappingProxyType({"If": if_, "Loop": loop})
