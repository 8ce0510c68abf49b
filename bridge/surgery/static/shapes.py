"""Rules for operators that read or write shapes: a dimension may be a number of rows there."""

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from bridge.surgery.static.call import Call, elements
from bridge.surgery.static.counts import maximum
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.groups import layout, merge
from bridge.surgery.static.integers import Int, Linear, divide, hi, product
from bridge.surgery.static.lattice import (
    Columns,
    Dim,
    Group,
    NoRuleError,
    Space,
    Tensor,
    count,
    length,
    position_space,
    prefix,
    tagged,
)
from bridge.surgery.static.rows import as_dtype, data


def shape(g: Graph, call: Call) -> Tensor:
    """The true lengths: a Concat of constants and counts."""
    x = call.input(0)
    start, end = call.integer("start", 0), call.integer("end", x.rank)
    lengths = [count(dim) for dim in x.dims[start:end]]
    if not lengths:
        return g.int64()
    holders = [g.count(n) for n in lengths]
    whole = holders[0] if len(holders) == 1 else g.emit("Concat", holders, axis=0)
    return g.followed(whole, _vector(lengths))


def size(g: Graph, call: Call) -> Tensor:
    """The true number of elements."""
    x = call.input(0)
    total = product(count(dim) for dim in x.dims)
    if total is None:
        raise NoRuleError("multiplies two numbers of rows")
    scalar = g.emit("Squeeze", [g.count(total), g.int64(0)])
    return g.followed(scalar, _vector([total]).reshape(()))


def _vector(numbers: list[Int]) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    values = np.empty(len(numbers), object)
    values[:] = numbers
    return values


# Reshape


def reshape(g: Graph, call: Call) -> Tensor:
    """0 and -1 are solved over symbolic lengths; then every axis of rows must stay whole.

    It may keep its place, take fixed neighbours in (a merged group), or give them back.
    """
    x = call.input(0)
    target = elements(call.input(1), "the target shape")
    if not call.integer("allowzero", 0):
        target = [count(x.dims[k]) if n == 0 else n for k, n in enumerate(target)]
    return reshape_to(g, x, _solved(x, target))


def flatten(g: Graph, call: Call) -> Tensor:
    """A reshape to two axes."""
    x = call.input(0)
    axis = call.integer("axis", 1)
    axis += x.rank if axis < 0 else 0
    halves = [product(count(dim) for dim in half) for half in (x.dims[:axis], x.dims[axis:])]
    if None in halves:
        raise NoRuleError("would make one axis of two data-dependent numbers of rows")
    return reshape_to(g, x, [n for n in halves if n is not None])


def _solved(x: Tensor, target: list[Int]) -> list[Int]:
    open_ = [k for k, n in enumerate(target) if n == -1]
    if not open_:
        return target
    total = product(count(dim) for dim in x.dims)
    rest = product(n for n in target if n != -1)
    solved: Int | None = None
    if isinstance(rest, int) and total is not None:
        solved = divide(total, rest)
    elif isinstance(total, Linear) and isinstance(rest, Linear):
        factor = divide(total.terms[0][1], rest.terms[0][1])
        solved = factor if isinstance(factor, int) and rest * factor == total else None
    elif total is None:
        solved = _by_cancelling([count(dim) for dim in x.dims], [n for n in target if n != -1])
    if solved is None and total is None:
        raise NoRuleError("reshapes two data-dependent axes into one, or one into two")
    if solved is None:
        raise NoRuleError(f"cannot solve the -1 in the target shape for {x.shape}")
    return [solved if n == -1 else n for n in target]


def _by_cancelling(source: list[Int], target: list[Int]) -> Int | None:
    """The missing factor of `target`, where each symbolic one of it occurs in `source`."""
    left = list(source)
    for n in target:
        if isinstance(n, Linear):
            if n not in left:
                return None
            left.remove(n)
    total = product(left)
    return None if total is None else divide(total, prod(n for n in target if isinstance(n, int)))


@dataclass(frozen=True, slots=True)
class _Block:
    """Neighbouring source axes that become neighbouring target axes."""

    source: range
    target: range


