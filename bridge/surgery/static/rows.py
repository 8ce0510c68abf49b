"""The four verbs of the rules: unify, compact, data, fill.

A rule never looks at masked rows. Whatever would let them act goes through one of these:
`unify` where rows of several tensors meet, `compact` where rows must lie first, `data` where
somebody reads positions as numbers, `fill` where rows are mixed.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from bridge.surgery.static.counts import minimum
from bridge.surgery.static.firsts import first_rows
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.groups import along, mask_of
from bridge.surgery.static.integers import Int
from bridge.surgery.static.lattice import (
    Columns,
    Dim,
    Group,
    NoRuleError,
    Tensor,
    count,
    length,
    prefix,
    tagged,
)

_KEY_LIMIT = 1 << 24  # float32 holds every integer up to here; compaction sorts float keys


def fill(g: Graph, x: Tensor, axis: int, value: float | int | bool) -> Tensor:
    """`x` with `value` in the masked rows of an axis.

    Given    x float32[G, 4], G scattered over N rows
    Result   Where(mask[N, 1], x, value) float32[G, 4]
    """
    group = x.dims[axis]
    if not isinstance(group, Group):
        return x
    mask = along(g, mask_of(g, group), axis, x.rank)
    filled = choose(g, mask, x, g.constant(np.array(value, x.dtype)))
    range_ = x.range and (min(x.range[0], int(value)), max(x.range[1], int(value)))
    return replace(tagged(filled, x.dims, space=x.space), range=range_, magnitude=x.magnitude)


def choose(g: Graph, mask: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """`x` where the mask holds, else `other`, dense: Where for every element type.

    onnxruntime's Where has no kernel for bool and the smaller integers.
    """
    if x.dtype == np.bool_:
        kept, filled = g.emit("And", [mask, x]), g.emit("And", [g.emit("Not", [mask]), other])
        return kept if g.array(other) == np.False_ else g.emit("Or", [kept, filled])
    if x.dtype.kind in "iu" and x.dtype not in (np.int32, np.int64, np.uint8):
        wide = [as_dtype(g, y, np.dtype(np.int64)) for y in (x, other)]
        return as_dtype(g, g.emit("Where", [mask, *wide]), x.dtype)
    return g.emit("Where", [mask, x, other])


def fill_all(g: Graph, x: Tensor, value: float | int | bool) -> Tensor:
    """`x` with `value` in every masked entry."""
    for axis, _ in x.groups:
        x = fill(g, x, axis, value)
    return x


def compact(g: Graph, x: Tensor, axis: int, limit: Int | None = None) -> Tensor:
    """`x` with the meant rows of an axis first, in order; of those the first `limit`, if given.

    One stable TopK on the mask per group, one Gather per tensor:

    Given    x float32[G, 4], G scattered over N rows
    Result   Gather(x, TopK(Where(mask, N..1, 0)).indices) float32[P, 4], P a prefix group
    """
    dim = x.dims[axis]
    rows = count(dim) if limit is None else minimum(g, count(dim), limit)
    result = prefix(rows)
    dims = (*x.dims[:axis], result, *x.dims[axis + 1 :])
    keep = replace(x, iota=None if x.iota == axis else x.iota)
    if not isinstance(dim, Group) or dim.is_prefix:
        return _first(g, keep, axis, result)
    if dim.length > _KEY_LIMIT:
        raise NoRuleError(f"{dim.length} rows are too many to be brought into order")
    order = g.constant(np.arange(dim.length, 0, -1, dtype=np.float32))
    key = g.emit("Where", [mask_of(g, dim), order, g.constant(np.float32(0))])
    _, places = topk(g, key, length(result), axis=0)
    moved = g.emit("Gather", [x, places], axis=axis)
    return replace(
        tagged(moved, dims, space=x.space, iota=keep.iota), range=x.range, magnitude=x.magnitude
    )


def _first(g: Graph, x: Tensor, axis: int, dim: Dim) -> Tensor:
    """The first dense rows of an axis, as the rows of `dim`."""
    dims = (*x.dims[:axis], dim, *x.dims[axis + 1 :])
    if length(dim) == x.shape[axis]:
        return replace(x, dims=dims, values=None)
    cut = first_rows(g, x, axis, length(dim))
    return replace(
        tagged(cut, dims, space=x.space, iota=x.iota), range=x.range, magnitude=x.magnitude
    )


def topk(g: Graph, x: Tensor, k: int, *, axis: int, largest: int = 1) -> tuple[Tensor, Tensor]:
    """Values and indices of a sorted TopK, dense. Equal values: the lower index first."""
    attributes = {"axis": axis, "largest": largest, "sorted": 1}
    protos = [helper.make_attribute(name, value) for name, value in attributes.items()]
    values, indices = g.emit_all("TopK", [x, g.int64(k)], protos, 2)
    return values, replace(indices, range=(0, max(x.shape[axis] - 1, 0)))


def data(g: Graph, x: Tensor) -> Tensor:
    """`x` as the numbers the source holds: positions become ranks among the meant rows.

    Given    x int64[..], positions in the scattered group G
    Result   Gather(CumSum(mask of G, exclusive), x)
    """
    if x.space is None:
        return x
    if isinstance(x.space, Columns):
        axis = x.space.axis
        parts = [data(g, column(g, x, axis, k)) for k in range(x.shape[axis])]
        return tagged(g.emit("Concat", parts, axis=axis), x.dims)
    ones = g.emit("Cast", [mask_of(g, x.space)], to=TensorProto.INT64)
    ranks = g.emit("CumSum", [ones, g.constant(np.int64(0))], exclusive=1)
    if not (x.iota == 0 and x.dims == (x.space,)):
        ranks = g.emit("Gather", [ranks, x], axis=0)
    ranks = as_dtype(g, ranks, x.dtype)
    return replace(tagged(ranks, x.dims), range=(0, max(x.space.length - 1, 0)))


def column(g: Graph, x: Tensor, axis: int, k: int) -> Tensor:
    """Entry k of a fixed axis, the axis kept with length 1."""
    spaces = x.space.spaces if isinstance(x.space, Columns) and x.space.axis == axis else None
    one = g.emit("Gather", [x, g.int64(k)], axis=axis)
    dims = (*x.dims[:axis], 1, *x.dims[axis + 1 :])
    return replace(tagged(one, dims, space=spaces[k] if spaces else x.space), range=x.range)


def unify(g: Graph, *operands: tuple[Tensor, int]) -> tuple[list[Tensor], Dim]:
    """Tensors whose rows meet along an axis of each, brought to one layout; and that axis.

    The same group, or prefix groups of the same count: nothing to do. Groups of the same count
    but different layout: all compacted. A fixed axis of length 1 broadcasts.

    Raises:
        NoRuleError: rows of different selections meet, or masked rows a fixed length.
    """
    tensors = [x for x, _ in operands]
    dims = [x.dims[axis] for x, axis in operands]
    groups = list(dict.fromkeys(dim for dim in dims if isinstance(dim, Group)))
    fixed = [dim for dim in dims if isinstance(dim, int) and dim != 1]
    if not groups:
        return tensors, fixed[0] if fixed else 1
    if fixed:
        raise NoRuleError(
            f"a data-dependent number of rows (at most {groups[0].length}) meets the fixed length "
            f"{fixed[0]}"
        )
    if len(groups) == 1:
        return tensors, groups[0]
    if len({group.count for group in groups}) > 1:
        raise NoRuleError(
            "rows of different selections meet (at most "
            + " and ".join(str(group.length) for group in groups)
            + "); nothing shows that there are equally many"
        )
    tensors = [
        compact(g, x, axis) if isinstance(x.dims[axis], Group) else x for x, axis in operands
    ]
    return tensors, prefix(groups[0].count)


# Shared by rules that read and write at places


def in_range(g: Graph, index: Tensor, rows: int) -> Tensor:
    """`index` whose masked entries cannot point outside of `rows` dense rows."""
    legal = index.range is not None and -rows <= index.range[0] and index.range[1] < rows
    return index if legal else fill_all(g, index, 0)


def from_front(g: Graph, index: Tensor, rows: Int) -> Tensor:
    """`index` with negative entries counted from the end of an axis of `rows` rows."""
    if index.range is not None and index.range[0] >= 0:
        return index
    moved = g.emit("Add", [index, as_dtype(g, g.count(rows), index.dtype)])
    negative = g.emit("Less", [index, g.constant(np.zeros(1, index.dtype))])
    if index.rank == 0:
        moved, negative = (g.emit("Squeeze", [x, g.int64(0)]) for x in (moved, negative))
    return tagged(g.emit("Where", [negative, moved, index]), index.dims, space=index.space)


def pick(g: Graph, x: Tensor, axis: int, dim: Dim, places: Tensor) -> Tensor:
    """Rows of an axis at computed places, as the rows of the prefix `dim`."""
    if isinstance(dim, Group):
        places = g.emit("Where", [mask_of(g, dim), places, g.int64(0)])
    dims = (*x.dims[:axis], dim, *x.dims[axis + 1 :])
    rows = g.emit("Gather", [x, places], axis=axis)
    return replace(tagged(rows, dims, space=x.space), range=x.range, magnitude=x.magnitude)


def as_dtype(g: Graph, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """`x` as another element type; itself where it has that type."""
    return x if x.dtype == dtype else g.emit("Cast", [x], to=helper.np_dtype_to_tensor_dtype(dtype))
