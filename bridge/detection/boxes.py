"""Which columns of a detector's outputs are its boxes.

Read off the graph: a table that is packed from boxes, scores and classes has been a Concat of them
somewhere, and its rows were picked afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from bridge.detection.flat import Flat, Step, flatten
from bridge.detection.look import inspect, moved_from
from bridge.detection.spec import DetectionSpec, Role

_PICKS = frozenset(
    {
        "Cast", "Expand", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice",
        "Squeeze", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators that pick rows of a table; its columns stay as wide as they are, which is checked."""


@dataclass(frozen=True, slots=True)
class BoxColumns:
    """The boxes in an output: four of its columns.

    Attributes:
        columns: how many columns the output has on its last axis.
        first: the first of the four.
    """

    output: str
    columns: int
    first: int


def box_columns(model: onnx.ModelProto) -> tuple[DetectionSpec, tuple[BoxColumns, ...]]:
    """The boxes in the outputs of a valid model, in the order of the outputs.

    Returns:
        What the model is, and its boxes; an output whose boxes cannot be found has no entry.
    """
    spec, flat = inspect(model), flatten(model)
    found = []
    for value, number in zip(spec.outputs, flat.outputs, strict=True):
        width = _width(flat, number)
        if value.role is Role.BOXES:
            found.append(BoxColumns(value.name, 4, 0))
        elif value.role is Role.DETECTIONS and width is not None:
            first = _first(flat, number)
            if first is not None:
                found.append(BoxColumns(value.name, width, first))
    return spec, tuple(found)


def _width(flat: Flat, value: int) -> int | None:
    shape = flat.shapes.get(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def _first(flat: Flat, value: int) -> int | None:
    """The first column of the boxes in a packed table."""
    joined = _joined(flat, value)
    if joined is None:
        return None
    parts = [(part, _width(flat, part)) for part in joined.inputs]
    boxes = {origin for step in _suppressions(flat) for origin in moved_from(flat, step.inputs[0])}
    likely, at = [], 0
    for part, width in parts:
        if width is None:
            return None
        if width == 4:
            likely.append((at, not boxes.isdisjoint(moved_from(flat, part))))
        elif width > 4:
            inner = _first(flat, part)
            likely += [] if inner is None else [(at + inner, True)]
        at += width
    sure = [first for first, same in likely if same]
    if len(likely) == 1 or len(sure) == 1:
        return sure[0] if sure else likely[0][0]
    return None


def _joined(flat: Flat, value: int) -> Step | None:
    """The Concat that packed a table, seen through what picks its rows."""
    width = _width(flat, value)
    for current in _picked(flat, value):
        step = flat.origin.get(current)
        shape = flat.shapes.get(current)
        if step is None or shape is None or _width(flat, current) != width:
            return None
        if step.node.op_type == "Concat" and not step.node.domain:
            axis = next((a.i for a in step.node.attribute if a.name == "axis"), 0)
            if axis in (-1, len(shape) - 1):
                return step
    return None


def _picked(flat: Flat, value: int) -> Iterator[int]:
    """The value, and the tables that its rows come from, one behind the other."""
    seen = {value}
    current: int | None = value
    while current is not None:
        yield current
        step, inner = flat.origin.get(current), flat.passed.get(current, [])
        following: int | None = None
        if inner:
            following = inner[0]
        elif step is not None and step.node.op_type in _PICKS:
            following = step.inputs[1 if step.node.op_type == "Where" else 0]
        elif step is not None and step.node.op_type == "Concat":
            # Rows of several tables: the first of them with rows that are no constant.
            following = next((one for one in step.inputs if one not in flat.constants), None)
        current = None if following in seen else following
        if current is not None:
            seen.add(current)


def _suppressions(flat: Flat) -> list[Step]:
    return [step for step in flat.steps if step.node.op_type == "NonMaxSuppression"]
