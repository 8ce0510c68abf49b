"""The four verbs of the rules: unify, compact, data, fill. And the groups they speak of.

A rule never looks at masked rows. Whatever would let them act goes through one of these:
`unify` where rows of several tensors meet, `compact` where rows must lie first, `data` where
somebody reads positions as numbers, `fill` where rows are mixed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int, Linear, hi, lo, of, surely_at_most
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

# Groups


def selection(g: Graph, mask: Tensor, at_most: tuple[Int, ...] = ()) -> Group:
    """The rows where a bool[N] tensor holds, left where they are. Their count is its sum.

    Args:
        g: the graph.
        mask: bool[N].
        at_most: integers that the count cannot exceed.
    """
    ones = g.emit("Cast", [mask], to=TensorProto.INT64)
    total = g.emit("ReduceSum", [ones, g.int64(0)], keepdims=1)
    rows = mask.shape[0]
    group = Group(rows, of(g.unknown(total, 0, rows, at_most)), mask.id)
    return register(g, group)


def register(g: Graph, group: Group) -> Group:
    """Remember the layout that an axis of `group.count` rows has; the first one stays."""
    if not group.is_prefix:
        g.layouts.setdefault(group.count, group)
    return group


def layout(g: Graph, rows: Int) -> Dim:
    """The axis for a length that the source computed: the group that introduced the count.

    Tensors made to match such a group (Expand, Range, ConstantOfShape) then meet it as it is.
    """
    return g.layouts.get(rows, prefix(rows)) if isinstance(rows, Linear) else rows


def mask_of(g: Graph, group: Group) -> Tensor:
    """bool[length], true on meant rows."""
    if group.mask is not None:
        return g.tensor(group.mask)
    return g.emit("Less", [g.constant(np.arange(group.length)), g.count(group.count)])


def along(g: Graph, vector: Tensor, axis: int, rank: int) -> Tensor:
    """A dense [N] tensor as [1, .., N, .., 1], N on `axis` of `rank`."""
    if rank == 1:
        return vector
    shape = [1] * rank
    shape[axis] = vector.shape[0]
    return g.emit("Reshape", [vector, g.int64(*shape)])


def merge(g: Graph, group: Group, left: int, right: int) -> Dim:
    """The axis that `[left, group, right]` becomes when it is reshaped into one."""
    rows = group.count * (left * right)
    if left == right == 1:
        return group
    if group.is_prefix and left == 1:
        return prefix(rows)
    shape = (left, group.length, right)
    column = g.emit("Reshape", [mask_of(g, group), g.int64(1, group.length, 1)])
    spread = g.emit("Expand", [column, g.int64(*shape)])
    mask = g.emit("Reshape", [spread, g.int64(-1)])
    merged = (group, left, right)
    return register(g, Group(int(np.prod(shape)), rows, mask.id, merged=merged))


def join(g: Graph, parts: Sequence[Dim]) -> Dim:
    """The axis of a concatenation."""
    if not any(isinstance(part, Group) for part in parts):
        return sum(map(length, parts))
    rows: Int = sum((count(part) for part in parts[1:]), count(parts[0]))
    *front, last = parts
    if isinstance(last, Group) and last.is_prefix and all(isinstance(part, int) for part in front):
        return Group(sum(map(length, parts)), rows, parts=tuple(parts))
    masks = [
        mask_of(g, part) if isinstance(part, Group) else g.constant(np.ones(part, bool))
        for part in parts
    ]
    mask = g.emit("Concat", masks, axis=0)
    return register(g, Group(mask.shape[0], rows, mask.id, parts=tuple(parts)))


# Counts


def minimum(g: Graph, a: Int, b: Int) -> Int:
    """`min(a, b)`: decided by bounds, or one unknown for equal operands."""
    if surely_at_most(a, b):
        return a
    if surely_at_most(b, a):
        return b
    holder = _pick_smaller(g, a, b, first_if_less=True)
    return of(g.unknown(holder, min(lo(a), lo(b)), min(hi(a), hi(b)), (a, b)))


def maximum(g: Graph, a: Int, b: Int) -> Int:
    """`max(a, b)`: decided by bounds, or one unknown for equal operands."""
    if surely_at_most(a, b):
        return b
    if surely_at_most(b, a):
        return a
    holder = _pick_smaller(g, a, b, first_if_less=False)
    bounds = tuple(_positive(x) for x, y in ((a, b), (b, a)) if hi(y) <= 0 <= lo(_positive(x)))
    return of(g.unknown(holder, max(lo(a), lo(b)), max(hi(a), hi(b)), bounds))


def _positive(x: Int) -> Int:
    """`x` without a negative constant: not below `max(x, 0)` where it is nowhere negative."""
    return x - min(x.constant, 0) if isinstance(x, Linear) else max(x, 0)


def _pick_smaller(g: Graph, a: Int, b: Int, *, first_if_less: bool) -> Tensor:
    # Integer Min and Max lack kernels in several runtimes; Less and Where exist everywhere.
    x, y = sorted((g.count(a), g.count(b)), key=lambda t: t.id)
    less = g.emit("Less", [x, y])
    return g.emit("Where", [less, x, y] if first_if_less else [less, y, x])


def clamp(g: Graph, x: Int, low: Int, high: Int) -> Int:
    """`min(max(x, low), high)`."""
    return minimum(g, maximum(g, x, low), high)


# Verbs


def fill(g: Graph, x: Tensor, axis: int, value: float | int | bool) -> Tensor:
    """`x` with `value` in the masked rows of an axis.

    Given    x float32[G, 4], G scattered over N rows
    Result   Where(mask[N, 1], x, value) float32[G, 4]
    """
    group = x.dims[axis]
    if not isinstance(group, Group):
        return x
    mask = along(g, mask_of(g, group), axis, x.rank)
    if x.dtype == np.bool_:
        filled = g.emit("Or", [g.emit("Not", [mask]), x]) if value else g.emit("And", [mask, x])
    else:
        filled = g.emit("Where", [mask, x, g.constant(np.array(value, x.dtype))])
    range_ = None
    if x.range is not None:
        range_ = (min(x.range[0], int(value)), max(x.range[1], int(value)))
    return replace(tagged(filled, x.dims, space=x.space), range=range_, magnitude=x.magnitude)


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
    cut = g.emit("Slice", [x, g.int64(0), g.int64(length(dim)), g.int64(axis)])
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


# Shared by rules that index


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
