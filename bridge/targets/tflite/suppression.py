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
from bridge.targets.tflite import suppression_boxes, suppression_scaled
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.suppression_kernel import suppress
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
    builder: Builder, call: StaticNms, boxes: Tensor, scores: Tensor, *, best_first: bool = False
) -> tuple[Tensor, Tensor, LoweredNms]:
    """Emit a suppression.

    Args:
        builder: takes the operators.
        call: thresholds and rows.
        boxes: float32[B, N, 4].
        scores: float32[B, C, N].
        best_first: the rows are wanted by falling score, equal ones in the order of a `StaticNMS`,
            and the first ones of those (`suppression_narrow`).

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
    plan = suppression_scaled.plan(call, images, classes, count) if best_first else None
    if plan is None:
        return _compare_all(builder, call, size, boxes, scores, best_first=best_first)
    selected, number = suppression_scaled.emit(builder, call, plan, boxes, scores)
    because = suppression_scaled.because(call, plan)
    what = f"NON_MAX_SUPPRESSION_V4 over the best {plan.candidates}"
    return selected, number, _lowered(call, size, what, because, plan.candidates)


def _compare_all(
    builder: Builder,
    call: StaticNms,
    size: _Size,
    boxes: Tensor,
    scores: Tensor,
    *,
    best_first: bool,
) -> tuple[Tensor, Tensor, LoweredNms]:
    """The suppression with every candidate of every class."""
    segmented = builder.reshape(scores, [size.segments, size.boxes])
    ranked = _rank(builder, segmented, call.score_threshold)
    if call.iou_threshold >= 1.0:
        found = _best(builder, ranked, size.per_class)
        what, because = "TOPK_V2", "no two boxes overlap by more than an IoU of 1"
    else:
        found = _unrolled(builder, call, size, boxes, ranked)
        what, because = f"NON_MAX_SUPPRESSION_V4 x {size.segments}", _EXACT
    selected, number = rows(builder, found, size.classes, call.rows, best_first=best_first)
    return selected, number, _lowered(call, size, what, because)


_EXACT = (
    "every candidate of a class is compared, by rank, on its own coordinates, and boxes without an "
    "area are kept apart (as long as areas lie between 1.2e-38 and 1.7e38)"
)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The candidates of every segment, best first.

    Attributes:
        scores: float32[S, N], falling; -inf for what is no candidate.
        order: int32[S, N], their box.
        rank: float32[S, N], falling from N, 0 for what is no candidate.
    """

    scores: Tensor
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
    return _Ranked(values, order, builder.select(candidate, ranks, builder.constant(np.float32(0))))


def _best(builder: Builder, ranked: _Ranked, limit: int) -> Found:
    """The first candidates of each segment, none of which suppresses another."""
    order, scores, rank = (
        builder.slice_axis(x, 1, 0, limit) for x in (ranked.order, ranked.scores, ranked.rank)
    )
    candidates = builder.compare("GREATER", rank, builder.constant(np.float32(0)))
    return Found(order, scores, builder.reduce("SUM", builder.cast(candidates, "int32"), [1]))


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
    order, scores = (
        builder.gather(x, places, axis=1, batch_dims=1) for x in (ranked.order, ranked.scores)
    )
    return Found(order, scores, _pack(builder, counts))


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


def _lowered(
    call: StaticNms, size: _Size, lowered_to: str, because: str, candidates: int | None = None
) -> LoweredNms:
    return LoweredNms(
        node=call.name,
        lowered_to=lowered_to,
        boxes=size.boxes,
        classes=size.classes,
        max_output=call.max_output_boxes_per_class,
        iou_threshold=call.iou_threshold,
        score_threshold=call.score_threshold,
        exact=candidates is None,
        because=because,
        candidates=candidates,
    )
