"""`--nms postprocess`: TFLite_Detection_PostProcess in place of a suppression and what sorts it.

The artifact has the operator's four float32 outputs, as SSD applications expect them: boxes
(y1, x1, y2, x2), classes, scores and the number of detections, best first. What the source does to
boxes, scores and classes behind its suppression (scaling, counting classes from one) stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from bridge import detection
from bridge.errors import PassError
from bridge.options import Options
from bridge.static_model import Rows, StaticModel
from bridge.static_nms import StaticNms
from bridge.targets.base import LoweredNms, Port
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.form import Y_FIRST, Form, Meaning
from bridge.targets.tflite.operators import Emitter
from bridge.targets.tflite.postprocess_geometry import SWAPPED
from bridge.targets.tflite.postprocess_integer import Integer, integer
from bridge.targets.tflite.postprocess_kernel import (
    ROUNDING,
    Detections,
    Encoded,
    Limits,
    centers,
    corners,
    detect,
)
from bridge.targets.tflite.postprocess_plan import Plan, plan
from bridge.targets.tflite.postprocess_reference import reference
from bridge.targets.tflite.postprocess_roles import Role

BOXES: Final = "detection_boxes"
CLASSES: Final = "detection_classes"
SCORES: Final = "detection_scores"
COUNT: Final = "num_detections"
NAMES: Final = (BOXES, CLASSES, SCORES, COUNT)
ROLES: Final[Mapping[str, detection.Role]] = {
    BOXES: detection.Role.BOXES,
    CLASSES: detection.Role.CLASSES,
    SCORES: detection.Role.SCORES,
    COUNT: detection.Role.COUNT,
}

_SECONDS_PER_IOU: Final = 5e-9
"""Measured: 350 ms for 67 million of them."""

_SLOW: Final = 0.02


def form(static: StaticModel, options: Options) -> Form:
    """What becomes of a static model.

    Raises:
        UnsupportedModelError: it is not the detector of one image, with one suppression, whose
            outputs are boxes, scores and classes.
    """
    found, narrow = plan(static, options), None
    if options.quantization.integer_postprocess:
        narrow = integer(found, options)
        found = narrow.plan
    rows, counted = found.call.rows, (Rows(1, COUNT),)
    needed = (*found.geometry.tensors, found.call.scores) if narrow is None else narrow.read
    read = dict.fromkeys((*needed, *found.read))
    if found.recovered is not None:
        read[found.recovered.ids] = None

    def finish(builder: Builder, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _finish(found, narrow, builder, tensors)

    return Form(
        model=found.front(tuple(read)),
        outputs=(
            Port(BOXES, "float32", (1, rows, 4), (1, None, 4), rows=counted),
            Port(CLASSES, "float32", (1, rows), (1, None), rows=counted),
            Port(SCORES, "float32", (1, rows), (1, None), rows=counted),
            Port(COUNT, "float32", (1,), (1,)),
        ),
        finish=finish,
        nms=(_lowered(found, narrow),),
        meaning=Meaning(ROLES, Y_FIRST, class_count(found)),
        reference=reference(found, NAMES),
        rounding={} if narrow is not None or found.geometry.center else {BOXES: ROUNDING},
        rounded_reference=narrow is not None,
        assumptions=(
            *found.geometry.assumptions,
            *_recovery(found),
            *(() if narrow is None else [narrow.assumption]),
        ),
        warnings=_warnings(found),
    )


def _lowered(found: Plan, narrow: Integer | None) -> LoweredNms:
    call, exact = found.call, found.geometry.center
    because = (
        "boxes come as centre and size, which the operator takes as they are"
        if exact
        else "the operator compares corners that it makes of centres, up to 2 ulp beside the "
        "model's: only an IoU that near the limit can fall otherwise"
    )
    if narrow is not None:
        exact, because = False, f"on equal bytes it decides as onnxruntime; {narrow.assumption}"
    return LoweredNms(
        node=call.name,
        lowered_to="TFLite_Detection_PostProcess",
        boxes=found.boxes,
        classes=found.classes,
        max_output=call.max_output_boxes_per_class,
        iou_threshold=call.iou_threshold,
        score_threshold=call.score_threshold,
        exact=exact,
        because=because,
    )


def class_count(found: Plan) -> int:
    """One more than the largest class number that is returned."""
    part = found.part(Role.CLASS)
    if part is not None and part.tensor in found.roles.classes:
        return int(found.roles.classes[part.tensor].max()) + 1
    return found.classes + (0 if found.recovered is None else found.recovered.first)


def _recovery(found: Plan) -> tuple[str, ...]:
    """Where the operator differs from a suppression that hides classes in moved boxes."""
    if found.recovered is None:
        return ()
    offset = found.recovered.offset
    moved = "their own largest coordinate and one" if offset is None else f"{offset:g}"
    return (
        f"NonMaxSuppression '{found.call.name}' keeps {found.classes} classes apart by moving the "
        f"boxes of each by {moved}; the operator knows classes and compares boxes where they are. "
        "Both decide alike unless moved boxes of two classes meet (coordinates far below zero or "
        "above the step), or the sum rounds an IoU across the limit; equal scores come by class",
    )


def _warnings(found: Plan) -> tuple[str, ...]:
    """Say what the operator costs where every score is above the limit.

    It compares each box it selects with every candidate that is left of its class.
    """
    comparisons = found.classes * found.per_class * found.boxes
    seconds = comparisons * _SECONDS_PER_IOU
    if seconds < _SLOW:
        return ()
    return (
        f"TFLite_Detection_PostProcess is slow where scores are dense: with all of "
        f"{found.classes} x {found.boxes} above the limit it compares {comparisons / 1e6:.0f} "
        f"million pairs of boxes, about {seconds * 1e3:.0f} ms on a desktop core; --nms v4 does "
        "not",
    )


def _finish(
    found: Plan, narrow: Integer | None, builder: Builder, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Emit the operator and what stands behind it."""
    call = found.call
    limits = Limits(
        call.rows, call.max_output_boxes_per_class, call.iou_threshold, call.score_threshold
    )
    if narrow is None:
        scores = _scores(found, builder, tensors, call.scores)
        made = detect(builder, _boxes(found, builder, tensors), scores, limits)
    else:
        scores = _scores(found, builder, tensors, narrow.scores)
        made = detect(builder, narrow.boxes(builder, tensors), scores, limits, narrow.score_grid)
    behind = _Behind.of(found, builder, made, tensors)
    rows = call.rows
    return {
        BOXES: builder.reshape(behind.boxes(), [1, rows, 4]),
        CLASSES: builder.reshape(behind.part(Role.CLASS, made.classes), [1, rows]),
        SCORES: builder.reshape(behind.part(Role.SCORE, made.scores), [1, rows]),
        COUNT: made.count,
    }