def reshape_to(g: Graph, x: Tensor, target: list[Int]) -> Tensor:
    """`x` as an array of the given true shape."""
    if not x.groups and not any(isinstance(n, Linear) for n in target):
        x = data(g, x) if isinstance(x.space, Columns) else x
        dense = g.emit("Reshape", [x, g.int64(*(n for n in target if isinstance(n, int)))])
        return tagged(dense, dense.shape, space=x.space)
    blocks = _blocks(x, target)
    moved = {
        block.source[0]: block.target[0]
        for block in blocks
        if len(block.source) == len(block.target) == 1
    }
    space = _reshaped_space(x, target, moved)
    if space is None:
        x = data(g, x)
    dims: list[Dim] = []
    for block in blocks:
        dims += _block_dims(g, [x.dims[k] for k in block.source], [target[k] for k in block.target])
    dense = g.emit("Reshape", [x, g.int64(*(length(dim) for dim in dims))])
    iota = None
    if x.iota in moved and dims[moved[x.iota]] == x.dims[x.iota]:
        iota = moved[x.iota]
    return tagged(dense, dims, space=space, iota=iota)


def _reshaped_space(x: Tensor, target: list[Int], moved: dict[int, int]) -> Space:
    if not isinstance(x.space, Columns):
        return x.space
    axis = moved.get(x.space.axis)
    kept = axis is not None and target[axis] == len(x.space.spaces)
    return Columns(axis, x.space.spaces) if kept and axis is not None else None


def _blocks(x: Tensor, target: list[Int]) -> list[_Block]:
    """Pair axes from the left: the shorter side takes its next axis in until both are equal."""
    source = [count(dim) for dim in x.dims]
    blocks: list[_Block] = []
    i = j = 0
    while i < len(source) or j < len(target):
        start, stop = (i, j), (min(i + 1, len(source)), min(j + 1, len(target)))
        i, j = stop
        while (left := product(source[start[0] : i])) != (right := product(target[start[1] : j])):
            if left is None or right is None or (i, j) == (len(source), len(target)):
                raise NoRuleError(
                    f"reshapes {list(x.shape)} so that the data-dependent axis mixes with others"
                )
            if i < len(source) and (hi(left) <= hi(right) or j == len(target)):
                i += 1
            else:
                j += 1
        blocks.append(_Block(range(start[0], i), range(start[1], j)))
    return blocks


def _block_dims(g: Graph, source: list[Dim], target: list[Int]) -> list[Dim]:
    groups = [k for k, dim in enumerate(source) if isinstance(dim, Group)]
    if not groups:
        return [n for n in target if isinstance(n, int)]
    open_ = [k for k, n in enumerate(target) if isinstance(n, Linear)]
    group = source[groups[0]]
    if len(groups) > 1 or len(open_) != 1 or not isinstance(group, Group):
        raise NoRuleError("reshapes two data-dependent axes into one, or one into two")
    (at,) = open_
    left, right = prod(map(length, source[: groups[0]])), prod(map(length, source[groups[0] + 1 :]))
    outer = prod(int(n) for n in target[:at] if isinstance(n, int))
    inner = prod(int(n) for n in target[at + 1 :] if isinstance(n, int))
    dim = _regrouped(g, group, (left, right), (outer, inner), target[at])
    return [*(n for n in target[:at] if isinstance(n, int)), dim,
            *(n for n in target[at + 1 :] if isinstance(n, int))]  # fmt: skip


