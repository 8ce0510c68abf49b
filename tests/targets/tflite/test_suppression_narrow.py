"""Rows that nobody reads are not selected, and no other row is left out."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser

from bridge import static_nms, surgery
from bridge.options import Options
from bridge.static_model import tensor_types
from bridge.targets.tflite import suppression
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.operators import Emitter
from bridge.targets.tflite.suppression_narrow import Narrowed, narrow
from bridge.verify.suppression import cases
from tests.targets.tflite.emitting import litert_outputs, onnxruntime_outputs

Array = NDArray[np.generic]

HEADER = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[1,CLASSES,40] scores, float[1,40,4] boxes) => (OUTPUTS)
<int64[1] limit = {20}, float[1] iou = {0.5}, float[1] score = {0.25}, int64[1] zero = {0},
 int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] most = {MOST},
 int64[1] flat = {-1}, int64 class_column = {1}, int64 box_column = {2}, int64 width = {40}>
{
  rows = NonMaxSuppression (boxes, scores, limit, iou, score)
"""

SLICED = """
  column = Slice (rows, two, three, one)
  index = Squeeze (column, one)
  kept = Slice (index, zero, most, zero)
  image = Squeeze (boxes, zero)
  found = Gather <axis = 0> (image, kept)
}
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
  found = Gather <axis = 0> (image, box)
}
"""

# As mmdeploy writes it: flat addresses, and everything fetched before it is sorted.
FLAT = """
  class = Gather <axis = 1> (rows, class_column)
  box = Gather <axis = 1> (rows, box_column)
  first = Mul (class, width)
  address = Add (first, box)
  numbers = Reshape (scores, flat)
  value = Gather <axis = 0> (numbers, address)
  image = Squeeze (boxes, zero)
  corners = Gather <axis = 0> (image, box)
  column = Unsqueeze (value, one)
  joined = Concat <axis = 1> (corners, column)
  all = Shape (value)
  k = Min (all, most)
  best, at = TopK <axis = 0> (value, k)
  found = Gather <axis = 0> (joined, at)
  label = Gather <axis = 0> (class, at)
}
"""

BOXES = "float[n,4] found"
SORTED_OUTPUTS = f"{BOXES}, float[n] best, int64[n] class"
FLAT_OUTPUTS = "float[n,5] found, int64[n] label"

CHANGED = {
    "slice": (1, BOXES, SLICED, False),
    "slice over classes": (3, BOXES, SLICED, False),
    "sort of one class": (1, SORTED_OUTPUTS, SORTED, False),
    "sort": (3, SORTED_OUTPUTS, SORTED, True),
    "sort, flat": (3, FLAT_OUTPUTS, FLAT, True),
}

STAYS = {
    "nothing is cut": (3, "int64[n,3] rows", "}", False),
    "the rows come out as well": (3, f"{BOXES}, int64[n,3] rows", SLICED, False),
    "all are counted": (
        3,
        f"{SORTED_OUTPUTS}, int64[1] all",
        SORTED,
        False,
    ),
    "the order comes out": (3, f"{SORTED_OUTPUTS}, int64[n] at", SORTED, False),
    "sorted by something else": (
        3,
        SORTED_OUTPUTS,
        SORTED.replace(
            "value = GatherND (scores, rows)", "v = GatherND (scores, rows)\n value = Neg (v)"
        ),
        False,
    ),
    "sorted by another class": (
        3,
        FLAT_OUTPUTS,
        FLAT.replace("Mul (class, width)", "Mul (box, width)"),
        False,
    ),
    "smallest first": (
        3,
        SORTED_OUTPUTS,
        SORTED.replace("<axis = 0> (value, k)", "<axis = 0, largest = 0> (value, k)"),
        False,
    ),
}


def static(
    case: tuple[int, str, str, bool], most: int = 9
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    classes, outputs, body, _ = case
    text = HEADER.replace("CLASSES", str(classes)).replace("OUTPUTS", outputs) + body
    source = parser.parse_model(text.replace("MOST", str(most)))
    return source, surgery.run(source, Options()).static.model


def run(narrowed: Narrowed, feeds: Mapping[str, Array]) -> list[Array]:
    """The narrowed model under LiteRT."""
    model, builder = narrowed.model, Builder()

    def suppress(
        builder: Builder, call: static_nms.StaticNms, boxes: Tensor, scores: Tensor
    ) -> tuple[Tensor, Tensor]:
        best_first = call.name in narrowed.best_first
        return suppression.emit(builder, call, boxes, scores, best_first=best_first)[:2]

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    emitter = Emitter(builder, tensor_types(model), constants, suppress)
    for value in model.graph.input:
        emitter.input(value.name)
    emitter.emit(model.graph.node)
    names = [value.name for value in model.graph.output]
    for name in names:
        builder.output(name, emitter.tensor(name))
    return litert_outputs(builder.pack(), feeds, names)


@pytest.mark.parametrize("case", STAYS.values(), ids=list(STAYS))
def test_stays(case: tuple[int, str, str, bool]) -> None:
    model = static(case)[1]
    narrowed = narrow(model)
    assert narrowed.model.SerializeToString() == model.SerializeToString()
    assert not narrowed.best_first


def test_a_cut_that_cuts_nothing_stays() -> None:
    model = static(CHANGED["sort"], most=1000)[1]
    assert narrow(model).model.SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("case", CHANGED.values(), ids=list(CHANGED))
def test_changes(case: tuple[int, str, str, bool]) -> None:
    model = static(case)[1]
    before = model.SerializeToString()
    narrowed = narrow(model)
    (call,) = static_nms.calls(narrowed.model)
    assert call.rows == 9
    assert bool(narrowed.best_first) == case[3]
    assert not any(node.op_type == "TopK" for node in narrowed.model.graph.node)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("case", CHANGED.values(), ids=list(CHANGED))
def test_outputs_are_the_same(case: tuple[int, str, str, bool]) -> None:
    source, model = static(case)
    narrowed, total = narrow(model), 0
    for one in cases(1, case[0], 40, 0.5, 0.25, False, seed=2, max_output_boxes_per_class=20):
        if np.isnan(one.scores).any():
            continue
        feeds = {"scores": one.scores, "boxes": one.boxes}
        expected = onnxruntime_outputs(source, feeds)
        *found, count = run(narrowed, feeds)
        assert int(count[0]) == len(expected[0]), one.name
        total += int(count[0])
        for array, padded in zip(expected, found, strict=True):
            np.testing.assert_array_equal(padded[: len(array)], array, one.name)
            assert not padded[len(array) :].any()
    assert total > 50
