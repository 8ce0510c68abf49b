"""Rules for what only moves elements: nothing is computed, every mark moves along."""

from dataclasses import replace

from onnx import helper

from bridge.surgery.static.call import Call, axes, copy, copy_all, elements
from bridge.surgery.static.elementwise import elementwise
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.groups import join
from bridge.surgery.static.integers import Int, lo
from bridge.surgery.static.lattice import (
    Columns,
    Dim,
    Group,
    NoRuleError,
    Space,
    Tensor,
    column_spaces,
    columns,
    count,
    length,
    tagged,
)
from bridge.surgery.static.rows import data, unify
from bridge.surgery.static.slices import slice_axis


def identity(g: Graph, call: Call) -> Tensor:
    """The tensor itself."""
    del g
    return call.input(0)


def cast(g: Graph, call: Call) -> Tensor:
    """To an integer type everything passes; to another type positions are data first."""
    x = call.input(0)
    if helper.tensor_dtype_to_np_dtype(call.integer("to", 0)).kind not in "iu":
        return elementwise(g, call)
    return tagged(copy(g, call), x.dims, space=x.space, iota=x.iota)


def cast_like(g: Graph, call: Call) -> Tensor:
    """Positions are data; of the second input only the element type counts."""
    x = data(g, call.input(0))
    return tagged(copy(g, call.with_inputs(x, call.input(1))), x.dims)


def transpose(g: Graph, call: Call) -> Tensor:
    """Axes, the axis of columns and the iota axis are permuted."""
    x = call.input(0)
    order = call.integers("perm") or list(reversed(range(x.rank)))
    moved = {old: new for new, old in enumerate(order)}
    space, iota = _marks(x, moved)
    return tagged(copy(g, call), [x.dims[k] for k in order], space=space, iota=iota)


def squeeze(g: Graph, call: Call) -> Tensor:
    """Fixed axes of length 1 go. A data-dependent axis is refused: its length is not 1.

    Without axes, one row would lose its axis in the source: that there is one row is excluded.
    """
    x = call.input(0)
    given = axes(call)
    if given is None and any(lo(count(dim)) <= 1 for _, dim in x.groups):
        g.assume(
            f"Squeeze '{call.node.name}', which names no axes, never meets exactly one row: "
            "it would drop the axis of rows"
        )
    gone = (
        [k for k, dim in enumerate(x.dims) if dim == 1]
        if given is None
        else [k % x.rank for k in given]
    )
    if any(isinstance(x.dims[k], Group) for k in gone):
        raise NoRuleError("squeezes an axis whose length depends on the data")
    kept = [k for k in range(x.rank) if k not in gone]
    moved = {old: new for new, old in enumerate(kept)}
    dense = g.emit("Squeeze", [x, g.int64(*gone)])
    space, iota = _marks(x, moved)
    return tagged(dense, [x.dims[k] for k in kept], space=space, iota=iota)


def unsqueeze(g: Graph, call: Call) -> Tensor:
    """Axes of length 1 are added."""
    x = call.input(0)
    given = axes(call) or []
    rank = x.rank + len(given)
    added = {k % rank for k in given}
    places = [k for k in range(rank) if k not in added]
    result: list[Dim] = [1] * rank
    for old, new in enumerate(places):
        result[new] = x.dims[old]
    space, iota = _marks(x, dict(enumerate(places)))
    return tagged(copy(g, call), result, space=space, iota=iota)


def _marks(x: Tensor, moved: dict[int, int]) -> tuple[Space, int | None]:
    """Space and iota after axis k moved to `moved[k]`; an axis that went is not in it."""
    space: Space = x.space
    if isinstance(space, Columns):
        axis = moved.get(space.axis)
        space = Columns(axis, space.spaces) if axis is not None else space.spaces[0]
    return space, None if x.iota is None else moved.get(x.iota)


def concat(g: Graph, call: Call) -> Tensor:
    """On a fixed axis: the other axes are unified. On a data-dependent one: the parts in a row.

    A fixed part followed by a prefix group is a prefix group; every other mix is scattered, its
    mask the parts' masks in a row. Parts without any row are left out.
    Spaces stay per column on a fixed axis, or where all parts agree; else positions are data.
    """
    first = call.input(0)
    axis = call.axis(first.rank, 0)
    xs = [x for x in call.inputs if x is not None and x.dims[axis] != 0] or [first]
    dims = list(first.dims)
    for k in range(first.rank):
        if k != axis:
            xs, dims[k] = unify(g, *((x, k) for x in xs))
    if len(xs) == 1:
        return xs[0]
    xs, space = _joined_spaces(g, xs, axis)
    dims[axis] = join(g, [x.dims[axis] for x in xs])
    return tagged(g.emit("Concat", xs, axis=axis), dims, space=space)


def _joined_spaces(g: Graph, xs: list[Tensor], axis: int) -> tuple[list[Tensor], Space]:
    spaces = {x.space for x in xs}
    if len(spaces) == 1 and not (isinstance(xs[0].space, Columns) and xs[0].space.axis == axis):
        return xs, xs[0].space
    if all(isinstance(x.dims[axis], int) for x in xs):
        parts = [column_spaces(x, axis) for x in xs]
        if all(part is not None for part in parts):
            return xs, columns([s for part in parts if part for s in part], axis)
    return [data(g, x) for x in xs], None


def split(g: Graph, call: Call) -> tuple[Tensor, ...]:
    """On a fixed axis columns take their spaces along. On rows, or by counts: one slice per part.

    Where a concatenation is split at its seams, the parts are the ones that were joined.
    """
    x = call.input(0)
    axis = call.axis(x.rank, 0)
    dim = x.dims[axis]
    sizes = call.optional(1)
    if isinstance(dim, Group) or (sizes is not None and not g.is_constant(sizes)):
        return _split_rows(g, call, x, axis, dim)
    parts = copy_all(g, call)
    start, results = 0, []
    for part in parts:
        stop = start + part.shape[axis]
        space = x.space
        if isinstance(space, Columns) and space.axis == axis:
            space = columns(space.spaces[start:stop], axis) if stop > start else None
        dims = (*x.dims[:axis], part.dims[axis], *x.dims[axis + 1 :])
        iota = None if x.iota == axis else x.iota
        results.append(tagged(part, dims, space=space, iota=iota))
        start = stop
    return tuple(results)


def _split_rows(g: Graph, call: Call, x: Tensor, axis: int, dim: Dim) -> tuple[Tensor, ...]:
    if len(call.node.output) == 1:
        return (x,)
    sizes = elements(call.optional(1), "the size of the parts")
    parts = dim.parts if isinstance(dim, Group) else ()
    at_seams = [count(part) for part in parts] == sizes
    start: Int = 0
    dense_start, results = 0, []
    for k, size in enumerate(sizes):
        if at_seams:
            part = parts[k]
            rows = length(part)
            cut = g.emit(
                "Slice",
                [x, g.int64(dense_start), g.int64(dense_start + rows), g.int64(axis)],
            )
            dims = (*x.dims[:axis], part, *x.dims[axis + 1 :])
            results.append(replace(tagged(cut, dims, space=x.space), range=x.range))
            dense_start += rows
        else:
            results.append(slice_axis(g, x, axis, start, start + size))
        start = start + size
    return tuple(results)