def _regrouped(
    g: Graph, group: Group, around: tuple[int, int], left_out: tuple[int, int], rows: Int
) -> Dim:
    """The axis of `rows` made of a group and its neighbours, but for those left out again."""
    base, before, after = group.merged or (group, 1, 1)
    before, after = before * around[0], after * around[1]
    if not (before % left_out[0] or after % left_out[1]):
        dim = merge(g, base, before // left_out[0], after // left_out[1])
        if count(dim) == rows:
            return dim
    whole = prefix(rows)
    fits = length(whole) * left_out[1] == group.length * around[1]
    if group.is_prefix and left_out[0] == around[0] and fits:
        return whole
    raise NoRuleError("reshapes a data-dependent axis so that it mixes with others")


# Expand, Tile, ConstantOfShape, Range


def expand(g: Graph, call: Call) -> Tensor:
    """An axis of 1 expanded to a count gets the layout of the group that introduced the count."""
    x = call.input(0)
    target = elements(call.input(1), "the target shape")
    rank = max(x.rank, len(target))
    dims = [
        _expanded(g, dim, n)
        for dim, n in zip(
            [1] * (rank - x.rank) + list(x.dims),
            [1] * (rank - len(target)) + target,
            strict=True,
        )
    ]
    if isinstance(x.space, Columns):
        x = data(g, x)
    dense = g.emit("Expand", [x, g.int64(*map(length, dims))])
    iota = None if x.iota is None else x.iota + rank - x.rank
    return tagged(dense, dims, space=x.space, iota=iota)


def _expanded(g: Graph, dim: Dim, rows: Int) -> Dim:
    if dim == 1:
        return layout(g, rows)
    if rows == 1 or count(dim) == rows:
        return dim
    raise NoRuleError(
        f"expands an axis of {'a data-dependent number of' if isinstance(dim, Group) else dim} "
        "rows to another number of rows"
    )


def tile(g: Graph, call: Call) -> Tensor:
    """Rows repeated a constant number of times are concatenated.

    A fixed axis repeated as often as there are rows is a merged group.
    """
    x = call.input(0)
    repeats = elements(call.input(1), "the number of repeats")
    if isinstance(x.space, Columns):
        x = data(g, x)
    for axis, times in enumerate(repeats):
        dim = x.dims[axis]
        if times == 1:
            continue
        if isinstance(times, int) and isinstance(dim, int):
            shape = [times if k == axis else 1 for k in range(x.rank)]
            dense = g.emit("Tile", [x, g.int64(*shape)])
            dims: list[Dim] = [*x.dims[:axis], dim * times, *x.dims[axis + 1 :]]
        elif isinstance(dim, int):
            dense, dims = _tiled_by_rows(g, x, axis, layout(g, times), dim)
        else:
            raise NoRuleError("repeats a data-dependent number of rows")
        x = replace(tagged(dense, dims, space=x.space), range=x.range, magnitude=x.magnitude)
    return x


def _tiled_by_rows(
    g: Graph, x: Tensor, axis: int, rows: Dim, inner: int
) -> tuple[Tensor, list[Dim]]:
    opened = g.emit("Unsqueeze", [x, g.int64(axis)])
    shape = [*x.shape[:axis], length(rows), *x.shape[axis:]]
    spread = g.emit("Expand", [opened, g.int64(*shape)])
    merged = merge(g, rows, 1, inner) if isinstance(rows, Group) else rows * inner
    dims: list[Dim] = [*x.dims[:axis], merged, *x.dims[axis + 1 :]]
    return g.emit("Reshape", [spread, g.int64(*map(length, dims))]), dims


def constant_of_shape(g: Graph, call: Call) -> Tensor:
    """The value expanded; a count in the shape as in `expand`."""
    value = call.tensor("value")
    filler = g.constant(np.zeros(1, np.float32) if value is None else value.reshape(1))
    dims = [layout(g, n) for n in elements(call.input(0), "the shape")]
    dense = g.emit("Expand", [filler, g.int64(*map(length, dims))])
    return replace(tagged(dense, dims), range=filler.range, magnitude=filler.magnitude)


def range_(g: Graph, call: Call) -> Tensor:
    """From 0 to a count by 1: constant positions in the layout of the group that owns the count.

    From another start: those positions as data, plus the start.
    """
    (start,), (limit,), step = (
        elements(call.input(k), what)
        for k, what in enumerate(("the start", "the limit", "the step"))
    )
    if step != [1]:
        raise NoRuleError("counts to a number of rows by other steps than 1")
    dim = layout(g, maximum(g, limit - start, 0))
    dense = g.constant(np.arange(length(dim)), call.input(1).dtype)
    iota = replace(tagged(dense, (dim,), space=position_space(dim), iota=0), values=None)
    if start == 0:
        return iota
    moved = g.emit("Add", [data(g, iota), as_dtype(g, g.count(start), iota.dtype)])
    return tagged(moved, (dim,))
