"""Which detectors become TFLite_Detection_PostProcess, and that nothing of them is lost."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser

from bridge import model as models
from bridge import surgery
from bridge.errors import UnsupportedModelError
from bridge.options import BoxLayout, NmsForm, Options
from bridge.static_model import tensor_types
from bridge.targets.tflite import postprocess
from bridge.targets.tflite.flatbuffer import Builder
from bridge.targets.tflite.form import Form
from bridge.targets.tflite.postprocess import NAMES
from bridge.verify.suppression import cases
from tests.shared import SHARED, needs_shared
from tests.targets.tflite.emitting import litert_outputs, onnxruntime_outputs

Array = NDArray[np.generic]

HEADER = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[IMAGES,CLASSES,40] scores, float[IMAGES,40,4] boxes, float[1] ratio,
          int64[40] label) => (OUTPUTS)
<int64[1] limit = {LIMIT}, float[1] iou = {0.5}, float[1] score = {0.25}, int64[1] zero = {0},
 int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] most = {30},
 int64 class_column = {1}, int64 box_column = {2}, int64 unit = {1}, float gain = {0.1},
 int64[4] turned = {1, 0, 3, 2}, float[6] sides = {1, 40, 20, 40, 20, 1},
 float[5] box_sides = {40, 20, 40, 20, 1}, int64[2] image_and_box = {0, 2}, float step = {4096}>
{
"""

ROWS = "rows = NonMaxSuppression <center_point_box = CENTER> (boxes, scores, limit, iou, score)"

COLUMNS = """
  class = Gather <axis = 1> (rows, class_column)
  box = Gather <axis = 1> (rows, box_column)
  image = Squeeze (boxes, zero)
  corners = Gather <axis = 0> (image, box)
  value = GatherND (scores, rows)
"""

SORTED = """
  value = GatherND (scores, rows)
  all = Shape (value)
  k = Min (all, most)
  best, at = TopK <axis = 0> (value, k)
  picked = Gather <axis = 0> (rows, at)
  class = Gather <axis = 1> (picked, class_column)
  box = Gather <axis = 1> (picked, box_column)
  image = Squeeze (boxes, zero)
  corners = Gather <axis = 0> (image, box)
"""

PAIRS = """
  pair = Gather <axis = 1> (rows, image_and_box)
  corners = GatherND (boxes, pair)
  value = GatherND (scores, rows)
"""

# As torchvision's batched_nms and YOLO's wrappers hide classes: one suppression of moved boxes.
TRICK = """
  best_score = ReduceMax <axes = [1], keepdims = 0> (scores)
  ids = ArgMax <axis = 1, keepdims = 0> (scores)
  image = Squeeze (boxes, zero)
  id = Squeeze (ids, zero)
  shown = Cast <to = 1> (id)
  move = Mul (shown, step)
  column = Unsqueeze (move, one)
  moved = Add (image, column)
  moved_boxes = Unsqueeze (moved, zero)
  plain = Unsqueeze (best_score, one)
  kept = NonMaxSuppression (moved_boxes, plain, limit, iou, score)
  box = Gather <axis = 1> (kept, box_column)
  corners = Gather <axis = 0> (image, box)
  flat = Squeeze (best_score, zero)
  value = Gather <axis = 0> (flat, box)
  class = Gather <axis = 0> (id, box)
"""

RAW = "float[n,4] corners, float[n] value, int64[n] class"
BEST = "float[n,4] corners, float[n] best, int64[n] class"


@dataclass(frozen=True)
class Case:
    body: str
    outputs: str = RAW
    classes: int = 3
    images: int = 1
    center: int = 0
    limit: int = 20

    def source(self) -> onnx.ModelProto:
        rows = "" if self.body == TRICK else ROWS.replace("CENTER", str(self.center))
        text = HEADER.replace("IMAGES", str(self.images)).replace("LIMIT", str(self.limit))
        text = text.replace("CLASSES", str(self.classes)).replace("OUTPUTS", self.outputs)
        return parser.parse_model(f"{text} {rows} {self.body} }}")


