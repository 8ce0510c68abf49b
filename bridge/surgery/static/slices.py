"""Slice: the rows from one place to another, where either may be a count."""

from dataclasses import replace

import numpy as np

from bridge.surgery.static.call import Call, constants, elements
from bridge.surgery.static.counts import maximum, minimum
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import UNBOUNDED, Int, Unknown, hi, lo, of, surely_at_most
from bridge.surgery.static.lattice import (
    Columns,
    NoRuleError,
    Tensor,
    columns,
    count,
    length,
    prefix,
    tagged,
)
from bridge.surgery.static.rows import compact, pick


def slice_(g: Graph, call: Call) -> Tensor:
    """Fixed axes with constant limits plainly; then one axis of rows after the other."""
    x = call.input(0)
    starts = elements(call.input(1), "the start of the slice")
    ends = elements(call.input(2), "the end of the slice")
    axes = constants(call.optional(3), "axes") if call.optional(3) else list(range(len(starts)))
    steps = constants(call.optional(4), "the step") if call.optional(4) else [1] * len(starts)
    limits = {
        axis % x.rank: (start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }
    plain = {
        axis: (start, end, step)
        for axis, (start, end, step) in limits.items()
        if isinstance(x.dims[axis], int) and isinstance(start, int) and isinstance(end, int)
    }
    x = _slice_fixed(g, x, plain)
    for axis, (start, end, step) in limits.items():
        if axis in plain:
            continue
        if step == -1:
            x = _reverse(g, x, axis, start, end)
        elif step == 1:
            x = slice_axis(g, x, axis, start, end)
        else:
            raise NoRuleError(f"takes every {step}th row of a data-dependent number")
    return x


def _slice_fixed(g: Graph, x: Tensor, limits: dict[int, tuple[int, int, int]]) -> Tensor:
    if not limits:
        return x
    starts, ends, steps = (g.int64(*numbers) for numbers in zip(*limits.values(), strict=True))
    cut = g.emit("Slice", [x, starts, ends, g.int64(*limits), steps])
    dims = tuple(cut.shape[k] if k in limits else dim for k, dim in enumerate(x.dims))
    space = x.space
    if isinstance(space, Columns) and space.axis in limits:
        start, end, step = limits[space.axis]
        kept = space.spaces[python_slice(start, end, step)]
        space = columns(kept, space.axis) if kept else None
    return tagged(cut, dims, space=space, iota=x.iota)


def python_slice(start: int, end: int, step: int) -> slice:
    """The limits of a Slice as Python reads them.

    To Python an end of -1 is the last; ONNX writes "before the first" as a hugely negative end.
    """
    return slice(start, None if step < 0 and end < -UNBOUNDED else end, step)


def slice_axis(g: Graph, x: Tensor, axis: int, start: Int, end: Int) -> Tensor:
    """Rows `start` to `end` of an axis; negative limits count from the end.

    All of a group: itself. From 0: the first rows, compacted. From a constant: compacted, cut in
    front. From a count: compacted, Gather at iota + start.
    """
    dim = x.dims[axis]
    rows = count(dim)
    start = _from_front(g, start, rows)
    end = rows if lo(end) >= UNBOUNDED else _from_front(g, end, rows)
    if start == 0 and surely_at_most(rows, end):
        return x
    end = minimum(g, end, rows)
    if start == 0:
        return compact(g, x, axis, end)
    taken = prefix(maximum(g, end - start, 0))
    x = compact(g, x, axis)
    if isinstance(start, int):
        stop = start + length(taken)
        cut = g.emit("Slice", [x, g.int64(start), g.int64(stop), g.int64(axis)])
        dims = (*x.dims[:axis], taken, *x.dims[axis + 1 :])
        return replace(tagged(cut, dims, space=x.space), range=x.range, magnitude=x.magnitude)
    places = g.emit("Add", [g.count(start), g.constant(np.arange(length(taken)))])
    return pick(g, x, axis, taken, places)


def _from_front(g: Graph, limit: Int, rows: Int) -> Int:
    """A limit that may count from the end, as a number of rows not below 0."""
    if lo(limit) >= 0:
        return limit
    if hi(limit) < 0:
        return maximum(g, rows + limit, 0)
    negative = g.emit("Less", [g.count(limit), g.int64(0)])
    wrapped = g.emit("Where", [negative, g.count(rows + limit), g.count(limit)])
    bounds = (min(lo(limit), lo(rows + limit)), max(hi(limit), hi(rows)))
    return maximum(g, of(Unknown(wrapped.id, *bounds)), 0)


def _reverse(g: Graph, x: Tensor, axis: int, start: Int, end: Int) -> Tensor:
    """All rows in reversed order: compacted, Gather at count - 1 - iota."""
    rows = count(x.dims[axis])
    from_last = start == -1 or surely_at_most(rows - 1, start)
    if not (from_last and hi(end) < -UNBOUNDED):
        raise NoRuleError("takes rows backwards from a place other than the last to the first")
    x = compact(g, x, axis)
    dim = x.dims[axis]
    iota = g.constant(np.arange(length(dim)))
    return pick(g, x, axis, dim, g.emit("Sub", [g.count(rows - 1), iota]))
