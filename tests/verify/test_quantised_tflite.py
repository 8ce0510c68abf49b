"""Quantised TFLite files of a trained detector, through the public door, on drawn scenes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image
from typer.testing import CliRunner

from bridge import surgery
from bridge.artifact import publish, read_manifest
from bridge.completion import Completion, completed
from bridge.errors import GoldenMismatchError, UsageError
from bridge.golden import app
from bridge.model import Source, load
from bridge.options import NmsForm, Normalization, Options, Quantization, Quantize
from bridge.pipeline import Checks, Result, convert
from bridge.preprocess import PreprocessOptions
from bridge.static_model import StaticModel
from bridge.targets.tflite import TFLITE
from bridge.verify import Comparison, Terms, Verdict, hold
from bridge.verify import golden as goldens
from bridge.verify.inputs import as_fed, input_sets
from bridge.verify.quantised import NAME
from examples.shapes.scenes import CLASSES, draw_scene

MODEL = Path(__file__).resolve().parents[2] / "examples" / "shapes.onnx"
FED = PreprocessOptions(std=(255.0,))
"""The model takes 0..1."""
SCENES = range(5000, 5010)
KNOWN = Normalization()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes as photos of another size than the input, and what is on them."""
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "photos").mkdir()
    truth: dict[str, Any] = {
        "images": [],
        "annotations": [],
        # By id they come as the classes do, and not by place here.
        "categories": [{"id": 2 * i + 1, "name": name} for i, name in enumerate(CLASSES)][::-1],
    }
    for number in SCENES:
        scene = draw_scene(number)
        photo = Image.fromarray(scene.image).resize((320, 480), Image.Resampling.BICUBIC)
        photo.save(folder / "photos" / f"{number}.png")
        truth["images"].append({"id": number, "file_name": f"scenes/{number}.png"})
        for box, label in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True):
            x1, y1, x2, y2 = (side * scale for side, scale in zip(box, (2, 3, 2, 3), strict=True))
            truth["annotations"].append(
                {
                    "id": len(truth["annotations"]) + 1,
                    "image_id": number,
                    "category_id": 2 * label + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                }
            )
    (folder / "truth.json").write_text(json.dumps(truth))
    return folder


def _convert(
    folder: Path,
    form: Quantize,
    name: str = "shapes.tflite",
    nms: NmsForm = NmsForm.AUTO,
    **checks: object,
) -> Result:
    options = Options(nms=nms, quantization=Quantization(form), normalization=KNOWN)
    return convert(
        MODEL,
        "tflite",
        folder / name,
        options,
        completion=Completion(preprocess=FED),
        checks=Checks(images=(folder / "photos",), **checks),  # type: ignore[arg-type]  # keywords
    )


@pytest.fixture(scope="module")
def weights(folder: Path) -> Result:
    return _convert(folder, Quantize.WEIGHTS, ground_truth=folder / "truth.json")


def test_ground_truth_is_held_to_file_and_source(weights: Result) -> None:
    comparison = weights.comparison
    assert comparison is not None
    told = comparison.quantised
    assert told is not None
    assert comparison.verdict is Verdict.MATCH, comparison.problems
    assert told.source_ap is not None
    assert told.source_ap > 0.5
    assert abs(told.ap_drop or 0.0) <= 0.01
    assert told.limit == 0.01
    assert told.matched >= 0.9 * told.found > 20
    assert told.judged_on == f"{len(SCENES)} photos (as fed)"
    assert [p.name for p in comparison.proofs] == ["static model", "tail", NAME]
    assert all(p.exact for p in comparison.proofs)
    assert not any("limit" in text for text in weights.manifest.warnings)


def test_the_manifest_tells_the_figures(weights: Result) -> None:
    assert weights.path is not None
    manifest = read_manifest(weights.path)
    assert manifest.quantised
    assert manifest.golden is not None
    entry = manifest.golden["quantised"]
    assert isinstance(entry, Mapping)
    told = weights.comparison.quantised if weights.comparison is not None else None
    assert told is not None
    assert entry["matched"] == told.matched
    assert entry["ap_drop"] == told.ap_drop
    assert entry["limit"] == 0.01
    assert entry["boxes"] == {"output": "boxes", "columns": 4, "first": 0}


