"""Pad: where the amount and the rows add up to a constant, a tensor leaves the masked world."""

from dataclasses import replace

import numpy as np

from bridge.surgery.static.call import Call, constants, elements
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.groups import along, mask_of
from bridge.surgery.static.integers import Int
from bridge.surgery.static.lattice import (
    Dim,
    Group,
    NoRuleError,
    Tensor,
    count,
    length,
    prefix,
    tagged,
)
from bridge.surgery.static.rows import choose, compact, data


def pad(g: Graph, call: Call) -> Tensor:
    """Fixed axes by constants plainly. Behind rows, or by a count: compact, fill, cut or extend.

    Given    x [P, 6] of n rows, pads behind = K - n
    Result   Where(mask, x, value), cut or extended to K rows: [K, 6], nothing masked any more
    """
    x = data(g, call.input(0))
    given = elements(call.input(1), "the amount of padding")
    over = constants(call.optional(3), "axes") if call.optional(3) else list(range(x.rank))
    amounts = {axis % x.rank: (given[k], given[k + len(over)]) for k, axis in enumerate(over)}
    value = call.optional(2) or g.constant(np.zeros((), x.dtype))
    mode = call.text("mode", "constant")
    x = _pad_fixed(g, x, amounts, value, mode)
    for axis, (before, behind) in amounts.items():
        if _is_fixed(x.dims[axis], before, behind) or before == behind == 0:
            continue
        if before != 0 or mode != "constant":
            raise NoRuleError(
                "pads a data-dependent number of rows in front, or by repeating some of them"
            )
        x = _extend(g, x, axis, behind, value)
    return x


def _is_fixed(dim: Dim, before: Int, behind: Int) -> bool:
    return not isinstance(dim, Group) and isinstance(before, int) and isinstance(behind, int)


def _pad_fixed(
    g: Graph, x: Tensor, amounts: dict[int, tuple[Int, Int]], value: Tensor, mode: str
) -> Tensor:
    before, behind = [0] * x.rank, [0] * x.rank
    for axis, (first, last) in amounts.items():
        if not isinstance(x.dims[axis], Group) and isinstance(first, int) and isinstance(last, int):
            before[axis], behind[axis] = first, last
    if not any(before) and not any(behind):
        return x
    padded = g.emit("Pad", [x, g.int64(*before, *behind), value], mode=mode)
    dims = [d if isinstance(d, Group) else n for d, n in zip(x.dims, padded.shape, strict=True)]
    return tagged(padded, dims)


def _extend(g: Graph, x: Tensor, axis: int, amount: Int, value: Tensor) -> Tensor:
    x = compact(g, x, axis)
    dim = x.dims[axis]
    result = prefix(count(dim) + amount)
    if isinstance(dim, Group):
        mask = along(g, mask_of(g, dim), axis, x.rank)
        x = tagged(choose(g, mask, x, value), x.dims)
    rows, wanted = length(dim), length(result)
    dims = (*x.dims[:axis], result, *x.dims[axis + 1 :])
    if wanted > rows:
        shape = [*x.shape[:axis], wanted - rows, *x.shape[axis + 1 :]]
        more = g.emit("Expand", [value, g.int64(*shape)])
        return tagged(g.emit("Concat", [x, more], axis=axis), dims)
    if wanted < rows:
        ends = g.int64(0), g.int64(wanted), g.int64(axis)
        return tagged(g.emit("Slice", [x, *ends]), dims)
    return replace(x, dims=dims)
