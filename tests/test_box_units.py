"""Boxes as fractions or pixels: where they are in the outputs, by what they are divided."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from bridge.box_units import Rescaled, rescale
from bridge.completion import Completion, completed
from bridge.detection.boxes import box_columns
from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import Source, load, save
from bridge.options import BoxLayout, BoxUnits, NmsForm, Options, Outputs
from bridge.pipeline import Checks, convert
from tests.shared import SHARED, needs_shared

# An image of 20 x 10 whose pixels become six boxes with two scores each.
HEADER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,3,10,20] image) => (OUTPUTS)
<int64[3] of_boxes = {1, 6, 4}, int64[3] of_scores = {1, 2, 6}, int64[1] zero = {0},
 int64[1] first = {0}, int64[1] after = {24}, int64[1] end = {36}, int64[1] all = {600},
 int64 limit = {4}, float iou = {0.5}, float score = {0.1}, int64 column = {2}, int64[1] one = {1},
 int64 classes = {1}, int64[1] flat = {-1}, int64[1] two = {2}, int64[2] columns = {3, 5},
 int64[1] last_axis = {-1}>
{
  line = Reshape (image, flat)
  box_numbers = Slice (line, first, after)
  score_numbers = Slice (line, after, end)
  boxes = Reshape (box_numbers, of_boxes)
  scores = Reshape (score_numbers, of_scores)
  rows = NonMaxSuppression (boxes, scores, limit, iou, score)
  which = Gather <axis = 1> (rows, column)
  class = Gather <axis = 1> (rows, classes)
  plain = Squeeze (boxes, zero)
  best = GatherND (scores, rows)
"""
PICKED = "  found = Gather <axis = 0> (plain, which)\n"
PARTS = (
    PICKED + "  s = Unsqueeze (best, one)\n  n = Cast <to = 1> (class)\n  c = Unsqueeze (n, one)\n"
)

MODELS = {
    "boxes alone": (PICKED, "float[k,4] found, float[k] best", 0),
    "a batch of them": (PICKED + "out = Unsqueeze (found, zero)", "float[1,k,4] out", 0),
    "a table": (PARTS + "t = Concat <axis = 1> (found, s, c)", "float[k,6] t", 0),
    "a table, boxes last": (PARTS + "t = Concat <axis = -1> (c, s, found)", "float[k,6] t", 2),
    "a table of tables": (
        PARTS + "a = Concat <axis = 1> (s, found)\n t = Concat <axis = 1> (c, a)",
        "float[k,6] t",
        2,
    ),
    "columns of a table": (
        PARTS + "a = Concat <axis = 1> (c, s, found)\n t = Slice (a, one, all, one)",
        "float[k,5] t",
        1,
    ),
    "rows picked from a table": (
        """
  turned = Transpose <perm = [0, 2, 1]> (scores)
  together = Concat <axis = 2> (boxes, turned)
  candidates = Squeeze (together, zero)
  t = Gather <axis = 0> (candidates, which)
""",
        "float[k,6] t",
        0,
    ),
}


def _model(name: str) -> onnx.ModelProto:
    body, outputs, _ = MODELS[name]
    return parser.parse_model(HEADER.replace("OUTPUTS", outputs) + body + "}")