def test_what_may_not_be_lost_at_all_is_a_mismatch(folder: Path) -> None:
    result = _convert(folder, Quantize.WEIGHTS, "strict.tflite", max_ap_drop=0.0)
    assert result.comparison is not None
    assert result.comparison.verdict is Verdict.MISMATCH
    assert "average precision falls by" in result.comparison.problems[0]
    assert result.path == folder / "strict.tflite.mismatch"
    with pytest.raises(GoldenMismatchError, match="does not hold what it must: average precision"):
        result.check()


def test_the_four_outputs_are_judged_alike(folder: Path) -> None:
    truth = folder / "truth.json"
    result = _convert(folder, Quantize.FP16, "four.tflite", NmsForm.POSTPROCESS, ground_truth=truth)
    assert result.comparison is not None
    told = result.comparison.quantised
    assert result.comparison.verdict is Verdict.MATCH, result.comparison.problems
    assert told is not None
    assert told.lost == told.extra == 0
    assert "y before x" in told.notes[-1]
    assert result.path is not None
    assert _golden_check(folder, result.path, "--max-ap-drop", "0.05")[0] == 0


def test_where_nothing_is_known_photos_are_fed_in_the_way_that_shows_most(
    folder: Path, tmp_path: Path
) -> None:
    """Which is not what the model was trained with, here: more contrast, more detections."""
    options = Options(quantization=Quantization(Quantize.FP16))
    checks = Checks(images=(folder / "photos",), max_ap_drop=0.05)
    result = convert(MODEL, "tflite", tmp_path / "a.tflite", options, checks=checks)
    assert result.comparison is not None
    told = result.comparison.quantised
    assert told is not None
    assert told.judged_on == f"{len(SCENES)} photos (normalised)"
    assert len(told.inputs) == len(SCENES)
    assert "0..255, 0..1, normalised" in told.notes[0]
    assert result.comparison.verdict is Verdict.MATCH, result.comparison.problems


# A wrong network, a wrong tail: the float file of another model stands in for the quantised one.


def _scene_source(folder: Path) -> tuple[Source, StaticModel]:
    source, _, _ = completed(load(MODEL), Completion(preprocess=FED), Options(), folder)
    return source, surgery.run(source.model, Options()).static


def _hold(folder: Path, work: Path, change: Callable[[onnx.ModelProto], None]) -> Comparison:
    source, static = _scene_source(work)
    other = onnx.ModelProto()
    other.CopyFrom(static.model)
    change(other)
    lowered = replace(TFLITE.lower(replace(static, model=other), Options(), work), quantised=True)
    sets = input_sets(
        source, Options(), sorted((folder / "photos").iterdir())[:4], preprocessing=[as_fed(KNOWN)]
    )
    golden = goldens.record(source, sets)
    return hold(golden, static, lowered, TFLITE, terms=Terms())


def _shuffle_classes(model: onnx.ModelProto) -> None:
    """Every convolution that gives as many channels as there are classes gives them shifted."""
    readers = {node.input[1]: node for node in model.graph.node if node.op_type == "Conv"}
    changed = 0
    for tensor in model.graph.initializer:
        if tensor.name in readers and tensor.dims[0] == len(CLASSES):
            weights = np.roll(numpy_helper.to_array(tensor), 1, axis=0)
            tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
            changed += 1
    assert changed


def _round_weights(model: onnx.ModelProto) -> None:
    """As int8 does, per channel: what must still match."""
    read = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    for tensor in model.graph.initializer:
        if tensor.name in read:
            weights = numpy_helper.to_array(tensor).astype(np.float64)
            scale = np.abs(weights).max(axis=(1, 2, 3), keepdims=True) / 127
            scale[scale == 0] = 1
            rounded = (np.rint(weights / scale) * scale).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))