def _boxes(found: Plan, builder: Builder, tensors: Mapping[str, Tensor]) -> Encoded:
    geometry, width = found.geometry, 4 // len(found.geometry.tensors)
    given = [builder.reshape(tensors[x], [found.boxes, width]) for x in geometry.tensors]
    boxes = builder.concat(given, 1)
    y_first = _swapped(builder, boxes) if geometry.x_first else boxes
    return (centers if geometry.center else corners)(builder, y_first)


def _scores(found: Plan, builder: Builder, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """float32[C, N]; -inf where a box is of another class."""
    scores = tensors[name]
    if found.recovered is None:
        return builder.reshape(scores, [found.classes, found.boxes])
    ids = builder.reshape(tensors[found.recovered.ids], [1, found.boxes])
    numbers = found.recovered.first + np.arange(found.classes)[:, None]
    own = builder.compare("EQUAL", ids, builder.constant(numbers, ids.dtype))
    other = builder.constant(np.float32(-np.inf))
    return builder.select(own, builder.reshape(scores, [1, found.boxes]), other)


def _swapped(builder: Builder, boxes: Tensor) -> Tensor:
    return builder.gather(boxes, builder.constant(SWAPPED, "int32"), axis=1)


@dataclass(frozen=True, slots=True)
class _Behind:
    """What the source does behind its suppression, done to the operator's detections."""

    found: Plan
    builder: Builder
    made: Detections
    emitter: Emitter

    @classmethod
    def of(
        cls, found: Plan, builder: Builder, made: Detections, tensors: Mapping[str, Tensor]
    ) -> "_Behind":
        """Emit it."""
        constants = {tensor.name: tensor for tensor in found.model.graph.initializer}
        emitter = Emitter(builder, found.types, constants, _no_suppression, dict(tensors))
        behind = cls(found, builder, made, emitter)
        for name in found.presets():
            shape = found.types[name].shape
            emitter.tensors[name] = builder.reshape(behind._preset(name), shape)
        emitter.emit(found.work)
        return behind

    def boxes(self) -> Tensor:
        """float32[M, 4], y first."""
        if self.found.part(Role.BOX) is None:
            return self.made.boxes
        boxes = self.part(Role.BOX, self.made.boxes)
        return _swapped(self.builder, boxes) if self.found.returns_x_first else boxes

    def part(self, role: Role, raw: Tensor) -> Tensor:
        """The source's part of a role in the shape of `raw`, zero where no detection is."""
        part = self.found.part(role)
        if part is None:
            return raw
        builder, tensor = self.builder, self.emitter.tensor(part.tensor)
        if part.columns is not None:
            tensor = builder.gather(tensor, builder.constant(part.columns, "int32"), axis=1)
        tensor = builder.cast(builder.reshape(tensor, raw.shape), "float32")
        places = builder.constant(np.arange(raw.shape[0], dtype=np.float32))
        real = builder.compare("LESS", places, self.made.count)
        mask = builder.reshape(real, [raw.shape[0], *(1 for _ in raw.shape[1:])])
        return builder.select(mask, tensor, builder.constant(np.float32(0)))

    def _preset(self, name: str) -> Tensor:
        """A tensor that the source fetches or counts, made of the detections."""
        found, builder, dtype = self.found, self.builder, self.found.types[name].dtype
        if name in found.tail.counts:
            return builder.cast(self.made.count, dtype)
        if name in found.roles.classes:
            table = builder.constant(found.roles.classes[name], dtype)
            return builder.gather(table, builder.cast(self.made.classes, "int32"))
        boxes = self.made.boxes
        if found.geometry.x_first:
            boxes = _swapped(builder, boxes)
        first = 0 if found.recovered is None else found.recovered.first
        number = builder.binary("ADD", self.made.classes, builder.constant(np.float32(first)))
        columns = {
            Role.SCORE: builder.reshape(self.made.scores, [found.call.rows, 1]),
            Role.CLASS: builder.reshape(number, [found.call.rows, 1]),
        }
        parts = [
            columns.get(column.role, builder.slice_axis(boxes, 1, column.index % 4, 1))
            for column in found.roles.leaves[name]
        ]
        return builder.cast(builder.concat(parts, 1), dtype)


def _no_suppression(
    builder: Builder, call: StaticNms, boxes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    del builder, boxes, scores
    raise PassError(f"{call.name}: a suppression behind the one that became the operator")
