"""The target as its users meet it: what it writes, how it runs, and how it fails."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from bridge import static_nms
from bridge.errors import LoweringError, TargetMissingError
from bridge.options import Options
from bridge.targets import table
from bridge.targets.base import Lowered
from bridge.targets.tvm import TVM
from bridge.targets.tvm.session import TvmSession
from tests.targets.tvm.building import Array, build, judge, lowered, static

DETECTOR = """
<ir_version: 8, opset_import: ["" : 17, "bridge" : 1]>
detector (float[1, 3, 16, 16] image) => (float[1, 64, 4] boxes, int64[12, 3] rows, int64[1] found)
<float[7, 3, 3, 3] weight = {WEIGHT}, int64[3] flat = {1, 7, 64}, int64[2] parts = {4, 3}>
{
  map = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, weight)
  all = Reshape (map, flat)
  raw, logits = Split <axis = 1> (all, parts)
  boxes = Transpose <perm = [0, 2, 1]> (raw)
  scores = Sigmoid (logits)
  rows, found = bridge.StaticNMS <max_output_boxes_per_class = 4, iou_threshold = 0.5,
      score_threshold = 0.4, center_point_box = 0, rows = 12> (boxes, scores)
}
"""


def _detector() -> onnx.ModelProto:
    weight = np.random.default_rng(2).standard_normal(189)
    numbers = ", ".join(f"{number:.3f}" for number in weight)
    return parser.parse_model(DETECTOR.replace("WEIGHT", numbers))


def _image(seed: int = 0) -> dict[str, Array]:
    return {"image": np.random.default_rng(seed).random((1, 3, 16, 16)).astype(np.float32)}


@pytest.fixture(scope="module")
def made() -> Iterator[Lowered]:
    with lowered(_detector()) as result:
        yield result


def _same(expected: dict[str, Array], found: dict[str, Array], close: float = 1e-5) -> bool:
    return expected.keys() == found.keys() and all(
        array.dtype == found[name].dtype
        and array.shape == found[name].shape
        and np.allclose(array, found[name], atol=close)
        for name, array in expected.items()
    )


def _reference() -> onnx.ModelProto:
    model = _detector()
    static_nms.attach(model)
    return model


def test_names_types_and_shapes_are_the_models(made: Lowered) -> None:
    assert [(port.name, port.dtype, port.shape) for port in made.inputs] == [
        ("image", "float32", (1, 3, 16, 16))
    ]
    assert [(port.name, port.dtype, port.shape) for port in made.outputs] == [
        ("boxes", "float32", (1, 64, 4)),
        ("rows", "int64", (12, 3)),
        ("found", "int64", (1,)),
    ]


def test_it_equals_onnxruntime_on_every_run(made: Lowered) -> None:
    run = judge(_reference())
    with TVM.open(made.path) as session:
        for seed in range(5):
            assert _same(run(_image(seed)), session.run(_image(seed)))


def test_network_and_tail_run_alone(made: Lowered) -> None:
    assert made.border == ("boxes", "scores")
    assert made.tail is not None
    assert made.network is not None
    feeds = _image()
    whole = judge(_reference())(feeds)
    with TVM.open(made.network) as network, TVM.open(made.tail) as tail:
        crossing = network.run(feeds)
        assert list(crossing) == ["boxes", "scores"]
        assert np.allclose(crossing["boxes"], whole["boxes"], atol=1e-5)
        for _ in range(2):
            assert _same(whole, tail.run(crossing))


def test_the_same_model_gives_the_same_bytes(made: Lowered) -> None:
    with lowered(_detector()) as again:
        assert again.path.read_bytes() == made.path.read_bytes()
        assert again.tail is not None
        assert made.tail is not None
        assert again.tail.read_bytes() == made.tail.read_bytes()


def test_the_library_names_no_folder_of_the_machine_that_made_it(made: Lowered) -> None:
    content = made.path.read_bytes()
    for name in (made.path.parent, Path(sys.prefix), Path(__file__).parents[3]):
        assert os.fsencode(name) not in content


@pytest.mark.parametrize("level", [0, 1])
def test_the_optimisation_level_changes_speed_only(level: int) -> None:
    with (
        lowered(_detector(), Options(tvm_opt_level=level)) as made,
        TVM.open(made.path) as session,
    ):
        assert _same(judge(_reference())(_image()), session.run(_image()))


def test_a_pass_can_be_left_out() -> None:
    options = Options(tvm_disabled_passes=("AlterOpLayout",), tvm_target="llvm")
    with lowered(_detector(), options) as made, TVM.open(made.path) as session:
        assert "-mcpu" not in str(made.details["target"])
        assert _same(judge(_reference())(_image()), session.run(_image()))


def test_any_name_and_any_way_through_are_kept() -> None:
    """Names that relay itself gives, names that no file could have, outputs that nothing makes."""
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    names (float[2] p0, float[2] unread, float[2] through)
        => (float[2] sum, float[2] same, float[2] constant)
    <float[2] held = {3, 4}>
    {
      sum = Add (p0, held)
      same = Identity (through)
      constant = Identity (held)
    }
    """)
    odd = {
        "p0": "p0",
        "unread": "a/b:c d",
        "through": "../\u00fc'\"",
        "sum": "p1",
        "same": "input_0",
    }
    for values in (model.graph.input, model.graph.output):
        for value in values:
            value.name = odd.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [odd.get(name, name) for name in node.input]
        node.output[:] = [odd.get(name, name) for name in node.output]
    feeds = {
        value.name: np.array([i, 2.5], np.float32) for i, value in enumerate(model.graph.input)
    }
    with lowered(model) as made, TVM.open(made.path) as session:
        assert _same(judge(model)(feeds), session.run(feeds))


