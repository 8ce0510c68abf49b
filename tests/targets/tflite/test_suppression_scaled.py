"""One suppression for all classes: which detections come out, and that classes stay apart."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from bridge.static_nms import StaticNms
from bridge.targets.base import LoweredNms
from bridge.targets.tflite import suppression
from bridge.targets.tflite.flatbuffer import Builder
from bridge.targets.tflite.suppression_scaled import plan, scales
from bridge.verify.suppression import cases
from tests.targets.tflite.suppressing import (
    UNLIMITED,
    Floats,
    call,
    litert_suppression,
    onnx_suppression,
)

# More pairs than are worth comparing all.
LARGE = (1, 21, 1600)
STARVED = {"all_equal", "duplicates_hide_others"}


def best(nms: StaticNms, size: tuple[int, int, int]) -> tuple[Builder, LoweredNms]:
    images, classes, boxes = size
    builder = Builder()
    corners = builder.input("boxes", [images, boxes, 4], "float32")
    scores = builder.input("scores", [images, classes, boxes], "float32")
    selected, count, lowered = suppression.emit(builder, nms, corners, scores, best_first=True)
    builder.output("selected", selected)
    builder.output("count", count)
    return builder, lowered


def sorted_rows(
    nms: StaticNms, size: tuple[int, int, int], boxes: Floats, scores: Floats
) -> NDArray[np.int64]:
    """All that onnxruntime selects, in the order of a stable TopK, cut to the call's rows."""
    images, classes, count = size
    per_class = min(nms.max_output_boxes_per_class, count)
    whole = call(
        *size, limit=per_class, iou=nms.iou_threshold, score=nms.score_threshold,
        center=nms.center_point_box, rows=images * classes * per_class,
    )  # fmt: skip
    rows, found = onnx_suppression(whole, *size)(boxes, scores)
    rows = rows[:found]
    order = np.argsort(-scores[tuple(rows.T)], kind="stable")
    return rows[order[: nms.rows]]


@pytest.mark.parametrize("center", [False, True])
def test_the_first_detections_are_onnxruntimes(center: bool) -> None:
    nms = call(*LARGE, limit=100, iou=0.45, score=0.05, center=center, rows=100)
    builder, lowered = best(nms, LARGE)
    assert lowered.candidates == 1024
    assert not lowered.exact
    runs = [litert_suppression(builder.pack(), threads) for threads in (1, 4)]
    short = set()
    for one in cases(*LARGE, 0.45, nms.score_threshold, center, 5, max_output_boxes_per_class=100):
        if np.isnan(one.scores).any():
            continue
        expected = sorted_rows(nms, LARGE, one.boxes, one.scores)
        for run in runs:
            selected, count = run(one.boxes, one.scores)
            np.testing.assert_array_equal(selected[:count], expected[:count], one.name)
            assert not selected[count:].any()
            if count < len(expected):
                short.add(one.name)
    assert short == STARVED


@pytest.mark.parametrize("size", [(1, 3, 60), (2, 2, 50), (1, 1, 40)], ids=str)
def test_few_pairs_are_compared_all(size: tuple[int, int, int]) -> None:
    nms = call(*size, limit=30, score=0.1, rows=25)
    builder, lowered = best(nms, size)
    assert (lowered.exact, lowered.candidates) == (True, None)
    run = litert_suppression(builder.pack())
    for one in cases(*size, 0.5, nms.score_threshold, False, 3, max_output_boxes_per_class=30):
        expected = sorted_rows(nms, size, one.boxes, one.scores)
        selected, count = run(one.boxes, one.scores)
        assert count == len(expected), one.name
        np.testing.assert_array_equal(selected[:count], expected, one.name)


@pytest.mark.parametrize("classes", [1, 2, 21, 80, 91, 100])
def test_classes_are_apart(classes: int) -> None:
    found = scales(classes)
    assert found is not None
    assert len(found.exponents) == classes
    for one, other in combinations(found.exponents, 2):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) >= found.separation
    factors = np.exp2(np.array(found.exponents, np.float64))
    for coordinate in (2.0**-16, 2.0**16):
        scaled = (coordinate * factors).astype(np.float32)
        assert (scaled == coordinate * factors).all()
        area = scaled[:, 0] * scaled[:, 1]
        assert ((area > np.finfo(np.float32).tiny) & np.isfinite(area)).all()


def test_too_many_classes_have_no_room() -> None:
    assert scales(1000) is None


@pytest.mark.parametrize(
    ("nms", "size"),
    [
        (call(limit=100, rows=100), (1, 3, 200)),
        (call(limit=100, rows=100), (2, 21, 1600)),
        (call(limit=50, rows=100), LARGE),
        (call(limit=UNLIMITED, iou=0.0, rows=100), LARGE),
        (call(limit=UNLIMITED, iou=1.0, rows=100), LARGE),
        (call(limit=UNLIMITED, rows=100), (1, 1000, 100)),
    ],
    ids=["few pairs", "two images", "a maximum per class", "limit 0", "limit 1", "no room"],
)
def test_where_it_is_not_right(nms: StaticNms, size: tuple[int, int, int]) -> None:
    assert plan(nms, *size) is None


def test_operators_at_eighty_classes() -> None:
    nms = call(1, 80, 8400, limit=100, score=0.05, rows=100)
    builder, _ = best(nms, (1, 80, 8400))
    assert len(builder.live()) <= 30
