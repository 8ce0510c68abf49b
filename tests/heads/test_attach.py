"""`python -m bridge.attach`: the command line, from file to file."""

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from bridge.attach import attach as attach_command
from bridge.run import run as run_command
from tests.heads.models import CASES, PHOTOS, photo, resized, runner
from tests.heads.networks import Raw, network
from tests.shared import SHARED, needs_shared

YOLOX = next(case for case in CASES if case.head == "yolox")


def attach(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bridge.attach", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_shared
def test_a_file_becomes_a_detector_that_takes_bytes(tmp_path: Path) -> None:
    """Head and preprocessing in one command: the same detections from RGB bytes [1, H, W, 3]."""
    plain, camera = tmp_path / "plain.onnx", tmp_path / "camera.onnx"
    source = SHARED / "models" / YOLOX.file
    before = source.read_bytes()
    done = attach(source, "-o", plain, "--head", "yolox", "--score-threshold", "0.4")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{plain}: outputs boxes, scores, classes, num_detections")
    done = attach(
        *(source, "-o", camera, "--head", "yolox", "--score-threshold", "0.4"),
        *("--input-dtype", "uint8", "--input-layout", "nhwc", "--channel-order", "bgr"),
    )
    assert done.returncode == 0
    assert source.read_bytes() == before
    one, other = runner(onnx.load(plain)), runner(onnx.load(camera))
    for name in PHOTOS:
        pixels, _ = resized(YOLOX, name)
        found = other(np.round(pixels)[None].astype(np.uint8))
        expected = one(photo(YOLOX, name)[0])
        assert len(expected["scores"])
        for output, array in expected.items():
            np.testing.assert_array_equal(found[output], array)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--head", "yolo3"], 2, "there is no head 'yolo3': give boxes, fastestdet"),
        (["--head", "boxes", "--iou-threshold", "7"], 2, "--iou-threshold 7.0: give a number"),
        (["--head", "boxes", "--head-option", "x"], 2, "--head-option x: write KEY=VALUE"),
        (["--head", "boxes", "--input-shape", "image"], 2, "--input-shape image: write NAME="),
        (["--head", "boxes", "--mean", "a"], 2, "--mean a: write numbers with commas between"),
        (["--head", "boxes", "--std", "0"], 2, "--std 0.0: give finite numbers above 0"),
        (["--head", "yunet"], 2, "head yunet does not fit the outputs of the model"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    arguments: list[str], status: int, message: str, tmp_path: Path
) -> None:
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(network((64, 64), [Raw(n, ((8, 4),), "rows") for n in ("boxes", "scores")]), model)
    done = attach(model, "-o", output, *arguments)
    assert done.returncode == status
    assert done.stderr.startswith(f"bridge: {message}")
    assert done.stderr.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(network((64, 64), [Raw(n, ((8, 4),), "rows") for n in ("boxes", "scores")]), model)
    done = attach(model, "-o", model, "--head", "boxes")
    assert done.returncode == 2
    assert "is the source file" in done.stderr


def test_attaching_takes_what_converting_takes() -> None:
    options = {"head", "head_option", "score_threshold", "iou_threshold", "max_detections"}
    options |= {"class_agnostic", "pre_nms_top_k", "input_dtype", "mean", "std", "channel_order"}
    attaching, converting = (
        inspect.signature(command).parameters for command in (attach_command, run_command)
    )
    assert options | {"input_layout"} <= set(attaching)
    assert set(attaching) <= set(converting)
