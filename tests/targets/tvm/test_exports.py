"""Whole models, real and made up, to a library that the golden check calls equal."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bridge
from bridge import artifact
from bridge.errors import UnsupportedModelError
from bridge.model import load
from bridge.options import Options
from bridge.pipeline import Checks, convert
from tests.shared import SHARED, needs_shared
from tests.targets.tvm.building import Array

pytestmark = needs_shared

COMPLAINT = "yolo5_batched_s.ts.op17"
FOREIGN = "case_trt_efficient_nms"
QUICK = ("case_two_stage_nms", "case_nhwc_uint8_qdq")
CASES = sorted(p.stem for p in SHARED.glob("cases/*.onnx") if p.stem != FOREIGN)
EXPORTS = sorted(p.name.removesuffix(".onnx") for p in SHARED.glob("exports/*.onnx"))

# What users run today, on the model as torch writes it.
PLAIN = """
import os, sys, types
import onnx
os.environ["TOPHUB_LOCATION"] = "NONE"
mapping = types.ModuleType("onnx.mapping")
mapping.TENSOR_TYPE_TO_NP_TYPE = {
    kind: onnx.helper.tensor_dtype_to_np_dtype(kind)
    for kind in onnx.TensorProto.DataType.values() if 0 < kind < 17
}
sys.modules["onnx.mapping"] = onnx.mapping = mapping
import tvm
from tvm import relay
module, params = relay.frontend.from_onnx(onnx.load(sys.argv[1]), freeze_params=True)
# Left on, another message comes first: LLVM 22 refuses what TVM 0.19 writes for it.
with tvm.transform.PassContext(opt_level=3, config={"tir.disable_cse_tir": True}):
    relay.build(module, "llvm", params=params)
"""


def source_of(name: str) -> Path:
    folder = "cases" if name.startswith("case_") else "exports"
    return SHARED / folder / f"{name}.onnx"


def options_of(name: str) -> Options:
    """Free sizes as in the inputs that are stored beside the model."""
    model = load(source_of(name)).model
    with np.load(source_of(name).with_suffix(".npz")) as data:
        prefix = "s0_in_" if "n_sets" in data.files else "in"
        shapes = {
            value.name: data[f"{prefix}{position}"].shape
            for position, value in enumerate(model.graph.input)
            if f"{prefix}{position}" in data.files
            and any(not d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
        }
    return Options(input_shapes=shapes)


def golden_inputs(name: str, folder: Path) -> Path | None:
    """The stored inputs by name, for the golden check."""
    model = load(source_of(name)).model
    with np.load(source_of(name).with_suffix(".npz")) as data:
        if "n_sets" in data.files:
            return None
        named = {v.name: data[f"in{i}"] for i, v in enumerate(model.graph.input)}
    path = folder / "inputs.npz"
    np.savez(path, **named)
    return path


def test_the_program_of_the_complaint_fails_in_relay_and_succeeds_here(tmp_path: Path) -> None:
    """A YOLOv5 with torchvision's batched_nms, whose export tests for no boxes with an `If`."""
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN, str(source_of(COMPLAINT))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert plain.returncode != 0
    assert "if is not supported" in plain.stderr
    output = tmp_path / "yolo5.so"
    checks = Checks(inputs=golden_inputs(COMPLAINT, tmp_path))
    result = convert(source_of(COMPLAINT), "tvm", output, checks=checks)
    result.check()
    with np.load(source_of(COMPLAINT).with_suffix(".npz")) as data, bridge.load(output) as detector:
        assert _close(detector(images=data["in0"])["dets"], data["out0"], 2e-3)


def _close(found: Array, expected: Array, tolerance: float) -> bool:
    one, other = (np.asarray(array, np.float64) for array in (found, expected))
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=tolerance)


def _golden_sets(name: str) -> list[tuple[dict[str, Array], dict[str, Array]]]:
    with np.load(source_of(name).with_suffix(".npz")) as data:
        return [
            (
                {str(n): data[f"s{k}_in_{i}"] for i, n in enumerate(data["input_names"])},
                {str(n): data[f"s{k}_out_{i}"] for i, n in enumerate(data["output_names"])},
            )
            for k in range(int(data["n_sets"]))
        ]


def _check_case(name: str, folder: Path) -> None:
    output = folder / "case.so"
    convert(source_of(name), "tvm", output, options_of(name)).check()
    with np.load(source_of(name).with_suffix(".npz")) as data:
        unordered = str(data["compare"]) == "unordered"
    with artifact.load(output) as detector:
        for feeds, golden in _golden_sets(name):
            found = detector.run(feeds)
            for output_name, array in golden.items():
                made = found[output_name]
                assert made.shape == array.shape
                if unordered and array.ndim:
                    order = [np.lexsort(x.reshape(len(x), -1).T) for x in (made, array)]
                    made, array = made[order[0]], array[order[1]]
                assert _close(made, array, 1e-5)
                assert made.dtype == array.dtype


@pytest.mark.parametrize("name", QUICK)
def test_a_case_gives_its_golden_on_every_set(name: str, tmp_path: Path) -> None:
    _check_case(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_every_case_gives_its_golden_on_every_set(name: str, tmp_path: Path) -> None:
    _check_case(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPORTS if name != COMPLAINT])
def test_every_export_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    checks = Checks(inputs=golden_inputs(name, tmp_path))
    convert(source_of(name), "tvm", tmp_path / "model.so", options_of(name), checks=checks).check()


def test_the_foreign_plug_in_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="EfficientNMS_TRT"):
        convert(source_of(FOREIGN), "tvm", tmp_path / "model.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_real_detector_equals_onnxruntime_on_all_photos(tmp_path: Path) -> None:
    model = SHARED / "models" / "rtmdet-nano-person.onnx"
    options = Options(input_shapes={"input": (1, 3, 320, 320)})
    photos = tuple(sorted((SHARED / "photos").glob("*.jpg")))
    convert(model, "tvm", tmp_path / "m.so", options, checks=Checks(images=photos)).check()


@pytest.mark.slow
def test_a_full_size_detector_equals_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="the extra `torch` is not installed")
    command = [sys.executable, "-m", "scripts.export_torchvision", str(tmp_path)]
    only = ["--only", "ssdlite320_mobilenet_v3_large", "--exporter", "torchscript"]
    subprocess.run([*command, *only], check=True, cwd=Path(__file__).parents[3])
    (model,) = tmp_path.glob("*.onnx")
    convert(model, "tvm", tmp_path / "ssdlite.so").check()


@pytest.mark.slow
def test_the_virtual_machine_runs_what_users_run_today(tmp_path: Path) -> None:
    """The same source, dynamic, by relay's importer and kernels; its session pads the rows."""
    output = tmp_path / "vm.so"
    command = [sys.executable, "-m", "bridge.run", str(source_of(COMPLAINT)), "--to", "tvm"]
    done = subprocess.run(
        [*command, "--tvm-executor", "vm", "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert artifact.read_manifest(output).details["executor"] == "vm"
    with np.load(source_of(COMPLAINT).with_suffix(".npz")) as data, bridge.load(output) as detector:
        assert _close(detector(images=data["in0"])["dets"], data["out0"], 2e-3)