ONE_CLASS = "float[n,4] corners, float[n] value"

QUALIFIES = {
    "one class": Case(COLUMNS, ONE_CLASS, classes=1),
    "one class and its number": Case(COLUMNS, classes=1),
    "all detections of all classes": Case(COLUMNS),
    "the best of all classes": Case(SORTED, BEST),
    "centres": Case(SORTED, BEST, center=1),
    "scaled": Case(SORTED + "scaled = Mul (corners, ratio)", BEST.replace("corners", "scaled")),
    "moved": Case(SORTED + "moved = Add (corners, gain)", BEST.replace("corners", "moved")),
    "classes from one": Case(
        SORTED + "label1 = Add (class, unit)", BEST.replace("class", "label1")
    ),
    "scores doubled": Case(SORTED + "twice = Add (best, best)", BEST.replace("best", "twice")),
    "y first": Case(
        SORTED + "y_first = Gather <axis = 1> (corners, turned)", BEST.replace("corners", "y_first")
    ),
    "classes in moved boxes": Case(TRICK),
    "scores beside them": Case(
        SORTED + "a = Identity (best)\n b = Identity (corners)", "float[n] a, float[n,4] b"
    ),
    "one table": Case(
        COLUMNS
        + """
  number = Cast <to = 1> (class)
  a = Unsqueeze (number, one)
  b = Unsqueeze (value, one)
  table = Concat <axis = 1> (a, corners, b)
""",
        "float[n,6] table",
    ),
    "one table, boxes scaled": Case(
        COLUMNS
        + """
  number = Cast <to = 1> (class)
  a = Unsqueeze (number, one)
  b = Unsqueeze (value, one)
  packed = Concat <axis = 1> (a, corners, b)
  table = Div (packed, sides)
""",
        "float[n,6] table",
    ),
    "one fetched table, boxes scaled": Case(
        """
  turned_scores = Transpose <perm = [0, 2, 1]> (scores)
  all = Concat <axis = 2> (boxes, turned_scores)
  candidates = Squeeze (all, zero)
  class = Gather <axis = 1> (rows, class_column)
  box = Gather <axis = 1> (rows, box_column)
  fetched = Gather <axis = 0> (candidates, box)
  fractions = Div (fetched, box_sides)
""",
        "float[n,5] fractions, int64[n] class",
        classes=1,
    ),
}

REFUSED = {
    "two images": (Case(PAIRS, ONE_CLASS, images=2), "one image, this suppression 2"),
    "no boxes": (Case(COLUMNS, "float[n] value"), "does not return the boxes"),
    "no scores": (Case(COLUMNS, "float[n,4] corners"), "does not return the scores"),
    "numbers of boxes": (Case(COLUMNS, f"{RAW}, int64[n] box"), "'box_"),
    "labels of boxes": (
        Case(COLUMNS + "named = Gather <axis = 0> (label, box)", f"{ONE_CLASS}, int64[n] named"),
        "'named_",
    ),
    "boxes and scores mixed": (
        Case(COLUMNS + "b = Unsqueeze (value, one)\n mixed = Mul (corners, b)",
             "float[n,4] mixed, float[n] value"),
        "'mixed_",
    ),
    "an output of another kind": (Case(COLUMNS + "x = Neg (ratio)", f"{RAW}, float[1] x"), "'x'"),
    "nothing selected": (Case(COLUMNS, limit=0), "postprocess"),
    "sizes scaled": (
        Case(SORTED + "scaled = Mul (corners, ratio)", BEST.replace("corners", "scaled"), center=1),
        "no corners",
    ),
    "first classes first": (
        Case("firsts = Slice (rows, zero, most, zero)" + COLUMNS.replace("rows", "firsts")),
        "order of classes",
    ),
}  # fmt: skip


