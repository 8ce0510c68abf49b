"""The generated sets are what their names say, measured with onnxruntime's own operator."""

from collections.abc import Mapping

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bridge.verify.suppression import SuppressionCase, cases

LIMITS = [(0.5, 0.05), (0.45, 0.25), (0.6, 0.0), (0.3, -2.0), (0.0, 0.5), (1.0, 0.1), (1 / 3, 0.7)]


def _sets(iou: float, score: float, **changes: object) -> Mapping[str, SuppressionCase]:
    arguments: dict[str, object] = {
        "batch": 2,
        "classes": 3,
        "boxes": 60,
        "center_point_box": False,
        "seed": 1,
        "max_output_boxes_per_class": 10,
    } | changes
    made = cases(iou_threshold=iou, score_threshold=score, **arguments)  # type: ignore[arg-type]  # keyword table
    return {case.name: case for case in made}


def _select(
    case: SuppressionCase, iou: float, score: float, *, limit: int = 10
) -> NDArray[np.int64]:
    node = helper.make_node("NonMaxSuppression", ["b", "s", "m", "i", "t"], ["selected"])
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("b", TensorProto.FLOAT, case.boxes.shape),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, case.scores.shape),
        ],
        [helper.make_tensor_value_info("selected", TensorProto.INT64, ["n", 3])],
        [
            helper.make_tensor("m", TensorProto.INT64, [], [limit]),
            helper.make_tensor("i", TensorProto.FLOAT, [], [iou]),
            helper.make_tensor("t", TensorProto.FLOAT, [], [score]),
        ],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    selected: NDArray[np.int64] = session.run(None, {"b": case.boxes, "s": case.scores})[0]
    return selected


def _per_class(selected: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.zeros((2, 3), np.int64)
    np.add.at(counts, (selected[:, 0], selected[:, 1]), 1)
    return counts


@pytest.mark.parametrize(("iou", "score"), LIMITS)
def test_the_number_selected_is_the_one_asked_for(iou: float, score: float) -> None:
    sets = _sets(iou, score)
    expected = {"none": 0, "all_nan": 0, "one": 1, "one_below_maximum": 9, "exactly_maximum": 10}
    for name, count in expected.items():
        assert (_per_class(_select(sets[name], iou, score, limit=60)) == count).all(), name
    assert (_per_class(_select(sets["above_maximum"], iou, score, limit=60)) == 11).all()
    assert (_per_class(_select(sets["above_maximum"], iou, score)) == 10).all()


@pytest.mark.parametrize(("iou", "score"), LIMITS)
def test_pairs_stand_exactly_on_the_iou_limit_and_one_float_beside_it(
    iou: float, score: float
) -> None:
    sets = _sets(iou, score)
    assert (_per_class(_select(sets["iou_at_limit"], iou, score, limit=60)) == 60).all()
    assert (_per_class(_select(sets["iou_below_limit"], iou, score, limit=60)) == 60).all()
    if iou < 1:
        above = _per_class(_select(sets["iou_above_limit"], iou, score, limit=60))
        assert (above == 30).all()
    if iou > 0:
        below = float(np.nextafter(np.float32(iou), np.float32(-1)))
        assert (_per_class(_select(sets["iou_at_limit"], below, score, limit=60)) == 30).all()


@pytest.mark.parametrize("iou", [0.5, 0.45, 0.6])
def test_pairs_stand_on_the_limit_in_centre_form_too(iou: float) -> None:
    case = _sets(iou, 0.1, center_point_box=True)["iou_at_limit"]
    width, height = case.boxes[..., 2], case.boxes[..., 3]
    area = width * height
    quotient = np.minimum(area[:, ::2], area[:, 1::2]) / np.maximum(area[:, ::2], area[:, 1::2])
    assert (quotient == np.float32(iou)).all()


@pytest.mark.parametrize(("iou", "score"), LIMITS)
def test_scores_on_the_limit_are_dropped_and_one_float_above_is_kept(
    iou: float, score: float
) -> None:
    case = _sets(iou, score)["score_at_limit"]
    selected = _select(case, iou, score, limit=60)
    chosen = case.scores[selected[:, 0], selected[:, 1], selected[:, 2]]
    assert len(chosen)
    assert (chosen == np.nextafter(np.float32(score), np.float32(np.inf))).all()
    assert (case.scores == np.float32(score)).any()


def test_nothing_but_the_form_changes_with_the_layout() -> None:
    corner, centre = _sets(0.5, 0.1), _sets(0.5, 0.1, center_point_box=True)
    assert set(corner) - set(centre) == {"reversed"}
    assert set(centre) - set(corner) == {"negative_sizes"}
    boxes = centre["fractions"].boxes
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    np.testing.assert_allclose(
        np.concatenate([low, high], -1), corner["fractions"].boxes, atol=1e-6
    )


def test_each_hard_set_holds_what_it_is_named_for() -> None:
    sets = _sets(0.5, 0.1)
    low, high = (
        np.minimum(*np.split(sets["reversed"].boxes, 2, -1)),
        sets["reversed"].boxes[..., 2:],
    )
    assert (low != sets["reversed"].boxes[..., :2]).any()
    assert (high < sets["reversed"].boxes[..., :2]).any()
    size = np.subtract(*np.split(sets["zero_area"].boxes, 2, -1)[::-1])
    assert (np.prod(size, -1) == 0).mean() > 0.4
    assert np.isnan(sets["nan_scores"].scores).any()
    assert np.isposinf(sets["infinite_scores"].scores).any()
    assert np.isneginf(sets["infinite_scores"].scores).any()
    assert (sets["negative_scores"].scores < 0).all()
    assert np.abs(sets["huge_coordinates"].boxes).max() > 1e14
    assert len(np.unique(sets["ties"].scores)) <= 8
    assert len(_select(sets["dense"], 0.5, 0.1, limit=60)) < sets["dense"].scores.size // 4


@pytest.mark.parametrize(
    ("batch", "classes", "boxes"), [(1, 1, 1), (1, 1, 2), (3, 1, 7), (1, 90, 5)]
)
@pytest.mark.parametrize("center_point_box", [False, True])
def test_every_size_works_and_repeats(
    batch: int, classes: int, boxes: int, center_point_box: bool
) -> None:
    def run(seed: int) -> list[SuppressionCase]:
        return list(cases(batch, classes, boxes, 0.5, float("-inf"), center_point_box, seed))

    first, again, other = run(3), run(3), run(4)
    for one, two in zip(first, again, strict=True):
        assert one.boxes.shape == (batch, boxes, 4)
        assert one.scores.shape == (batch, classes, boxes)
        assert one.boxes.dtype == one.scores.dtype == np.float32
        assert one.name == two.name
        np.testing.assert_array_equal(one.boxes, two.boxes)
        np.testing.assert_array_equal(one.scores, two.scores)
    assert any((one.scores != two.scores).any() for one, two in zip(first, other, strict=True))
