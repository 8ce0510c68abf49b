"""The judge cuts where it is told, and generated numbers reach the suppression."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from bridge import static_nms
from bridge.errors import LoweringError, PassError
from bridge.targets.base import Array
from bridge.verify.judge import ROUNDING, Judge
from bridge.verify.noise import decisions, network_noise
from bridge.verify.rounding import EPSILON, perturbed
from bridge.verify.suppression import cases
from bridge.verify.tail import generated, variations
from tests.verify.heads import BORDER, BOXES, Head, head, table_input


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Head:
    return head(tmp_path_factory.mktemp("head"))


def _static(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "bridge" : 1]>\n{text}'
    )
    static_nms.attach(model)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


VIEWS = """
g (float[1, 4, 6] raw, float[6, 2] confidence) => (int64[8, 3] kept, int64[1] count)
<float half = {0.5}, int64[3] shape = {1, 6, 2}, int64[1] most = {6}>
{
  turned = Transpose<perm = [0, 2, 1]>(raw)
  lifted = Reshape(confidence, shape)
  scores = Transpose<perm = [0, 2, 1]>(lifted)
  CALL
}
"""
CALL = """kept, count = bridge.StaticNMS<max_output_boxes_per_class = 4, iou_threshold = 0.5,
    score_threshold = 0.25, center_point_box = 0, rows = 8>(BOXES, scores)"""


def _views(boxes: str = "turned", before: str = "") -> onnx.ModelProto:
    return _static(VIEWS.replace("CALL", before + CALL.replace("BOXES", boxes)))


def _border(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "raw": rng.random((1, 4, 6), np.float32),
        "confidence": rng.random((6, 2), np.float32),
    }


def test_the_tail_continues_where_the_whole_was_cut(detector: Head) -> None:
    judge = Judge(detector.static.model, BORDER)
    for seed in range(3):
        whole = judge.whole({"x": table_input(seed)})
        tail = judge.tail(whole.border)
        assert set(whole.border) == set(BORDER)
        for name, array in whole.outputs.items():
            np.testing.assert_array_equal(tail.outputs[name], array)
        np.testing.assert_array_equal(tail.nms[0].selected, whole.nms[0].selected)
        assert len(tail.nms[0].selected) == whole.outputs["num_detections"][0]


def test_where_nothing_is_cut_the_inputs_are_the_border() -> None:
    judge = Judge(_views(), ())
    assert judge.whole_is_tail
    assert judge.border == ("raw", "confidence")
    assert (judge.tolerance, judge.holds_network) == (0.0, False)


@pytest.mark.parametrize(
    ("border", "tolerance", "network"),
    [
        (BORDER, 0.0, False),
        (("corners", "logits"), ROUNDING, False),
        ((), ROUNDING, True),
    ],
)
def test_what_a_tail_may_round_follows_from_its_operators(
    detector: Head, border: tuple[str, ...], tolerance: float, network: bool
) -> None:
    judge = Judge(detector.static.model, border)
    assert (judge.tolerance, judge.holds_network) == (tolerance, network)


def test_a_border_that_is_the_output_needs_no_tail() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Exp(x) }"
    judge = Judge(_static(text), ("y",))
    y = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(judge.tail({"y": y}).outputs["y"], y)


def test_what_cannot_be_judged_is_said(detector: Head) -> None:
    with pytest.raises(LoweringError, match="'nowhere'"):
        Judge(detector.static.model, ("nowhere",))
    broken = onnx.ModelProto()
    broken.CopyFrom(detector.static.model)
    broken.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(PassError, match="refuses the static model"):
        Judge(broken, BORDER)


def test_generated_sets_reach_the_suppression_through_views() -> None:
    judge = Judge(_views(), ())
    border = _border(0)
    made = list(generated(judge, border, 3))
    expected = list(cases(1, 2, 6, 0.5, 0.25, False, 3, max_output_boxes_per_class=4))
    assert len(made) == 4 * len(expected)
    for one, case in zip(made, expected, strict=False):
        assert case.name in one.name
        run = judge.tail(one.arrays)
        np.testing.assert_array_equal(run.nms[0].boxes, case.boxes)
        np.testing.assert_array_equal(run.nms[0].scores, case.scores)


def test_scores_alone_are_fed_where_boxes_are_computed() -> None:
    judge = Judge(_views("moved", "moved = Mul(turned, half)\n"), ())
    border = _border(0)
    made = list(generated(judge, border, 3))
    assert made
    for one, case in zip(made, cases(1, 2, 6, 0.5, 0.25, False, 3), strict=False):
        run = judge.tail(one.arrays)
        np.testing.assert_array_equal(one.arrays["raw"], border["raw"])
        if case.name == "random":
            np.testing.assert_array_equal(run.nms[0].scores, case.scores)


def test_a_run_that_orders_a_nan_is_undefined() -> None:
    sort = "ranked, order = TopK<axis = 2>(scores0, most)\n"
    text = VIEWS.replace("  scores =", "  scores0 =").replace("CALL", sort + CALL)
    sorted_first = Judge(_static(text.replace("BOXES, scores)", "turned, ranked)")), ())
    as_they_come = Judge(_views(), ())
    border = _border(0)
    assert sorted_first.tail(border).defined
    border["confidence"][3, 1] = np.nan
    assert not sorted_first.tail(border).defined
    assert as_they_come.tail(border).defined


def test_variations_leave_integers_shapes_and_types_alone() -> None:
    border: dict[str, Array] = {
        "a": np.linspace(-3, 5, 60, dtype=np.float32).reshape(15, 4),
        "b": np.arange(5),
    }
    made = {one.name: one.arrays for one in variations(border, 1)}
    assert len(made) == 7
    for arrays in made.values():
        assert arrays["a"].shape == (15, 4)
        assert arrays["a"].dtype == np.float32
        np.testing.assert_array_equal(arrays["b"], border["b"])
    assert len(np.unique(made["border coarse"]["a"])) < 18
    assert len(np.unique(made["border repeated"]["a"])) == 30
    shuffled = made["border shuffled"]["a"]
    np.testing.assert_array_equal(np.sort(shuffled, axis=None), border["a"].reshape(-1))


def test_noise_is_relative_to_the_size_of_the_numbers() -> None:
    expected: dict[str, Array] = {"a": np.array([1000, 1, 0.001], np.float32), "b": np.arange(3)}
    found = {"a": np.array([1000.1, 1, 0.001], np.float32), "b": np.arange(3)}
    noise = network_noise(expected, found)
    assert noise["a"] == pytest.approx(1e-4, rel=1e-3)
    assert noise["b"] == 0
    other = {"a": np.array([np.nan, 1, 0.001], np.float32), "b": np.arange(3) + 1}
    assert set(network_noise(expected, other).values()) == {np.inf}


def test_the_noise_of_a_square_root_is_that_of_its_square() -> None:
    """FCOS scores so: what a Sigmoid rounds to 0 or to 6e-8 is 0 or 2.4e-4 behind the root."""
    model = _static("""
    scores (float[4, 1] x) => (float[4] rooted, float[4] plain)
    <int64[1] flat = {-1}>
    {
      root = Sqrt (x)
      rooted = Reshape (root, flat)
      plain = Reshape (x, flat)
    }
    """)
    judge = Judge(model, ["rooted", "plain"])
    assert judge.roots == {"root", "rooted"}
    expected: dict[str, Array] = {"rooted": np.array([0.5, 0.25, 0.1, 0], np.float32)}
    found: dict[str, Array] = {"rooted": np.array([0.5, 0.25, 0.1, 2.4e-4], np.float32)}
    assert network_noise(expected, found)["rooted"] > 4e-4
    assert network_noise(expected, found, judge.roots)["rooted"] < 3e-7
    # A number that decides is held as before.
    found["rooted"][0] += np.float32(1e-3)
    assert network_noise(expected, found, judge.roots)["rooted"] > 1e-3


def test_numbers_move_by_no_more_than_asked() -> None:
    arrays: dict[str, Array] = {
        "floats": np.array([1000, 1, -1, 0, np.inf], np.float32),
        "black": np.zeros(9, np.float32),
        "whole": np.arange(3),
    }
    moved = perturbed(arrays, 16 * EPSILON, np.random.default_rng(0))
    with np.errstate(invalid="ignore"):
        apart = np.abs(moved["floats"].astype(np.float64) - arrays["floats"].astype(np.float64))
    assert (apart[:4] <= 17 * EPSILON * np.array([1000, 1, 1, 1])).all()
    assert apart[:4].any()
    assert moved["floats"][4] == np.inf
    assert np.abs(moved["black"].astype(np.float64)).max() <= 16 * EPSILON
    assert moved["black"].any()
    np.testing.assert_array_equal(moved["whole"], arrays["whole"])


@pytest.mark.parametrize(
    ("index", "value", "text"),
    [
        ((0, 4), 0.2500001, "from the limit 0.25"),
        ((2, 0), 0.9000001, "from that of box 0"),
    ],
)
def test_a_decision_is_explained_by_its_margin(
    index: tuple[int, int], value: float, text: str
) -> None:
    """Box 4 stands on the limit; boxes 0 and 2 are the same and nearly tie."""
    scores = np.array([[0.9, 0.1, 0.9 - 1e-7, 0.1, 0.25, 0.1]], np.float32)
    boxes = np.zeros((1, 6, 4), np.float32)
    boxes[0, :, 0] = [0, 10, 0, 30, 40, 50]
    boxes[0, :, 1:] = [0, 0, 2]
    boxes[0, :, 2] = boxes[0, :, 0] + 2
    moved = scores.copy()
    box = index[1] if index[0] == 0 else index[0]
    moved[0, box] = value
    judge = Judge(_views(), ())

    def run(numbers: Array) -> Array:
        return np.ascontiguousarray(np.repeat(numbers, 2, axis=0).T)

    border = {"raw": np.ascontiguousarray(boxes.transpose(0, 2, 1)), "confidence": run(scores)}
    base = judge.tail(border)
    other = judge.tail(border | {"confidence": run(moved)})
    found = decisions(base, other)
    assert found
    assert any(text in one for one in found), found


def test_the_detector_of_these_tests_has_what_they_need(tmp_path: Path) -> None:
    made = head(tmp_path)
    assert len(static_nms.calls(made.static.model)) == 1
    assert table_input(0).shape == (1, BOXES, 7)
