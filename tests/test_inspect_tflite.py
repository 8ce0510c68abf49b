"""The inspect command on TFLite files, as people and scripts run it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bridge.command import single_command
from bridge.inspect import inspect
from tests.clients.artifacts import make
from tests.shared import SHARED, needs_shared


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(single_command(inspect), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("detections", tmp_path_factory.mktemp("ours")).path


def test_a_person_reads_how_to_use_it(ours: Path) -> None:
    done = run(ours)
    assert done.exit_code == 0, done.stderr
    for expected in (
        "input   images  uint8[1, 160, 160, 3]",
        "  image RGB 160 x 160",
        "output  detection_boxes  float32[1, 100, 4]",
        "  left, top, right, bottom in columns 1, 0, 3, 2; RATIO",
        "  classes are named in labels.txt",
        "signature  serving_default  images -> detection_boxes, detection_classes, ",
        "suppression  NON_MAX_SUPPRESSION_V4  boxes [",
        "iou_threshold 0.5",
        "CONV_2D x ",
        "labels  labels.txt: 5 names, circle, square, triangle, ...",
    ):
        assert expected in done.stdout
    assert "custom operators" not in done.stdout


def test_json_holds_all_of_it(ours: Path) -> None:
    document = json.loads(run(ours, "--json").stdout)
    assert document["notes"]["labels"]["labels.txt"][-1] == "cross"
    assert document["outputs"][0]["shape"] == [1, 100, 4]
    assert document["signatures"][0]["inputs"] == {"images": "images"}


def test_a_file_is_known_by_what_is_in_it_whatever_its_name(ours: Path, tmp_path: Path) -> None:
    other = tmp_path / "detector.bin"
    other.write_bytes(ours.read_bytes())
    assert run(other).stdout == run(ours).stdout


@needs_shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("coco-ssd-mobilenet-v1-quant", "custom operators  TFLite_Detection_PostProcess x 1"),
        ("yolox-n-body-head-hand-f16", "NON_MAX_SUPPRESSION_V4 x 3"),
    ],
)
def test_files_of_others(name: str, expected: str) -> None:
    done = run(SHARED / "models" / f"{name}.tflite")
    assert done.exit_code == 0
    assert expected in done.stdout


def test_a_label_file_that_is_named_and_not_there(ours: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tflite"
    content = ours.read_bytes()
    cut.write_bytes(content[: content.rindex(b"PK\3\4")])
    done = run(cut)
    assert done.exit_code == 0
    assert "labels.txt is not in the archive" in done.stdout


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 2, "cannot read"),
        (b"", 3, "not a usable TFLite file"),
        (b"\x20\0\0\0TFL3" + b"\xff" * 80, 3, "not a usable TFLite file"),
    ],
)
def test_what_cannot_be_read(
    content: bytes | None, status: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.tflite"
    if content is not None:
        path.write_bytes(content)
    done = run(path)
    assert done.exit_code == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", [["--try"], ["--max-detections", "5"]])
def test_options_for_onnx_models_are_refused(option: list[str], ours: Path) -> None:
    done = run(ours, *option)
    assert done.exit_code == 2
    assert "leave them out" in done.stderr


def test_text_of_a_file_cannot_move_the_cursor(ours: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.tflite"
    hostile.write_bytes(ours.read_bytes().replace(b"The image", b"\x1b[2Jimage"))
    done = run(hostile)
    assert done.exit_code == 0
    assert "\x1b[2J" not in done.stdout
    assert "?[2Jimage" in done.stdout