def form(source: onnx.ModelProto, layout: BoxLayout | None = None) -> Form:
    options = Options(nms=NmsForm.POSTPROCESS, box_layout=layout)
    return postprocess.form(surgery.run(source, options).static, options)


def artifact(found: Form) -> bytes:
    """What stands behind the front, its inputs being the front's outputs."""
    builder, types = Builder(), tensor_types(found.model)
    tensors = {
        value.name: builder.input(
            f"in/{value.name}", types[value.name].shape, types[value.name].dtype
        )
        for value in found.model.graph.output
    }
    for name, tensor in found.finish(builder, tensors).items():
        builder.output(name, tensor)
    return builder.pack()


def detections(
    found: Form, content: bytes, feeds: Mapping[str, Array], threads: int
) -> dict[str, Array]:
    """The front under onnxruntime, the rest under LiteRT."""
    inputs = [value.name for value in found.model.graph.input]
    known = {name: feeds[name] for name in inputs}
    made = onnxruntime_outputs(found.model, known) if found.model.graph.node else []
    names = [value.name for value in found.model.graph.output]
    border = dict(zip(names, made, strict=True)) if made else {x: feeds[x] for x in names}
    # onnxruntime's int64 is numpy's longlong, which LiteRT does not know.
    fed = {f"in/{x}": array.astype(array.dtype.name) for x, array in border.items()}
    outputs = litert_outputs(content, fed, NAMES, threads)
    return dict(zip(NAMES, outputs, strict=True))


