"""Goldens: recorded once, stored without pickles, and what a published artifact is held to."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from bridge.artifact import publish, read_manifest
from bridge.errors import InconclusiveError, UnsupportedModelError, UsageError
from bridge.golden import app
from bridge.model import load
from bridge.options import Options
from bridge.pipeline import Checks, convert
from bridge.targets.onnx_file import ONNX
from bridge.verify import Verdict
from bridge.verify.check import check
from bridge.verify.golden import Golden, record, save
from bridge.verify.golden import load as load_golden
from bridge.verify.inputs import InputSet, Photo
from tests.shared import SHARED, needs_shared
from tests.verify.heads import (
    BOXES,
    as_postprocess,
    four_outputs,
    head,
    head_model,
    save_tables,
    table_input,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, its artifact, and inputs to check it with."""
    folder = tmp_path_factory.mktemp("golden")
    onnx.save(head_model(), folder / "head.onnx")
    inputs = save_tables(folder, table_input(0), table_input(1))
    convert(folder / "head.onnx", "onnx", folder / "a.onnx", checks=Checks(inputs=inputs))
    return folder


def _golden(folder: Path, *, moves: int = 0) -> Golden:
    sets = [InputSet(f"table {seed}", {"x": table_input(seed)}) for seed in (0, 1)]
    return record(load(folder / "head.onnx"), sets, moves=moves)


