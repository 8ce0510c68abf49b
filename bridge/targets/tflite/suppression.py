"""Lowering one `StaticNMS` to NON_MAX_SUPPRESSION_V4 so that it decides as onnxruntime does.

The kernel differs from the ONNX operator in four ways, and each is put right in what it is fed
(source: `tflite/kernels/internal/reference/non_max_suppression.h` against onnxruntime's
`non_max_suppression.cc` and `non_max_suppression_helper.h`; the IoU of both is the same
arithmetic, so it has the same bits):

* it suppresses at IoU >= limit, ONNX above it: the limit is the next float;
* its heap gives equal scores in any order, ONNX the lower index first: TOPK_V2 sorts the
  candidates, and the kernel is given their rank as the score;
* it drops a selected box from its queue because the IoU of a box with itself reaches the limit,
  which is not so without an area, nor with one that is no number or overflows: such boxes, which
  neither suppress nor are suppressed, are replaced by boxes that touch nothing;
* it sorts corners, the operator's centre form does not: a box of negative size is one of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridge.errors import UnsupportedModelError
from bridge.static_model import TensorType
from bridge.static_nms import StaticNms
from bridge.targets.base import LoweredNms
from bridge.targets.tflite import suppression_boxes
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.suppression_rows import Found, rows

MOST_BOXES = 1 << 22
"""Above it, ranks and the private boxes would not be whole float32 numbers."""


@dataclass(frozen=True, slots=True)
class _Size:
    """What is known of a call before any box is.

    Attributes:
        per_class: how many boxes of one class of one image can come out.
    """

    images: int
    classes: int
    boxes: int
    per_class: int

    @property
    def segments(self) -> int:
        """Independent suppressions: one for each class of each image."""
        return self.images * self.classes


def emit(
    builder: Builder, call: StaticNms, boxes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, LoweredNms]:
    """Emit a suppression.

    Args:
        builder: takes the operators.
        call: thresholds and rows.
        boxes: float32[B, N, 4].
        scores: float32[B, C, N].

    Returns:
        `selected` int64[rows, 3], `count` int64[1], and what the manifest says about it.

    Raises:
        UnsupportedModelError: more boxes than the kernel can be given exact ranks for.
    """
    images, classes, count = scores.shape
    if count > MOST_BOXES:
        raise UnsupportedModelError(
            f"{call.name}: NON_MAX_SUPPRESSION_V4 is exact for up to {MOST_BOXES} boxes, this one "
            f"has {count}; reduce them (a TopK) before the suppression"
        )
    size = _Size(images, classes, count, min(call.max_output_boxes_per_class, count, call.rows))
    if min(images, classes, size.per_class) <= 0 or not call.score_threshold < np.inf:
        zeros = builder.constant(np.zeros((call.rows, 3), np.int64))
        none = builder.constant(np.zeros(1, np.int64))
        return zeros, none, _lowered(call, size, "constant", "nothing can be selected")
    segmented = builder.reshape(scores, [size.segments, count])
    ranked = _rank(builder, segmented, call.score_threshold)
    if call.iou_threshold >= 1.0:
        found = _best(builder, ranked, size.per_class)
        what, because = "TOPK_V2", "no two boxes overlap by more than an IoU of 1"
    else:
        found = _unrolled(builder, call, size, boxes, ranked)
        what, because = f"NON_MAX_SUPPRESSION_V4 x {size.segments}", _EXACT
    selected, number = rows(builder, found, size.classes, call.rows)
    return selected, number, _lowered(call, size, what, because)


_EXACT = (
    "every candidate of a class is compared, by rank, on its own coordinates, and boxes without an "
    "area are kept apart (as long as areas lie between 1.2e-38 and 1.7e38)"
)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The candidates of every segment, best first.

    Attributes:
        order: int32[S, N], their box; boxes that are no candidates follow.
        rank: float32[S, N], falling from N, 0 for what is no candidate.
    """

    order: Tensor
    rank: Tensor