def references(found: Form, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The reference under onnxruntime."""
    assert found.reference is not None
    return dict(zip(NAMES, onnxruntime_outputs(found.reference, feeds), strict=True))


def assert_equal(found: Form, made: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for port in found.outputs:
        array, reference = made[port.name], expected[port.name]
        assert array.shape == reference.shape == port.shape
        ulps = found.rounding.get(port.name, 0)
        if not ulps:
            np.testing.assert_array_equal(array, reference, port.name)
            continue
        one, other = np.asarray(array, np.float32), np.asarray(reference, np.float32)
        largest = np.abs(other).max(-1, keepdims=True, initial=1e-30)
        assert (np.abs(one - other) <= ulps * np.spacing(largest)).all(), port.name


# Sets of scores that are all different, and of boxes that stay within an image.
DISTINCT = ("random", "sparse", "dense", "clipped", "zero_area", "none")


def sets(case: Case, names: tuple[str, ...] | None = None) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [
        {
            "scores": one.scores,
            "boxes": one.boxes,
            "ratio": np.array([2], np.float32),
            "label": rng.integers(0, 9, 40),
        }
        for one in cases(
            1, case.classes, 40, 0.5, 0.25, bool(case.center), 7, max_output_boxes_per_class=20
        )
        if not np.isnan(one.scores).any() and (names is None or one.name in names)
    ]


@pytest.mark.parametrize("case", QUALIFIES.values(), ids=list(QUALIFIES))
def test_detections_are_the_references(case: Case) -> None:
    found = form(case.source())
    content, total = artifact(found), 0
    for feeds in sets(case):
        expected = references(found, feeds)
        total += int(expected["num_detections"][0])
        for threads in (1, 4):
            assert_equal(found, detections(found, content, feeds, threads), expected)
    assert total > 100


@pytest.mark.parametrize("case", QUALIFIES.values(), ids=list(QUALIFIES))
def test_the_reference_has_the_sources_detections(case: Case) -> None:
    """Best first, boxes y first; centres become corners."""
    source = case.source()
    found, names = form(source), [value.name for value in source.graph.output]
    for feeds in sets(case, DISTINCT if case.body == TRICK else None):
        outputs = dict(zip(names, onnxruntime_outputs(source, feeds), strict=True))
        expected = references(found, feeds)
        count = int(expected["num_detections"][0])
        assert count == len(outputs[names[0]])
        table = outputs.get("table")
        if "fractions" in outputs:
            packed = outputs["fractions"]
            table = np.concatenate([outputs["class"][:, None], packed], 1).astype(np.float32)
        named = sorted(names[:2], key=lambda name: -outputs[name].ndim)
        boxes = table[:, 1:5] if table is not None else outputs[named[0]]
        scores = table[:, 5] if table is not None else outputs[named[1]]
        order = np.argsort(-scores, kind="stable")
        if case.center:
            half = np.maximum(boxes[:, 2:], 0) / np.float32(2)
            boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
        first = np.minimum(boxes[:, :2], boxes[:, 2:])
        boxes = np.concatenate([first, np.maximum(boxes[:, :2], boxes[:, 2:])], 1)
        if names[0] != "y_first":
            boxes = boxes[:, [1, 0, 3, 2]]
        np.testing.assert_array_equal(expected["detection_boxes"][0, :count], boxes[order])
        np.testing.assert_array_equal(expected["detection_scores"][0, :count], scores[order])
        if len(names) > 2 or table is not None:
            classes = table[:, 0] if table is not None else outputs[names[2]]
            np.testing.assert_array_equal(expected["detection_classes"][0, :count], classes[order])


@pytest.mark.parametrize(("case", "why"), REFUSED.values(), ids=list(REFUSED))
def test_is_refused(case: Case, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why) as refused:
        form(case.source())
    assert "--nms v4" in str(refused.value)


def test_declared_layout() -> None:
    case = QUALIFIES["the best of all classes"]
    feeds = sets(case)[0]
    x_first, y_first = (form(case.source(), x) for x in (BoxLayout.XYXY, BoxLayout.YXYX))
    assert not x_first.assumptions
    assert form(case.source()).assumptions
    one, other = (references(found, feeds)["detection_boxes"] for found in (x_first, y_first))
    np.testing.assert_array_equal(one[..., [1, 0, 3, 2]], other)
    made = detections(y_first, artifact(y_first), feeds, 1)
    assert_equal(y_first, made, references(y_first, feeds))


def test_centre_and_size_need_no_rounding_and_no_layout() -> None:
    found = form(QUALIFIES["centres"].source())
    assert not found.rounding
    assert not found.assumptions
    assert found.nms[0].exact
    assert not form(QUALIFIES["the best of all classes"].source()).nms[0].exact


def test_dense_scores_are_warned_of() -> None:
    assert not form(QUALIFIES["the best of all classes"].source()).warnings
    text = QUALIFIES["the best of all classes"].source()
    large = onnx.ModelProto.FromString(text.SerializeToString())
    large.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 80
    for value, axis in ((large.graph.input[0], 2), (large.graph.input[1], 1)):
        value.type.tensor_type.shape.dim[axis].dim_value = 8400
    (warning,) = form(large).warnings
    assert "80 x 8400" in warning
    assert " ms " in warning


@needs_shared
@pytest.mark.parametrize(
    "name",
    [
        "exports/nms_gather.ts.op17",
        "exports/convert.ts.op17",
        "exports/small_clip.ts.op17",
        "cases/case_nhwc_uint8_qdq",
        "cases/case_yolo_8400_external",
        "cases/case_center_box_multiclass",
        "cases/case_hostile_names_ir3",
        "cases/case_nonzero_prefilter_topk",
        "exports/yolo8_topk_s.ts.op17",
        "exports/yolo8_batched_s.dypatch.opdef",
        "exports/yolo5_offset_s.ts.op11",
        "exports/tiny_retina.ts.op17",
    ],
)
def test_shared_models(name: str) -> None:
    source = models.load(SHARED / f"{name}.onnx").model
    found = form(source)
    content, total = artifact(found), 0
    for feeds in models.seeded_inputs(source, seed=3):
        expected = references(found, feeds)
        total += int(expected["num_detections"][0])
        for threads in (1, 4):
            assert_equal(found, detections(found, content, feeds, threads), expected)
    assert total > 0
