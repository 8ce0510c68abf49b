"""Centres become corners in front of a suppression, and no decision changes."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bridge.options import BoxLayout, Options
from bridge.surgery.box_layout import fix_box_layout
from bridge.surgery.runner import Pass
from tests.surgery.judge import assert_all_equal, assert_same, compiled, run
from tests.surgery.static_text import apply, operators, static_model

FIX = Pass("fix-box-layout", fix_box_layout)
ROWS = 12


def model(center: int, iou: float = 0.5, body: str = "", boxes: str = "boxes") -> onnx.ModelProto:
    call = (
        f"{body} found, count = bridge.StaticNMS<max_output_boxes_per_class = 100, "
        f"iou_threshold = {iou}, score_threshold = -10.0, center_point_box = {center}, "
        f"rows = {2 * ROWS}>({boxes}, scores) out = Identity(boxes)"
    )
    return static_model(
        f"float[1, {ROWS}, 4] boxes, float[1, 2, {ROWS}] scores",
        f"int64[{2 * ROWS}, 3] found, int64[1] count, float[1, {ROWS}, 4] out",
        call,
    )


CORNERS = (
    "i = Constant<value_ints = [0, 1]>() j = Constant<value_ints = [2, 3]>() "
    "c = Gather<axis = 2>(boxes, i) s = Gather<axis = 2>(boxes, j) "
    "low = Sub(c, s) high = Add(c, s) made = Concat<axis = 2>(low, high)"
)


@pytest.mark.parametrize("declared", [None, BoxLayout.XYXY, BoxLayout.YXYX])
def test_corners_stay(declared: BoxLayout | None) -> None:
    before = model(0)
    result, report, _ = apply(FIX, before, Options(box_layout=declared))
    assert result is before
    assert not report.findings


def test_corners_made_from_centres_stay_whatever_is_declared() -> None:
    before = model(0, body=CORNERS, boxes="made")
    result, report, assumptions = apply(FIX, before, Options(box_layout=BoxLayout.CXCYWH))
    assert result is before
    (finding,) = report.findings
    assert "already holds corners" in finding.what
    assert not assumptions


numbers = st.one_of(
    st.integers(-6, 6).map(float),
    st.floats(-100, 100, width=32),
    st.sampled_from([0.0, -0.0, 1e-30, 1e-42, 3e38, np.inf, -np.inf, np.nan]),
)
some_boxes = st.lists(numbers, min_size=4 * ROWS, max_size=4 * ROWS)
CENTRED = {iou: compiled(model(1, iou)) for iou in (0.0, 0.5, 0.9)}
FIXED = {iou: compiled(apply(FIX, model(1, iou))[0]) for iou in CENTRED}


@given(values=some_boxes, iou=st.sampled_from(sorted(CENTRED)), seed=st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_centres_become_corners_and_every_decision_stays(
    values: list[float], iou: float, seed: int
) -> None:
    scores = np.random.default_rng(seed).permutation(2 * ROWS).astype(np.float32)
    feeds = {
        "boxes": np.array(values, np.float32).reshape(1, ROWS, 4),
        "scores": scores.reshape(1, 2, ROWS),
    }
    assert_all_equal(CENTRED[iou](feeds), FIXED[iou](feeds))


def test_the_boxes_themselves_go_on_as_they_were() -> None:
    result, report, assumptions = apply(FIX, model(1))
    assert report.changed
    assert not assumptions
    assert operators(result)[-2:] == ["StaticNMS", "Identity"]
    assert result.graph.node[-1].input[0] == "boxes"


def test_two_suppressions_of_the_same_boxes_share_the_corners() -> None:
    before = model(
        1,
        body="f, n = bridge.StaticNMS<max_output_boxes_per_class = 1, iou_threshold = 0.1, "
        "score_threshold = 0.0, center_point_box = 1, rows = 2>(boxes, scores)",
    )
    before.graph.output.append(
        onnx.helper.make_tensor_value_info("f", onnx.TensorProto.INT64, [2, 3])
    )
    for value in before.graph.value_info:
        if value.name == "f":
            before.graph.value_info.remove(value)
            break
    result, report, _ = apply(FIX, before)
    assert [finding.node for finding in report.findings] == ["n_f", "n_found"]
    assert operators(result).count("Concat") == 1
    assert_same(before, result)


def overlapping(layout: BoxLayout) -> NDArray[np.float32]:
    """Two boxes that overlap as centres and not as corners, and ten far away."""
    centre_size = np.array([[10, 20, 8, 4], [11, 20, 8, 4]], np.float32)
    far = np.array([[1000 * i, 20, 1, 1] for i in range(1, ROWS - 1)], np.float32)
    boxes = np.vstack([centre_size, far])[None]
    return boxes if layout is BoxLayout.CXCYWH else boxes[..., [1, 0, 3, 2]]


@pytest.mark.parametrize("layout", [BoxLayout.CXCYWH, BoxLayout.CYCXHW])
def test_declared_centres_are_converted_under_an_assumption(layout: BoxLayout) -> None:
    before = model(0, 0.3)
    result, report, (assumption,) = apply(FIX, before, Options(box_layout=layout))
    assert report.changed
    assert layout in assumption
    feeds = {
        "boxes": overlapping(layout),
        "scores": np.linspace(1, 0.1, 2 * ROWS, dtype=np.float32).reshape(1, 2, ROWS),
    }
    assert run(result, feeds)["count"].tolist() == [2 * (ROWS - 1)]
    expected = run(model(1, 0.3), feeds)
    np.testing.assert_array_equal(run(result, feeds)["found"], expected["found"])


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (None, [18, 6, 22, 14]),
        (BoxLayout.CXCYWH, [18, 6, 22, 14]),
        (BoxLayout.CYCXHW, [6, 18, 14, 22]),
    ],
)
def test_corners_are_y_first(layout: BoxLayout | None, expected: list[float]) -> None:
    result, _, _ = apply(FIX, model(1), Options(box_layout=layout))
    corners = next(node for node in result.graph.node if node.op_type == "StaticNMS").input[0]
    shown = onnx.ModelProto()
    shown.CopyFrom(result)
    shown.graph.output.append(
        onnx.helper.make_tensor_value_info(corners, onnx.TensorProto.FLOAT, [1, ROWS, 4])
    )
    for value in shown.graph.value_info:
        if value.name == corners:
            shown.graph.value_info.remove(value)
            break
    feeds = {
        "boxes": np.tile(np.array([10, 20, 8, 4], np.float32), (1, ROWS, 1)),
        "scores": np.zeros((1, 2, ROWS), np.float32),
    }
    assert run(shown, feeds)[corners][0, 0].tolist() == expected
