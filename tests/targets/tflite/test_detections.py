"""`--outputs detections`: the four outputs hold what the model's own do, exactly, best first."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from bridge import surgery
from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import load, save
from bridge.options import BoxLayout, NmsForm, Options, Outputs
from bridge.pipeline import convert
from bridge.targets.base import Array, Lowered
from bridge.targets.tflite import TFLITE
from bridge.verify import Verdict
from bridge.verify.check import check
from bridge.verify.golden import record
from bridge.verify.inputs import input_sets
from tests.targets.tflite.emitting import onnxruntime_outputs
from tests.targets.tflite.test_postprocess import BEST, QUALIFIES, REFUSED, SORTED, Case, sets

NAMES = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")
DETECTIONS = Options(outputs=Outputs.DETECTIONS)

# What the operator cannot do and other outputs can: classes that are told by their type alone, and
# outputs beside those of a detector.
ONLY_HERE = {
    name: REFUSED[name][0]
    for name in (
        "first classes first",
        "labels of boxes",
        "numbers of boxes",
        "an output of another kind",
    )
}
NO_NUMBERS = "scores beside them"  # of three classes, and the model returns none
KINDS = {**QUALIFIES, **ONLY_HERE}
del KINDS[NO_NUMBERS]
STILL_REFUSED = {
    name: case for name, (case, _) in REFUSED.items() if name not in (*ONLY_HERE, "two images")
} | {
    "two images": REFUSED["two images"][0],
    "classes that are not returned": QUALIFIES[NO_NUMBERS],
}


def _lower(source: onnx.ModelProto, folder: Path, options: Options = DETECTIONS) -> Lowered:
    static = replace(surgery.run(source, options).static, source=source)
    return TFLITE.lower(static, options, folder)


def _rows(case: Case, source: onnx.ModelProto, outputs: list[Array]) -> Array:
    """The source's detections as rows of y1, x1, y2, x2, class, score, best first."""
    found = dict(zip((value.name for value in source.graph.output), outputs, strict=True))
    if "fractions" in found:
        packed = found["fractions"]
        found = {"corners": packed[:, :4], "value": packed[:, 4], "class": found["class"]}
    if "table" in found:
        table = found["table"]
        found = {"corners": table[:, 1:5], "value": table[:, 5], "class": table[:, 0]}
    boxes = next(array for array in found.values() if array.ndim == 2)
    scores = next(array for name, array in found.items() if name in ("value", "best", "twice", "a"))
    classes = next(
        (found[name] for name in ("class", "label1", "named") if name in found),
        np.zeros(len(scores)),
    )
    if case.center:
        half = boxes[:, 2:] * np.float32(0.5)
        boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    if "y_first" not in found:
        boxes = boxes[:, [1, 0, 3, 2]]
    order = np.argsort(-scores, kind="stable")
    columns = [boxes, classes[:, None], scores[:, None]]
    rows: Array = np.concatenate([column.astype(np.float32) for column in columns], 1)[order]
    return rows


@pytest.mark.parametrize("case", KINDS.values(), ids=list(KINDS))
def test_four_outputs_hold_the_models_own(case: Case, tmp_path: Path) -> None:
    source = case.source()
    lowered = _lower(source, tmp_path)
    assert tuple(port.name for port in lowered.outputs) == NAMES
    assert lowered.reference is not None
    total = 0
    with TFLITE.open(lowered.path, threads=2) as session:
        for feeds in sets(case):
            inputs = {port.name: feeds[port.name] for port in lowered.inputs}
            made = session.run(inputs)
            reference = onnxruntime_outputs(lowered.reference, feeds)
            for name, expected in zip(NAMES, reference, strict=True):
                np.testing.assert_array_equal(made[name], expected, name)
            expected = _rows(case, source, onnxruntime_outputs(source, feeds))
            count = int(made["num_detections"][0])
            total += count
            columns = ("detection_classes", "detection_scores")
            rows = [made["detection_boxes"][0], *(made[name][0][:, None] for name in columns)]
            np.testing.assert_array_equal(np.concatenate(rows, 1)[:count], expected)
            for array in rows:
                assert not array[count:].any()
    assert total > 50


@pytest.mark.parametrize("case", STILL_REFUSED.values(), ids=list(STILL_REFUSED))
def test_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="--outputs own"):
        _lower(case.source(), tmp_path)


def test_a_declared_layout_turns_the_boxes(tmp_path: Path) -> None:
    case = QUALIFIES["the best of all classes"]
    feeds = sets(case)[0]
    found = []
    for layout in (BoxLayout.XYXY, BoxLayout.YXYX):
        (tmp_path / layout).mkdir()
        options = Options(outputs=Outputs.DETECTIONS, box_layout=layout)
        lowered = _lower(case.source(), tmp_path / layout, options)
        with TFLITE.open(lowered.path) as session:
            found.append(session.run({port.name: feeds[port.name] for port in lowered.inputs}))
    x_first, y_first = (one["detection_boxes"] for one in found)
    assert x_first.any()
    np.testing.assert_array_equal(x_first[..., [1, 0, 3, 2]], y_first)


def test_names_that_the_model_has_for_itself_are_no_obstacle(tmp_path: Path) -> None:
    case = QUALIFIES["the best of all classes"]
    source = case.source()
    for node in source.graph.node:
        for names in (node.input, node.output):
            names[:] = ["detection_scores" if name == "corners" else name for name in names]
    source.graph.output[0].name = "detection_scores"
    lowered = _lower(source, tmp_path)
    feeds = sets(case)[0]
    assert lowered.reference is not None
    with TFLITE.open(lowered.path) as session:
        made = session.run({port.name: feeds[port.name] for port in lowered.inputs})
    for name, expected in zip(NAMES, onnxruntime_outputs(lowered.reference, feeds), strict=True):
        np.testing.assert_array_equal(made[name], expected, name)


@pytest.mark.parametrize(
    "options", [DETECTIONS, Options(nms=NmsForm.POSTPROCESS)], ids=["v4", "op"]
)
def test_a_golden_of_a_source_that_counts_its_rows_itself(options: Options, tmp_path: Path) -> None:
    """The count has the name of one of the four outputs, and the others have not."""
    body = f"{SORTED} num_detections = Shape (best)"
    path = tmp_path / "model.onnx"
    save(Case(body, f"{BEST}, int64[1] num_detections").source(), path)
    source = load(path)
    result = convert(path, "tflite", tmp_path / "model.tflite", options)
    result.check()
    assert result.path is not None
    golden = record(source, input_sets(source, options, (), None))
    comparison = check(golden, result.path)
    assert comparison.verdict is Verdict.MATCH, comparison.problems
    assert sum(one.detections for one in comparison.sets) > 50


def test_postprocess_has_outputs_of_its_own(tmp_path: Path) -> None:
    options = Options(nms=NmsForm.POSTPROCESS, outputs=Outputs.OWN)
    with pytest.raises(UsageError, match="--outputs own"):
        _lower(QUALIFIES["one class"].source(), tmp_path, options)
