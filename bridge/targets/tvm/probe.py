"""What is there to build with."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from bridge.options import Options

_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
# Says what an interpreter has, without importing any of it.
_PROBE = """
import importlib.util, json, pathlib
spec = importlib.util.find_spec("tvm")
places = spec.submodule_search_locations or () if spec else ()
print(json.dumps({
    "tvm": spec is not None,
    "relay": any((pathlib.Path(place) / "relay").is_dir() for place in places),
    "relax": any((pathlib.Path(place) / "relax").is_dir() for place in places),
    "onnx": importlib.util.find_spec("onnx") is not None,
}))
"""


def no_compiler(options: Options) -> str | None:
    """What to install where nothing links the library; None where something does."""
    compilers = (options.tvm_cc,) if options.tvm_cc else _COMPILERS
    if any(shutil.which(compiler) for compiler in compilers):
        return None
    return f"no compiler that links the library ({', '.join(compilers)}): install g++"


def packages(python: Path) -> Mapping[str, bool] | None:
    """What the interpreter has; None where it does not run."""
    if python == Path(sys.executable) and find_spec("tvm") is None:
        return {"tvm": False, "relay": False, "relax": False, "onnx": True}
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, check=True, timeout=60, cwd="/"
        )
        found: Mapping[str, bool] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found
