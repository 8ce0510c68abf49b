"""One spelling for every model, equal to the original bit for bit."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from bridge import static_nms
from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import Array, InputKind, load, seeded_inputs
from bridge.surgery.normalise import normalise
from tests.shared import SHARED, needs_shared
from tests.surgery.judge import assert_same

PLAIN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 5, 4] boxes, float[1, 2, 5] scores) => (int64[k, 3] y)
{ [nms] y = NonMaxSuppression(boxes, scores) }
"""


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def changed(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    freeze: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """The normalised model, after checking what every result owes."""
    before = model.SerializeToString(deterministic=True)
    result, findings = normalise(model, input_shapes=shapes or {}, freeze=freeze or {})
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(result)
    assert bool(findings) == (result.SerializeToString(deterministic=True) != before)
    assert result.ir_version == 8
    assert [(o.domain, o.version) for o in result.opset_import] == [("", 17)]
    assert not result.functions
    again, nothing = normalise(result, input_shapes={}, freeze={})
    assert again == result
    assert not nothing
    return result


# Must stay.


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.replace("y)\n", "y) <float c = {1.0}>\n"),
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, bool c) => (float[2] y) {
          [if] y = If (c) <
            then_branch = t () => (float[2] a) { [neg] a = Neg(x) },
            else_branch = e () => (float[2] b) { [abs] b = Abs(x) }
          >
        }
        """,
    ],
)
def test_a_model_in_the_one_spelling_stays(text: str) -> None:
    model = parse(text)
    assert changed(model) == model


def test_metadata_and_doc_strings_are_kept() -> None:
    model = parse(PLAIN.replace("17]", "13]"))
    helper.set_model_props(model, {"names": "cat, dog"})
    model.doc_string, model.producer_name, model.domain = "a detector", "someone", "org.example"
    model.model_version = 7
    model.graph.doc_string, model.graph.name = "its graph", "main"
    model.graph.node[0].doc_string = "its NMS"
    model.graph.input[0].doc_string = "corners"
    result = changed(model)
    model.opset_import[0].version = 17
    assert result == model


# Must change.


def test_initializers_are_inputs_no_longer() -> None:
    model = parse("""
        <ir_version: 3, opset_import: ["" : 10]>
        g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { [a] y = Add(x, w) }
    """)
    result = changed(model)
    assert [value.name for value in result.graph.input] == ["x"]
    assert_same(model, result, {"x": np.array([1, 2], np.float32)})


def test_functions_are_inlined_wherever_they_are_called() -> None:
    model = parse("""
        <ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (float[1, 6, 4] boxes, float[1, 1, 6] scores, bool c) => (int64[k, 3] y) {
          y = If (c) <
            then_branch = t () => (int64[m, 3] a) { a = d.nms <iou = 0.3>(boxes, scores) },
            else_branch = e () => (int64[n, 3] b) { b = d.nms(boxes, scores) }
          >
        }
        <domain: "d", opset_import: ["" : 20, "d" : 1]>
        nms <iou: float = 0.9> (boxes, scores) => (found) {
          limit = d.limit()
          threshold = Constant <value_float: float = @iou>()
          found = NonMaxSuppression(boxes, scores, limit, threshold)
        }
        <domain: "d", opset_import: ["" : 20]>
        limit () => (limit) { limit = Constant <value_int = 3>() }
    """)
    result = changed(model)
    for condition in (True, False):
        sets = seeded_inputs(model, seed=1, freeze={"c": np.array(condition)})
        assert_same(model, result, *sets)


def test_a_function_of_another_opset_is_inlined_where_that_changes_nothing() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "d" : 1]>
        g (float[3, 4] x) => (float[a, b] y) { y = d.f(x) }
        <domain: "d", opset_import: ["" : 12]> f (x) => (y) { y = OPERATOR(x) }
    """
    model = parse(text.replace("OPERATOR", "Celu"))
    assert_same(model, changed(model))
    with pytest.raises(UnsupportedModelError, match=r"d::f .*opset 12 .* opset 17"):
        normalise(parse(text.replace("OPERATOR", "Softmax")), input_shapes={}, freeze={})


def test_static_nms_of_an_earlier_run_is_inlined() -> None:
    model = parse(PLAIN)
    call = static_nms.StaticNms("s", "boxes", "scores", "y", "n", 2, 0.5, 0.1, False, 4)
    model.graph.node[0].CopyFrom(static_nms.make_node(call))
    static_nms.attach(model)
    result = changed(model)
    assert_same(model, result)


def test_the_default_domain_has_one_name() -> None:
    model = parse(PLAIN)
    model.opset_import[0].domain = "ai.onnx"
    model.graph.node[0].domain = "ai.onnx"
    assert changed(model).graph.node[0].domain == ""


