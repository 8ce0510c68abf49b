"""What inspect() sees: suppressions wherever they hide, limits however they are written."""

import math

import numpy as np
import onnx
import pytest
from onnx import parser

from bridge.detection import Cause, Guard, Layout, Provenance, Role, inspect
from bridge.model import load
from bridge.options import BoxLayout
from tests.shared import SHARED, needs_shared

HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 9, 4] boxes, float[1, 2, 9] scores, int64[1] most) => (int64[k, 3] y)
INITIALIZERS
{ BODY }
"""


def parse(body: str, initializers: str = "") -> onnx.ModelProto:
    return parser.parse_model(HEAD.replace("INITIALIZERS", initializers).replace("BODY", body))


LIMITS = [
    ("[nms] y = NonMaxSuppression(boxes, scores)", "", (0, 0.0, -math.inf)),
    ("[nms] y = NonMaxSuppression(boxes, scores, m)", "<int64 m = {7}>", (7, 0.0, -math.inf)),
    (
        "m = Constant<value_ints = [7]>() i = Constant<value_float = 0.5>() "
        "[nms] y = NonMaxSuppression(boxes, scores, m, i)",
        "",
        (7, 0.5, -math.inf),
    ),
    ("[nms] y = NonMaxSuppression(boxes, scores, , , s)", "<float[1] s = {0.25}>", (0, 0.0, 0.25)),
    ("[nms] y = NonMaxSuppression(boxes, scores, most)", "", (None, 0.0, -math.inf)),
    (
        "f = Cast<to = 7>(c) m = Unsqueeze(f, z) [nms] y = NonMaxSuppression(boxes, scores, m)",
        "<int32 c = {3}, int64[1] z = {0}>",
        (3, 0.0, -math.inf),
    ),
    (
        "[nms] y = NonMaxSuppression(boxes, scores, m)",
        "<int64 m = {9223372036854775807}>",
        (2**63 - 1, 0.0, -math.inf),
    ),
]


@pytest.mark.parametrize(("body", "initializers", "expected"), LIMITS)
def test_limits_are_read_however_they_are_written(
    body: str, initializers: str, expected: tuple[int | None, float, float]
) -> None:
    (site,) = inspect(parse(body, initializers)).sites
    limits = (site.max_output_boxes_per_class, site.iou_threshold, site.score_threshold)
    assert limits == expected
    assert (site.node, site.scope) == ("nms", ())
    assert (site.images, site.classes, site.boxes) == (1, 2, 9)
    assert (site.boxes_tensor, site.scores_tensor) == ("boxes", "scores")


def test_a_suppression_in_nested_branches_and_functions_is_found() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "d" : 1]>
        g (float[1, 9, 4] boxes, float[1, 2, 9] scores, bool c) => (int64[k, 3] y)
        {
          [outer] y = If (c) <
            then_branch = t () => (int64[a, 3] u) { u = Constant<value = int64[0, 3] {}>() },
            else_branch = e () => (int64[b, 3] v) { [call] v = d.nms<iou = 0.25>(boxes, scores) }
          >
        }
        <domain: "d", opset_import: ["" : 17]>
        nms <iou: float = 0.9, score: float = 0.125> (b, s) => (r)
        {
          m = Constant<value_int = 5>()
          i = Constant<value_float: float = @iou>()
          t = Constant<value_float: float = @score>()
          [inner] r = NonMaxSuppression(b, s, m, i, t)
        }
    """)
    spec = inspect(model)
    (site,) = spec.sites
    assert site.node == "inner"
    assert site.scope == ("outer", "call (d::nms)")
    assert (site.max_output_boxes_per_class, site.iou_threshold) == (5, 0.25)
    assert site.score_threshold == 0.125
    assert (site.images, site.classes, site.boxes) == (1, 2, 9)
    assert spec.guards == (Guard("outer", (), "c"),)
    assert spec.functions == ("d::nms",)
    assert not spec.foreign
    assert spec.outputs[0].role is Role.INDICES
    assert spec.outputs[0].causes == (Cause("NonMaxSuppression", "inner", site.scope),)


