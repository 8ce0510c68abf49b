"""Rules for operators that mix rows: masked rows are filled with what changes nothing."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from bridge.surgery.static.call import Call, axes, constants, copy
from bridge.surgery.static.counts import maximum
from bridge.surgery.static.exactness import adds_in_packets, single_row
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import lo
from bridge.surgery.static.lattice import (
    Dim,
    Group,
    NoRuleError,
    Tensor,
    count,
    position_space,
    tagged,
)
from bridge.surgery.static.rows import as_dtype, choose, compact, data, fill
from bridge.surgery.static.selection import extreme_of, filled_last

_ADDING = frozenset(
    {"ReduceSum", "ReduceProd", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare"}
)


def reduce(g: Graph, call: Call) -> Tensor:
    """Masked rows hold the neutral element of the operator; a mean is the sum over the count.

    Given    ReduceMax of x float32[G, 4] over axis 0
    Result   ReduceMax(Where(mask, x, -inf)) float32[4]

    Over axes without masked rows: passes.
    """
    x = data(g, call.input(0))
    over = _axes(call, x.rank)
    if not over:
        return x
    adds_floats = call.op_type in _ADDING and x.dtype.kind == "f"
    if adds_floats:
        x = _in_order(g, call, x, over)
    masked = [k for k in over if isinstance(x.dims[k], Group)]
    for k in masked:
        x = fill(g, x, k, _neutral(call.op_type, x.dtype))
    keep = call.integer("keepdims", 1)
    dims: list[Dim] = [1 if k in over else d for k, d in enumerate(x.dims) if keep or k not in over]
    if call.op_type == "ReduceMean" and masked:
        return _mean(g, x, over, masked, dims, keep=bool(keep))

    def compute(rows: Tensor) -> Tensor:
        return copy(g, call.with_inputs(rows, *call.inputs[1:]))

    result = compute(x)
    if masked and call.op_type in ("ReduceMax", "ReduceMin") and x.dtype.kind in "iu":
        result = _zero_without_rows(g, result, [x.dims[k] for k in masked])
    kept = [k for k, _ in x.groups if k not in over]
    if adds_floats and len(kept) == 1 and not adds_in_packets(x.shape, over):
        result = single_row(g, x, kept[0], result, compute)
    return tagged(result, dims)


def _zero_without_rows(g: Graph, result: Tensor, over: list[Dim]) -> Tensor:
    """Onnxruntime's maximum and minimum of no integers at all is 0."""
    for dim in over:
        if lo(count(dim)) == 0:
            none = g.emit("Equal", [g.count(count(dim)), g.int64(0)])
            shaped = g.emit("Reshape", [none, g.int64()]) if not result.rank else none
            result = choose(g, shaped, g.constant(np.zeros((), result.dtype)), result)
    return result


def _in_order(g: Graph, call: Call, x: Tensor, over: list[int]) -> Tensor:
    """The operand of a float sum with its rows where the source has them, so that bits agree.

    Where that cannot be had, it is noted.
    """
    if not adds_in_packets(x.shape, over):
        return x
    first = min((k for k, n in enumerate(x.shape) if n > 1), default=0)
    if any(k in over or k != first for k, _ in x.groups):
        g.assume(
            f"{call.op_type} '{call.node.name}' rounds alike in any order of adding up: masked "
            "rows lie between the rows it adds"
        )
        return x
    return compact(g, x, first)


def _axes(call: Call, rank: int) -> list[int]:
    given = axes(call)
    if given:
        return [k % rank for k in given]
    return [] if call.integer("noop_with_empty_axes", 0) else list(range(rank))


def _neutral(op_type: str, dtype: np.dtype[Any]) -> float | int | bool:
    if op_type == "ReduceProd":
        return 1
    if op_type in _ADDING:
        return 0
    if op_type in ("ReduceMax", "ReduceMin"):
        return extreme_of(dtype, lowest=op_type == "ReduceMax")
    raise NoRuleError(
        "mixes a data-dependent number of rows, and nothing can stand for a masked row"
    )


def _mean(
    g: Graph, x: Tensor, over: list[int], masked: list[int], dims: list[Dim], *, keep: bool
) -> Tensor:
    total = g.emit("ReduceSum", [x, g.int64(*over)], keepdims=int(keep))
    number = g.int64(prod([x.shape[k] for k in over if k not in masked]))
    for k in masked:
        number = g.emit("Mul", [number, g.count(maximum(g, count(x.dims[k]), 1))])
    number = number if total.rank else g.emit("Squeeze", [number, g.int64(0)])
    return tagged(g.emit("Div", [total, as_dtype(g, number, x.dtype)]), dims)


def arg(g: Graph, call: Call) -> Tensor:
    """ArgMax, ArgMin: masked rows never win; the result is a position in the group."""
    x = data(g, call.input(0))
    axis = call.axis(x.rank, 0)
    dim = x.dims[axis]
    if isinstance(dim, Group):
        if call.integer("select_last_index", 0):
            raise NoRuleError("takes the last of equal rows of a data-dependent number")
        x = filled_last(g, x, axis, lowest=call.op_type == "ArgMax")
        dim = x.dims[axis]
    keep = call.integer("keepdims", 1)
    dims: list[Dim] = [1 if k == axis else d for k, d in enumerate(x.dims) if keep or k != axis]
    found = tagged(copy(g, call.with_inputs(x)), dims, space=position_space(dim))
    return replace(found, range=(0, max(x.shape[axis] - 1, 0)))


def cumsum(g: Graph, call: Call) -> Tensor:
    """Along rows masked ones hold 0; along another axis: passes."""
    x = data(g, call.input(0))
    axis = constants(call.input(1), "the axis")[0] % x.rank
    x = fill(g, x, axis, 0)
    return tagged(copy(g, call.with_inputs(x, call.input(1))), x.dims)


def along_axis(g: Graph, call: Call) -> Tensor:
    """Softmax and its kind: along a fixed axis: passes. Along rows: refused, sums would differ."""
    x = data(g, call.input(0))
    axis = call.axis(x.rank, -1)
    if isinstance(x.dims[axis], Group):
        raise NoRuleError("normalises over a data-dependent number of rows")
    return tagged(copy(g, call.with_inputs(x)), x.dims)


def layer_norm(g: Graph, call: Call) -> tuple[Tensor, ...]:
    """All axes from `axis` on are normalised together: they must be fixed."""
    x = data(g, call.input(0))
    axis = call.axis(x.rank, -1)
    if any(k >= axis for k, _ in x.groups):
        raise NoRuleError("normalises over a data-dependent number of rows")
    return (tagged(copy(g, call.with_inputs(x, *call.inputs[1:])), x.dims),)


def by_place(g: Graph, call: Call) -> Tensor:
    """Trilu, EyeLike compare positions along the last two axes: compacted there, they pass."""
    x = data(g, call.input(0))
    for axis in (x.rank - 2, x.rank - 1):
        x = compact(g, x, axis)
    return tagged(copy(g, call.with_inputs(x, *call.inputs[1:])), x.dims)