def _suppress_otherwise(model: onnx.ModelProto) -> None:
    changed = 0
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "iou_threshold":
                attribute.f = 0.05
                changed += 1
    assert changed


def test_rounded_weights_match(folder: Path, tmp_path: Path) -> None:
    result = _hold(folder, tmp_path, _round_weights)
    assert result.verdict is Verdict.MATCH, result.problems
    assert all(proof.exact for proof in result.proofs)


def test_shuffled_channels_are_another_detector(folder: Path, tmp_path: Path) -> None:
    result = _hold(folder, tmp_path, _shuffle_classes)
    assert result.verdict is Verdict.MISMATCH
    assert not any(proof.problems for proof in result.proofs)
    assert "another detector" in result.problems[0]


def test_another_tail_is_caught(folder: Path, tmp_path: Path) -> None:
    result = _hold(folder, tmp_path, _suppress_otherwise)
    assert result.verdict is Verdict.MISMATCH
    assert {proof.name for proof in result.proofs if proof.problems} == {"tail", NAME}


# The recorded golden


def _golden_check(folder: Path, path: Path, *options: str) -> tuple[int, str]:
    source, _ = _scene_source(folder)
    sets = input_sets(source, Options(), [folder / "photos"], preprocessing=[as_fed(KNOWN)])
    golden = folder / "golden.npz"
    goldens.save(goldens.record(source, sets), golden)
    result = CliRunner().invoke(app, ["check", str(golden), str(path), *options])
    return result.exit_code, result.output


def test_a_published_file_is_judged_by_a_golden(weights: Result, folder: Path) -> None:
    assert weights.path is not None
    status, output = _golden_check(folder, weights.path)
    assert status == 0, output
    assert "detections of the source matched on 10 photos (as fed)" in " ".join(output.split())
    assert "no --max-ap-drop" in output
    status, output = _golden_check(folder, weights.path, "--max-ap-drop", "0.9")
    assert status == 0, output
    assert "average precision" in output
    status, output = _golden_check(folder, weights.path, "--max-ap-drop", "0")
    assert status == 1, output


def test_a_limit_is_for_quantised_files(weights: Result, folder: Path, tmp_path: Path) -> None:
    assert weights.path is not None
    manifest = replace(weights.manifest, quantised=False)
    path, _ = publish(weights.path, manifest, tmp_path / "plain.tflite")
    status, output = _golden_check(folder, path, "--max-ap-drop", "0.1")
    assert status == 2
    assert "is for quantised artifacts" in " ".join(output.split())


# What does not go together


@pytest.mark.parametrize(
    ("to", "form", "checks", "message"),
    [
        ("tflite", Quantize.NONE, {"max_ap_drop": 0.1}, "--max-ap-drop.*this one is not"),
        ("onnx", Quantize.NONE, {"max_ap_drop": 0.1}, "--to onnx makes none"),
        ("tflite", Quantize.FP16, {"ground_truth": "truth.json"}, "give them with --images"),
        ("tflite", Quantize.FP16, {"ground_truth": "no.json", "images": 1}, r"no\.json"),
        ("tflite", Quantize.FP16, {"ground_truth": "photos", "images": 1}, "photos"),
        ("tflite", Quantize.FP16, {"max_ap_drop": 0.1, "skip": True}, "--no-verify skips it"),
    ],
)
def test_what_does_not_go_together_is_refused(
    folder: Path,
    tmp_path: Path,
    to: str,
    form: Quantize,
    checks: dict[str, Any],
    message: str,
) -> None:
    if "images" in checks:
        checks = {**checks, "images": (folder / "photos",)}
    if "ground_truth" in checks:
        checks = {**checks, "ground_truth": folder / checks["ground_truth"]}
    options = Options(quantization=Quantization(form))
    with pytest.raises(UsageError, match=message):
        convert(MODEL, to, tmp_path / "out", options, checks=Checks(**checks))
    assert not list(tmp_path.iterdir())
