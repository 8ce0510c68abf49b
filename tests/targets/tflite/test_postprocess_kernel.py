"""TFLite_Detection_PostProcess decides as onnxruntime and a stable TopK behind it."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from bridge.static_nms import StaticNms
from bridge.targets.tflite.flatbuffer import Builder
from bridge.targets.tflite.postprocess_kernel import ROUNDING, Limits, centers, corners, detect
from bridge.verify.suppression import cases
from tests.targets.tflite.suppressing import UNLIMITED, Floats, call, onnx_suppression

THREADS = (1, 2, 4, 8)

# Classes, boxes, maximum per class, detections.
SIZES = [(1, 60, 60, 20), (2, 80, 20, 30), (3, 90, 50, 40), (5, 60, 30, 150), (21, 50, 20, 100)]
LIMITS = [(0.5, 0.25), (0.45, -np.inf), (0.0, 0.1), (1.0, 0.0)]

Detector = Callable[[Floats, Floats], Mapping[str, Floats]]


def kernel(size: tuple[int, int], limits: Limits, *, center: bool) -> bytes:
    """A file of nothing but the kernel; boxes are float32[1, N, 4] in onnxruntime's order."""
    classes, count = size
    builder = Builder()
    boxes = builder.input("boxes", [1, count, 4], "float32")
    scores = builder.input("scores", [1, classes, count], "float32")
    found = detect(
        builder,
        (centers if center else corners)(builder, builder.reshape(boxes, [count, 4])),
        builder.reshape(scores, [classes, count]),
        limits,
    )
    builder.output("found", found.boxes)
    builder.output("classes", found.classes)
    builder.output("values", found.scores)
    builder.output("count", found.count)
    return builder.pack()


def detector(content: bytes, threads: int) -> Detector:
    interpreter = Interpreter(model_content=content, num_threads=threads)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("serving_default")

    def run(boxes: Floats, scores: Floats) -> Mapping[str, Floats]:
        outputs: Mapping[str, Floats] = runner(boxes=boxes, scores=scores)
        return outputs

    return run


def sorted_corners(boxes: Floats, *, center: bool) -> Floats:
    """Sorted corners as onnxruntime makes them; a negative size has no extent."""
    one, other = boxes[:, :2], boxes[:, 2:]
    if not center:
        return np.concatenate([np.minimum(one, other), np.maximum(one, other)], 1)
    half = np.maximum(other, 0) * np.float32(0.5)
    return np.concatenate([one - half, one + half], 1)


def expected(
    nms: StaticNms, size: tuple[int, int], detections: int, boxes: Floats, scores: Floats
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Classes, boxes and scores of the best detections, equal scores by class and box."""
    selected, count = onnx_suppression(nms, 1, *size)(boxes, scores)
    rows = selected[:count]
    order = np.argsort(-scores[tuple(rows.T)], kind="stable")[:detections]
    rows = rows[order]
    found = sorted_corners(boxes[0], center=nms.center_point_box)[rows[:, 2]]
    return rows[:, 1], found, scores[tuple(rows.T)]


@pytest.mark.parametrize("center", [False, True], ids=["corners", "centre"])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_generated_sets(
    size: tuple[int, int, int, int], limits: tuple[float, float], center: bool
) -> None:
    classes, count, per_class, detections = size
    nms = call(1, classes, count, per_class, *limits, center=center)
    wanted = Limits(detections, per_class, nms.iou_threshold, nms.score_threshold)
    content = kernel((classes, count), wanted, center=center)
    runs = {threads: detector(content, threads) for threads in THREADS}
    total = 0
    for one in cases(
        1, classes, count, nms.iou_threshold, nms.score_threshold, center, seed=count,
        max_output_boxes_per_class=per_class,
    ):  # fmt: skip
        labels, boxes, scores = expected(nms, (classes, count), detections, one.boxes, one.scores)
        total += len(labels)
        given = one.boxes.copy()
        if center:
            # As fix-box-layout hands them on.
            given[..., 2:] = np.maximum(given[..., 2:], 0)
        for threads, run in runs.items():
            found, where = run(given, one.scores), f"{one.name}, {threads} threads"
            real = int(found["count"][0])
            assert real == len(labels), where
            np.testing.assert_array_equal(found["classes"][:real], labels, where)
            np.testing.assert_array_equal(found["values"][:real], scores, where)
            largest = np.abs(boxes).max(1, keepdims=True, initial=1e-30)
            rounding = 0 if center else ROUNDING * np.spacing(largest)
            assert (np.abs(found["found"][:real] - boxes) <= rounding).all(), where
            for name in ("found", "classes", "values"):
                assert not found[name][real:].any(), where
    assert total > 20


def test_a_maximum_below_the_detections_on_many_threads() -> None:
    """The kernel's own buffer holds one maximum beside the detections, two threads fill more."""
    classes, count = 30, 40
    wanted = Limits(60, 10, 0.5, 0.1)
    content = kernel((classes, count), wanted, center=False)
    boxes = np.zeros((1, count, 4), np.float32)
    boxes[0, :, 0] = np.arange(count) * 2
    boxes[0, :, 2:] = boxes[0, :, :2] + 1
    scores = np.random.default_rng(0).uniform(0.2, 1, (1, classes, count)).astype(np.float32)
    nms = call(1, classes, count, 10, 0.5, 0.1)
    labels, _, values = expected(nms, (classes, count), 60, boxes, scores)
    for threads in THREADS:
        found = detector(content, threads)(boxes, scores)
        np.testing.assert_array_equal(found["classes"], labels)
        np.testing.assert_array_equal(found["values"], values)


def test_an_unlimited_maximum() -> None:
    wanted = Limits(12, UNLIMITED, 0.5, 0.1)
    scores = np.full((1, 1, 12), 0.5, np.float32)
    boxes = np.repeat(np.arange(12, dtype=np.float32)[:, None], 4, 1)[None] * 4
    boxes[..., 2:] += 1
    found = detector(kernel((1, 12), wanted, center=False), 1)(boxes, scores)
    assert int(found["count"][0]) == 12
