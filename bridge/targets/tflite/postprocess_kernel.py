"""The one call of TFLite_Detection_PostProcess, fed so that it decides as onnxruntime does.

With `use_regular_nms` the kernel suppresses class by class and keeps the best over all classes. It
differs from NonMaxSuppression with a stable TopK behind it (source:
`tflite/kernels/detection_postprocess.cc`):

* it keeps scores >= the limit, ONNX above it: the limit is the next float;
* it refuses an IoU limit of 0: the smallest float above 0 stands for it;
* it refuses reversed corners and negative sizes: those are sorted, these made positive;
* it takes boxes as centre and size, relative to anchors. The anchors are made of the boxes at run
  time, so corners come back as the sum and difference of two rounded numbers, within `ROUNDING`.
  Boxes that are centre and size already come back to the bit;
* on T > 1 threads it never looks at class number T: columns that hold no candidate stand there;
* on T > 1 threads equal scores of different classes come in any order, and where more than
  `max_detections` are found, results of two threads overrun the buffer they are joined in: every
  detection there can be is let through, and they are sorted and cut behind the kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bridge.static_model import TensorType
from bridge.targets.tflite.flatbuffer import Builder, Grid, Tensor

MOST_THREADS: Final = 8
"""Up to so many interpreter threads, no class is lost."""

ROUNDING: Final = 2
"""By how many units in the last place of its largest number a box may come back otherwise."""

_FIRST_LOST: Final = 2
_SMALLEST: Final = np.float32(1e-45)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits as ONNX means them, and how many detections come out, in all and of a class."""

    detections: int
    per_class: int
    iou_threshold: float
    score_threshold: float


@dataclass(frozen=True, slots=True)
class Detections:
    """Detections, best first, equal scores by class and box; zero behind the first `count`.

    Attributes:
        boxes: float32[M, 4], the lower corner and the upper one.
        classes: float32[M], numbers of classes.
        scores: float32[M].
        count: float32[1].
    """

    boxes: Tensor
    classes: Tensor
    scores: Tensor
    count: Tensor


@dataclass(frozen=True, slots=True)
class Encoded:
    """Boxes as the kernel takes them, columns y, x, height, width.

    Its box has the centre `encodings / scales * (anchor height, width) + (anchor y, x)` and the
    size `exp(encodings / scales) * (anchor height, width)`, all of it in float64.

    Attributes:
        encodings: [1, N, 4], float32 or uint8.
        anchors: [N, 4], of the same type.
    """

    encodings: Tensor
    anchors: Tensor
    scales: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)


def detect(
    builder: Builder, boxes: Encoded, scores: Tensor, limits: Limits, grid: Grid | None = None
) -> Detections:
    """Emit the kernel and what puts its detections in order.

    Args:
        builder: takes the operators.
        boxes: N of them.
        scores: float32[C, N].
        limits: of the suppression; `detections` is at most C * N.
        grid: what scores are rounded to, with 0 at 0; None: they stay float32.
    """
    classes, count = scores.shape
    per_class = min(limits.per_class, count, limits.detections)
    most = classes * per_class
    padded, real = _keep_from_losing(builder, scores)
    columns = builder.reshape(builder.transpose(padded, [1, 0]), [1, count, padded.shape[0]])
    if grid is not None:
        # What is masked is -inf, which has no place in an integer.
        columns = builder.binary("MAXIMUM", columns, builder.constant(np.float32(0)))
        columns = builder.quantize(columns, grid)
    made = builder.custom(
        "TFLite_Detection_PostProcess",
        [boxes.encodings, columns, boxes.anchors],
        [TensorType("float32", shape) for shape in ((1, most, 4), (1, most), (1, most), (1,))],
        _options(limits, padded.shape[0], per_class, most, boxes.scales),
    )
    found = Detections(*made)
    if padded.shape[0] > classes:
        numbers = builder.cast(found.classes, "int32")
        found = replace(found, classes=builder.gather(builder.constant(real), numbers))
    if classes == 1:
        return Detections(
            builder.reshape(found.boxes, [most, 4]),
            builder.reshape(found.classes, [most]),
            builder.reshape(found.scores, [most]),
            found.count,
        )
    return _cut(builder, found, most, limits.detections)


