"""Which columns of a detector's outputs are its boxes.

Read off the graph: a table that is packed from boxes, scores and classes has been a Concat of them
somewhere, and its rows were picked afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from bridge.detection.flat import Flat, Step, flatten
from bridge.detection.look import inspect, moved_from
from bridge.detection.spec import DetectionSpec, Role

_ROWS_OF: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(
        (
            "Cast", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad",
            "Reshape", "Squeeze", "Tile", "Unsqueeze",
        ),
        (0,),
    ),
    "Concat": range(64),
    "ScatterND": (2, 0),
    "Where": (1, 2),
}  # fmt: skip
"""The inputs whose rows these operators give; their columns, as is checked, stay what they are."""

_SCALED = frozenset({"Add", "Div", "Mul", "Sub"})
"""Operators that, with a constant, leave every column what it is."""

_MOST_STEPS = 100


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


@dataclass(frozen=True, slots=True)
class _Place:
    """The first column of boxes in a table, and whether a suppression reads these very numbers."""

    first: int
    suppressed: bool


def _first(flat: Flat, value: int) -> int | None:
    """The first column of the boxes in a packed table."""
    read = {
        origin
        for step in flat.steps
        if step.node.op_type == "NonMaxSuppression" and not step.node.domain
        for origin in moved_from(flat, step.inputs[0])
    }
    places = _places(flat, value, _width(flat, value), read, _MOST_STEPS)
    sure = [place for place in places if place.suppressed]
    found = sure if len(sure) == 1 else places
    return found[0].first if len(found) == 1 else None


def _places(flat: Flat, value: int, width: int | None, read: set[int], steps: int) -> list[_Place]:
    """Where boxes may stand in a table of so many columns: what it was packed from tells."""
    if width is None or width < 4 or not steps:
        return []
    if width == 4:
        return [_Place(0, not read.isdisjoint(moved_from(flat, value)))]
    step, inner = flat.origin.get(value), flat.passed.get(value, [])
    if inner:
        return _places(flat, inner[0], width, read, steps - 1)
    if step is None or step.node.domain not in ("", "ai.onnx"):
        return []
    if step.node.op_type == "Concat" and _on_columns(flat, step, value):
        return _packed(flat, step, read, steps)
    if step.node.op_type == "Slice":
        return _sliced(flat, step, width, read, steps)
    sources = _ROWS_OF.get(step.node.op_type, ())
    if step.node.op_type in _SCALED and sum(one in flat.constants for one in step.inputs) == 1:
        sources = (0, 1)
    for place in sources:
        # Rows of several tables: the first with columns of its own that tell.
        source = step.inputs[place] if place < len(step.inputs) else 0
        if source and source not in flat.constants and _width(flat, source) in (None, width):
            return _places(flat, source, width, read, steps - 1)
    return []


def _on_columns(flat: Flat, step: Step, value: int) -> bool:
    shape = flat.shapes.get(value) or ()
    axis = next((a.i for a in step.node.attribute if a.name == "axis"), 0)
    return axis in (-1, len(shape) - 1)


def _packed(flat: Flat, step: Step, read: set[int], steps: int) -> list[_Place]:
    found: list[_Place] = []
    at = 0
    for part in step.inputs:
        width = _width(flat, part)
        if width is None:
            return []
        inside = _places(flat, part, width, read, steps - 1)
        found += [_Place(at + place.first, place.suppressed) for place in inside]
        at += width
    return found


def _sliced(flat: Flat, step: Step, width: int, read: set[int], steps: int) -> list[_Place]:
    """Rows, or columns from a known one on."""
    source = step.inputs[0]
    whole = _width(flat, source) or width
    start = 0
    if whole != width:
        starts = flat.constants.get(step.inputs[1]) if len(step.inputs) > 1 else None
        if starts is None or starts.size != 1:
            return []
        start = int(starts.reshape(-1)[0]) % whole
    found = _places(flat, source, whole, read, steps - 1)
    return [
        _Place(place.first - start, place.suppressed)
        for place in found
        if 0 <= place.first - start <= width - 4
    ]
