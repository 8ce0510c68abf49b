"""Publishing an artifact with its manifest, reading it back, and running it by the manifest."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from bridge.artifact import (
    Manifest,
    PassRecord,
    load,
    manifest_path,
    publish,
    read_manifest,
    to_artifact,
    to_source,
    trim,
)
from bridge.errors import UsageError
from bridge.static_model import Rows
from bridge.targets.base import Array, LoweredNms, Port

IMAGES = Port("images", "float32", (1, 4, 5, 3), (1, 3, 4, 5), transpose=(0, 2, 3, 1))
BOXES = Port("boxes", "float32", (6, 4), (None, 4), rows=(Rows(0, "num_detections"),))
COUNT = Port("num_detections", "int64", (1,), (1,))

MANIFEST = Manifest(
    bridge="0.1.0",
    target="onnx",
    verdict="match",
    source_file="model.onnx",
    source_sha256="ab" * 32,
    inputs=(IMAGES,),
    outputs=(BOXES, COUNT),
    nms=(LoweredNms("nms", "NonMaxSuppression", 9, 2, 3, 0.5, -math.inf, True, "itself"),),
    assumptions=("at most 6 rows",),
    warnings=("slow",),
    passes=(PassRecord("make-static", True, ("padded boxes",), 0.25),),
    golden={"inputs": 5, "detections": 41, "worst_box": 1e-6, "unmatched": 0},
    seconds={"lower": 1.5},
    details={"operators": 12},
)

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, 2, 2] images, int64[1] real)
    => (float[1, 3, 2, 2] same, float[6, 4] boxes, int64[1] num_detections)
<float[6, 4] rows>
{
  same = Identity(images)
  boxes = Identity(rows)
  num_detections = Identity(real)
}
"""


def _model(path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    del model.graph.initializer[:]
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(rows, "rows"))
    onnx.save(model, path)


def _manifest() -> Manifest:
    image = Port("images", "float32", (1, 3, 2, 2), (1, 3, 2, 2))
    return Manifest(
        bridge="0.1.0",
        target="onnx",
        verdict="match",
        source_file="model.onnx",
        source_sha256="ab" * 32,
        inputs=(image, Port("real", "int64", (1,), (1,))),
        outputs=(Port("same", "float32", (1, 3, 2, 2), (1, 3, 2, 2)), BOXES, COUNT),
    )


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"artifact")
    path, written = publish(made, MANIFEST, tmp_path / "model.static.onnx")
    assert path == tmp_path / "model.static.onnx"
    assert path.read_bytes() == b"artifact"
    assert written.artifact_bytes == 8
    assert read_manifest(path) == written


def test_the_file_has_the_keys_of_the_contract_and_is_strict_json(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"artifact")
    path, _ = publish(made, MANIFEST, tmp_path / "m.onnx")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    entry = json.loads(manifest_path(path).read_text(), parse_constant=refuse)
    assert list(entry)[:9] == [
        "bridge", "target", "verdict", "source", "artifact", "inputs", "outputs", "nms",
        "assumptions",
    ]  # fmt: skip
    assert entry["source"] == {"file": "model.onnx", "sha256": "ab" * 32}
    assert entry["artifact"]["file"] == "m.onnx"
    assert entry["inputs"][0] == {
        "name": "images",
        "dtype": "float32",
        "shape": [1, 4, 5, 3],
        "source_shape": [1, 3, 4, 5],
        "transpose": [0, 2, 3, 1],
    }
    assert entry["outputs"][0] == {
        "name": "boxes",
        "dtype": "float32",
        "shape": [6, 4],
        "source_shape": [None, 4],
        "rows": {"axis": 0, "count": "num_detections"},
    }
    assert entry["outputs"][1]["rows"] is None
    assert entry["nms"][0]["score_threshold"] is None
    assert entry["onnx"] == {"operators": 12}
    assert entry["passes"][0]["findings"] == ["padded boxes"]


