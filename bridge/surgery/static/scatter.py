"""Rules for writing at computed places: ScatterElements, ScatterND."""

import numpy as np

from bridge.surgery.static.call import Call
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.groups import along, mask_of
from bridge.surgery.static.indexing import same_positions, same_positions_nd
from bridge.surgery.static.lattice import Dim, Group, NoRuleError, Tensor, tagged
from bridge.surgery.static.rows import choose, compact, data, fill, from_front, unify


def scatter_elements(g: Graph, call: Call) -> Tensor:
    """Masked rows write to one extra row that is cut off again.

    Given    data [N], index int64[G], updates [G]
    Result   ScatterElements(Concat(data, 0), Where(mask, index, N), updates)[:N]

    Through an untouched selection (the index is every dense row in order) it is
    Where(mask, updates, data).
    """
    x, index, updates = data(g, call.input(0)), call.input(1), data(g, call.input(2))
    axis = call.axis(x.rank, 0)
    for k in range(index.rank):
        (index, updates), _ = unify(g, (index, k), (updates, k))
        if k != axis and isinstance(index.dims[k], Group):
            (x, index, updates), _ = unify(g, (x, k), (index, k), (updates, k))
        elif k != axis:
            x = compact(g, x, k)
    x, index = same_positions(g, x, index, axis)
    if _writes_every_row(call, index, axis) and index.shape == x.shape:
        return _updated(g, x, updates, index.dims[axis], axis)
    target = x
    if index.groups:
        index = from_front(g, index, x.shape[axis])
        for k, _ in index.groups:
            index = fill(g, index, k, x.shape[axis])
        target = _one_more(g, x, axis)
    written = g.emit("ScatterElements", [target, index, updates], axis=axis, **_reduction(call))
    return _cut(g, written, x, axis)


def scatter_nd(g: Graph, call: Call) -> Tensor:
    """As ScatterElements; the rows written are those an index matrix points at."""
    x, index, updates = data(g, call.input(0)), call.input(1), data(g, call.input(2))
    depth = index.dims[-1]
    if isinstance(depth, Group):
        raise NoRuleError("indexes as many axes as there are rows")
    for k in range(index.rank - 1):
        (index, updates), _ = unify(g, (index, k), (updates, k))
    for k in range(depth, x.rank):
        (x, updates), _ = unify(g, (x, k), (updates, k - depth + index.rank - 1))
    x, index = same_positions_nd(g, x, index, depth)
    if _writes_every_row(call, index, 0) and index.shape == (x.shape[0], 1):
        return _updated(g, x, updates, index.dims[0], 0)
    target = x
    if index.groups:
        index = _redirected(g, index, x.shape[:depth])
        target = _one_more(g, x, 0)
    written = g.emit("ScatterND", [target, index, updates], **_reduction(call))
    return _cut(g, written, x, 0)


def _writes_every_row(call: Call, index: Tensor, axis: int) -> bool:
    """Whether the index is every dense row in order, of which a group is meant."""
    plain = call.text("reduction", "none") == "none"
    return plain and index.iota == axis and [k for k, _ in index.groups] == [axis]


def _updated(g: Graph, x: Tensor, updates: Tensor, dim: Dim, axis: int) -> Tensor:
    if not isinstance(dim, Group):
        return updates
    mask = along(g, mask_of(g, dim), axis, x.rank)
    return tagged(choose(g, mask, updates, x), x.dims)


def _reduction(call: Call) -> dict[str, object]:
    return {"reduction": call.text("reduction", "none")} if call.has("reduction") else {}


def _one_more(g: Graph, x: Tensor, axis: int) -> Tensor:
    """`x` dense, with a row of zeros behind."""
    shape = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    spare = g.emit("Expand", [g.constant(np.zeros(1, x.dtype)), g.int64(*shape)])
    return g.emit("Concat", [x, spare], axis=axis)


def _cut(g: Graph, written: Tensor, x: Tensor, axis: int) -> Tensor:
    """What was written, without the extra row, as the tensor `x` was."""
    if written.shape[axis] != x.shape[axis]:
        ends = g.int64(0), g.int64(x.shape[axis]), g.int64(axis)
        written = g.emit("Slice", [written, *ends])
    return tagged(written, x.dims)


def _redirected(g: Graph, index: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The index matrix counted from the front, its masked rows pointing at the extra row."""
    if index.range is None or index.range[0] < 0:
        wrapped = g.emit("Add", [index, g.int64(*lengths)])
        negative = g.emit("Less", [index, g.int64(0)])
        index = tagged(g.emit("Where", [negative, wrapped, index]), index.dims)
    spare = g.int64(lengths[0], *[0] * (len(lengths) - 1))
    for axis, group in index.groups:
        mask = along(g, mask_of(g, group), axis, index.rank)
        index = tagged(g.emit("Where", [mask, index, spare]), index.dims)
    return index
