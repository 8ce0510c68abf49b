"""One NON_MAX_SUPPRESSION_V4 for all classes of a detector that keeps its best detections only.

The candidates are the K best (class, box) pairs, by falling score and equal ones by class and box:
the order in which a stable TopK behind the suppression would have them. Greedy suppression looks
back only, so what comes out is exactly the beginning of what onnxruntime and that TopK give, and
all of it unless K candidates were not enough.

The kernel knows no classes: boxes of different classes must not overlap. Adding an offset per class
would round the coordinates, and with them the IoU. Multiplying by a power of two rounds nothing:
the boxes of a class have their first axis times 2^a and their second times 2^b, where (a, b) of any
two classes are `separation` or more apart. Then boxes of two classes overlap by more than the limit
only if one is limit * 2^separation times as long as the other.
"""

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from bridge.static_nms import StaticNms
from bridge.targets.tflite import suppression_boxes
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.suppression_kernel import suppress
from bridge.targets.tflite.suppression_rows import finish

# Exponents at which coordinates up to 2^16 and areas from 2^-32 to 2^32 stay normal numbers.
_LOWEST: Final = -85
_HIGHEST: Final = 110
_MOST_TOGETHER: Final = 94

_LEAST_SEPARATION: Final = 16
_LEAST_IOU: Final = 2.0**-6

_FEW_PAIRS: Final = 1 << 15
"""Up to here, comparing every candidate takes about a millisecond."""

_MOST_PAIRS: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Scales:
    """Exponents (a, b) by class, any two of them `separation` or more apart in one of both."""

    separation: int
    exponents: tuple[tuple[int, int], ...]


def scales(classes: int) -> Scales | None:
    """The widest separation there is room for; None where it is too small to mean anything."""
    room = _HIGHEST - _LOWEST
    for separation in range(room, _LEAST_SEPARATION - 1, -1):
        for first in (0, separation // 2):
            steps = range(-(room // separation) - 1, room // separation + 1)
            axis = [first + separation * step for step in steps]
            axis = [exponent for exponent in axis if _LOWEST <= exponent <= _HIGHEST]
            points = [point for point in product(axis, axis) if abs(sum(point)) <= _MOST_TOGETHER]
            if len(points) >= classes:
                points.sort(key=lambda point: (max(map(abs, point)), point))
                return Scales(separation, tuple(points[:classes]))
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """How many candidates, and how classes are kept apart."""

    candidates: int
    scales: Scales


def plan(call: StaticNms, images: int, classes: int, boxes: int) -> Plan | None:
    """The plan for a call whose rows come best first; None where it is not worth it or not right.

    A maximum per class that may be reached before the rows are full cannot be kept here, nor can a
    limit that the overlap of different classes might exceed.
    """
    pairs, apart = classes * boxes, scales(classes)
    if (
        images > 1
        or apart is None
        or not _FEW_PAIRS < pairs < _MOST_PAIRS
        or call.max_output_boxes_per_class < call.rows
        or not _LEAST_IOU <= call.iou_threshold < 1
    ):
        return None
    return Plan(min(pairs, max(1024, 10 * call.rows)), apart)


def emit(
    builder: Builder, call: StaticNms, plan: Plan, boxes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    """Emit the suppression of boxes float32[1, N, 4] and scores float32[1, C, N].

    Returns:
        `selected` int64[rows, 3], best first, and `count` int64[1].
    """
    classes, count = scores.shape[1:]
    threshold = builder.constant(np.float32(call.score_threshold))
    flat = builder.reshape(boxes, [count, 4])
    values, pairs = builder.topk(builder.reshape(scores, [classes * count]), plan.candidates)
    owner = builder.binary("FLOOR_DIV", pairs, builder.constant(np.int32(count)))
    box = builder.binary("FLOOR_MOD", pairs, builder.constant(np.int32(count)))
    candidate = builder.compare("GREATER", values, threshold)
    ranks = builder.constant(np.arange(plan.candidates, 0, -1, dtype=np.float32))
    places, number = suppress(
        builder,
        _scaled(builder, call, plan.scales, builder.gather(flat, box), owner),
        builder.select(candidate, ranks, builder.constant(np.float32(0))),
        call.rows,
        call.iou_threshold,
    )
    table = builder.op("PACK", [owner, box], [plan.candidates, 2], valuesCount=2, axis=1)
    return finish(builder, builder.gather(table, places), builder.reshape(number, [1]), call.rows)


def _scaled(
    builder: Builder, call: StaticNms, scales: Scales, boxes: Tensor, owner: Tensor
) -> Tensor:
    """Candidates float32[K, 4], each class apart from all others."""
    center = call.center_point_box
    corners = suppression_boxes.corners(builder, boxes, center_point_box=center)
    factors = np.exp2(np.array(scales.exponents, np.float32)).astype(np.float32)
    by_class = builder.gather(builder.constant(np.tile(factors, 2)), owner)
    scaled = builder.binary("MUL", corners, by_class)
    return suppression_boxes.keep_apart(builder, scaled, sorted_corners=center)


def because(call: StaticNms, plan: Plan) -> str:
    """What the manifest says about it."""
    ratio = call.iou_threshold * 2.0**plan.scales.separation
    return (
        f"the first detections are onnxruntime's to the bit; all of them as long as the "
        f"{plan.candidates} best (class, box) pairs hold {call.rows} survivors, or all there are. "
        "Classes are kept apart by powers of two: coordinates stay below 65536, and no box is "
        f"{ratio:.0e} times as long as one of another class; no score is NaN"
    )
