"""Rules for reading at computed places: Gather, GatherElements, GatherND, Compress."""

from dataclasses import replace

from bridge.surgery.static.call import Call, make_call
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import (
    Columns,
    Group,
    NoRuleError,
    Space,
    Tensor,
    column_spaces,
    columns,
    count,
    tagged,
)
from bridge.surgery.static.rows import compact, data, from_front, in_range, unify
from bridge.surgery.static.selection import nonzero
from bridge.surgery.static.shapes import reshape


def gather(g: Graph, call: Call) -> Tensor:
    """Positions in the very group they index are used as they are; any other index is data.

    Given    x [G, 4], index int64[H] in space G          Result  Gather(x, index) [H, 4]
    Given    x [G, 4] scattered, index of plain numbers   Result  compact x first
    Given    x [N, 4], index int64[H] that is iota over N Result  x itself as [H, 4]

    The result's values are positions in the same space as x's values.
    """
    x, index = call.input(0), call.input(1)
    axis = call.axis(x.rank, 0)
    x, index = same_positions(g, x, index, axis)
    dims = (*x.dims[:axis], *index.dims, *x.dims[axis + 1 :])
    if _is_all(index, x.shape[axis]):
        iota = axis if x.iota == axis else None
        return replace(tagged(replace(x, dims=x.shape), dims, space=x.space, iota=iota),
                       values=None, range=x.range)  # fmt: skip
    space = _gathered_space(g, x, index, axis)
    index = in_range(g, index, x.shape[axis])
    return tagged(g.emit("Gather", [x, index], axis=axis), dims, space=space)


def same_positions(g: Graph, x: Tensor, index: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """`x` and `index` so that the index counts dense rows of `x` along the axis, from the front."""
    dim = x.dims[axis]
    if isinstance(dim, Group) and index.space == dim:
        return x, index
    index = data(g, index)
    if isinstance(dim, Group):
        x = compact(g, x, axis)
        index = from_front(g, index, count(dim))
    return x, index


def _is_all(index: Tensor, rows: int) -> bool:
    """Whether the index is every dense row in order, of which a group is meant."""
    return index.iota == 0 and index.rank == 1 and bool(index.groups) and index.shape == (rows,)


def _gathered_space(g: Graph, x: Tensor, index: Tensor, axis: int) -> Space:
    space = x.space
    if not isinstance(space, Columns):
        return space
    if space.axis != axis:
        shift = index.rank - 1 if space.axis > axis else 0
        return Columns(space.axis + shift, space.spaces)
    places = g.array(index)
    if places is None or index.rank > 1:
        raise NoRuleError("takes a column of an index matrix that is known at run time only")
    chosen = [space.spaces[int(k)] for k in places.reshape(-1)]
    return columns(chosen, axis) if chosen else None


def gather_elements(g: Graph, call: Call) -> Tensor:
    """As Gather on its axis. Along the others a fixed index reads the first rows of x."""
    x, index = call.input(0), call.input(1)
    axis = call.axis(x.rank, 0)
    if isinstance(x.space, Columns):
        x = data(g, x)
    x, index = same_positions(g, x, index, axis)
    for k in range(x.rank):
        if k != axis and isinstance(index.dims[k], Group):
            (x, index), _ = unify(g, (x, k), (index, k))
        elif k != axis:
            x = compact(g, x, k)
    index = in_range(g, index, x.shape[axis])
    return tagged(g.emit("GatherElements", [x, index], axis=axis), index.dims, space=x.space)


def gather_nd(g: Graph, call: Call) -> Tensor:
    """As Gather for each column of the index."""
    x, index = call.input(0), call.input(1)
    depth = index.dims[-1]
    if call.integer("batch_dims", 0):
        raise NoRuleError("has batch dimensions beside data-dependent rows")
    if isinstance(depth, Group):
        raise NoRuleError("indexes as many axes as there are rows")
    if depth == 1:
        return gather(g, make_call("Gather", [x, without_last(g, index)], axis=0))
    x, index = same_positions_nd(g, x, index, depth)
    if isinstance(x.space, Columns):
        x = data(g, x)
    index = in_range(g, index, min(x.shape[:depth]))
    dims = (*index.dims[:-1], *x.dims[depth:])
    return tagged(g.emit("GatherND", [x, index]), dims, space=x.space)


def same_positions_nd(g: Graph, x: Tensor, index: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """As `same_positions` for the columns of an index matrix, one per leading axis of `x`."""
    spaces = column_spaces(index, index.rank - 1)
    if spaces is None or any(
        space is not None and space != dim
        for space, dim in zip(spaces, x.dims[:depth], strict=True)
    ):
        index, spaces = data(g, index), (None,) * depth
    counted = [k for k in range(depth) if isinstance(x.dims[k], Group) and spaces[k] != x.dims[k]]
    for k in counted:
        x = compact(g, x, k)
    if counted and not (index.range and index.range[0] >= 0):
        raise NoRuleError("indexes data-dependent rows, maybe from the end, by several columns")
    return x, index


def without_last(g: Graph, index: Tensor) -> Tensor:
    """An index matrix of one column as a vector."""
    dense = g.emit("Squeeze", [index, g.int64(index.rank - 1)])
    space = index.space.spaces[0] if isinstance(index.space, Columns) else index.space
    iota = index.iota if index.iota != index.rank - 1 else None
    return replace(tagged(dense, index.dims[:-1], space=space, iota=iota), range=index.range)


def compress(g: Graph, call: Call) -> Tensor:
    """NonZero of the condition, then Gather; without an axis, of the flattened tensor."""
    x, axis = call.input(0), call.integer("axis", 0)
    if not call.has("axis"):
        x = reshape(g, make_call("Reshape", [x, g.int64(-1)]))
    places = without_first(g, nonzero(g, make_call("NonZero", [call.input(1)])))
    return gather(g, make_call("Gather", [x, places], axis=axis))


def without_first(g: Graph, matrix: Tensor) -> Tensor:
    """[1, n] as [n]."""
    dense = g.emit("Squeeze", [matrix, g.int64(0)])
    space = matrix.space.spaces[0] if isinstance(matrix.space, Columns) else matrix.space
    return replace(
        tagged(dense, matrix.dims[1:], space=space, iota=0 if matrix.iota == 1 else None),
        range=matrix.range,
    )