def _rescale(
    model: onnx.ModelProto,
    wanted: BoxUnits = BoxUnits.FRACTIONS,
    layout: BoxLayout | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Rescaled:
    return rescale(model, wanted, shapes=shapes or {}, layout=layout)


def _outputs(model: onnx.ModelProto) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    image = np.random.default_rng(0).uniform(0, 20, (1, 3, 10, 20)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(array) for array in session.run(None, {"image": image})]


@pytest.mark.parametrize("name", MODELS)
def test_four_columns_change_and_nothing_else(name: str) -> None:
    model, first = _model(name), MODELS[name][2]
    before = model.SerializeToString()
    scaled = _rescale(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(scaled.model, full_check=True)
    plain, found = _outputs(model), _outputs(scaled.model)
    assert len(plain[0].reshape(-1)) > 4
    columns = slice(first, first + 4)
    expected = plain[0].copy()
    expected[..., columns] /= np.array([20, 10, 20, 10], np.float32)
    np.testing.assert_array_equal(found[0], expected)
    for one, other in zip(plain[1:], found[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert "takes it for granted" in scaled.assumptions[0]
    assert "x stands before y" in scaled.assumptions[1]


@pytest.mark.parametrize(
    ("layout", "sides"),
    [
        (BoxLayout.XYXY, [20, 10, 20, 10]),
        (BoxLayout.CXCYWH, [20, 10, 20, 10]),
        (BoxLayout.YXYX, [10, 20, 10, 20]),
        (BoxLayout.CYCXHW, [10, 20, 10, 20]),
    ],
)
def test_a_declared_layout_says_which_side_is_which(layout: BoxLayout, sides: list[int]) -> None:
    model = _model("boxes alone")
    scaled = _rescale(model, layout=layout)
    assert len(scaled.assumptions) == 1
    expected = _outputs(model)[0] / np.array(sides, np.float32)
    np.testing.assert_array_equal(_outputs(scaled.model)[0], expected)


def test_centre_form_is_x_first() -> None:
    model = _model("boxes alone")
    nms = next(node for node in model.graph.node if node.op_type == "NonMaxSuppression")
    nms.attribute.append(onnx.helper.make_attribute("center_point_box", 1))
    assert len(_rescale(model).assumptions) == 1


def test_fractions_become_pixels() -> None:
    model = _model("boxes alone")
    expected = _outputs(model)[0] * np.array([20, 10, 20, 10], np.float32)
    np.testing.assert_array_equal(_outputs(_rescale(model, BoxUnits.PIXELS).model)[0], expected)


def test_an_open_size_is_given() -> None:
    model = _model("boxes alone")
    for axis, name in ((2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    with pytest.raises(UsageError, match="--input-shape image=1,3,HEIGHT,WIDTH"):
        _rescale(model)
    scaled = _rescale(model, shapes={"image": (1, 3, 10, 20)})
    np.testing.assert_array_equal(
        _outputs(scaled.model)[0], _outputs(_rescale(_model("boxes alone")).model)[0]
    )


def _without_suppression() -> onnx.ModelProto:
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Neg (x) }"
    )


def test_what_cannot_be_found_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="no NonMaxSuppression, so no output"):
        _rescale(_without_suppression())
    mixed = _model("a table")
    mixed.graph.node.append(onnx.helper.make_node("Mul", ["t", "t"], ["product"]))
    mixed.graph.output[0].name = "product"
    with pytest.raises(UnsupportedModelError, match="which columns of product are boxes"):
        _rescale(mixed)


def test_boxes_need_one_image() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[1,6,4] b, float[1,2,6] s) => (int64[k,3] r) <int64 m = {3}> "
        "{ r = NonMaxSuppression (b, s, m) }"
    )
    with pytest.raises(UsageError, match="inputs of four dimensions are: none"):
        _rescale(model)


# As the command line asks for it.


def _completed(folder: Path, completion: Completion) -> tuple[Source, Options, tuple[str, ...]]:
    path = folder / "model.onnx"
    save(_model("boxes alone"), path)
    return completed(load(path), completion, Options(), folder)


@pytest.mark.parametrize(
    ("given", "wanted", "operator", "known"),
    [
        (None, None, None, None),
        (None, BoxUnits.FRACTIONS, "Div", BoxUnits.FRACTIONS),
        (None, BoxUnits.PIXELS, "Mul", BoxUnits.PIXELS),
        (BoxUnits.PIXELS, None, None, BoxUnits.PIXELS),
        (BoxUnits.FRACTIONS, None, None, BoxUnits.FRACTIONS),
        (BoxUnits.FRACTIONS, BoxUnits.FRACTIONS, None, BoxUnits.FRACTIONS),
        (BoxUnits.FRACTIONS, BoxUnits.PIXELS, "Mul", BoxUnits.PIXELS),
        (BoxUnits.PIXELS, BoxUnits.FRACTIONS, "Div", BoxUnits.FRACTIONS),
    ],
)
def test_what_is_declared_of_the_source_decides(
    given: BoxUnits | None,
    wanted: BoxUnits | None,
    operator: str | None,
    known: BoxUnits | None,
    tmp_path: Path,
) -> None:
    completion = Completion(box_units=wanted, source_box_units=given)
    source, options, told = _completed(tmp_path, completion)
    made = {node.op_type for node in source.model.graph.node} & {"Div", "Mul"}
    assert made == ({operator} if operator else set())
    assert options.box_units is known
    assert bool(told) == (operator is not None)
    if told and given is not None:
        assert "granted" not in told[0]


def test_a_head_gives_pixels(tmp_path: Path) -> None:
    completion = Completion(head="boxes", source_box_units=BoxUnits.FRACTIONS)
    path = tmp_path / "raw.onnx"
    save(_raw(), path)
    with pytest.raises(UsageError, match=r"--head-option box\.units=fractions"):
        completed(load(path), completion, Options(), tmp_path)
    source, options, _ = completed(load(path), Completion(head="boxes"), Options(), tmp_path)
    assert options.box_units is BoxUnits.PIXELS
    assert source.model.graph.output[0].name == "boxes"


def _raw() -> onnx.ModelProto:
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[1,3,8,8] x) => (float[1,24,4] boxes, float[1,24,2] scores) "
        "<int64[3] b = {1,24,4}, int64[3] s = {1,24,2}, int64[4] to = {1,3,4,4}, "
        "int64[1] z = {0}, int64[1] e = {48}, int64[1] n = {-1}, int64[1] f = {96}> "
        "{ line = Reshape (x, n) half = Slice (line, z, f) boxes = Reshape (half, b) "
        "other = Slice (line, z, e) scores = Reshape (other, s) }"
    )


# Real ones.

PACKED = {
    "case_yolo_8400_external.onnx": 0,
    "yolo5_batched_s.ts.op17.onnx": 0,
    "yolo8_nmsmodel_s.ts.op17.onnx": 0,
    "yolox_s.ts.op17.onnx": 0,
    "per_class_loop.ts.op17.onnx": 0,
    "case_batch2_multiclass.onnx": 1,
}


@needs_shared
@pytest.mark.parametrize("name", PACKED)
def test_the_boxes_of_packed_exports(name: str) -> None:
    folder = "cases" if name.startswith("case") else "exports"
    model = onnx.load(SHARED / folder / name, load_external_data=False)
    _, (boxes, *_) = box_columns(model)
    assert boxes.first == PACKED[name]


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        Options(nms=NmsForm.V4),
        Options(outputs=Outputs.DETECTIONS),
        Options(nms=NmsForm.POSTPROCESS),
    ],
    ids=["v4", "detections", "postprocess"],
)
@pytest.mark.parametrize("name", ["yolo5_batched_s.ts.op17.onnx", "tiny_ssd.ts.op17.onnx"])
def test_every_form_gives_fractions(name: str, options: Options, tmp_path: Path) -> None:
    result = convert(
        SHARED / "exports" / name,
        "tflite",
        tmp_path / "model.tflite",
        options,
        completion=Completion(box_units=BoxUnits.FRACTIONS),
        checks=Checks(images=(SHARED / "photos" / "collage_a.jpg",)),
    )
    result.check()
