"""The library where it is deployed: from C++ with the runtime alone, and on another processor."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from bridge import surgery
from bridge.model import load
from bridge.options import Options
from bridge.targets.base import Lowered
from bridge.targets.tvm import TVM, elf
from tests.shared import SHARED, needs_shared
from tests.targets.tvm.building import Array, judge, lowered, nms_model
from tests.targets.tvm.test_kernel import Setting

EXAMPLE = Path(__file__).parents[3] / "examples" / "tvm_cpp"
ARM = Options(
    tvm_target="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72",
    tvm_cc="aarch64-linux-gnu-g++",
)
needs_cross_compiler = pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-g++") is None,
    reason="no cross compiler: apt-get install g++-aarch64-linux-gnu",
)
needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="no emulator: apt-get install qemu-user"
)


def _package() -> Path:
    spec = importlib.util.find_spec("tvm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _run(
    command: list[str], library: Path, made: Lowered, feeds: Mapping[str, Array], folder: Path
) -> dict[str, Array]:
    """`detect` with the inputs as files, and what it prints as arrays."""
    arguments = []
    for index, (name, array) in enumerate(feeds.items()):
        file = folder / f"input{index}.bin"
        array.tofile(file)
        arguments.append(f"{name}={file}")
    done = subprocess.run(
        [*command, str(library), *arguments], capture_output=True, text=True, check=True
    )
    outputs = {}
    for port, line in zip(made.outputs, done.stdout.splitlines(), strict=True):
        shape, numbers = (part.split() for part in line.split(":"))
        assert tuple(map(int, shape)) == port.shape
        convert = float if port.dtype.startswith("float") else int
        outputs[port.name] = np.array([convert(n) for n in numbers], port.dtype).reshape(port.shape)
    return outputs


@pytest.fixture(scope="module")
def two_stage() -> Iterator[tuple[Lowered, dict[str, Array], dict[str, Array], str]]:
    """A suppression behind a suppression: the model of the shared cases, its golden and count."""
    case = SHARED / "cases" / "case_two_stage_nms"
    options = Options()
    static = surgery.run(load(case.with_suffix(".onnx")).model, options).static
    data = np.load(case.with_suffix(".npz"))
    feeds = {str(name): data[f"s0_in_{i}"] for i, name in enumerate(data["input_names"])}
    golden = {str(name): data[f"s0_out_{i}"] for i, name in enumerate(data["output_names"])}
    with lowered(static.model, ARM) as made:
        yield made, feeds, golden, static.counts[0]


def test_the_c_plus_plus_example_prints_what_python_gets(tmp_path: Path) -> None:
    for name in ("detect.cc", "Makefile"):
        shutil.copy(EXAMPLE / name, tmp_path)
    subprocess.run(["make", "-s", f"PYTHON={sys.executable}", "detect"], cwd=tmp_path, check=True)
    setting = Setting(1, 3, 60, 0.5, 0.1, 10)
    one = next(iter(setting.sets(seed=4)))
    feeds = {"boxes": one.boxes, "scores": one.scores}
    with lowered(setting.model(0)) as made:
        with TVM.open(made.path) as session:
            expected = session.run(feeds)
        library = tmp_path / "detector.so"
        shutil.copy(made.path, library)
        found = _run([str(tmp_path / "detect")], library, made, feeds, tmp_path)
    assert int(expected["count"][0]) > 0
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


@needs_shared
@needs_cross_compiler
def test_a_library_for_another_processor_says_so(
    two_stage: tuple[Lowered, dict[str, Array], dict[str, Array], str],
) -> None:
    made, *_ = two_stage
    assert elf.machine(made.path) == "aarch64"
    with pytest.raises(Exception, match=r"for aarch64.*--no-verify"):
        TVM.open(made.path)


@pytest.fixture(scope="module")
def cross_compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The case as the command line converts it for aarch64."""
    folder = tmp_path_factory.mktemp("cross")
    case = SHARED / "cases" / "case_two_stage_nms.onnx"
    done = _bridge(case, folder / "detector.so", "--no-verify")
    assert done.returncode == 0, done.stderr
    return folder / "detector.so"


