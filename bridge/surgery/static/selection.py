"""NonZero and TopK: the operators by which rows are selected and brought into order."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from bridge.surgery.static.call import Call, copy_all, elements
from bridge.surgery.static.counts import minimum
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.groups import selection
from bridge.surgery.static.integers import Linear, hi, product
from bridge.surgery.static.lattice import (
    Group,
    NoRuleError,
    Tensor,
    columns,
    count,
    length,
    position_space,
    prefix,
    tagged,
)
from bridge.surgery.static.rows import compact, data, fill, fill_all, topk

_CONSTANT_COORDINATES = 4096


def nonzero(g: Graph, call: Call) -> Tensor:
    """The coordinates of all elements, constant, over the scattered group of those not zero.

    Given    x [N, C] of which rows of N are masked
    Result   int64[2, G], G the N * C elements where x != 0 and no outer mask hides them.
             Row j holds positions along axis j; of a vector they are iota.
    """
    x = data(g, call.input(0))
    if not x.rank:
        raise NoRuleError("is given a scalar")
    if 0 in x.shape:
        return g.constant(np.zeros((x.rank, 0), np.int64))
    if x.dtype != np.bool_:
        x = tagged(g.emit("Cast", [x], to=TensorProto.BOOL), x.dims)
    mask = fill_all(g, x, value=False)
    if x.rank != 1:
        mask = g.emit("Reshape", [mask, g.int64(-1)])
    elements_ = product(count(dim) for dim in x.dims)
    group = selection(g, mask, () if elements_ is None else (elements_,))
    dense = replace(_coordinates(g, x.shape), values=None)
    space = columns([position_space(dim) for dim in x.dims], 0)
    return replace(
        tagged(dense, (x.rank, group), space=space, iota=1 if x.rank == 1 else None),
        range=(0, max(max(x.shape, default=1) - 1, 0)),
    )


def _coordinates(g: Graph, shape: tuple[int, ...]) -> Tensor:
    """int64[rank, elements]: where each element of an array is; no large constant for many axes."""
    if len(shape) == 1 or prod(shape) <= _CONSTANT_COORDINATES:
        places = np.unravel_index(np.arange(prod(shape)), shape)
        return g.constant(np.stack(places).astype(np.int64))
    rows = []
    for axis, n in enumerate(shape):
        line = g.constant(np.arange(n).reshape([n if k == axis else 1 for k in range(len(shape))]))
        spread = g.emit("Expand", [line, g.int64(*shape)])
        rows.append(g.emit("Reshape", [spread, g.int64(1, -1)]))
    return g.emit("Concat", rows, axis=0)


def top_k(g: Graph, call: Call) -> tuple[Tensor, ...]:
    """Along rows: masked rows come last, k is at most the count, the result is a prefix group.

    Given    x [G], k = min(n, K)
    Result   TopK(Where(mask, x, -inf), K), both outputs prefix groups of min(n, K); the indices
             are positions in G

    A NaN has no place in an order; where onnxruntime happens to put it is not kept.

    A scattered group is compacted first where a meant row may equal what fills masked ones: equal
    values go by index, and masked rows may lie before it. Along another axis: passes.
    """
    x = data(g, call.input(0))
    axis = call.axis(x.rank, -1)
    k = elements(call.input(1), "k")[0]
    largest = call.integer("largest", 1)
    dim = x.dims[axis]
    if not isinstance(dim, Group) and not isinstance(k, Linear):
        values, indices = copy_all(g, call.with_inputs(x, call.input(1)))
        dims = (*x.dims[:axis], k, *x.dims[axis + 1 :])
        places = replace(tagged(indices, dims), range=(0, max(dim - 1, 0)))
        return tagged(values, dims), places
    if isinstance(dim, Group):
        if not call.integer("sorted", 1):
            raise NoRuleError("takes the best rows in no particular order; set sorted to 1")
        x = filled_last(g, x, axis, lowest=bool(largest))
        dim = x.dims[axis]
    if isinstance(k, Linear):
        k = minimum(g, k, count(dim))
    if hi(k) > length(dim):
        raise NoRuleError(f"takes the best {hi(k)} of {length(dim)}")
    rows = prefix(k)
    values, indices = topk(g, x, length(rows), axis=axis, largest=largest)
    dims = (*x.dims[:axis], rows, *x.dims[axis + 1 :])
    return (
        tagged(values, dims),
        replace(tagged(indices, dims, space=position_space(dim)), range=indices.range),
    )


def filled_last(g: Graph, x: Tensor, axis: int, *, lowest: bool) -> Tensor:
    """`x` so that along rows every meant element comes before the masked ones in its order.

    Masked rows hold the lowest (or highest) number there is. Where a meant one may equal it, a
    scattered group is compacted: then the masked rows lie behind, and equal goes by index.
    """
    extreme = extreme_of(x.dtype, lowest=lowest)
    dim = x.dims[axis]
    if isinstance(dim, Group) and not dim.is_prefix and not _excludes(x, extreme):
        x = compact(g, x, axis)
    return fill(g, x, axis, extreme)


def extreme_of(dtype: np.dtype[Any], *, lowest: bool) -> float | int | bool:
    """The number that orders before (or after) every other one of a type."""
    if dtype.kind == "f":
        return -np.inf if lowest else np.inf
    if dtype.kind == "b":
        return not lowest
    limits = np.iinfo(dtype.type)
    return int(limits.min if lowest else limits.max)


def _excludes(x: Tensor, extreme: float | int | bool) -> bool:
    """Whether no element of `x` can be the number that fills masked rows."""
    if x.dtype.kind == "f":
        return x.magnitude is not None
    return x.range is not None and not x.range[0] <= extreme <= x.range[1]