def test_frozen_inputs_become_constants_of_the_declared_type() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 9, 4] boxes, float[1, 1, 9] scores, int64[1] limit, float iou, float[n] score)
          => (int64[k, 3] y)
        <float iou = {0.1}>
        { [nms] y = NonMaxSuppression(boxes, scores, limit, iou, score) }
    """)
    freeze = {"limit": np.array(4), "iou": np.array([0.5]), "score": np.array(0.25)}
    result = changed(model, freeze=freeze)
    assert [value.name for value in result.graph.input] == ["boxes", "scores"]
    frozen = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
    assert frozen["limit"].dtype == np.int64
    assert frozen["limit"].shape == (1,)
    assert frozen["iou"].shape == ()
    assert frozen["score"].shape == (1,)
    sets = [
        {
            **feeds,
            "limit": np.array([4]),
            "iou": np.array(0.5, np.float32),
            "score": np.array([0.25], np.float32),
        }
        for feeds in seeded_inputs(model, seed=0, freeze=freeze)
    ]
    assert_same(model, result, *sets)


def test_free_dimensions_are_fixed_and_stale_shapes_forgotten() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] boxes, float[n] scores) => (float[n, 4] y, float[7] z)
        { [y] y = Neg(boxes) [m] m = Neg(scores) [z] z = Neg(m) }
    """)
    model.graph.value_info.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [7]))
    result = changed(model, shapes={"boxes": (5, 4)})
    inferred = onnx.shape_inference.infer_shapes(result, strict_mode=True, check_type=True)
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.output]
    assert shapes == [[5, 4], [5]]


def test_nodes_get_names_of_their_own() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) { [a] b = Neg(x) [a] c = Neg(b) d = Neg(c) [Neg_1] y = Neg(d) }
    """)  # noqa: E501 - one line of ONNX text
    names = [node.name for node in changed(model).graph.node]
    assert names == ["a", "a_1", "Neg_2", "Neg_1"]


def test_naming_nodes_is_linear() -> None:
    model = parse(PLAIN)
    for number in range(20_000):
        model.graph.node.append(helper.make_node("Neg", ["scores"], [f"t{number}"]))
    result, _ = normalise(model, input_shapes={}, freeze={})
    assert len({node.name for node in result.graph.node}) == 20_001


# Must be refused.


@pytest.mark.parametrize(
    ("shapes", "freeze", "message"),
    [
        ({"image": (1, 5, 4)}, {}, "no such input; it has boxes, scores"),
        ({"boxes": (1, 6, 4)}, {}, "contradicts"),
        ({}, {"limit": np.array(1)}, "no such input; it has boxes, scores"),
        ({}, {"scores": np.array(1.0)}, "cannot take a value"),
        ({"scores": (1, 2, 5)}, {"scores": np.zeros((1, 2, 5))}, "is frozen"),
    ],
)
def test_options_that_do_not_fit_are_usage(
    shapes: dict[str, tuple[int, ...]], freeze: dict[str, Array], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        normalise(parse(PLAIN), input_shapes=shapes, freeze=freeze)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PLAIN.replace("5, 4] boxes", "n, 4] boxes"),
            r"'boxes' is \[1, n, 4\].*--input-shape boxes=1,<size>,4",
        ),
        (
            """<ir_version: 8, opset_import: ["" : 17, "TRT" : 1]>
            g (float[2] x) => (float[2] y) { [plugin] y = TRT.EfficientNMS_TRT(x) }""",
            r"TRT::EfficientNMS_TRT \(node plugin\)",
        ),
        (
            """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
            g (float[2] x, bool c) => (float[2] y) { y = If (c) <
                then_branch = t () => (float[2] a) { a = com.microsoft.Gelu(x) },
                else_branch = e () => (float[2] b) { b = Neg(x) }> }""",
            r"com.microsoft::Gelu \(node that writes a\)",
        ),
        (
            """<ir_version: 8, opset_import: ["" : 17]>
            g (seq(float[2]) s) => (int64 y) { y = SequenceLength(s) }""",
            r"'s' is a sequence_type",
        ),
    ],
)
def test_models_without_such_a_spelling_are_refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        normalise(parse(text), input_shapes={}, freeze={})


# Real models.

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "rtmdet-nano-person": {"input": (1, 3, 64, 64)},
    "nms-yolov8": {"detection": (1, 12, 320)},
    "nms_dyn": {"boxes": (50, 4), "scores": (50,)},
    "batched_nms_dyn": {"boxes": (50, 4), "scores": (50,), "idxs": (50,)},
}
FREEZE: dict[str, dict[str, Array]] = {
    "nms-yolov8": {"config": np.array([100, 0.45, 0.25])},
    "blazeface-front-e2e": {
        "max_output_boxes": np.array(20),
        "iou_threshold": np.array(0.3),
        "score_threshold": np.array(0.5),
    },
}
REAL = sorted(
    path for kind in ("models", "exports", "cases") for path in SHARED.glob(f"{kind}/*.onnx")
)


@needs_shared
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_models_keep_every_bit(path: Path) -> None:
    stem = path.name.split(".")[0]
    source = load(path).model
    shapes, freeze = SHAPES.get(stem, {}), FREEZE.get(stem, {})
    if stem == "case_trt_efficient_nms":
        with pytest.raises(UnsupportedModelError, match="TRT::EfficientNMS_TRT"):
            normalise(source, input_shapes={}, freeze={})
        return
    result = changed(source, shapes, freeze)
    sets = seeded_inputs(
        source,
        seed=2,
        kinds=[InputKind.UNIFORM, InputKind.NORMAL],
        input_shapes=shapes,
        freeze=freeze,
    )
    assert_same(source, result, *sets)
