"""Headless models from file to artifact: what the README lists is found there, too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bridge.artifact import load
from bridge.completion import Completion
from bridge.heads import HeadOptions, complete
from bridge.options import Options
from bridge.pipeline import Checks, convert
from bridge.preprocess import ChannelOrder, InputDtype, InputLayout, PreprocessOptions
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

FAST = ("ultraface-slim-320-raw.onnx", "fastestdet-352.onnx")
by_file = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.file, marks=() if case.file in FAST else pytest.mark.slow)
        for case in CASES
    ],
)


def made(case: Case, to: str, folder: Path, checks: Checks) -> Path:
    """The artifact of a shared model with its head; every golden check must hold."""
    result = convert(
        SHARED / "models" / case.file,
        to,
        folder / "artifact",
        Options(),
        completion=Completion(head=case.head, head_options=case.options),
        checks=checks,
    )
    assert result.path is not None
    if not checks.skip:
        assert result.comparison is not None
        assert result.comparison.verdict is Verdict.MATCH, result.comparison.problems
    return result.path


@by_file
def test_tflite_finds_what_the_readme_lists(case: Case, tmp_path: Path) -> None:
    """The same as the README, and closely the same as the decode in numpy."""
    path = made(case, "tflite", tmp_path, Checks(skip=True))
    original, best, counts = runner(case.load()), stated_best(case.file), []
    with load(path) as detector:
        for name in PHOTOS:
            image, scale = photo(case, name)
            found: Outputs = dict(detector(**{detector.manifest.inputs[0].name: image}))
            counts.append(int(found["num_detections"][0]))
            for row, (label, score, box) in enumerate(best.get(name, [])):
                assert found["classes"][row] == label
                assert found["scores"][row] == pytest.approx(score, abs=0.02)
                assert found["boxes"][row] * (scale * 2) == pytest.approx(box, abs=2)
            expected = detect(DECODERS[case.file](original(image)), case.score, case.iou)
            np.testing.assert_array_equal(found["classes"], expected.classes)
            np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-4)
            np.testing.assert_allclose(found["boxes"], expected.boxes, atol=0.05)
            if expected.extras is not None:
                np.testing.assert_allclose(found["extras"], expected.extras, atol=0.05)
    assert tuple(counts) == stated_counts(case.file)


@by_file
@pytest.mark.parametrize("to", ["onnx", pytest.param("tflite", marks=pytest.mark.slow)])
def test_the_golden_check_holds(case: Case, to: str, tmp_path: Path) -> None:
    made(case, to, tmp_path, Checks(images=(SHARED / "photos",)))


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


@pytest.mark.slow
@pytest.mark.parametrize("options", [HeadOptions(), HeadOptions(class_agnostic=True)])
def test_what_the_head_adds_is_little(options: HeadOptions, tmp_path: Path) -> None:
    """YOLOX-nano with its suppression inside: at most 1.10 times its headless latency."""
    from scripts.bench_heads import ratio

    case = next(case for case in CASES if case.head == "yolox")
    options = replace(options, score_threshold=case.score, iou_threshold=case.iou)
    assert ratio(SHARED / "models" / case.file, case.head, options, tmp_path) < 1.10
