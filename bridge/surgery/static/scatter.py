"""Rules for writing at computed places: ScatterElements, ScatterND."""

import numpy as np

from bridge.surgery.static.call import Call
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.indexing import same_positions, same_positions_nd
from bridge.surgery.static.lattice import Group, NoRuleError, Tensor, tagged
from bridge.surgery.static.rows import along, data, fill, from_front, mask_of, unify


def scatter_elements(g: Graph, call: Call) -> Tensor:
    """Index and updates are unified; masked rows write to one extra row that is cut off again.

    Through an untouched selection (the index is iota of its rows, as long as the data) it is
    Where(mask, updates, data).
    """
    x, index, updates = (data(g, call.input(k)) if k != 1 else call.input(1) for k in range(3))
    axis = call.axis(x.rank, 0)
    for k in range(index.rank):
        (index, updates), _ = unify(g, (index, k), (updates, k))
        if k != axis and isinstance(x.dims[k], Group):
            (x, index, updates), _ = unify(g, (x, k), (index, k), (updates, k))
    x, index = same_positions(g, x, index, axis)
    plain = call.text("reduction", "none") == "none"
    if plain and index.iota == axis and index.shape == x.shape and len(index.groups) == 1:
        group = index.dims[axis]
        if isinstance(group, Group):
            mask = along(g, mask_of(g, group), axis, x.rank)
            return tagged(g.emit("Where", [mask, updates, x]), x.dims)
    rows = x.shape[axis]
    if index.groups:
        index = from_front(g, index, rows)
        for k, _ in index.groups:
            index = fill(g, index, k, rows)
    target = _one_more(g, x, axis) if index.groups else x
    written = g.emit("ScatterElements", [target, index, updates], axis=axis, **_reduction(call))
    return _cut(g, written, x, axis)


def scatter_nd(g: Graph, call: Call) -> Tensor:
    """As ScatterElements; the rows written are those an index matrix points at."""
    x, index, updates = (data(g, call.input(k)) if k != 1 else call.input(1) for k in range(3))
    depth = index.dims[-1]
    if isinstance(depth, Group):
        raise NoRuleError("indexes as many axes as there are rows")
    for k in range(index.rank - 1):
        (index, updates), _ = unify(g, (index, k), (updates, k))
    for k in range(depth, x.rank):
        (x, updates), _ = unify(g, (x, k), (updates, k - depth + index.rank - 1))
    x, index = same_positions_nd(g, x, index, depth)
    rows = x.shape[0]
    plain = call.text("reduction", "none") == "none"
    if plain and index.iota == 0 and index.shape == (rows, 1) and len(index.groups) == 1:
        group = index.dims[0]
        if isinstance(group, Group):
            mask = along(g, mask_of(g, group), 0, x.rank)
            return tagged(g.emit("Where", [mask, updates, x]), x.dims)
    if index.groups:
        index = _redirected(g, index, x.shape[:depth])
    target = _one_more(g, x, 0) if index.groups else x
    written = g.emit("ScatterND", [target, index, updates], **_reduction(call))
    return _cut(g, written, x, 0)


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
    """The index matrix from the front, masked rows pointing at the extra row."""
    if index.range is None or index.range[0] < 0:
        wrapped = g.emit("Add", [index, g.int64(*lengths)])
        negative = g.emit("Less", [index, g.int64(0)])
        index = tagged(g.emit("Where", [negative, wrapped, index]), index.dims)
    spare = g.int64(lengths[0], *[0] * (len(lengths) - 1))
    for axis, group in index.groups:
        mask = along(g, mask_of(g, group), axis, index.rank)
        index = tagged(g.emit("Where", [mask, index, spare]), index.dims)
    return index
