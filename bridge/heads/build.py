"""Decode as standard ONNX: raw outputs and formulas become boxes, scores and extra columns.

Given:  the outputs of a network, in any of the layouts a head file may name
Result: boxes float32[1, N, 4] corners x1, y1, x2, y2 in pixels of the network input,
        scores float32[1, N, C] or [1, C, N], extras float32[1, N, E]
"""

from dataclasses import dataclass

from bridge.errors import UsageError
from bridge.heads import columns
from bridge.heads.bind import Binding
from bridge.heads.describe import (
    Activation,
    Background,
    CenterSize,
    Corners,
    Distances,
    FourColumns,
    Head,
    Units,
)
from bridge.heads.evaluate import (
    UNARY,
    Frame,
    Known,
    Value,
    as_rows,
    as_tensor,
    call,
    concat,
    evaluate,
    known,
    pick,
)
from bridge.heads.formula import Call, Name
from bridge.heads.priors import grid
from bridge.model.nodes import Nodes

ORDER_KEEPING = ("sigmoid", "sqrt")
"""Functions that keep the order of what they are applied to."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Tensors of a decoded head.

    Attributes:
        boxes: float32[1, N, 4].
        scores: float32[1, N, classes], or [1, classes, N] if `class_axis` is 1; before `last`.
        last: an operator that keeps order, to be applied to the scores: Sigmoid, Sqrt or none.
        extras: float32[1, N, columns], if the head has any.
    """

    boxes: str
    scores: str
    last: str | None
    class_axis: int
    classes: int
    rows: int
    extras: str | None
    extra_columns: int


def decode(head: Head, binding: Binding, nodes: Nodes) -> Decoded:
    """Append the decode of a head to `nodes`.

    Raises:
        UsageError: a formula whose columns do not meet, or priors for another number of rows.
    """
    axis = columns.column_axis(binding)
    raw = columns.by_role(nodes, binding, head.row_order, axis)
    frame = Frame(head, nodes, binding.rows, axis, _given(head, binding), raw)
    image = known(*binding.image)
    boxes = _corners(frame, image)
    scores, last = _scores(frame)
    extras = _extras(frame, image)
    return Decoded(
        boxes=as_rows(frame, boxes),
        scores=as_tensor(frame, scores),
        last=last,
        class_axis=axis,
        classes=scores.columns,
        rows=binding.rows,
        extras=None if extras is None else as_rows(frame, extras),
        extra_columns=0 if extras is None else extras.columns,
    )


def _given(head: Head, binding: Binding) -> dict[str, Known]:
    given = {"image": known(*binding.image)}
    given |= {name: known(*numbers) for name, numbers in head.constants.items()}
    for name, array in grid(head, binding.levels, binding.image).items():
        if len(array) != binding.rows:
            raise UsageError(
                f"head {head.name} has {len(array)} rows of {name}, but the model has "
                f"{binding.rows} rows: see [priors] and strides"
            )
        given[name] = Known(array)
    return given


def _corners(frame: Frame, image: Known) -> Value:
    """Four columns x1, y1, x2, y2 in pixels."""
    match frame.head.box.form:
        case FourColumns(formula, layout):
            value = evaluate(frame, formula, "[box] value", columns=4)
            corners = _from_layout(frame, value, layout)
        case CenterSize(center, size):
            middle = evaluate(frame, center, "[box] center", columns=2)
            extent = evaluate(frame, size, "[box] size", columns=2)
            corners = _around(frame, middle, extent)
        case Distances(point, distances):
            middle = evaluate(frame, point, "[box] point", columns=2)
            sides = evaluate(frame, distances, "[box] distances", columns=4)
            low = call(frame, "[box]", "subtract", middle, _pair(frame, sides, 0))
            high = call(frame, "[box]", "add", middle, _pair(frame, sides, 1))
            corners = concat(frame, (low, high))
    if frame.head.box.units is Units.FRACTIONS:
        corners = call(frame, "[box]", "multiply", corners, image)
    if frame.head.box.clip:
        corners = call(frame, "[box]", "clip", corners, known(0), image)
    return corners


def _from_layout(frame: Frame, value: Value, layout: Corners) -> Value:
    if layout in (Corners.YXYX, Corners.CYCXHW):
        value = call(frame, "[box] value", "swap", value)
    if layout in (Corners.XYXY, Corners.YXYX):
        return value
    first, size = _pair(frame, value, 0), _pair(frame, value, 1)
    if layout is Corners.XYWH:
        return concat(frame, (first, call(frame, "[box]", "add", first, size)))
    return _around(frame, first, size)


def _around(frame: Frame, center: Value, size: Value) -> Value:
    half = call(frame, "[box]", "multiply", size, known(0.5))
    low = call(frame, "[box]", "subtract", center, half)
    return concat(frame, (low, call(frame, "[box]", "add", center, half)))


def _pair(frame: Frame, value: Value, number: int) -> Value:
    return pick(frame, "[box]", value, slice(2 * number, 2 * number + 2))


def _scores(frame: Frame) -> tuple[Value, str | None]:
    """The scores of every class but the background, short of a last operator that keeps order."""
    where = "[score] value"
    last: str | None = None
    match frame.head.score.value:
        case Call(function, (argument,)) if function in ORDER_KEEPING:
            value, last = evaluate(frame, argument, where), UNARY[function][0]
        case Name(name) if frame.head.activations.get(name) is Activation.SIGMOID:
            value, last = frame.raw[name], UNARY["sigmoid"][0]
        case formula:
            value = evaluate(frame, formula, where)
    match frame.head.score.background:
        case Background.FIRST:
            value = pick(frame, where, value, slice(1, None))
        case Background.LAST:
            value = pick(frame, where, value, slice(0, -1))
        case Background.NONE:
            pass
    return value, last


def _extras(frame: Frame, image: Known) -> Value | None:
    extras = frame.head.extras
    if extras is None:
        return None
    roles = {role for output in frame.head.outputs for role, _ in output.columns}
    if isinstance(extras.value, Name) and extras.value.name in roles - set(frame.raw):
        # The role has the rest of the columns, and this model leaves none.
        return None
    value = evaluate(frame, extras.value, "[extras] value")
    if extras.units is Units.FRACTIONS:
        value = call(frame, "[extras] value", "multiply", value, image)
    return value
