"""Groups: axes of data-dependent length, and the masks that say which of their rows are meant."""

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import TensorProto

from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int, Linear, Unknown, of, total
from bridge.surgery.static.lattice import Dim, Group, Tensor, count, length, prefix


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
    group = Group(rows, of(Unknown(total.id, 0, rows, at_most)), mask.id)
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
    return register(g, Group(prod(shape), rows, mask.id, merged=merged))


def join(g: Graph, parts: Sequence[Dim]) -> Dim:
    """The axis of a concatenation."""
    if not any(isinstance(part, Group) for part in parts):
        return sum(map(length, parts))
    rows = total(count(part) for part in parts)
    *front, last = parts
    if isinstance(last, Group) and last.is_prefix and all(isinstance(part, int) for part in front):
        return Group(sum(map(length, parts)), rows, parts=tuple(parts))
    masks = [
        mask_of(g, part) if isinstance(part, Group) else g.constant(np.ones(part, bool))
        for part in parts
    ]
    mask = g.emit("Concat", masks, axis=0)
    return register(g, Group(mask.shape[0], rows, mask.id, parts=tuple(parts)))