def _bridge(source: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bridge.run", str(source), "--to", "tvm", "-o", str(output)]
    target = ["--tvm-target", str(ARM.tvm_target), "--cc", str(ARM.tvm_cc)]
    return subprocess.run(
        [*command, *target, *options], capture_output=True, text=True, check=False
    )


@needs_shared
@needs_cross_compiler
def test_the_command_line_converts_for_another_processor(cross_compiled: Path) -> None:
    manifest = json.loads(cross_compiled.with_name("detector.so.json").read_text())
    assert elf.machine(cross_compiled) == "aarch64"
    assert "aarch64-linux-gnu" in manifest["tvm"]["target"]
    assert manifest["verdict"] == "unverified"


@needs_shared
@needs_cross_compiler
def test_what_cannot_be_checked_here_is_not_kept(tmp_path: Path) -> None:
    case = SHARED / "cases" / "case_two_stage_nms.onnx"
    done = _bridge(case, tmp_path / "detector.so")
    assert done.returncode == 6
    assert "--no-verify" in done.stderr
    assert not list(tmp_path.iterdir())


SPAN = """#pragma once
namespace tvm {
namespace support {
template <typename T, typename W>
class Span {
 public:
  Span(T* begin, T* end) : begin_(begin), end_(end) {}
  int size() const { return static_cast<int>(end_ - begin_); }
  W operator[](int i) const { return W(begin_[i]); }

 private:
  T* begin_;
  T* end_;
};
}  // namespace support
}  // namespace tvm
"""
"""The one header that the wheel leaves out of `include`; the runtime only declares with it."""

RUNTIME = (
    *("boxed_primitive", "c_runtime_api", "const_loader_module", "container", "cpu_device_api"),
    *("debug", "dso_library", "file_utils", "library_module", "logging", "metadata", "module"),
    *("name_transforms", "ndarray", "object", "packed_func", "profiling", "registry"),
    *("source_utils", "static_library", "system_library", "thread_pool", "threading_backend"),
    *("workspace_pool", "memory/memory_manager"),
    *("graph_executor/graph_executor", "graph_executor/graph_executor_factory"),
)


def _cross_compile(folder: Path) -> list[str]:
    """TVM's runtime and the example for aarch64, from the sources in the wheel; how to run it."""
    package = _package()
    header = folder / "include" / "tvm" / "support" / "span.h"
    header.parent.mkdir(parents=True)
    header.write_text(SPAN)
    third = package / "3rdparty"
    includes = [
        *(package / "include", folder / "include"),
        *(third / "dlpack" / "include", third / "dmlc-core" / "include"),
    ]
    flags = ["-std=c++17", "-O1", "-w", "-DDMLC_USE_LOGGING_LIBRARY=<tvm/runtime/logging.h>"]
    flags += [f"-isystem{path}" for path in includes]
    objects = []
    for name in RUNTIME:
        objects.append(folder / f"{Path(name).name}.o")
        source = package / "src" / "runtime" / f"{name}.cc"
        command = ["aarch64-linux-gnu-g++", *flags, "-c", str(source), "-o", str(objects[-1])]
        subprocess.run(command, check=True)
    link = ["aarch64-linux-gnu-g++", *flags, "-rdynamic", "-pthread"]
    program = folder / "detect"
    subprocess.run(
        [*link, str(EXAMPLE / "detect.cc"), *map(str, objects), "-ldl", "-o", str(program)],
        check=True,
    )
    return ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", str(program)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The example under emulation, as a command."""
    return _cross_compile(tmp_path_factory.mktemp("aarch64"))


@needs_shared
@needs_cross_compiler
@needs_emulator
@pytest.mark.slow
def test_it_decides_the_same_on_another_processor(
    two_stage: tuple[Lowered, dict[str, Array], dict[str, Array], str],
    emulated: list[str],
    tmp_path: Path,
) -> None:
    made, feeds, golden, count = two_stage
    found = _run(emulated, made.path, made, feeds, tmp_path)
    rows = int(found[count][0])
    assert rows > 0
    for name, array in golden.items():
        assert len(array) == rows
        assert np.array_equal(found[name][:rows], array)


@needs_cross_compiler
@needs_emulator
@pytest.mark.slow
def test_the_kernel_decides_the_same_on_another_processor(
    emulated: list[str], tmp_path: Path
) -> None:
    setting = Setting(2, 3, 60, 0.45, 0.25, 10)
    model = nms_model(setting.call(0), (2, 60, 4), (2, 3, 60))
    run = judge(model)
    with lowered(model, ARM) as made:
        for one in setting.sets(seed=6):
            feeds: dict[str, Array] = {"boxes": one.boxes, "scores": one.scores}
            expected = run(feeds)
            found = _run(emulated, made.path, made, feeds, tmp_path)
            assert all(np.array_equal(expected[n], found[n]) for n in expected), one.name
