"""The shape of the codebase itself: who may import whom, and what an import may start."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "bridge"

# From the bottom up. A module may import from its own layer and from those above it in this list.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "options", "__init__"),
    ("command", "model", "detection", "static_nms", "static_model"),
    ("surgery", "targets", "heads", "preprocess", "box_units"),
    ("verify", "artifact", "metadata", "completion", "calibration", "pytorch"),
    ("pipeline",),
    ("report",),
    ("pytorch",),
    (
        "arguments",
        "run",
        "inspect",
        "inspect_tflite",
        "golden",
        "doctor",
        "attach",
        "export",
        "cli",
    ),
)
# Layers of one row that still must not see each other.
STRANGERS = {("surgery", "targets"), ("targets", "surgery"), ("targets", "heads")}
BACKENDS = ("onnx2tf", "ai_edge_litert", "tvm", "torch", "torchvision", "tensorflow")


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _top(module: str) -> str:
    """`bridge.targets.tvm.build` belongs to `targets`; `bridge` itself to `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _layer(name: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


def _imports(path: Path) -> set[str]:
    """Modules of bridge that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "bridge":
                found |= {f"bridge.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return {name for name in found if name.split(".")[0] == "bridge"}


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE).with_suffix("")
    own = relative.parts[0]
    if own == "__init__":
        return  # the package's door may offer what it likes, lazily
    for imported in _imports(path):
        other = _top(imported)
        if other == own or imported == "bridge.__version__":
            continue
        assert _layer(other) <= _layer(own), f"{own} must not import {imported}"
        assert (own, other) not in STRANGERS, f"{own} must not know {imported}"


def test_import_starts_no_backend() -> None:
    """All that a command imports before it knows its target: every module but a target's own."""
    names = [
        ".".join(("bridge", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in _modules()
        if not {"tflite", "tvm", "tvm_relax", "pytorch"} & set(path.parts)
        and path.name != "__init__.py"
    ]
    program = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"started = [b for b in {BACKENDS!r} if b in sys.modules]\nassert not started, started\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["surgery", "targets"])
def test_every_pass_and_target_has_a_test_file(folder: str) -> None:
    tests = Path(__file__).resolve().parent / folder
    infrastructure = {"__init__", "base", "table", "border"}
    for path in (PACKAGE / folder).glob("*.py"):
        if path.stem not in infrastructure:
            assert (tests / f"test_{path.stem}.py").is_file(), f"{path.name} has no test file"


def test_no_file_needs_scrolling_for_long() -> None:
    limit = 520
    long = {p.name: n for p in _modules() if (n := len(p.read_text().splitlines())) > limit}
    assert not long
