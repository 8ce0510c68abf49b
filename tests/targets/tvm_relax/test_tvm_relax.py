"""`--to tvm-relax`: the same node, the same kernels and the same checks, by the TVM of today."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bridge
from bridge.errors import UnsupportedModelError, UsageError
from bridge.options import Options
from bridge.pipeline import Checks, convert
from bridge.targets import table
from bridge.targets.tvm_relax import TVM_RELAX
from tests.shared import needs_shared
from tests.targets.tvm import operators
from tests.targets.tvm.building import Single, build, judge, lowered, model_of
from tests.targets.tvm.operators import one
from tests.targets.tvm.test_converters import what_is_wrong
from tests.targets.tvm.test_exports import (
    COMPLAINT,
    golden_inputs,
    options_of,
    source_of,
)
from tests.targets.tvm.test_kernel import EVERY_RULE, Setting, hold

pytestmark = pytest.mark.skipif(
    TVM_RELAX.missing(Options()) is not None, reason=str(TVM_RELAX.missing(Options()))
)

FAMILIES = (
    operators.elementwise,
    operators.moving,
    operators.choosing,
    operators.reducing,
    operators.resizing,
    operators.pooling_regions,
    operators.network,
)
REFUSED = (
    "Celu",
    "LpNormalization",
    "OneHot",
    "MaxPool auto_pad=SAME_LOWER kernel_shape=[2, 2]",
    "TopK int64",
)
"""What TVM's importer does not know, or gives another type or shape; found by the same sweep."""


KINDS = (
    *("case_two_stage_nms", "case_nhwc_uint8_qdq", "case_max_output_edges"),
    *("tiny_frcnn.ts.op17", "tiny_ssd.dypatch.opdef", "per_class_loop.ts.op17"),
    *("yolox_s.ts.op17", "user_report_s.ts.op11"),
)
"""One of each: all cases and exports were run once, and what differs between them is surgery."""


def _is_refused(single: Single) -> bool:
    return any(text in single.name for text in REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_operator_equals_onnxruntime(family: Callable[[], list[Single]]) -> None:
    singles = [
        replace(single, name=f"{i} {single.name}")
        for i, single in enumerate(family())
        if not _is_refused(single)
    ]
    model, feeds = model_of(singles)
    expected = judge(model)(feeds)
    with lowered(model, target=TVM_RELAX) as made, TVM_RELAX.open(made.path) as session:
        found = session.run(feeds)
    wrong = {
        single.name: problem
        for single in singles
        for index in range(single.outputs)
        if (name := f"{single.name}.out{index}")
        and (problem := what_is_wrong(single, expected[name], found[name]))
    }
    assert not wrong


@pytest.mark.parametrize("text", REFUSED)
def test_what_it_does_not_know_is_refused_by_name(text: str) -> None:
    every = [single for family in FAMILIES for single in family()]
    single = next(single for single in every if text in single.name)
    model, _ = model_of([single])
    with pytest.raises(UnsupportedModelError, match=f"operator {single.op_type}") as refused:
        build(model, target=TVM_RELAX)
    assert single.name in str(refused.value)


def test_the_kernel_decides_as_onnxruntime_does_on_every_generated_set() -> None:
    hold(EVERY_RULE, seeds=(1,), threads=(1,), target=TVM_RELAX)


@pytest.mark.slow
def test_threads_change_nothing() -> None:
    hold([Setting(2, 21, 900, 0.5, 0.3, 20)], seeds=(3,), threads=(1, 4), target=TVM_RELAX)


RUN = """
import json, sys
import numpy as np, tvm
from tvm.runtime.vm import VirtualMachine
library = tvm.runtime.load_module(sys.argv[1])
machine = VirtualMachine(library, tvm.cpu())
names = json.loads(machine["describe"]())["main"]
data = np.load(sys.argv[2])
made = machine["main"](*(tvm.runtime.tensor(data[name]) for name in names["inputs"]))
maps = open("/proc/self/maps").read()
print(json.dumps({
    "outputs": {name: x.numpy().tolist() for name, x in zip(names["outputs"], made)},
    "compiler": "libtvm_compiler" in maps or "libLLVM" in maps,
}))
"""
"""What an application writes: tvm and numpy, nothing of bridge."""


@needs_shared
def test_the_program_of_the_complaint_runs_with_the_runtime_alone(tmp_path: Path) -> None:
    output = tmp_path / "yolo5.so"
    inputs = golden_inputs(COMPLAINT, tmp_path)
    result = convert(source_of(COMPLAINT), "tvm-relax", output, checks=Checks(inputs=inputs))
    result.check()
    assert result.comparison is not None
    assert result.comparison.detections > 0
    assert result.manifest.details["executor"] == "relax"
    assert inputs is not None
    with bridge.load(output) as detector, np.load(inputs) as data:
        found = detector(**dict(data))
    done = subprocess.run(
        [TVM_RELAX.interpreter(Options()), "-c", RUN, str(output), str(inputs)],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    said = json.loads(done.stdout)
    assert not said["compiler"]
    count = said["outputs"]["num_detections"][0]
    for name, array in found.items():
        rows = np.asarray(said["outputs"][name], array.dtype)
        assert np.array_equal(rows[: len(array)], array)
        assert name == "num_detections" or len(array) == count > 0


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_model_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    checks = Checks(inputs=golden_inputs(name, tmp_path))
    output = tmp_path / "model.so"
    convert(source_of(name), "tvm-relax", output, options_of(name), checks=checks).check()


def test_the_same_model_gives_the_same_bytes() -> None:
    setting = Setting(1, 2, 20, 0.5, 0.1, 5)
    with (
        lowered(setting.model(0), target=TVM_RELAX) as one_library,
        lowered(setting.model(0), target=TVM_RELAX) as other,
    ):
        content = one_library.path.read_bytes()
        assert content == other.path.read_bytes()
        assert os.fsencode(one_library.path.parent) not in content


def test_an_option_of_relay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--to tvm only"):
        build(
            model_of([one("Relu", np.ones(3, np.float32))])[0],
            Options(tvm_executor="vm"),
            TVM_RELAX,
        )


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    nowhere = Options(tvm_python=tmp_path / "python")
    assert "make setup-relax" in str(TVM_RELAX.missing(nowhere))
    target = table.find("tvm-relax", nowhere)
    assert "make setup-relax" in str(target.missing(Options()))
