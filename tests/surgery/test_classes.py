"""The coordinate trick becomes one suppression that knows its classes, and decides the same."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bridge import static_nms, surgery
from bridge.detection import NoClasses, RecoveredClasses, recover
from bridge.model import Array, load, seeded_inputs
from bridge.options import Options
from bridge.static_model import tensor_types
from bridge.surgery.classes import recover_classes
from bridge.surgery.runner import Pass
from tests.shared import SHARED, needs_shared
from tests.surgery.judge import assert_all_equal, assert_same, compiled, run
from tests.surgery.static_text import apply, static_model

RECOVER = Pass("recover-classes", recover_classes)
AWARE = Options(class_aware=True)
N, CLASSES = 12, 3

IDS = "ids = ArgMax<axis = 1, keepdims = 0>(logits)"
MAXIMUM = (
    "largest = ReduceMax<keepdims = 0>(boxes) unit = Constant<value_float = 1.0>() "
    "step = Add(largest, unit)"
)
MASKED = (
    "none = Constant<value = float {-inf}>() zero = Constant<value_float = 0.0>() "
    "real = GreaterOrEqual(boxes, zero) counted = Where(real, boxes, none) "
    "largest = ReduceMax<keepdims = 0>(counted) unit = Constant<value_float = 1.0>() "
    "step = Add(unit, largest)"
)
CONSTANT = "step = Constant<value_float = 64.0>()"
TRICK = (
    "number = Cast<to = 1>(ids) shift = Mul(number, step) one = Constant<value_ints = [1]>() "
    "column = Unsqueeze(shift, one) moved = Add(boxes, column)"
)
CALL = (
    "first = Constant<value_ints = [0]>() apart = Unsqueeze(moved, first) "
    "both = Constant<value_ints = [0, 1]>() s = Unsqueeze(scores, both) "
    "selected, count = bridge.StaticNMS<max_output_boxes_per_class = {most}, iou_threshold = 0.5, "
    "score_threshold = {score}, center_point_box = 0, rows = {rows}>(apart, s)"
)


def head(
    ids: str = IDS,
    step: str = MAXIMUM,
    trick: str = TRICK,
    *,
    most: int = N,
    rows: int = N,
    score: float = 0.0,
) -> onnx.ModelProto:
    call = CALL.format(most=most, rows=rows, score=score)
    return static_model(
        f"float[{N}, 4] boxes, float[{N}] scores, float[{N}, {CLASSES}] logits, int64[{N}] given",
        f"int64[{rows}, 3] selected, int64[1] count",
        f"{ids} {step} {trick} {call}",
    )


def feeds_of(boxes: NDArray[np.float32], scores: list[float], ids: list[int]) -> dict[str, Array]:
    logits = np.eye(CLASSES, dtype=np.float32)[ids]
    return {
        "boxes": boxes.astype(np.float32),
        "scores": np.array(scores, np.float32),
        "logits": logits,
        "given": np.array(ids, np.int64),
    }


# Must stay.


def test_without_the_option_everything_stays() -> None:
    model = head()
    result, report, _ = apply(RECOVER, model)
    assert result is model
    assert not report.findings


DECLINED = [
    (head(ids="ids = Identity(given)"), "nothing limits the class ids (given)"),
    (head(trick="moved = Identity(boxes)"), "nothing is added to its boxes"),
    (head(trick="moved = Add(boxes, boxes)"), "not a class id times an offset"),
    (head(step="other = Exp(boxes) step = ReduceMax<keepdims = 0>(other)"), "not a class id"),
    (head(step=MAXIMUM.replace("(boxes)", "(scores)")), "not a class id"),
    (head(step="step = Constant<value_float = -64.0>()"), "not a class id"),
    (head(step=MASKED.replace("{-inf}", "{7}")), "not a class id"),
    (head(step=MAXIMUM.replace("1.0", "0.5")), "not a class id"),
]


@pytest.mark.parametrize(("model", "reason"), DECLINED, ids=[reason for _, reason in DECLINED])
def test_what_is_not_the_trick_stays(model: onnx.ModelProto, reason: str) -> None:
    result, report, assumptions = apply(RECOVER, model, AWARE)
    assert result is model
    assert not assumptions
    (finding,) = report.findings
    assert reason in finding.what
    assert not finding.changed


def test_a_suppression_that_knows_its_classes_stays() -> None:
    model = static_model(
        "float[1, 5, 4] boxes, float[1, 2, 5] scores",
        "int64[4, 3] y, int64[1] n",
        "y, n = bridge.StaticNMS<max_output_boxes_per_class = 2, iou_threshold = 0.5, "
        "score_threshold = 0.0, center_point_box = 0, rows = 4>(boxes, scores)",
    )
    result, report, _ = apply(RECOVER, model, AWARE)
    assert result is model
    assert "2 classes already" in report.findings[0].what


# Must change.

STEPS = {"maximum": MAXIMUM, "masked maximum": MASKED, "constant": CONSTANT}
HEADS = {
    (name, most, rows): head(step=step, most=most, rows=rows)
    for name, step in STEPS.items()
    for most, rows in ((N, N), (4, 4), (N, 3))
}
JUDGES = {key: compiled(model) for key, model in HEADS.items()}
CANDIDATES = {key: compiled(apply(RECOVER, model, AWARE)[0]) for key, model in HEADS.items()}

corner = st.integers(0, 20)
one_box = st.tuples(corner, corner, corner, corner)
score = st.one_of(
    st.sampled_from([0.0, 0.25, 0.5, -1.0, np.inf, np.nan]), st.floats(0, 1, width=32)
)


@given(
    key=st.sampled_from(sorted(HEADS)),
    boxes=st.lists(one_box, min_size=N, max_size=N),
    scores=st.lists(score, min_size=N, max_size=N),
    ids=st.lists(st.integers(0, CLASSES - 1), min_size=N, max_size=N),
)
@settings(max_examples=400, deadline=None)
def test_every_decision_and_its_place_stay(
    key: tuple[str, int, int],
    boxes: list[tuple[int, int, int, int]],
    scores: list[float],
    ids: list[int],
) -> None:
    # Whole coordinates: the offset rounds nothing, so the trick itself is exact.
    feeds = feeds_of(np.array(boxes), scores, ids)
    assert_all_equal(JUDGES[key](feeds), CANDIDATES[key](feeds))


@pytest.mark.parametrize(("name", "step"), STEPS.items())
def test_the_call_has_a_class_of_scores_each(name: str, step: str) -> None:
    result, report, (assumption,) = apply(RECOVER, head(step=step, most=4, rows=4), AWARE)
    (call,) = static_nms.calls(result)
    types = tensor_types(result)
    assert types[call.boxes].shape == (1, N, 4)
    assert types[call.scores].shape == (1, CLASSES, N)
    assert call.name == "n_selected"
    assert call.max_output_boxes_per_class == 4
    assert call.rows == N
    assert [finding.what for finding in report.findings] == ["3 classes recovered"]
    assert ("a range of 64" if name == "constant" else "no coordinate is -1 or less") in assumption


def test_where_the_trick_goes_wrong_classes_are_kept_apart() -> None:
    """Two equal boxes far below zero: their largest coordinate and one does not part them."""
    model = head()
    boxes = np.tile(np.array([-100, -100, -2, -2], np.float32), (N, 1))
    feeds = feeds_of(boxes, [0.9, 0.8] + [-1.0] * (N - 2), [0, 1] + [0] * (N - 2))
    result, _, (assumption,) = apply(RECOVER, model, AWARE)
    assert "no coordinate is -1 or less" in assumption
    assert run(model, feeds)["count"].tolist() == [1]
    assert run(result, feeds)["count"].tolist() == [2]


def test_equal_scores_of_different_classes_come_by_box_and_not_by_class() -> None:
    model = head()
    boxes = np.array([[20 * i, 0, 20 * i + 10, 10] for i in range(N)])
    feeds = feeds_of(boxes, [0.5] * N, [2, 1, 0] * (N // 3))
    result, _, _ = apply(RECOVER, model, AWARE)
    assert run(result, feeds)["selected"][:, 2].tolist() == list(range(N))
    assert_same(model, result, feeds)


# Bounds of the class ids.

BOUNDED = [
    (IDS, 0, 3),
    ("five = Constant<value_int = 5>() ids = Mod(given, five)", 0, 5),
    ("five = Constant<value_int = 5>() ids = Mod<fmod = 1>(given, five)", -4, 9),
    ("raw = ArgMax<axis = 1, keepdims = 0>(logits) k = Constant<value_int = 1>() ids = Add(raw, k)",
        1, 3),
    ("raw = ArgMax<axis = 1, keepdims = 0>(logits) k = Constant<value_int = 1>() ids = Sub(raw, k)",
        -1, 3),
    ("raw = ArgMax<axis = 1, keepdims = 0>(logits) d = Constant<value_ints = [0]>() "
        "wide = Unsqueeze(raw, d) ids = Squeeze(wide, d)", 0, 3),
    ("k = Constant<value_ints = [12]>() v, ids = TopK(scores, k)", 0, 12),
    ("a = Constant<value_ints = [1, 1, 1, 1, 1, 1]>() k = Constant<value_ints = [6]>() "
        "v, b = TopK(scores, k) ids = Concat<axis = 0>(b, a)", 0, 12),
    ("raw = ArgMax<axis = 1, keepdims = 0>(logits) k = Constant<value_int = 7>() "
        "z = Constant<value_float = 0.5>() c = Less(scores, z) ids = Where(c, raw, k)", 0, 8),
    ("low = Constant<value_int = 2>() high = Constant<value_int = 4>() "
        "ids = Clip(given, low, high)", 2, 3),
    # An id that travels as a column of a matrix of rows.
    ("raw = ArgMax<axis = 1, keepdims = 1>(logits) f = Cast<to = 1>(raw) "
        "rows = Concat<axis = 1>(boxes, f) k = Constant<value_ints = [12]>() "
        "v, order = TopK(scores, k) sorted = Gather(rows, order) four = Constant<value_int = 4>() "
        "ids = Gather<axis = 1>(sorted, four)", 0, 3),
    ("raw = ArgMax<axis = 1, keepdims = 1>(logits) f = Cast<to = 1>(raw) "
        "rows = Concat<axis = -1>(f, boxes, f) b = Constant<value_ints = [1]>() "
        "e = Constant<value_ints = [6]>() cut = Slice(rows, b, e, b) "
        "c1, c2, c3, c4, c5 = Split<axis = 1>(cut) ids = Squeeze(c5, b)", 0, 3),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "first", "count"), BOUNDED)
def test_class_ids_are_bounded_by_what_makes_them(ids: str, first: int, count: int) -> None:
    model = head(ids=ids)
    found = recover(model, static_nms.calls(model)[0])
    assert isinstance(found, RecoveredClasses)
    assert (found.first, found.count, found.boxes) == (first, count, "boxes")
    assert found.offset is None


UNBOUNDED = [
    "ids = Identity(given)",
    "two = Constant<value_int = 2>() ids = Mul(given, two)",
    "five = Constant<value_int = 5>() low = Constant<value_int = 0>() ids = Clip(given, low)",
    "k = Constant<value_ints = [12]>() v, order = TopK(scores, k) ids = Gather(given, order)",
    "m = Abs(given) ids = Mod(given, m)",
    # The neighbouring column is bounded, this one is not.
    "raw = ArgMax<axis = 1, keepdims = 1>(logits) f = Cast<to = 1>(raw) "
    "rows = Concat<axis = 1>(boxes, f) three = Constant<value_int = 3>() "
    "ids = Gather<axis = 1>(rows, three)",
]


@pytest.mark.parametrize("ids", UNBOUNDED)
def test_class_ids_that_nothing_limits_are_no_classes(ids: str) -> None:
    model = head(ids=ids)
    found = recover(model, static_nms.calls(model)[0])
    assert isinstance(found, NoClasses)
    assert "nothing limits" in found.because


@needs_shared
@pytest.mark.parametrize(
    ("name", "first", "count", "offset"),
    [
        ("tiny_ssd.ts.op11", 1, 3, None),
        ("tiny_ssd.dypatch.opdef", 1, 3, None),
        ("tiny_retina.ts.op17", 0, 3, None),
        ("tiny_fcos.ts.op17", 0, 3, None),
        ("yolo5_batched_s.dypatch.opdef", 0, 6, None),
        ("yolo5_offset_s.ts.op11", 0, 6, 7680.0),
        ("yolo8_batched_s.ts.op17", 0, 6, None),
        ("yolo8_topk_s.dy.opdef", 0, 6, 4096.0),
        ("yolo8_nmsmodel_s.ts.op17", 0, 6, float(np.float32(4 / 3))),
        ("yolox_s.ts.op17", 0, 6, None),
    ],
)
def test_real_exports_give_their_classes_back(
    name: str, first: int, count: int, offset: float | None
) -> None:
    source = load(SHARED / "exports" / f"{name}.onnx").model
    plain = surgery.run(source, Options()).static
    found = recover(plain.model, static_nms.calls(plain.model)[0])
    assert isinstance(found, RecoveredClasses)
    assert (found.first, found.count, found.offset) == (first, count, offset)
    aware = surgery.run(source, AWARE).static
    assert len(aware.assumptions) == len(plain.assumptions) + 1
    if name.startswith("tiny"):  # these clip their boxes at 0, where the trick parts all classes
        assert_same(plain.model, aware.model, *seeded_inputs(source, seed=3))
