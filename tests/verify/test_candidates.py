"""The judge of a bounded suppression sees the best pairs and no other."""

from dataclasses import replace

import numpy as np

from bridge import static_nms
from bridge.targets.base import LoweredNms
from bridge.verify.candidates import limited
from bridge.verify.suppression import cases
from tests.targets.tflite.emitting import onnxruntime_outputs
from tests.targets.tflite.suppressing import call, model, onnx_suppression

SIZE = (1, 3, 40)
NMS = call(*SIZE, limit=20, score=0.1)


def lowered(candidates: int | None) -> LoweredNms:
    return LoweredNms("nms", "kernel", 40, 3, 20, 0.5, 0.1, False, "", candidates)


def test_a_suppression_that_compares_all_has_no_other_judge() -> None:
    assert limited(model(NMS, *SIZE), [lowered(None)]) is None
    assert limited(model(NMS, *SIZE), []) is None


def test_another_call_stays() -> None:
    source = model(NMS, *SIZE)
    judge = limited(source, [replace(lowered(5), node="other")])
    assert judge is not None
    assert judge.graph == source.graph


def test_only_the_best_pairs_are_left() -> None:
    source = model(NMS, *SIZE)
    before = source.SerializeToString()
    judge = limited(source, [lowered(30)])
    assert judge is not None
    assert source.SerializeToString() == before
    plain, all_of_them, fewer = static_nms.inline(judge), onnx_suppression(NMS, *SIZE), 0
    for one in cases(*SIZE, 0.5, NMS.score_threshold, False, 1, max_output_boxes_per_class=20):
        if np.isnan(one.scores).any():
            continue
        order = np.argsort(-one.scores.reshape(-1), kind="stable")
        best = np.full(one.scores.size, -np.inf, np.float32)
        best[order[:30]] = one.scores.reshape(-1)[order[:30]]
        rows, count = all_of_them(one.boxes, best.reshape(one.scores.shape))
        fewer += count < all_of_them(one.boxes, one.scores)[1]
        selected, found = onnxruntime_outputs(plain, {"boxes": one.boxes, "scores": one.scores})
        assert int(found[0]) == count, one.name
        np.testing.assert_array_equal(selected, rows, one.name)
    assert fewer > 5
