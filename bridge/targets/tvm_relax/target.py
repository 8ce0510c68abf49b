"""`--to tvm-relax`: one `lib.so` for Relax's virtual machine, built by a process of its own."""

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bridge.errors import UsageError
from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered
from bridge.targets.tvm import probe
from bridge.targets.tvm.lowering import Worker, lower_static
from bridge.targets.tvm.session import TvmSession

INSTALL: Final = "make setup-relax"
ENVIRONMENT: Final = ".venv-relax"
INTERPRETER: Final = "BRIDGE_TVM_RELAX_PYTHON"


@dataclass(frozen=True, slots=True)
class TvmRelaxTarget:
    """apache-tvm in a worker process: it shares neither modules nor libraries with relay's TVM.

    Attributes:
        python: the interpreter that has it, where the options name none; None: that of the
            environment variable BRIDGE_TVM_RELAX_PYTHON, else this one if it has Relax, else that
            of `.venv-relax` beside this environment.
    """

    name: str = "tvm-relax"
    suffix: str = ".so"
    python: Path | None = None

    def missing(self, options: Options) -> str | None:
        """apache-tvm and onnx, for the interpreter that is to have them, and a compiler."""
        if no_compiler := probe.no_compiler(options):
            return no_compiler
        python = self.interpreter(options)
        if not python.exists():
            return (
                f"apache-tvm needs an environment of its own, and there is none at {python}: make "
                f"it with {INSTALL}, or name an interpreter that has it with --tvm-python"
            )
        found = probe.packages(python)
        if found is None:
            return f"the interpreter {python} does not run; give another one with --tvm-python"
        if not (found["tvm"] and found["relax"] and not found["relay"] and found["onnx"]):
            return f"{python} has no apache-tvm >= 0.25 with onnx; {INSTALL} makes one that has"
        return None

    def lower(self, static: StaticModel, options: Options, workdir: Path) -> Lowered:
        """Build `model.so` in a folder of its own below `workdir`.

        Raises:
            UnsupportedModelError: an operator has no exact lowering; the message names it.
            LoweringError: TVM refused the model, or the worker did not live to tell.
            TargetMissingError: the interpreter has no such TVM.
            UsageError: an option of the other executors.
        """
        if options.tvm_executor != "graph":
            raise UsageError(f"--tvm-executor {options.tvm_executor} is for --to tvm only")
        worker = Worker("bridge.targets.tvm_relax.worker", self.interpreter(options), INSTALL)
        return lower_static(static, options, workdir, worker, "relax")

    def open(self, path: Path, *, threads: int = 1) -> TvmSession:
        """Load an artifact in a process with TVM's runtime alone.

        Raises:
            LoweringError: it is for another processor, or does not load.
        """
        runtime = "bridge.targets.tvm_relax.runtime"
        return TvmSession(path, threads, python=self.interpreter(Options()), runtime=runtime)

    def interpreter(self, options: Options) -> Path:
        """The Python that has, or is to have, apache-tvm."""
        chosen = options.tvm_python or self.python
        if chosen is None and INTERPRETER in os.environ:
            chosen = Path(os.environ[INTERPRETER])
        if chosen is not None:
            return chosen
        spec = find_spec("tvm")
        places = spec.submodule_search_locations or () if spec else ()
        if any((Path(place) / "tirx").is_dir() for place in places):
            return Path(sys.executable)
        return Path(sys.prefix).parent / ENVIRONMENT / "bin" / "python"


TVM_RELAX = TvmRelaxTarget()
