"""Which of a model's own outputs are boxes, scores and classes, for the four of a detector.

What they are made of is the surest sign. Where that does not show, as behind a second suppression
or where rows are mixed, their types tell: one table of boxes, one row of scores, one of whole
numbers. Either way the golden check holds the four outputs to the source's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bridge import detection
from bridge.detection import Provenance
from bridge.detection.boxes import box_columns
from bridge.options import BoxLayout, Options
from bridge.static_model import StaticModel
from bridge.targets.base import ports
from bridge.targets.tflite.form import class_counts
from bridge.targets.tflite.postprocess import class_count
from bridge.targets.tflite.postprocess_plan import UnfitError, look, only_call
from bridge.targets.tflite.postprocess_roles import Role, box_order
from bridge.targets.tflite.suppression_narrow import Narrowed

_LAST_CORNER: Final = 3
"""Coordinates 0 to 3 of a box are its corners, 4 to 7 centre and size."""

_X_FIRST: Final = (BoxLayout.XYXY, BoxLayout.CXCYWH)
_CENTRES: Final = (BoxLayout.CXCYWH, BoxLayout.CYCXHW)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a role is in the model's own outputs.

    Attributes:
        width: how many columns the output has, read as one row for each detection.
    """

    output: str
    columns: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Source:
    """The model's own outputs, read as detections.

    Attributes:
        count: the output that counts real rows; None where all are.
        classes: None where the model knows one class and returns none.
        class_count: one more than the largest class number.
        centres: boxes are centre and size, not corners.
        x_first: in the boxes.
        assumptions: what no graph tells.
    """

    rows: int
    count: str | None
    boxes: Columns
    scores: Columns
    classes: Columns | None
    class_count: int
    centres: bool = False
    x_first: bool = True
    assumptions: tuple[str, ...] = ()


def find(static: StaticModel, narrowed: Narrowed, options: Options) -> Source:
    """Read the outputs of a static model as detections.

    Raises:
        UnfitError: they cannot be told apart.
    """
    try:
        return _by_making(static, narrowed, options)
    except UnfitError as error:
        try:
            return _by_type(static, options)
        except UnfitError as other:
            raise UnfitError(f"{error}; by their types, {other}") from error


def _by_making(static: StaticModel, narrowed: Narrowed, options: Options) -> Source:
    """By what the outputs are made of."""
    found = look(narrowed.model, only_call(narrowed.model), options)
    columns: dict[Role, Columns] = {}
    for role in Role:
        for output, roles in found.roles.outputs.items():
            own = tuple(i for i, other in enumerate(roles) if other is role)
            if own and role not in columns:
                columns[role] = Columns(output, own, len(roles))
    for role, width in ((Role.BOX, 4), (Role.SCORE, 1)):
        if role not in columns or len(columns[role].columns) != width:
            raise UnfitError(f"no output holds the {role.value} whole")
    source = _source(
        static,
        columns[Role.BOX],
        columns[Role.SCORE],
        columns.get(Role.CLASS),
        class_count(found),
    )
    if source.classes is None and (found.classes > 1 or found.recovered is not None):
        raise UnfitError(f"{found.classes} classes are told apart, and none is returned")
    boxes = found.roles.one(Role.BOX)
    order = () if boxes is None else box_order(found.copies, found.roles, found.work, boxes)
    return replace(
        source,
        centres=max(order) > _LAST_CORNER,
        x_first=found.returns_x_first,
        assumptions=found.geometry.assumptions,
    )


def _by_type(static: StaticModel, options: Options) -> Source:
    """By type, and by what they were picked from."""
    _, tables = box_columns(static.model)
    spec = detection.inspect(static.source or static.model)
    if options.box_layout is None and any(
        site.layout.provenance is Provenance.ATTRIBUTE for site in spec.sites
    ):
        raise UnfitError("whether centres or corners are returned does not show (--box-layout)")
    own = [value for value in spec.outputs if value.name not in static.counts]
    named: dict[detection.Role, list[str]] = {}
    for value in own:
        if value.role is not None:
            named.setdefault(value.role, []).append(value.name)
    if len(tables) != 1:
        raise UnfitError(f"{len(tables)} outputs hold boxes, not one")
    (table,) = tables
    boxes = Columns(table.output, tuple(range(table.first, table.first + 4)), table.columns)
    rest = [i for i in range(table.columns) if i not in boxes.columns]
    scores = [Columns(name, (0,), 1) for name in named.get(detection.Role.SCORES, ())]
    if len(rest) == 1 and not scores:
        scores = [Columns(table.output, (rest[0],), table.columns)]
    classes = [Columns(name, (0,), 1) for name in named.get(detection.Role.CLASSES, ())]
    if len(scores) != 1 or len(classes) > 1:
        raise UnfitError(f"{len(scores)} outputs hold scores and {len(classes)} classes")
    most = max(class_counts(static), default=1)
    if not classes and most > 1:
        raise UnfitError(f"{most} classes are told apart, and none is returned")
    layout = options.box_layout
    assumptions = () if layout is not None else (_assumed(table.output),)
    return replace(
        _source(static, boxes, scores[0], classes[0] if classes else None, most),
        centres=layout in _CENTRES,
        x_first=layout is None or layout in _X_FIRST,
        assumptions=assumptions,
    )


def _assumed(output: str) -> str:
    return (
        f"the boxes in output {output!r} are corners x1, y1, x2, y2: no graph tells; --box-layout "
        "says otherwise"
    )


def _source(
    static: StaticModel,
    boxes: Columns,
    scores: Columns,
    classes: Columns | None,
    most: int,
) -> Source:
    """The parts together, where they have the same rows.

    Raises:
        UnfitError: they have rows of their own.
    """
    parts: Sequence[Columns] = [part for part in (boxes, scores, classes) if part is not None]
    outputs = {port.name: port for port in ports(static)[1]}
    rows, counts = set[int](), set[str | None]()
    for part in parts:
        port = outputs[part.output]
        rows.add(int(np.prod(port.shape)) // part.width)
        counts.add(port.rows[0].count if port.rows else None)
    if len(rows) != 1 or len(counts) != 1:
        raise UnfitError("boxes, scores and classes have rows of their own")
    return Source(rows.pop(), counts.pop(), boxes, scores, classes, most)
