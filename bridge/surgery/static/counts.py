"""Counts that follow from counts: the smaller and the larger of two, and clamps made of them."""

from bridge.surgery.static.firsts import first_count
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int, Linear, Unknown, hi, lo, of, surely_at_most
from bridge.surgery.static.lattice import Tensor


def minimum(g: Graph, a: Int, b: Int) -> Int:
    """`min(a, b)`: decided by bounds, or one unknown for equal operands."""
    if surely_at_most(a, b):
        return a
    if surely_at_most(b, a):
        return b
    holder = _first_count(g, a, b) or _pick_smaller(g, a, b, first_if_less=True)
    bounds = min(lo(a), lo(b)), min(hi(a), hi(b))
    return of(Unknown(holder.id, *bounds, at_most=(a, b), is_least=True))


def _first_count(g: Graph, a: Int, b: Int) -> Tensor | None:
    """The smaller of a number of rows and a constant, where whatever makes the rows can say it."""
    if isinstance(a, int):
        a, b = b, a
    if isinstance(a, Linear) and isinstance(b, int) and a == of(a.terms[0][0]):
        return first_count(g, g.count(a), b)
    return None


def maximum(g: Graph, a: Int, b: Int) -> Int:
    """`max(a, b)`: decided by bounds, or one unknown for equal operands."""
    if surely_at_most(a, b):
        return b
    if surely_at_most(b, a):
        return a
    holder = _pick_smaller(g, a, b, first_if_less=False)
    bounds = tuple(_positive(x) for x, y in ((a, b), (b, a)) if hi(y) <= 0 <= lo(_positive(x)))
    return of(Unknown(holder.id, max(lo(a), lo(b)), max(hi(a), hi(b)), bounds))


def _positive(x: Int) -> Int:
    """`x` without a negative constant: not below `max(x, 0)` where it is nowhere negative."""
    return x - min(x.constant, 0) if isinstance(x, Linear) else max(x, 0)


def _pick_smaller(g: Graph, a: Int, b: Int, *, first_if_less: bool) -> Tensor:
    # Integer Min and Max lack kernels in several runtimes; Less and Where exist everywhere.
    x, y = sorted((g.count(a), g.count(b)), key=lambda t: t.id)
    less = g.emit("Less", [x, y])
    return g.emit("Where", [less, x, y] if first_if_less else [less, y, x])