def _options(
    limits: Limits, classes: int, per_class: int, most: int, scales: Sequence[float]
) -> dict[str, int | float | bool]:
    above = np.nextafter(np.float32(limits.score_threshold), np.float32(np.inf))
    return {
        "max_detections": most,
        "max_classes_per_detection": 1,
        "detections_per_class": per_class,
        "use_regular_nms": True,
        "nms_score_threshold": float(above),
        "nms_iou_threshold": float(max(np.float32(limits.iou_threshold), _SMALLEST)),
        "num_classes": classes,
        **dict(zip(("y_scale", "x_scale", "h_scale", "w_scale"), scales, strict=True)),
    }


def centers(builder: Builder, boxes: Tensor) -> Encoded:
    """Boxes that are centre and size of either sign, float32[N, 4]: centre = 0 * size + centre."""
    center, size = (builder.slice(boxes, [0, first], [boxes.shape[0], 2]) for first in (0, 2))
    anchors = builder.concat([center, builder.unary("ABS", size)], 1)
    return _relative(builder, [0, 0, 0, 0], anchors)


def corners(builder: Builder, boxes: Tensor) -> Encoded:
    """Boxes that are corners in any order, float32[N, 4]: centre = size / 2 + lower corner."""
    one, other = (builder.slice(boxes, [0, first], [boxes.shape[0], 2]) for first in (0, 2))
    low, high = (builder.binary(kind, one, other) for kind in ("MINIMUM", "MAXIMUM"))
    anchors = builder.concat([low, builder.binary("SUB", high, low)], 1)
    return _relative(builder, [0.5, 0.5, 0, 0], anchors)


def _relative(builder: Builder, encoding: Sequence[float], anchors: Tensor) -> Encoded:
    same = builder.constant(np.array([[encoding]], np.float32))
    return Encoded(builder.broadcast_to(same, [1, anchors.shape[0], 4]), anchors)


def _keep_from_losing(builder: Builder, scores: Tensor) -> tuple[Tensor, Floats]:
    """Scores with idle rows where threads lose one, and the class that each row stands for."""
    classes, count = scores.shape
    if classes <= _FIRST_LOST:
        return scores, np.arange(classes, dtype=np.float32)
    idle = MOST_THREADS + 1 - _FIRST_LOST
    nothing = builder.constant(np.full((1, 1), -np.inf, np.float32))
    first = builder.slice(scores, [0, 0], [_FIRST_LOST, count])
    rest = builder.slice(scores, [_FIRST_LOST, 0], [classes - _FIRST_LOST, count])
    padded = builder.concat([first, builder.broadcast_to(nothing, [idle, count]), rest], 0)
    real = np.insert(np.arange(classes, dtype=np.float32), _FIRST_LOST, np.zeros(idle))
    return padded, real.astype(np.float32)


def _cut(builder: Builder, found: Detections, most: int, detections: int) -> Detections:
    """The best detections, equal scores by class; those of one class come in order."""
    boxes = builder.reshape(found.boxes, [most, 4])
    classes, scores = (builder.reshape(x, [most]) for x in (found.classes, found.scores))
    places = builder.constant(np.arange(most, dtype=np.float32))
    real = builder.compare("LESS", places, found.count)
    lowest = builder.constant(np.float32(-np.inf))
    # Sorted by the lesser key first, by the greater one behind: TOPK_V2 keeps what is equal.
    _, by_class = builder.topk(builder.unary("NEG", classes), most)
    key = builder.gather(builder.select(real, scores, lowest), by_class)
    _, order = builder.topk(key, detections)
    order = builder.gather(by_class, order)
    count = builder.binary("MINIMUM", found.count, builder.constant(np.float32(detections)))
    boxes, classes, scores = (builder.gather(x, order) for x in (boxes, classes, scores))
    return Detections(boxes, classes, scores, count)