def test_a_run_needs_no_compiler(made: Lowered) -> None:
    """A fresh process with the runtime library alone: no LLVM, no relay."""
    program = f"""
import json, os, numpy as np, tvm
from tvm.contrib import graph_executor
library = tvm.runtime.load_module({str(made.path)!r})
module = graph_executor.GraphModule(library["default"](tvm.cpu()))
image = np.random.default_rng(0).random((1, 3, 16, 16)).astype(np.float32)
module.set_input("image", image)
module.run()
maps = open("/proc/self/maps").read()
import sys
print(json.dumps({{
    "found": module.get_output(2).numpy().tolist(),
    "rows": module.get_output(1).numpy().tolist(),
    "runtime": "libtvm_runtime.so" in maps,
    "compiler": "libtvm.so" in maps or "libLLVM" in maps or "tvm.relay" in sys.modules,
}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1", "TVM_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    expected = judge(_reference())(_image())
    assert found["found"] == expected["found"].tolist()
    assert found["rows"] == expected["rows"].tolist()
    assert found["runtime"]
    assert not found["compiler"]


def test_a_session_that_ends_says_so(made: Lowered) -> None:
    session = TVM.open(made.path)
    session.close()
    session.close()
    with pytest.raises(LoweringError, match="closed"):
        session.run(_image())


def test_a_run_that_takes_too_long_is_ended(made: Lowered) -> None:
    session = TvmSession(made.path, 1, seconds=0.0)
    process = session._process
    os.kill(process.pid, signal.SIGSTOP)  # it cannot be quicker than no time at all
    with pytest.raises(LoweringError, match="no answer in time"):
        session.run(_image())
    assert process.poll() is not None


def test_a_run_that_crashes_is_an_error_with_its_reason(made: Lowered) -> None:
    with TVM.open(made.path) as session:
        os.kill(session._process.pid, signal.SIGKILL)
        session._process.wait(10)
        with pytest.raises(LoweringError, match=r"closed|SIGKILL"):
            session.run(_image())


def test_an_input_of_another_shape_is_refused_by_the_runtime(made: Lowered) -> None:
    with TVM.open(made.path) as session:
        with pytest.raises(LoweringError, match="does not run"):
            session.run({"image": np.zeros((1, 3, 8, 8), np.float32)})
        assert _same(judge(_reference())(_image()), session.run(_image()))


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(LoweringError, match=r"model\.so does not run"):
        TVM.open(path)
    with pytest.raises(LoweringError, match="No such file"):
        TVM.open(tmp_path / "absent.so")


@pytest.mark.parametrize("target", ["nonsense", "cuda", "llvm -mtriple=nowhere-none"])
def test_a_target_that_cannot_be_built_for_is_refused(target: str) -> None:
    with pytest.raises(LoweringError):
        build(_detector(), Options(tvm_target=target))


def test_a_linker_that_fails_is_an_error_with_its_reason() -> None:
    with pytest.raises(LoweringError, match="cannot be written"):
        build(_detector(), Options(tvm_cc="false"))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert TVM.missing(Options()) is None
    bare = Options(tvm_python=Path(getattr(sys, "_base_executable")))  # noqa: B009  private
    message = TVM.missing(bare)
    assert message is not None
    assert "pip install 'bridge[tvm]'" in message
    assert "does not run" in str(TVM.missing(Options(tvm_python=tmp_path / "python")))
    assert "no compiler" in str(TVM.missing(Options(tvm_cc="no-such-compiler")))
    with pytest.raises(TargetMissingError, match="No module named"):
        build(_detector(), bare)


def test_another_interpreter_needs_no_bridge_of_its_own(tmp_path: Path) -> None:
    """Here: this one through a link, from a folder that knows nothing of bridge."""
    target = table.find("tvm", Options(tvm_python=Path(sys.executable)))
    made = target.lower(static(_detector()), Options(), tmp_path)
    with target.open(made.path) as session:
        assert _same(judge(_reference())(_image()), session.run(_image()))


def _convert(
    tmp_path: Path,
    preexec_fn: Callable[[], None] | None = None,
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """`bridge.run` on the detector in a process of its own, with its own temporary folder."""
    (tmp_path / "out").mkdir()
    (tmp_path / "scratch").mkdir()
    onnx.save(_reference(), tmp_path / "detector.onnx")
    command = [sys.executable, "-m", "bridge.run", str(tmp_path / "detector.onnx"), "--to", "tvm"]
    return subprocess.Popen(
        [*command, "-o", str(tmp_path / "out" / "detector.so"), "--no-verify", *options],
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,
    )


def _worker_of(process: subprocess.Popen[str]) -> int:
    """The process id of its TVM worker, as soon as there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in children.read_text().split():
            if b"bridge.targets.tvm.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.05)
    raise TimeoutError("no worker came up")


def test_a_worker_killed_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    process = _convert(tmp_path)
    os.kill(_worker_of(process), signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 6
    assert "SIGKILL" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "scratch").iterdir())


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the model fits, the library does not."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = _convert(tmp_path, preexec_fn=limit)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 6
    assert "disk" in said
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tvm-target", "cuda"], "only LLVM targets can be built"),
        (["--tvm-target", "llvm -mcpu=native -nonsense"], "does not know the target"),
        (["--cc", "false"], "cannot be written"),
    ],
)
def test_what_relay_or_the_linker_refuses_leaves_nothing_behind(
    tmp_path: Path, options: list[str], said: str
) -> None:
    process = _convert(tmp_path, options=options)
    _, message = process.communicate(timeout=300)
    assert process.returncode == 6
    assert said in " ".join(message.split())
    assert "Traceback" not in message
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "scratch").iterdir())