def test_branches_may_use_one_name_for_two_things() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 9, 4] boxes, float[1, 2, 9] scores, bool c) => (int64[k, 3] y)
        {
          y = If (c) <
            then_branch = t () => (int64[a, 3] u) {
              m = Constant<value_int = 1>() [one] u = NonMaxSuppression(boxes, scores, m) },
            else_branch = e () => (int64[b, 3] u) {
              m = Constant<value_int = 2>() [two] u = NonMaxSuppression(boxes, scores, m) }
          >
        }
    """)
    assert [(s.node, s.max_output_boxes_per_class) for s in inspect(model).sites] == [
        ("one", 1),
        ("two", 2),
    ]


def test_the_condition_of_a_guard_is_spelt() -> None:
    body = """
        n = Size(boxes) none = Equal(n, zero) flag = Cast<to = 9>(none)
        [guard] y = If (flag) <
            then_branch = t () => (int64[a, 3] u) { u = Constant<value = int64[0, 3] {}>() },
            else_branch = e () => (int64[b, 3] v) { v = NonMaxSuppression(boxes, scores) }
        >
    """
    spec = inspect(parse(body, "<int64 zero = {0}>"))
    assert spec.guards == (Guard("guard", (), "Equal(Size(boxes), 0)"),)


def test_an_if_that_asks_what_was_selected_is_a_guard_and_another_is_none() -> None:
    body = """
        r = NonMaxSuppression(boxes, scores) n = Size(r) none = Equal(n, zero)
        [guard] y = If (none) <
            then_branch = t () => (int64[a, 3] u) { u = Identity(r) },
            else_branch = e () => (int64[b, 3] v) { v = Neg(r) }
        >
        m = Size(most) other = Equal(m, zero)
        [unrelated] w = If (other) <
            then_branch = t2 () => (int64[1] u2) { u2 = Identity(most) },
            else_branch = e2 () => (int64[1] v2) { v2 = Neg(most) }
        >
    """
    assert [guard.node for guard in inspect(parse(body, "<int64 zero = {0}>")).guards] == ["guard"]


# Layouts.


def layout_of(text: str, declared: BoxLayout | None = None) -> Layout:
    return inspect(parse(text), box_layout=declared).sites[0].layout


def test_centres_are_known_by_the_attribute() -> None:
    layout = layout_of("y = NonMaxSuppression<center_point_box = 1>(boxes, scores)")
    assert (layout.order, layout.provenance) == (BoxLayout.CXCYWH, Provenance.ATTRIBUTE)


def test_corner_order_is_not_visible_unless_declared() -> None:
    text = "y = NonMaxSuppression(boxes, scores)"
    assert layout_of(text).order is None
    assert layout_of(text).provenance is Provenance.UNKNOWN
    layout = layout_of(text, BoxLayout.YXYX)
    assert (layout.order, layout.provenance) == (BoxLayout.YXYX, Provenance.DECLARED)


def test_corner_order_is_inferred_from_a_roi_align_of_the_same_boxes() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[9, 4] boxes, float[9] scores, float[1, 2, 8, 8] f) => (float[k, 2, 1, 1] y)
        <int64[1] zero = {0}, int64[2] zeros = {0, 1}, int64 two = {2}, int64[1] shape = {-1}>
        {
          b = Unsqueeze(boxes, zero)
          s = Unsqueeze(scores, zeros)
          r = NonMaxSuppression(b, s)
          i = Gather<axis = 1>(r, two)
          rois = Gather(boxes, i)
          j = Mul(i, zero)
          [pool] y = RoiAlign(f, rois, j)
        }
    """)
    (site,) = inspect(model).sites
    assert (site.layout.order, site.layout.provenance) == (BoxLayout.XYXY, Provenance.INFERRED)
    assert "pool" in site.layout.because


# Outputs.


