"""Headless models from file to artifact: what the README lists is found there, too."""

from pathlib import Path

import numpy as np
import pytest

from bridge.artifact import load
from bridge.completion import Completion
from bridge.heads import complete
from bridge.options import NmsForm, Options
from bridge.pipeline import Checks, convert
from bridge.preprocess import ChannelOrder, InputDtype, InputLayout, PreprocessOptions
from bridge.targets import table
from bridge.verify import Verdict
from tests.heads.models import (
    CASES,
    PHOTOS,
    Case,
    photo,
    resized,
    runner,
    stated_best,
    stated_counts,
)
from tests.heads.numpy_decode import DECODERS, Outputs, detect
from tests.shared import SHARED, needs_shared

pytestmark = needs_shared

FAST = {("ultraface-slim-320-raw.onnx", "v4"), ("fastestdet-352.onnx", "postprocess")}
WAYS = {
    "v4": ("tflite", Options(nms=NmsForm.V4)),
    "postprocess": ("tflite", Options(nms=NmsForm.POSTPROCESS)),
    "tvm": ("tvm", Options()),
}


def marks(file: str, way: str) -> list[pytest.MarkDecorator]:
    """Slow unless it is one of the few."""
    return [] if (file, way) in FAST else [pytest.mark.slow]


every_way = pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, id=f"{case.file}-{way}", marks=marks(case.file, way))
        for case in CASES
        for way in WAYS
    ],
)


def made(case: Case, to: str, options: Options, folder: Path, checks: Checks) -> Path:
    """The artifact of a shared model with its head; every golden check must hold."""
    result = convert(
        SHARED / "models" / case.file,
        to,
        folder / f"artifact{table.find(to).suffix}",
        options,
        completion=Completion(head=case.head, head_options=case.options),
        checks=checks,
    )
    assert result.path is not None
    assert result.comparison is not None
    assert result.comparison.verdict is Verdict.MATCH, result.comparison.problems
    return result.path


def read(found: Outputs, way: str) -> Outputs:
    """The outputs of either form by the names of a completed model."""
    if way != "postprocess":
        return found
    boxes = found["detection_boxes"][0][:, [1, 0, 3, 2]]
    classes = found["detection_classes"][0].astype(np.int64)
    return {"boxes": boxes, "classes": classes, "scores": found["detection_scores"][0]}


@every_way
def test_an_artifact_finds_what_the_readme_lists(case: Case, way: str, tmp_path: Path) -> None:
    """Verdict MATCH, the same as the README, and closely the same as the decode in numpy."""
    path = made(case, *WAYS[way], tmp_path, Checks(images=(SHARED / "photos",)))
    original, best, counts = runner(case.load()), stated_best(case.file), []
    with load(path) as detector:
        for name in PHOTOS:
            image, scale = photo(case, name)
            found = read(dict(detector(**{detector.manifest.inputs[0].name: image})), way)
            counts.append(len(found["scores"]))
            for row, (label, score, box) in enumerate(best.get(name, [])):
                assert found["classes"][row] == label
                assert found["scores"][row] == pytest.approx(score, abs=0.02)
                assert found["boxes"][row] * (scale * 2) == pytest.approx(box, abs=2)
            expected = detect(DECODERS[case.file](original(image)), case.score, case.iou)
            np.testing.assert_array_equal(found["classes"], expected.classes)
            np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-4)
            np.testing.assert_allclose(found["boxes"], expected.boxes, atol=0.05)
            if "extras" in found:
                assert expected.extras is not None
                np.testing.assert_allclose(found["extras"], expected.extras, atol=0.05)
    assert tuple(counts) == stated_counts(case.file)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.file, marks=pytest.mark.slow if case.size[0] > 352 else ())
        for case in CASES
    ],
)
def test_the_static_model_is_exact(case: Case, tmp_path: Path) -> None:
    """A completed model stays bit for bit what it is, in ONNX."""
    checks = Checks(images=(SHARED / "photos" / "collage_a.jpg",))
    made(case, "onnx", Options(), tmp_path, checks)


@pytest.mark.slow
def test_camera_bytes_into_tflite(tmp_path: Path) -> None:
    """Head, preprocessing and conversion in one go: RGB bytes, [1, H, W, 3]."""
    case = next(case for case in CASES if case.head == "nanodet")
    camera = PreprocessOptions(
        InputDtype.UINT8, case.mean, case.std, ChannelOrder.BGR, InputLayout.NHWC
    )
    result = convert(
        SHARED / "models" / case.file,
        "tflite",
        tmp_path / "camera.tflite",
        completion=Completion(case.head, case.options, camera),
        checks=Checks(skip=True),
    )
    assert result.path is not None
    plain = runner(complete(case.load(), case.head, case.options))
    with load(result.path) as detector:
        (port,) = detector.manifest.inputs
        assert (port.dtype, port.shape, port.transpose) == ("uint8", (1, 320, 320, 3), None)
        for name in PHOTOS:
            expected = plain(photo(case, name)[0])
            pixels = resized(case, name)[0].astype(np.uint8)[None]
            found: Outputs = dict(detector(**{port.name: pixels}))
            np.testing.assert_array_equal(found["classes"], expected["classes"])
            np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-4)
            np.testing.assert_allclose(found["boxes"], expected["boxes"], atol=0.05)
