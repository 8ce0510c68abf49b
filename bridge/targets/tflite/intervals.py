"""Bounds of integer tensors, known at conversion time.

They decide which kernel is exact: GATHER takes no negative position, DIV and ARG_MAX no int64.
What no rule bounds has the bounds of its type, which is always true.
"""

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Final

from bridge.targets.tflite.node import Interval, Node

# Operators whose every element is one of the elements of these inputs.
_CHOOSES_FROM: Final[Mapping[str, tuple[int, ...]]] = {
    "Cast": (0,),
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "OneHot": (2,),
    "Pad": (0, 2),
    "ReduceMax": (0,),
    "ReduceMin": (0,),
    "Reshape": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "TopK": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}


def result_interval(node: Node, output: int) -> Interval | None:
    """Bounds of an integer output of a node; None for floats."""
    dtype = node.outputs[output].dtype
    if dtype.startswith("float"):
        return None
    everything = Interval.of_dtype(dtype)
    if node.op_type in ("ArgMax", "ArgMin") or (node.op_type, output) == ("TopK", 1):
        return Interval(0, max(node.input(0).shape, default=1) - 1)
    chosen = tuple(range(len(node.inputs))) if node.op_type == "Concat" else ()
    chosen = _CHOOSES_FROM.get(node.op_type, chosen)
    read = [node.intervals[position] for position in chosen if node.has(position)]
    if node.op_type == "Pad" and not node.has(2):
        read.append(Interval(0, 0))
    if read:
        found = None if None in read else _hull(*(i for i in read if i is not None))
    elif node.op_type in _ARITHMETIC and None not in node.intervals:
        found = _ARITHMETIC[node.op_type](node)
    else:
        found = None
    # Arithmetic that may wrap around says nothing, nor does a cast that may.
    if found is None or found.low < everything.low or found.high > everything.high:
        return everything
    return found


def _hull(*intervals: Interval) -> Interval:
    return Interval(min(i.low for i in intervals), max(i.high for i in intervals))


def _corners(operate: Callable[[int, int], int]) -> Callable[[Node], Interval]:
    """The rule of an operator that is monotone in each operand."""

    def rule(node: Node) -> Interval:
        a, b = node.interval(0), node.interval(1)
        results = [operate(x, y) for x, y in product((a.low, a.high), (b.low, b.high))]
        return Interval(min(results), max(results))

    return rule


def _quotient(node: Node) -> Interval:
    dividend, divisor = node.interval(0), node.interval(1)
    limit = max(abs(dividend.low), abs(dividend.high))
    # No quotient is larger than the dividend, and none of like signs is negative.
    return Interval(0 if dividend.low >= 0 and divisor.low > 0 else -limit, limit)


def _remainder(node: Node) -> Interval:
    divisor = node.interval(1)
    limit = max(abs(divisor.low), abs(divisor.high))
    signed = divisor.low < 0 or (node.attribute("fmod", 0) and node.interval(0).low < 0)
    return Interval(-limit if signed else 0, limit)


def _negated(node: Node) -> Interval:
    return Interval(-node.interval(0).high, -node.interval(0).low)


def _absolute(node: Node) -> Interval:
    return Interval(0, max(abs(node.interval(0).low), abs(node.interval(0).high)))


def _total(node: Node) -> Interval:
    """Any sum of up to all elements."""
    count = prod(node.input(0).shape)
    return Interval(min(0, node.interval(0).low) * count, max(0, node.interval(0).high) * count)


def _extreme(pick: Callable[..., int]) -> Callable[[Node], Interval]:
    def rule(node: Node) -> Interval:
        read = [node.interval(position) for position in range(len(node.inputs))]
        return Interval(pick(i.low for i in read), pick(i.high for i in read))

    return rule


_ARITHMETIC: Final[Mapping[str, Callable[[Node], Interval]]] = {
    "Abs": _absolute,
    "Add": _corners(lambda a, b: a + b),
    "CumSum": _total,
    "Div": _quotient,
    "Max": _extreme(max),
    "Min": _extreme(min),
    "Mod": _remainder,
    "Mul": _corners(lambda a, b: a * b),
    "Neg": _negated,
    "ReduceSum": _total,
    "Sub": _corners(lambda a, b: a - b),
}
