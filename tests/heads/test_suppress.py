"""What the suppression of a completed model keeps, against numpy, on rows made for the purpose."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bridge.errors import UsageError
from bridge.heads import HeadOptions, complete
from tests.heads.models import Array, runner
from tests.heads.numpy_decode import Candidates, Found, detect, sigmoid


def boxes_model(rows: int, classes: int) -> onnx.ModelProto:
    """An image of [1, 1, 1, rows * (4 + classes)] whose pixels are boxes, then scores."""
    total = rows * (4 + classes)
    constants = {
        "sizes": [rows * 4, rows * classes],
        "boxes_shape": [1, rows, 4],
        "scores_shape": [1, rows, classes],
    }
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Split", ["flat", "sizes"], ["b", "s"], axis=1),
        helper.make_node("Reshape", ["b", "boxes_shape"], ["boxes"]),
        helper.make_node("Reshape", ["s", "scores_shape"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "boxes",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 1, total])],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, rows, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, rows, classes]),
        ],
        [numpy_helper.from_array(np.asarray(v, np.int64), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def keep(boxes: Array, scores: Array, options: HeadOptions) -> dict[str, Array]:
    image = np.concatenate([boxes.ravel(), scores.ravel()]).astype(np.float32)
    model = complete(boxes_model(*scores.shape), "boxes", options)
    return runner(model)(image.reshape(1, 1, 1, -1))


def agree(found: dict[str, Array], expected: Found) -> None:
    np.testing.assert_array_equal(found["classes"], expected.classes)
    np.testing.assert_array_equal(found["scores"], expected.scores)
    np.testing.assert_array_equal(found["boxes"], expected.boxes)


@st.composite
def candidates(draw: st.DrawFn, *, ties: bool = True) -> Candidates:
    """Boxes on a coarse grid, so that many overlap alike; scores with many ties or none."""
    rows, classes = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    low = rng.integers(0, 12, (rows, 2))
    boxes = np.concatenate([low, low + rng.integers(1, 9, (rows, 2))], 1).astype(np.float32)
    levels = draw(st.integers(2, 50))
    if not ties:
        distinct = (rng.permutation(rows * classes) + 1) / (rows * classes)
        return Candidates(boxes, distinct.reshape(rows, classes).astype(np.float32))
    scores = rng.integers(0, levels, (rows, classes)).astype(np.float32) / np.float32(levels)
    return Candidates(boxes, scores)


@settings(max_examples=60, deadline=None)
@given(candidates(), st.booleans(), st.sampled_from([1, 3, 100]), st.sampled_from([0.0, 0.4, 1.0]))
def test_equals_numpy(one: Candidates, agnostic: bool, most: int, iou: float) -> None:
    """Also where scores are equal: lower class first, then lower row."""
    options = HeadOptions(0.3, iou, most, agnostic, 0)
    expected = detect(one, float(np.float32(0.3)), float(np.float32(iou)), most, agnostic=agnostic)
    agree(keep(one.boxes, one.scores, options), expected)


@settings(max_examples=40, deadline=None)
@given(candidates(ties=False), st.booleans(), st.integers(1, 30))
def test_a_limit_before_the_suppression_changes_nothing_above_it(
    one: Candidates, agnostic: bool, limit: int
) -> None:
    """The promise of pre_nms_top_k: what scores higher than the last candidate is as without it."""
    full = keep(one.boxes, one.scores, HeadOptions(0.1, 0.4, 100, agnostic, 0))
    cut = keep(one.boxes, one.scores, HeadOptions(0.1, 0.4, 100, agnostic, limit))
    best = np.sort(one.scores.max(1))[::-1]
    floor = best[min(limit, len(best)) - 1] if limit < len(best) else -1.0
    for name in ("boxes", "scores", "classes"):
        np.testing.assert_array_equal(
            cut[name][cut["scores"] > floor], full[name][full["scores"] > floor]
        )


def test_a_limit_is_obeyed() -> None:
    """Apart boxes: as many are found as are let through."""
    low = np.arange(20, dtype=np.float32)[:, None] * 10
    boxes = np.concatenate([low, low, low + 5, low + 5], 1)
    scores = np.linspace(0.9, 0.3, 20, dtype=np.float32)[:, None].repeat(2, 1)
    scores[:, 1] -= 0.05
    for limit in (3, 19, 20, 21):
        found = keep(boxes, scores, HeadOptions(0.1, 0.5, 100, False, limit))
        assert len(found["scores"]) == 2 * min(limit, 20)


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("limit", [0, 7])
def test_activation_after_the_limit_is_activation_before_it(agnostic: bool, limit: int) -> None:
    rng = np.random.default_rng(3)
    low = rng.uniform(0, 50, (40, 2))
    boxes = np.concatenate([low, low + rng.uniform(5, 30, (40, 2))], 1).astype(np.float32)
    logits = rng.normal(0, 2, (40, 3)).astype(np.float32)
    plain = keep(boxes, sigmoid(logits), HeadOptions(0.5, 0.4, 100, agnostic, limit))
    options = HeadOptions(0.5, 0.4, 100, agnostic, limit, overrides=("activations.cls=sigmoid",))
    late = keep(boxes, logits, options)
    assert len(plain["scores"]) > 3
    np.testing.assert_array_equal(late["classes"], plain["classes"])
    np.testing.assert_array_equal(late["boxes"], plain["boxes"])
    np.testing.assert_allclose(late["scores"], plain["scores"], atol=1e-6)


def test_a_score_equal_to_the_threshold_is_not_kept() -> None:
    boxes = np.asarray([[0, 0, 1, 1], [5, 5, 6, 6]], np.float32)
    scores = np.asarray([[0.5], [np.nextafter(np.float32(0.5), 1)]], np.float32)
    assert keep(boxes, scores, HeadOptions(0.5))["boxes"].tolist() == [[5, 5, 6, 6]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (HeadOptions(score_threshold=float("nan")), "--score-threshold nan: give a number"),
        (HeadOptions(iou_threshold=1.5), "--iou-threshold 1.5: give a number from 0 to 1"),
        (HeadOptions(iou_threshold=-0.1), "--iou-threshold -0.1"),
        (HeadOptions(max_detections=0), "--max-detections 0: give at least 1"),
        (HeadOptions(pre_nms_top_k=-1), "--pre-nms-top-k -1"),
    ],
)
def test_an_option_out_of_range(options: HeadOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        complete(boxes_model(2, 1), "boxes", options)
    assert message in str(error.value)


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("classes", [1, 3])
def test_one_suppression_and_no_more_than_it_needs(agnostic: bool, classes: int) -> None:
    model = complete(boxes_model(8, classes), "boxes", HeadOptions(class_agnostic=agnostic))
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("NonMaxSuppression") == 1
    assert operators.count("TopK") == (classes > 1 and not agnostic)
    assert operators.count("Transpose") == (classes > 1 and not agnostic)
