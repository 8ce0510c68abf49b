"""`--to tvm`: one `lib.so` for TVM's graph executor, built by a process of its own."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered
from bridge.targets.tvm import child, lowering
from bridge.targets.tvm.session import TvmSession

_INSTALL = "pip install 'bridge[tvm]'"
_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
# Says what an interpreter has, without importing any of it.
_PROBE = """
import importlib.util, json, pathlib
spec = importlib.util.find_spec("tvm")
places = spec.submodule_search_locations or () if spec else ()
print(json.dumps({
    "tvm": spec is not None,
    "relay": any((pathlib.Path(place) / "relay").is_dir() for place in places),
    "onnx": importlib.util.find_spec("onnx") is not None,
}))
"""


@dataclass(frozen=True, slots=True)
class TvmTarget:
    """Relay 0.19 in a worker process; this process never holds TVM.

    Attributes:
        python: the interpreter that has TVM, where the options name none; None: that of the
            environment variable BRIDGE_TVM_PYTHON, else this one.
    """

    name: str = "tvm"
    suffix: str = ".so"
    python: Path | None = None

    def missing(self, options: Options) -> str | None:
        """TVM with relay, for the interpreter that is to have it, and a compiler that links."""
        compilers = (options.tvm_cc,) if options.tvm_cc else _COMPILERS
        if not any(shutil.which(compiler) for compiler in compilers):
            return f"no compiler that links the library ({', '.join(compilers)}): install g++"
        python = child.interpreter(options.tvm_python or self.python)
        found = _probe(python)
        if found is None:
            return f"the interpreter {python} does not run; give another one with --tvm-python"
        if not found["tvm"]:
            return f"{python} has no TVM; install it there with: {_INSTALL}"
        if not found["relay"]:
            return (
                f"the TVM of {python} has no relay (apache-tvm lost it in 0.20); in another "
                f"environment {_INSTALL}, and give its interpreter with --tvm-python"
            )
        if not found["onnx"]:
            return f"{python} has no onnx, which building needs; install it with: {_INSTALL}"
        return None

    def lower(self, static: StaticModel, options: Options, workdir: Path) -> Lowered:
        """Build `model.so` in a folder of its own below `workdir`.

        Raises:
            UnsupportedModelError: an operator has no exact lowering; the message names it.
            LoweringError: relay refused the model, or the worker did not live to tell.
            TargetMissingError: the interpreter has no TVM.
        """
        python = child.interpreter(options.tvm_python or self.python)
        return lowering.lower(static, options, workdir, python)

    def open(self, path: Path, *, threads: int = 1) -> TvmSession:
        """Load an artifact in a process with TVM's runtime alone.

        Raises:
            LoweringError: it is for another processor, or does not load.
        """
        return TvmSession(path, threads, python=self.python)


def _probe(python: Path) -> Mapping[str, bool] | None:
    """What the interpreter has; None where it does not run."""
    if python == Path(sys.executable) and find_spec("tvm") is None:
        return {"tvm": False, "relay": False, "onnx": True}
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, check=True, timeout=60, cwd="/"
        )
        found: Mapping[str, bool] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found


TVM = TvmTarget()