def test_roles_and_causes_of_the_usual_outputs() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[9, 4] boxes, float[1, 2, 9] scores, int64[9] labels, float[3] image)
          => (float[k, 4] b, float[k] s, int64[k] c, int64[k] l, int64[k] i, int64[1] n,
              float[k, 6] d, float[3] same, float[k] cf)
        <int64[1] zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] o = {1}>
        {
          bb = Unsqueeze(boxes, zero)
          [nms] r = NonMaxSuppression(bb, scores)
          i = Gather<axis = 1>(r, two)
          c = Gather<axis = 1>(r, one)
          cf = Cast<to = 1>(c)
          b = Gather(boxes, i)
          s = GatherND(scores, r)
          l = Gather(labels, i)
          n = Shape<start = 0, end = 1>(r)
          su = Unsqueeze(s, o)
          cu = Unsqueeze(cf, o)
          d = Concat<axis = 1>(b, su, cu)
          same = Neg(image)
        }
    """)
    spec = inspect(model)
    assert {value.name: value.role for value in spec.outputs} == {
        "b": Role.BOXES,
        "s": Role.SCORES,
        "c": Role.CLASSES,
        "l": Role.CLASSES,
        "i": Role.INDICES,
        "n": Role.COUNT,
        "d": Role.DETECTIONS,
        "same": None,
        "cf": Role.CLASSES,
    }
    causes = {value.name: value.causes for value in spec.outputs}
    assert causes["b"] == (Cause("NonMaxSuppression", "nms", ()),)
    assert causes["n"] == causes["same"] == ()
    assert [(value.name, value.dtype, value.shape) for value in spec.inputs] == [
        ("boxes", "float32", (9, 4)),
        ("scores", "float32", (1, 2, 9)),
        ("labels", "int64", (9,)),
        ("image", "float32", (3,)),
    ]


def test_a_free_input_and_a_selection_before_the_suppression_are_causes() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] boxes, float[n] scores, float[1] limit) => (float[k, 4] y)
        <int64[1] zero = {0}, int64[2] zeros = {0, 1}, int64 two = {2}, int64[1] o = {1}>
        {
          mask = Greater(scores, limit)
          [select] where = NonZero(mask)
          w = Squeeze(where, zero)
          b = Gather(boxes, w)
          s = Gather(scores, w)
          bb = Unsqueeze(b, zero)
          ss = Unsqueeze(s, zeros)
          [nms] r = NonMaxSuppression(bb, ss)
          i = Gather<axis = 1>(r, two)
          y = Gather(b, i)
        }
    """)
    (output,) = inspect(model).outputs
    assert {(cause.operator, cause.node) for cause in output.causes} == {
        ("NonMaxSuppression", "nms"),
        ("NonZero", "select"),
        ("input", "boxes"),
        ("input", "scores"),
    }


def test_operators_nobody_defines_are_named() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "TRT" : 1]>
        g (float[2] x) => (float[2] y) { [plugin] y = TRT.EfficientNMS_TRT(x) }
    """)
    spec = inspect(model)
    assert spec.foreign == (Cause("TRT::EfficientNMS_TRT", "plugin", ()),)
    assert not spec.sites


def test_a_hostile_constant_is_not_computed() -> None:
    model = parse(
        "m = ConstantOfShape(huge) [nms] y = NonMaxSuppression(boxes, scores, m)",
        "<int64[1] huge = {9000000000000000000}>",
    )
    (site,) = inspect(model).sites
    assert site.max_output_boxes_per_class is None


def test_the_model_is_left_alone() -> None:
    model = parse(*LIMITS[5][:2])
    before = model.SerializeToString(deterministic=True)
    inspect(model)
    assert model.SerializeToString(deterministic=True) == before


@needs_shared
def test_every_shared_model_is_described() -> None:
    paths = [*SHARED.glob("models/*.onnx"), *SHARED.glob("exports/*.onnx")]
    paths += SHARED.glob("cases/*.onnx")
    without = {"raw", "trt", "ultraface", "yunet", "yolox-nano", "nanodet", "fastestdet"}
    for path in sorted(paths):
        spec = inspect(load(path).model)
        assert bool(spec.sites) != any(word in path.name for word in without), path.name
        for site in spec.sites:
            assert site.iou_threshold is not None or path.stem in (
                "blazeface-front-e2e",
                "nms-yolov8",
            )
    two = inspect(load(SHARED / "exports" / "tiny_frcnn.ts.op17.onnx").model)
    assert [site.layout.provenance for site in two.sites] == [
        Provenance.INFERRED,
        Provenance.UNKNOWN,
    ]
    assert [site.iou_threshold for site in two.sites] == [float(np.float32(0.7)), 0.5]
