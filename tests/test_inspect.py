"""The inspect command as people and scripts run it."""

import json
from pathlib import Path

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner, Result

from bridge.command import single_command
from bridge.inspect import inspect
from bridge.targets.onnx_file import ONNX

HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, n, 4] boxes, float[1, 2, n] scores) => (int64[k, 3] found)
<int64 limit = {3}>
{ [nms] found = NonMaxSuppression(boxes, scores, limit) }
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(single_command(inspect), [str(argument) for argument in arguments])


@pytest.fixture
def head(tmp_path: Path) -> Path:
    path = tmp_path / "head.onnx"
    onnx.save(parser.parse_model(HEAD), path)
    return path


def test_a_person_reads_what_is_there_and_who_can_take_it(head: Path) -> None:
    done = run(head, "--input-shape", "boxes=1,9,4")
    assert done.exit_code == 0, done.stderr
    for expected in (
        "input   boxes  float32[1, n, 4]",
        "output  found  int64[k, 3], indices",
        "dynamic because of NonMaxSuppression nms",
        "suppression  nms",
        "at most 3 per class, IoU 0, score none",
        "static  nms  2 classes x 9 boxes, 6 rows",
        "static  found  int64[6, 3], axis 0 counted by num_detections",
        "onnx  nothing is in the way",
    ):
        assert expected in done.stdout


def test_what_stands_in_the_way_is_said_and_is_no_failure(head: Path) -> None:
    done = run(head)
    assert done.exit_code == 0
    assert "onnx  cannot: input 'boxes' is [1, n, 4]" in done.stdout
    assert "--input-shape boxes=1,<size>,4" in done.stdout


def test_json_holds_all_of_it(head: Path) -> None:
    done = run(head, "--json", "--input-shape", "boxes=1,9,4", "--box-layout", "xyxy")
    document = json.loads(done.stdout)
    (site,) = document["sites"]
    assert site["layout"] == {"order": "xyxy", "provenance": "declared", "because": "--box-layout"}
    assert site["max_output_boxes_per_class"] == 3
    assert site["score_threshold"] is None
    assert document["targets"]["onnx"] == {
        "can_take": True,
        "tried": False,
        "because": None,
    }
    assert document["static"][0]["shape"] == [6, 3]
    assert json.loads(run(head, "--json").stdout)["targets"]["onnx"]["can_take"] is False


def test_a_headless_model_is_pointed_to_attach(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 85, 9] x) => (float[1, 85, 9] y)'
    onnx.save(parser.parse_model(text + "{ y = Neg(x) }"), tmp_path / "raw.onnx")
    done = run(tmp_path / "raw.onnx")
    assert "no NonMaxSuppression" in done.stdout
    assert "bridge attach" in done.stdout


@pytest.mark.parametrize(("data", "status"), [(None, 2), (b"nothing", 3)])
def test_files_that_cannot_be_read(tmp_path: Path, data: bytes | None, status: int) -> None:
    path = tmp_path / "model.onnx"
    if data is not None:
        path.write_bytes(data)
    done = run(path)
    assert done.exit_code == status
    assert done.stderr.startswith("bridge: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_a_target_that_was_tried_is_sure(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.inspect.TARGETS", (ONNX,))
    done = run(head, "--try", "--input-shape", "boxes=1,9,4")
    assert done.exit_code == 0
    assert "onnx  can take it" in done.stdout
    assert list(head.parent.iterdir()) == [head]