def _rank(builder: Builder, scores: Tensor, threshold: float) -> _Ranked:
    """Sort `scores` float32[S, N]; a NaN is no candidate, and would confuse TOPK_V2's order."""
    boxes = scores.shape[1]
    lowest = builder.constant(np.float32(-np.inf))
    above = builder.compare("GREATER", scores, builder.constant(np.float32(threshold)))
    values, order = builder.topk(builder.select(above, scores, lowest), boxes)
    ranks = builder.constant(np.arange(boxes, 0, -1, dtype=np.float32)[None])
    candidate = builder.compare("GREATER", values, lowest)
    return _Ranked(order, builder.select(candidate, ranks, builder.constant(np.float32(0))))


def _best(builder: Builder, ranked: _Ranked, limit: int) -> Found:
    """The first candidates of each segment, none of which suppresses another."""
    segments = ranked.order.shape[0]
    rank = builder.slice(ranked.rank, [0, 0], [segments, limit])
    candidates = builder.compare("GREATER", rank, builder.constant(np.float32(0)))
    counts = builder.reduce("SUM", builder.cast(candidates, "int32"), [1])
    return Found(builder.slice(ranked.order, [0, 0], [segments, limit]), counts)


def _unrolled(
    builder: Builder, call: StaticNms, size: _Size, boxes: Tensor, ranked: _Ranked
) -> Found:
    """One NON_MAX_SUPPRESSION_V4 for each class of each image."""
    center = call.center_point_box
    corners = suppression_boxes.corners(builder, boxes, center_point_box=center)
    images = _unpack(builder, suppression_boxes.keep_apart(builder, corners, sorted_corners=center))
    orders, ranks = _unpack(builder, ranked.order), _unpack(builder, ranked.rank)
    selected, counts = [], []
    for segment, (order, rank) in enumerate(zip(orders, ranks, strict=True)):
        candidates = builder.gather(images[segment // size.classes], order)
        places, count = suppress(builder, candidates, rank, size.per_class, call.iou_threshold)
        selected.append(places)
        counts.append(count)
    places = _pack(builder, selected)
    found = builder.gather(ranked.order, places, axis=1, batch_dims=1)
    return Found(found, _pack(builder, counts))


def suppress(
    builder: Builder, boxes: Tensor, rank: Tensor, limit: int, iou_threshold: float
) -> tuple[Tensor, Tensor]:
    """NON_MAX_SUPPRESSION_V4 with ONNX's limit.

    Args:
        builder: takes the operators.
        boxes: float32[N, 4], none of them without an area.
        rank: float32[N], different where above 0; what is not above 0 is not selected.
        limit: how many are selected at most.
        iou_threshold: below 1: an IoU above it suppresses.

    Returns:
        Places int32[limit], zeros behind the real ones, and their number int32[].
    """
    above = np.nextafter(np.float32(iou_threshold), np.float32(np.inf))
    limits = [np.int32(limit), above, np.float32(0)]
    places, count = builder.emit(
        "NON_MAX_SUPPRESSION_V4",
        [boxes, rank, *map(builder.constant, limits)],
        [TensorType("int32", (limit,)), TensorType("int32", ())],
    )
    return places, count


def _unpack(builder: Builder, x: Tensor) -> tuple[Tensor, ...]:
    """The parts of a tensor along its first axis, which they lose."""
    count, *shape = x.shape
    if count == 1:
        return (builder.reshape(x, shape),)
    return builder.emit("UNPACK", [x], [TensorType(x.dtype, tuple(shape))] * count, num=count)


def _pack(builder: Builder, parts: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape along a new first axis."""
    shape = (len(parts), *parts[0].shape)
    if len(parts) == 1:
        return builder.reshape(parts[0], shape)
    return builder.op("PACK", parts, shape, valuesCount=len(parts))


def _lowered(call: StaticNms, size: _Size, lowered_to: str, because: str) -> LoweredNms:
    return LoweredNms(
        node=call.name,
        lowered_to=lowered_to,
        boxes=size.boxes,
        classes=size.classes,
        max_output=call.max_output_boxes_per_class,
        iou_threshold=call.iou_threshold,
        score_threshold=call.score_threshold,
        exact=True,
        because=because,
    )