def _bridge(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


# Recording ------------------------------------------------------------------------------------


def test_a_golden_is_what_onnxruntime_gives_on_the_untouched_file(folder: Path) -> None:
    golden = _golden(folder)
    source = load(folder / "head.onnx")
    assert (golden.source_file, golden.source_sha256) == ("head.onnx", source.digest)
    assert golden.runtime.startswith("onnxruntime 1.")
    for one in golden.sets:
        assert list(one.outputs) == ["boxes", "scores", "labels"]
        assert 0 < len(one.outputs["scores"]) < BOXES
        assert (one.outputs["scores"].astype(np.float32) > 0.3).all()
    assert record(source, [InputSet("a", golden.sets[0].inputs)]).sets[0].outputs.keys()


def test_a_stored_golden_is_the_same_and_holds_no_pickles(folder: Path, tmp_path: Path) -> None:
    golden = _golden(folder, moves=2)
    save(golden, tmp_path / "g.npz")
    again = load_golden(tmp_path / "g.npz")
    assert (again.source_sha256, again.runtime, again.seed) == (
        golden.source_sha256,
        golden.runtime,
        golden.seed,
    )
    for one, other in zip(golden.sets, again.sets, strict=True):
        assert (one.name, one.generated) == (other.name, other.generated)
        pairs = [(one.inputs, other.inputs), (one.outputs, other.outputs)]
        pairs += list(zip(one.moved, other.moved, strict=True))
        for arrays, stored in pairs:
            assert list(arrays) == list(stored)
            for name in arrays:
                assert arrays[name].dtype == stored[name].dtype
                np.testing.assert_array_equal(arrays[name], stored[name])
    with zipfile.ZipFile(tmp_path / "g.npz") as archive:
        for name in archive.namelist():
            assert b"'descr': '|O'" not in archive.read(name)[:200]


def test_what_was_a_photo_is_kept(folder: Path, tmp_path: Path) -> None:
    golden = _golden(folder)
    photo = Photo(("a.jpg",), ((640, 480),), 160, 120, "0..255")
    first = replace(golden.sets[0], photo=photo)
    save(replace(golden, sets=(first, *golden.sets[1:])), tmp_path / "g.npz")
    assert [one.photo for one in load_golden(tmp_path / "g.npz").sets] == [photo, None]


def test_equal_goldens_are_equal_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        save(_golden(folder, moves=1), tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"not a zip"),
        lambda path: path.write_bytes(path.read_bytes()[:200]),
        lambda path: np.savez(path, x=np.ones(3)),
        lambda path: np.savez(path, meta=np.array("{}")),
        lambda path: np.savez(path, meta=np.array(json.dumps({"format": 99}))),
        lambda path: np.savez(path, meta=np.array([{}], dtype=object)),
        lambda path: path.unlink(),
    ],
)
def test_what_is_no_golden_is_refused(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "g.npz"
    save(_golden(folder), path)
    spoil(path)
    with pytest.raises(UsageError, match=r"g\.npz"):
        load_golden(path)


def test_frozen_inputs_are_fed_to_the_source_and_not_to_the_artifact(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[1] factor) => (float[2] y) { y = Mul(x, factor) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    source = load(tmp_path / "m.onnx")
    options = Options(freeze={"factor": np.array(3)})
    x = np.array([1, 2], np.float32)
    golden = record(source, [InputSet("x", {"x": x})], options)
    np.testing.assert_array_equal(golden.sets[0].outputs["y"], [3, 6])
    assert list(golden.sets[0].inputs) == ["x"]
    np.testing.assert_array_equal(golden.frozen["factor"], [3])
    with pytest.raises(UsageError, match="no such input"):
        record(source, [InputSet("x", {"x": x})], Options(freeze={"other": np.array(3)}))


def test_inputs_that_onnxruntime_fails_on_are_named(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[3] x, int64[1] at) => (float[1] y) { y = Gather(x, at) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    source = load(tmp_path / "m.onnx")
    x = np.ones(3, np.float32)
    good = InputSet("good", {"x": x, "at": np.array([2])})
    bad = InputSet("bad", {"x": x, "at": np.array([9])})
    golden = record(source, [good, bad])
    assert [one.name for one in golden.sets] == ["good"]
    assert "bad" in golden.failed[0]
    with pytest.raises(InconclusiveError, match="none of 1 inputs"):
        record(source, [bad])


@needs_shared
def test_a_model_that_onnxruntime_refuses_has_no_golden() -> None:
    source = load(SHARED / "cases" / "case_trt_efficient_nms.onnx")
    with pytest.raises(UnsupportedModelError, match="cannot load"):
        record(source, [InputSet("x", {})])


# Checking ---------------------------------------------------------------------------------------


def test_a_right_artifact_matches(folder: Path) -> None:
    result = check(_golden(folder, moves=2), folder / "a.onnx")
    assert result.verdict is Verdict.MATCH, result.problems
    assert (result.inputs, result.unmatched, len(result.sets)) == (2, 0, 4)
    assert result.detections > 20


def _spoilt(folder: Path, to: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    """An artifact with another model inside, its manifest telling its own digest."""
    model = onnx.load(folder / "a.onnx")
    edit(model)
    onnx.save(model, to / "made")
    path, _ = publish(to / "made", read_manifest(folder / "a.onnx"), to / "b.onnx")
    return path


def _raise_threshold(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "value_float" and abs(attribute.f - 0.3) < 1e-6:
                attribute.f = 0.35


def _scale_boxes(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "weights":
            weights = onnx.numpy_helper.to_array(tensor) * np.float32(1.001)
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights, "weights"))


@pytest.mark.parametrize("edit", [_raise_threshold, _scale_boxes])
def test_a_wrong_artifact_does_not(
    folder: Path, tmp_path: Path, edit: Callable[[onnx.ModelProto], None]
) -> None:
    path = _spoilt(folder, tmp_path, edit)
    result = check(_golden(folder, moves=2), path)
    assert result.verdict is Verdict.MISMATCH
    assert result.unmatched
    save(_golden(folder), tmp_path / "g.npz")
    status, text = _bridge("check", tmp_path / "g.npz", path)
    assert status == 1
    assert "MISMATCH" in text
    assert "differs from the golden" in text


def test_an_artifact_of_another_source_is_refused(folder: Path, tmp_path: Path) -> None:
    other = head_model()
    other.producer_name = "another"
    onnx.save(other, tmp_path / "head.onnx")
    golden = _golden(tmp_path)
    with pytest.raises(UsageError, match=r"converted from head\.onnx"):
        check(golden, folder / "a.onnx")
    save(golden, tmp_path / "g.npz")
    status, text = _bridge("check", tmp_path / "g.npz", folder / "a.onnx")
    assert status == 2
    assert "record that model" in text


def test_frozen_inputs_must_be_the_same(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[1] factor) => (float[2] y) { y = Mul(x, factor) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    source = load(tmp_path / "m.onnx")
    frozen = Options(freeze={"factor": np.array(3)})
    x, factor = np.ones(2, np.float32), np.ones(1, np.float32)
    free = record(source, [InputSet("x", {"x": x, "factor": factor})])
    bound = record(source, [InputSet("x", {"x": x})], frozen)
    for name, options in (("free.onnx", Options()), ("bound.onnx", frozen)):
        convert(tmp_path / "m.onnx", "onnx", tmp_path / name, options)
    assert check(free, tmp_path / "free.onnx").verdict is Verdict.MATCH
    assert check(bound, tmp_path / "bound.onnx").verdict is Verdict.MATCH
    with pytest.raises(UsageError, match="again with --freeze factor"):
        check(free, tmp_path / "bound.onnx")
    with pytest.raises(UsageError, match="again without --freeze factor"):
        check(bound, tmp_path / "free.onnx")


@pytest.mark.parametrize("classes", ["labels", "scores"])
def test_the_outputs_of_postprocess_are_held_to_the_sources(
    folder: Path, tmp_path: Path, classes: str
) -> None:
    detector = head(tmp_path)
    lowered = as_postprocess(
        detector.static,
        tmp_path,
        four_outputs(detector.static, classes),
        four_outputs(detector.static),
    )
    manifest = replace(
        read_manifest(folder / "a.onnx"), inputs=lowered.inputs, outputs=lowered.outputs
    )
    path, _ = publish(lowered.path, manifest, tmp_path / "p.onnx")
    result = check(_golden(folder, moves=2), path)
    assert result.detections > 20
    if classes == "labels":
        assert result.verdict is Verdict.MATCH, result.problems
    else:
        assert result.verdict is Verdict.MISMATCH


@pytest.mark.parametrize("classes", ["labels", "scores"])
def test_the_outputs_of_a_quantised_postprocess_are_judged_by_what_they_detect(
    folder: Path, tmp_path: Path, classes: str
) -> None:
    detector = head(tmp_path)
    made = four_outputs(detector.static, classes)
    lowered = as_postprocess(detector.static, tmp_path, made, made)
    manifest = replace(
        read_manifest(folder / "a.onnx"),
        inputs=lowered.inputs,
        outputs=lowered.outputs,
        quantised=True,
    )
    path, _ = publish(lowered.path, manifest, tmp_path / "p.onnx")
    result = check(_golden(folder), path, max_ap_drop=0.0)
    assert result.quantised is not None
    assert result.quantised.found > 20
    if classes == "labels":
        assert result.verdict is Verdict.MATCH, result.problems
        assert result.quantised.lost == result.quantised.extra == 0
    else:
        assert result.verdict is Verdict.MISMATCH


# The command line -------------------------------------------------------------------------------


def test_record_then_check(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    status, text = _bridge(
        "record", folder / "head.onnx", "-o", path, "--inputs", folder / "inputs.npz"
    )
    assert status == 0, text
    assert "7 sets of inputs" in text
    status, text = _bridge("check", path, folder / "a.onnx")
    assert status == 0, text
    assert text.startswith("MATCH")
    status, text = _bridge("check", path, folder / "a.onnx", "--json")
    assert status == 0
    entry = json.loads(text)
    assert (entry["verdict"], entry["inputs"], entry["unmatched"]) == ("match", 7, 0)


def test_nothing_detected_is_inconclusive(folder: Path, tmp_path: Path) -> None:
    nothing = np.full((1, BOXES, 7), -9, np.float32)
    golden = record(load(folder / "head.onnx"), [InputSet("nothing", {"x": nothing})])
    save(golden, tmp_path / "g.npz")
    status, text = _bridge("check", tmp_path / "g.npz", folder / "a.onnx")
    assert status == 7
    assert "nothing was detected" in text
    assert "--images" in text


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["record", "missing.onnx", "-o", "g.npz"], 2),
        (["record", "head.onnx", "-o", "missing/g.npz"], 2),
        (["record", "head.onnx", "-o", "g.npz", "--inputs", "missing.npz"], 2),
        (["record", "head.onnx", "-o", "g.npz", "--images", "."], 2),
        (["record", "head.onnx"], 2),
        (["check", "missing.npz", "a.onnx"], 2),
        (["check", "inputs.npz", "a.onnx"], 2),
        (["check", "inputs.npz"], 2),
    ],
)
def test_usage_is_status_2_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(p.name for p in folder.iterdir())
    assert _bridge(*arguments)[0] == status
    assert sorted(p.name for p in folder.iterdir()) == before


# Caps -------------------------------------------------------------------------------------------


def test_reaching_a_cap_is_reported_and_no_mismatch(folder: Path, tmp_path: Path) -> None:
    inputs = folder / "inputs.npz"
    options = Options(max_detections=5)
    result = convert(
        folder / "head.onnx", "onnx", tmp_path / "c.onnx", options, checks=Checks(inputs=inputs)
    )
    assert result.comparison is not None
    assert result.comparison.verdict is Verdict.MATCH, result.comparison.problems
    assert any("room for 5" in text for text in result.comparison.caps)
    checked = check(_golden(folder), tmp_path / "c.onnx")
    assert checked.verdict is Verdict.MATCH, checked.problems
    assert any("'boxes' has" in text and "room for 5" in text for text in checked.caps)


def test_the_onnx_target_is_what_these_tests_run(folder: Path) -> None:
    assert read_manifest(folder / "a.onnx").target == ONNX.name