def test_an_output_with_two_padded_axes_lists_them(tmp_path: Path) -> None:
    both = Port("m", "float32", (3, 4), (None, None), rows=(Rows(0, "a"), Rows(1, "b")))
    made = tmp_path / "made"
    made.write_bytes(b"x")
    manifest = Manifest("0", "onnx", "match", "s", "d", (), (both,))
    path, written = publish(made, manifest, tmp_path / "a.onnx")
    assert read_manifest(path).outputs == written.outputs == (both,)


def test_a_mismatch_is_kept_under_its_own_name(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"artifact")
    manifest = Manifest("0", "onnx", "mismatch", "s", "d", (), ())
    path, _ = publish(made, manifest, tmp_path / "a.tflite")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.tflite.mismatch",
        "a.tflite.mismatch.json",
        "made",
    ]
    assert read_manifest(path).artifact_file == "a.tflite.mismatch"


@pytest.mark.parametrize("place", ["missing/a.onnx", "folder", "x" * 300])
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "made").write_bytes(b"artifact")
    with pytest.raises(UsageError, match="cannot write"):
        publish(tmp_path / "made", MANIFEST, tmp_path / place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "made"]


def test_an_artifact_never_stands_without_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"artifact")
    (tmp_path / "a.onnx.json").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        publish(tmp_path / "made", MANIFEST, tmp_path / "a.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx.json", "made"]


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"bridge": 1, "target": "onnx"}'])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.onnx").write_bytes(b"artifact")
    (tmp_path / "a.onnx.json").write_text(text)
    with pytest.raises(UsageError, match="not a manifest"):
        load(tmp_path / "a.onnx")


def test_artifact_and_manifest_must_belong_together(tmp_path: Path) -> None:
    _model(tmp_path / "made")
    path, _ = publish(tmp_path / "made", _manifest(), tmp_path / "a.onnx")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UsageError, match="sha256"):
        load(path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        load(path)
    manifest_path(path).unlink()
    with pytest.raises(UsageError, match="manifest"):
        load(path)


def test_a_detector_is_fed_by_name_and_gives_real_rows_only(tmp_path: Path) -> None:
    _model(tmp_path / "made")
    path, _ = publish(tmp_path / "made", _manifest(), tmp_path / "a.onnx")
    image = np.ones((1, 3, 2, 2), np.float32)
    with load(path) as detector:
        for real in (0, 2, 6):
            outputs = detector(images=image, real=np.array([real]))
            assert outputs["boxes"].shape == (real, 4)
            assert outputs["same"].shape == (1, 3, 2, 2)
            np.testing.assert_array_equal(outputs["boxes"].reshape(-1), np.arange(real * 4))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "'images' is missing: float32"),
        ({"images": np.ones((1, 3, 4, 5))}, "must be float32.*not float64"),
        ({"images": np.ones((1, 4, 5, 3), np.float32)}, r"must be float32\[1, 3, 4, 5\]"),
        ({"images": np.ones((1, 3, 4, 5), np.float32), "more": np.ones(1)}, "no input is called"),
    ],
)
def test_wrong_inputs_are_refused_by_name(inputs: Mapping[str, Array], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        to_artifact((IMAGES,), inputs)


def test_layouts_are_those_of_the_artifact_inside_and_of_the_source_outside() -> None:
    image = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5)
    inside = to_artifact((IMAGES,), {"images": image})["images"]
    assert inside.shape == IMAGES.shape
    assert inside.flags.c_contiguous
    np.testing.assert_array_equal(to_source((IMAGES,), {"images": inside})["images"], image)


def test_every_padded_axis_is_trimmed_by_its_own_count() -> None:
    port = Port("m", "float32", (2, 3, 4), (2, None, None), rows=(Rows(1, "a"), Rows(2, "b")))
    outputs = {"m": np.ones((2, 3, 4), np.float32), "a": np.array([2]), "b": np.array([[1.0]])}
    assert trim((port,), outputs)["m"].shape == (2, 2, 1)
