"""A suppression under LiteRT decides as onnxruntime's, row for row."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from bridge.errors import UnsupportedModelError
from bridge.static_nms import StaticNms
from bridge.targets.tflite import suppression
from bridge.targets.tflite.flatbuffer import Builder
from bridge.verify.suppression import SuppressionCase, cases
from tests.targets.tflite.suppressing import (
    UNLIMITED,
    Floats,
    call,
    emitted,
    litert_suppression,
    onnx_suppression,
)

NODE_TESTS = sorted(
    (Path(onnx.__file__).parent / "backend/test/data/node").glob("test_nonmaxsuppression_*")
)

SIZES = [(1, 1, 60), (2, 1, 40), (1, 2, 50), (1, 3, 90), (2, 3, 40), (1, 21, 60), (1, 80, 40)]
LIMITS = [
    (10, 0.5, 0.25),
    (UNLIMITED, 0.45, -np.inf),
    (5, 0.0, 0.1),
    (1000, 1.0, 0.0),
    (20, float(np.nextafter(np.float32(1), np.float32(0))), 0.3),
    (3, 1 / 3, -2.0),
]


def assert_equal(
    nms: StaticNms, size: tuple[int, int, int], sets: Iterator[SuppressionCase]
) -> int:
    """Hold every set on one thread and on four; how many rows were compared."""
    expected = onnx_suppression(nms, *size)
    content = emitted(nms, *size)[0].pack()
    found = {threads: litert_suppression(content, threads) for threads in (1, 4)}
    total = 0
    for one in sets:
        rows, count = expected(one.boxes, one.scores)
        total += count
        for threads, run in found.items():
            selected, number = run(one.boxes, one.scores)
            assert number == count, (one.name, threads)
            np.testing.assert_array_equal(selected, rows, f"{one.name}, {threads} threads")
    return total


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_generated_sets(size: tuple[int, int, int], limits: tuple[int, float, float]) -> None:
    for center in (False, True):
        limit, iou, score = limits
        nms = call(*size, limit=limit, iou=iou, score=score, center=center)
        sets = cases(
            *size,
            nms.iou_threshold,
            nms.score_threshold,
            center,
            seed=sum(size),
            max_output_boxes_per_class=nms.max_output_boxes_per_class,
        )
        assert assert_equal(nms, size, sets) > 0


@pytest.mark.parametrize("rows", [1, 7, 30, 31, 200])
@pytest.mark.parametrize("size", [(1, 1, 40), (2, 3, 40)], ids=str)
def test_rows_other_than_the_result_needs(size: tuple[int, int, int], rows: int) -> None:
    nms = call(*size, limit=31, score=0.1, rows=rows)
    sets = cases(*size, 0.5, nms.score_threshold, False, seed=rows, max_output_boxes_per_class=31)
    assert assert_equal(nms, size, sets) > 0


@pytest.mark.parametrize("directory", NODE_TESTS, ids=lambda path: str(path.name))
def test_onnx_node_tests(directory: Path) -> None:
    node = onnx.load(directory / "model.onnx").graph.node[0]
    data = directory / "test_data_set_0"
    boxes, scores, limit, iou, score = (
        numpy_helper.to_array(onnx.load_tensor(data / f"input_{i}.pb")) for i in range(5)
    )
    expected = numpy_helper.to_array(onnx.load_tensor(data / "output_0.pb"))
    center = any(a.name == "center_point_box" and a.i for a in node.attribute)
    images, classes, count = scores.shape
    size = (images, classes, count)
    nms = call(*size, int(limit[0]), float(iou[0]), float(score[0]), center=center)
    selected, count = litert_suppression(emitted(nms, *size)[0].pack())(boxes, scores)
    np.testing.assert_array_equal(selected[:count], expected)


def test_all_node_tests_are_there() -> None:
    assert len(NODE_TESTS) == 9


def corners(values: list[list[float]]) -> Floats:
    return np.array([values], np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("center", [False, True])
def test_a_coordinate_that_is_no_length(bad: float, column: int, center: bool) -> None:
    """Such a box is selected once, and neither suppresses nor is suppressed."""
    boxes = corners([[0.5, 0.5, 1, 1]] * 6)
    boxes[0, 1::2, column] = bad
    scores = np.array([[[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]]], np.float32)
    nms, size = call(boxes=6, center=center), (1, 1, 6)
    rows, count = onnx_suppression(nms, *size)(boxes, scores)
    selected, number = litert_suppression(emitted(nms, *size)[0].pack())(boxes, scores)
    assert number == count
    np.testing.assert_array_equal(selected, rows)


def test_no_box_of_any_size_meets_a_private_one() -> None:
    """Boxes without an area are kept where no coordinate below 2^126 reaches."""
    sides = np.float32(2.0) ** np.arange(-60, 62, 2, dtype=np.float32)
    boxes = np.zeros((1, 2 * len(sides), 4), np.float32)
    boxes[0, ::2, 2] = boxes[0, ::2, 3] = sides
    scores = np.linspace(1, 0.5, boxes.shape[1], dtype=np.float32)[None, None]
    size = (1, 1, boxes.shape[1])
    nms = call(*size, limit=UNLIMITED, iou=0.0)
    rows, count = onnx_suppression(nms, *size)(boxes, scores)
    selected, number = litert_suppression(emitted(nms, *size)[0].pack())(boxes, scores)
    assert number == count > len(sides)
    np.testing.assert_array_equal(selected, rows)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_boxes_on_a_coarse_lattice(data: st.DataObject) -> None:
    """Few coordinates and few scores: every comparison meets its own equality."""
    nms, size = call(1, 2, 8, limit=8, iou=1 / 3, score=0.25), (1, 2, 8)
    lattice = st.integers(-2, 3).map(float)
    boxes = data.draw(st.lists(st.lists(lattice, min_size=4, max_size=4), min_size=8, max_size=8))
    level = st.sampled_from([0.0, 0.25, 0.5, 0.75, np.nan, -1.0, np.inf])
    scores = data.draw(st.lists(level, min_size=16, max_size=16))
    array = np.array(scores, np.float32).reshape(1, 2, 8)
    rows, count = onnx_suppression(nms, *size)(corners(boxes), array)
    selected, number = litert_suppression(emitted(nms, *size)[0].pack())(corners(boxes), array)
    assert number == count
    np.testing.assert_array_equal(selected, rows)


@pytest.mark.parametrize(
    "nms",
    [call(limit=0, rows=3), call(score=np.inf), call(score=np.nan)],
    ids=["no output", "no score", "no number"],
)
def test_nothing_to_select(nms: StaticNms) -> None:
    builder, lowered = emitted(nms, 1, 1, 50)
    boxes, scores = np.ones((1, 50, 4), np.float32), np.full((1, 1, 50), np.inf, np.float32)
    selected, count = litert_suppression(builder.pack())(boxes, scores)
    assert count == 0
    assert not selected.any()
    assert (lowered.lowered_to, lowered.exact) == ("constant", True)


def test_the_manifest_says_how_it_was_lowered() -> None:
    lowered = emitted(call(2, 3, 50), 2, 3, 50)[1]
    assert (lowered.node, lowered.boxes, lowered.classes, lowered.max_output) == ("nms", 50, 3, 10)
    assert lowered.lowered_to == "NON_MAX_SUPPRESSION_V4 x 6"
    assert lowered.exact


def test_more_boxes_than_ranks_are_refused() -> None:
    builder, count = Builder(), suppression.MOST_BOXES + 1
    boxes = builder.input("boxes", [1, count, 4], "float32")
    scores = builder.input("scores", [1, 1, count], "float32")
    with pytest.raises(UnsupportedModelError, match="nms: NON_MAX_SUPPRESSION_V4"):
        suppression.emit(builder, call(boxes=count), boxes, scores)


def test_equal_calls_give_equal_bytes() -> None:
    assert (
        emitted(call(1, 3, 50), 1, 3, 50)[0].pack() == emitted(call(1, 3, 50), 1, 3, 50)[0].pack()
    )
