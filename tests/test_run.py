"""The command line as a process: every status, one clear message, nothing left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]


def _run(arguments: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bridge.run", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )


def _detector(
    path: Path, *, threshold: float = 0.3, names: Sequence[str] = ("boxes", "scores")
) -> onnx.ModelProto:
    """boxes [1,12,4] and scores [1,1,12] into a NonMaxSuppression, rows gathered behind it."""
    constants: dict[str, NDArray[np.generic]] = {
        "max": np.array(5, np.int64),
        "iou": np.array(0.5, np.float32),
        "score": np.array(threshold, np.float32),
        "column": np.array([2], np.int64),
        "flat": np.array([-1], np.int64),
    }
    nodes = [
        helper.make_node("NonMaxSuppression", [*names, "max", "iou", "score"], ["rows"], "nms"),
        helper.make_node("Gather", ["rows", "column"], ["boxcol"], "pick", axis=1),
        helper.make_node("Reshape", ["boxcol", "flat"], ["kept"], "kept"),
        helper.make_node("Squeeze", ["boxes"], ["plain"], "plain"),
        helper.make_node("Gather", ["plain", "kept"], ["found"], "found", axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "head",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 12, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, 12]),
        ],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)
    return model


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_status_0_writes_artifact_and_manifest_and_nothing_else(tmp_path: Path) -> None:
    _detector(tmp_path / "head.onnx")
    before = (tmp_path / "head.onnx").read_bytes()
    done = _run(["head.onnx", "--to", "onnx"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "MATCH" in done.stdout
    assert _left(tmp_path) == ["head.onnx", "head.static.onnx", "head.static.onnx.json"]
    assert (tmp_path / "head.onnx").read_bytes() == before
    manifest = json.loads((tmp_path / "head.static.onnx.json").read_text())
    assert manifest["verdict"] == "match"
    assert manifest["outputs"][0]["rows"] == {"axis": 0, "count": "num_detections"}
    assert manifest["golden"]["detections"] > 0


def test_the_same_model_and_options_give_the_same_bytes(tmp_path: Path) -> None:
    _detector(tmp_path / "head.onnx")
    made = []
    for name in ("a.onnx", "b.onnx"):
        assert _run(["head.onnx", "--to", "onnx", "-o", name], tmp_path).returncode == 0
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]


def test_status_1_keeps_the_artifact_as_a_mismatch(tmp_path: Path) -> None:
    """A score of -inf is the one thing in which the static form may differ; here it does."""
    model = _detector(tmp_path / "head.onnx")
    del model.graph.node[0].input[4]  # no score threshold: onnxruntime keeps -inf
    onnx.save(model, tmp_path / "head.onnx")
    scores = np.full((1, 1, 12), -np.inf, np.float32)
    corners = np.tile(np.arange(12, dtype=np.float32)[:, None] * 10, (1, 4))
    boxes = corners + np.array([0, 0, 5, 5], np.float32)
    np.savez(tmp_path / "bad.npz", boxes=boxes[None], scores=scores)
    done = _run(["head.onnx", "--to", "onnx", "--inputs", "bad.npz"], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bridge: the outputs differ" in done.stderr
    assert _left(tmp_path) == [
        "bad.npz",
        "head.onnx",
        "head.static.onnx.mismatch",
        "head.static.onnx.mismatch.json",
    ]


def test_status_7_when_nothing_was_detected(tmp_path: Path) -> None:
    _detector(tmp_path / "head.onnx", threshold=1e30)
    done = _run(["head.onnx", "--to", "onnx"], tmp_path)
    assert done.returncode == 7, done.stdout
    assert "--inputs" in done.stderr
    assert _left(tmp_path) == ["head.onnx"]
    skipped = _run(["head.onnx", "--to", "onnx", "--no-verify"], tmp_path)
    assert skipped.returncode == 0
    assert json.loads((tmp_path / "head.static.onnx.json").read_text())["verdict"] == "unverified"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["nowhere.onnx", "--to", "onnx"], 2, "nowhere.onnx"),
        (["head.onnx"], 2, "--to"),
        (["head.onnx", "--to", "coreml"], 2, "onnx"),
        (["head.onnx", "--to", "onnx", "-o", "no/such/folder/x.onnx"], 2, "folder"),
        (["head.onnx", "--to", "onnx", "-o", "head.onnx"], 2, "source"),
        (["head.onnx", "--to", "onnx", "-o", "."], 2, "folder"),
        (["head.onnx", "--to", "onnx", "--input-shape", "boxes"], 2, "NAME="),
        (["head.onnx", "--to", "onnx", "--freeze", "boxes=zero"], 2, "number"),
        (["head.onnx", "--to", "onnx", "--freeze", "nothing=1"], 2, "nothing"),
        (["head.onnx", "--to", "onnx", "--box-layout", "xxyy"], 2, "xyxy"),
        (["head.onnx", "--to", "onnx", "--images", "absent"], 2, "absent"),
        (["head.onnx", "--to", "onnx", "--labels", "names.txt"], 2, "--labels does nothing"),
        (["head.onnx", "--to", "tvm", "--outputs", "own"], 2, "--outputs does nothing"),
        (["head.onnx", "--to", "onnx", "--source-box-units", "pixels"], 2, "without --box-units"),
        (["head.onnx", "--to", "onnx", "--box-units", "fractions"], 2, "four dimensions"),
        (["text.onnx", "--to", "onnx"], 3, "text.onnx"),
        (["cut.onnx", "--to", "onnx"], 3, "cut.onnx"),
        (["empty.onnx", "--to", "onnx"], 3, "empty.onnx"),
        (["swapped.onnx", "--to", "onnx"], 3, "nms"),
        (["unequal.onnx", "--to", "onnx"], 3, "nms"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_says_so_once_and_leaves_nothing(
    arguments: list[str], status: int, says: str, tmp_path: Path
) -> None:
    model = _detector(tmp_path / "head.onnx")
    data = (tmp_path / "head.onnx").read_bytes()
    (tmp_path / "text.onnx").write_text("this is not a model\n" * 20)
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.onnx").write_bytes(b"")
    _detector(tmp_path / "swapped.onnx", names=("scores", "boxes"))
    model.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 11
    onnx.save(model, tmp_path / "unequal.onnx")
    before = _left(tmp_path)
    done = _run(arguments, tmp_path)
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert _left(tmp_path) == before


def test_status_5_names_what_to_install(tmp_path: Path) -> None:
    """An interpreter without any package: TVM is not there."""
    _detector(tmp_path / "head.onnx")
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    done = _run(["head.onnx", "--to", "tvm", "--tvm-python", bare], tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "bridge[tvm]" in done.stderr
    assert _left(tmp_path) == ["bare-python", "head.onnx"]


def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path) -> None:
    _detector(tmp_path / "head.onnx")
    done = _run(["head.onnx", "--to", "onnx", "--dry-run"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "static-max-output" in done.stdout
    assert "PLANNED" in done.stdout
    assert _left(tmp_path) == ["head.onnx"]


def test_json_on_standard_output_is_the_report_that_is_written(tmp_path: Path) -> None:
    _detector(tmp_path / "head.onnx")
    done = _run(
        ["head.onnx", "--to", "onnx", "--json", "--report", "report.json", "--dump", "stages"],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "report.json").read_text())
    assert printed["path"] == "head.static.onnx"
    stages = _left(tmp_path / "stages")
    assert stages[0] == "00-normalise.onnx"
    assert all(onnx.load(tmp_path / "stages" / name).graph.node for name in stages)


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    _detector(tmp_path / "head.onnx")
    done = _run(["head.onnx", "--to", "onnx", "-q"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
