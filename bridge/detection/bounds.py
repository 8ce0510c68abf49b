"""Between which numbers the elements of an index tensor lie, whatever the input.

Only as far as class ids need: from ArgMax, TopK, Mod and constants through what moves elements,
down to a single column where ids travel inside a matrix of rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from bridge.detection.producers import Producers


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every element is at least `low` and at most `high`."""

    low: float
    high: float

    def __or__(self, other: "Bounds") -> "Bounds":
        return Bounds(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor, or one column of it: the position on its last axis."""

    name: str
    column: int | None = None


type _Rule = Callable[[Producers, NodeProto, _View], Bounds | _View | list[_View] | None]


def bounds_of(known: Producers, name: str) -> Bounds | None:
    """The bounds of a tensor of a static model; None where nothing limits it."""
    pending = [_View(name)]
    seen: set[_View] = set()
    total: Bounds | None = None
    while pending:
        view = pending.pop()
        if view in seen:
            continue
        seen.add(view)
        found = _step(known, view)
        if found is None:
            return None
        if isinstance(found, Bounds):
            total = found if total is None else total | found
        else:
            pending.extend(found if isinstance(found, list) else [found])
    return total


def _step(known: Producers, view: _View) -> Bounds | _View | list[_View] | None:
    """The bounds of a view, or the views whose elements it is made of."""
    constant = known.constants.get(view.name)
    if constant is not None:
        values = constant if view.column is None else constant[..., view.column]
        if not values.size or not np.isfinite(values.astype(np.float64)).all():
            return None
        return Bounds(float(values.min()), float(values.max()))
    node = known.nodes.get(view.name)
    if node is None or node.domain or node.op_type not in _RULES:
        return None
    return _RULES[node.op_type](known, node, view)


def _axis(known: Producers, node: NodeProto, default: int) -> int:
    return known.attribute(node, "axis", default) % len(known.shape(node.input[0]))


def _is_last(known: Producers, name: str, axis: int) -> bool:
    return axis % len(known.shape(name)) == len(known.shape(name)) - 1


def _passed(known: Producers, node: NodeProto, view: _View) -> _View:
    """Identity, and Cast: class ids are far from the limits of any type."""
    del known
    return _View(node.input[0], view.column)


def _shaped(known: Producers, node: NodeProto, view: _View) -> _View | None:
    """Reshape and its like; a column stays one while the last axis does."""
    before, after = known.shape(node.input[0]), known.shape(node.output[0])
    if view.column is None:
        return _View(node.input[0])
    return _View(node.input[0], view.column) if before and before[-1] == after[-1] else None


def _transposed(known: Producers, node: NodeProto, view: _View) -> _View | None:
    perm = known.attribute(node, "perm", None)
    kept = perm is not None and perm[-1] == len(perm) - 1
    return _View(node.input[0], view.column) if view.column is None or kept else None


def _gathered(known: Producers, node: NodeProto, view: _View) -> _View | None:
    data, index = node.input
    axis = _axis(known, node, 0)
    if not _is_last(known, data, axis):
        return _View(data, view.column)
    position = known.constants.get(index)
    if position is None or position.size != 1:
        return _View(data) if view.column is None else None
    return _View(data, int(position.reshape(-1)[0]) % known.shape(data)[axis])


def _sliced(known: Producers, node: NodeProto, view: _View) -> _View | None:
    data, *limits = node.input
    values = [known.constants.get(limit) for limit in limits]
    numbers = [[int(v) for v in value.reshape(-1)] for value in values if value is not None]
    rank = len(known.shape(data))
    if len(numbers) != len(limits) or len(numbers) < 3:
        return _View(data) if view.column is None else None
    steps = numbers[3] if len(numbers) > 3 else [1] * len(numbers[0])
    for start, sliced, step in zip(numbers[0], numbers[2], steps, strict=True):
        if sliced % rank != rank - 1:
            continue
        width = known.shape(data)[-1]
        first = min(start + width if start < 0 else start, width - 1)
        column = 0 if known.shape(node.output[0])[-1] == 1 else view.column
        return _View(data, None if column is None else first + column * step)
    return _View(data, view.column)


def _split(known: Producers, node: NodeProto, view: _View) -> _View | None:
    axis = _axis(known, node, 0)
    if not _is_last(known, node.input[0], axis):
        return _View(node.input[0], view.column)
    before = 0
    for part in node.output:
        width = known.shape(part)[-1]
        if part == view.name:
            if view.column is None and width > 1:
                return _View(node.input[0])
            return _View(node.input[0], before + (view.column or 0))
        before += width
    return None


def _joined(known: Producers, node: NodeProto, view: _View) -> _View | list[_View] | None:
    axis = known.attribute(node, "axis", 0)
    if view.column is None or not _is_last(known, node.output[0], axis):
        return [_View(part, view.column) for part in node.input]
    column = view.column
    for part in node.input:
        width = known.shape(part)[-1]
        if column < width:
            return _View(part, column if width > 1 else None)
        column -= width
    return None


def _chosen(known: Producers, node: NodeProto, view: _View) -> list[_View] | None:
    """Where: either operand; a column only of operands that have it."""
    _, *operands = node.input
    width = known.shape(node.output[0])[-1:]
    views = []
    for operand in operands:
        whole = view.column is None or known.shape(operand)[-1:] != width
        views.append(_View(operand, None if whole else view.column))
    return views


def _expanded(known: Producers, node: NodeProto, view: _View) -> _View:
    """Expand."""
    same = known.shape(node.input[0])[-1:] == known.shape(node.output[0])[-1:]
    return _View(node.input[0], view.column if same else None)


def _gathered_nd(known: Producers, node: NodeProto, view: _View) -> _View | None:
    depth = known.shape(node.input[1])[-1]
    rows_only = depth < len(known.shape(node.input[0]))
    return _View(node.input[0], view.column) if view.column is None or rows_only else None


def _argument(known: Producers, node: NodeProto, view: _View) -> Bounds:
    """ArgMax, ArgMin."""
    del view
    return Bounds(0, known.shape(node.input[0])[_axis(known, node, 0)] - 1)


def _ranked(known: Producers, node: NodeProto, view: _View) -> Bounds | _View:
    """TopK: values are some of the operand's, indices positions on its axis."""
    axis = _axis(known, node, -1)
    if view.name == node.output[0]:
        return _View(node.input[0], None if _is_last(known, node.input[0], axis) else view.column)
    return Bounds(0, known.shape(node.input[0])[axis] - 1)


def _remainder(known: Producers, node: NodeProto, view: _View) -> Bounds | None:
    """Mod by a positive constant has the sign of the divisor, fmod that of the dividend."""
    del view
    divisor = known.constants.get(node.input[1])
    if divisor is None or not divisor.size or float(divisor.min()) < 1:
        return None
    most = float(divisor.max()) - 1
    return Bounds(-most if known.attribute(node, "fmod", 0) else 0, most)


def _shifted(known: Producers, node: NodeProto, view: _View) -> Bounds | None:
    """Add and Sub of a constant."""
    a, b = node.input
    amount = known.constants.get(b)
    other = a
    if amount is None and node.op_type == "Add":
        amount, other = known.constants.get(a), b
    if amount is None or view.column is not None:
        return None
    bounds = bounds_of(known, other)
    if bounds is None:
        return None
    low, high = float(amount.min()), float(amount.max())
    if node.op_type == "Sub":
        low, high = -high, -low
    return Bounds(bounds.low + low, bounds.high + high)


def _clipped(known: Producers, node: NodeProto, view: _View) -> Bounds | None:
    del view
    limits = [known.constants.get(name) for name in node.input[1:3]]
    numbers = [float(limit) for limit in limits if limit is not None and limit.size == 1]
    if len(numbers) != 2 or not np.isfinite(numbers).all():
        return None
    return Bounds(*numbers)


_RULES: Mapping[str, _Rule] = {
    "Add": _shifted,
    "ArgMax": _argument,
    "ArgMin": _argument,
    "Cast": _passed,
    "Clip": _clipped,
    "Concat": _joined,
    "Expand": _expanded,
    "Flatten": _shaped,
    "Gather": _gathered,
    "GatherND": _gathered_nd,
    "Identity": _passed,
    "Mod": _remainder,
    "Reshape": _shaped,
    "Slice": _sliced,
    "Split": _split,
    "Squeeze": _shaped,
    "Sub": _shifted,
    "TopK": _ranked,
    "Transpose": _transposed,
    "Unsqueeze": _shaped,
    "Where": _chosen,
}
