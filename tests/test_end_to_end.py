"""Real exports and reproducers of public failure reports through every target, as a user would."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import bridge
from bridge.errors import UnsupportedModelError
from bridge.options import NmsForm, Options
from bridge.pipeline import Checks
from bridge.targets import table
from tests.shared import SHARED, needs_shared

type Array = NDArray[np.generic]

EXPORTS = sorted(path.name for path in (SHARED / "exports").glob("*.onnx"))
CASES = sorted(path.name for path in (SHARED / "cases").glob("*.onnx"))
PHOTOS = SHARED / "photos"
TWO_STAGE = ("tiny_frcnn",)
FOREIGN = "case_trt_efficient_nms.onnx"

# What a two-conv model, whose scores have no threshold, detects does not depend on its input.
SLOW_TARGETS = ("tflite", "tvm")
TARGETS = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW_TARGETS else ())
    for name in ("onnx", "tflite", "tvm")
]


def _skip_unless_here(target: str) -> None:
    missing = table.find(target).missing(Options())
    if missing:
        pytest.skip(f"target {target}: {missing}")


def _shapes(path: Path, stored: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The stored shapes of inputs whose own are symbolic."""
    model = onnx.load(path, load_external_data=False)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    return {
        value.name: stored[f"in{number}"].shape
        for number, value in enumerate(inputs)
        if any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
    }


def _stored(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@needs_shared
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_decides_as_onnxruntime(name: str, target: str, tmp_path: Path) -> None:
    _skip_unless_here(target)
    path = SHARED / "exports" / name
    stored = _stored(path.with_suffix(".npz"))
    options = Options(input_shapes=_shapes(path, stored))
    output = tmp_path / "artifact"
    if target == "tflite" and name.startswith(TWO_STAGE):
        with pytest.raises(UnsupportedModelError, match="RoiAlign"):
            bridge.convert(path, target, output, options)
        assert not output.exists()
        return
    result = bridge.convert(path, target, output, options)
    result.check()
    assert result.comparison is not None
    assert result.comparison.inputs >= 5
    assert all(port.shape for port in result.manifest.outputs)
    assert all(min(port.shape) > 0 for port in result.manifest.outputs)


def _sets(stored: Mapping[str, Array]) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Inputs and golden outputs of a reproducer, set by set."""
    inputs = [str(name) for name in stored["input_names"]]
    outputs = [str(name) for name in stored["output_names"]]
    for number in range(int(stored["n_sets"])):
        yield (
            {name: stored[f"s{number}_in_{i}"] for i, name in enumerate(inputs)},
            {name: stored[f"s{number}_out_{i}"] for i, name in enumerate(outputs)},
        )


def _same(expected: Array, found: Array, *, ordered: bool) -> None:
    """Integers equal, floats within 1e-5, as the reproducers ask; rows in any order where told."""
    assert expected.dtype == found.dtype
    assert expected.shape == found.shape
    if not ordered and expected.ndim:
        expected, found = (
            rows[np.lexsort(rows.reshape(len(rows), -1).T)] for rows in (expected, found)
        )
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(expected, found)
    else:
        pair = found.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-5)


@needs_shared
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in CASES if name != FOREIGN])
def test_every_case_equals_its_golden(name: str, target: str, tmp_path: Path) -> None:
    _skip_unless_here(target)
    path = SHARED / "cases" / name
    stored = _stored(path.with_suffix(".npz"))
    output = tmp_path / "artifact"
    bridge.convert(path, target, output).check()
    with bridge.load(output) as detector:
        for inputs, expected in _sets(stored):
            found = detector(**inputs)
            for output_name, array in expected.items():
                _same(array, found[output_name], ordered=str(stored["compare"]) == "ordered")


@needs_shared
@pytest.mark.parametrize("target", ["onnx", "tflite", "tvm"])
def test_a_foreign_suppression_is_refused_by_name(target: str, tmp_path: Path) -> None:
    _skip_unless_here(target)
    with pytest.raises(UnsupportedModelError, match=r"TRT::EfficientNMS_TRT.*batched_nms"):
        bridge.convert(SHARED / "cases" / FOREIGN, target, tmp_path / "artifact")
    assert not list(tmp_path.iterdir())


@needs_shared
@pytest.mark.parametrize("target", TARGETS)
def test_the_real_detector_finds_the_same_persons(target: str, tmp_path: Path) -> None:
    """Boxes within 0.05 px and scores within 1e-4 on every photo, one of them with nobody in it."""
    _skip_unless_here(target)
    options = Options(input_shapes={"input": (1, 3, 320, 320)})
    path = SHARED / "models" / "rtmdet-nano-person.onnx"
    result = bridge.convert(
        path, target, tmp_path / "artifact", options, checks=Checks(images=(PHOTOS,))
    )
    result.check()
    assert result.comparison is not None
    assert result.comparison.worst_box <= 0.05
    assert result.comparison.worst_score <= 1e-4


FROZEN = {
    "blazeface-front-e2e.onnx": Options(
        freeze={
            "max_output_boxes": np.array(20),
            "iou_threshold": np.array(0.3),
            "score_threshold": np.array(0.6),
        }
    ),
    "nms-yolov8.onnx": Options(
        input_shapes={"detection": (1, 84, 320)}, freeze={"config": np.array([100, 0.45, 0.25])}
    ),
}


@needs_shared
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FROZEN)
def test_a_suppression_of_its_own_kind_stays_what_it_is(
    name: str, target: str, tmp_path: Path
) -> None:
    """A weighted suppression in model functions, and one whose thresholds come at run time."""
    _skip_unless_here(target)
    checks = Checks(images=(PHOTOS,) if name.startswith("blaze") else ())
    path = SHARED / "models" / name
    bridge.convert(path, target, tmp_path / "artifact", FROZEN[name], checks=checks).check()


POSTPROCESSED = (
    "nms_gather", "convert", "small_clip", "yolo8_topk_s", "yolo8_batched_s", "tiny_ssd",
)  # fmt: skip


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in EXPORTS if n.startswith(POSTPROCESSED)])
def test_exports_of_boxes_and_scores_take_the_custom_op(name: str, tmp_path: Path) -> None:
    _skip_unless_here("tflite")
    path = SHARED / "exports" / name
    stored = _stored(path.with_suffix(".npz"))
    options = Options(nms=NmsForm.POSTPROCESS, input_shapes=_shapes(path, stored))
    result = bridge.convert(path, "tflite", tmp_path / "artifact", options)
    result.check()
    assert [port.name for port in result.manifest.outputs] == [
        "detection_boxes", "detection_classes", "detection_scores", "num_detections",
    ]  # fmt: skip
