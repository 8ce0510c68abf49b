"""`--to tvm`: one `lib.so` for TVM's graph executor, built by a process of its own."""

from dataclasses import dataclass
from pathlib import Path

from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered
from bridge.targets.tvm import child, lowering, probe
from bridge.targets.tvm.lowering import INSTALL
from bridge.targets.tvm.session import TvmSession


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
        if no_compiler := probe.no_compiler(options):
            return no_compiler
        python = child.interpreter(options.tvm_python or self.python)
        found = probe.packages(python)
        if found is None:
            return f"the interpreter {python} does not run; give another one with --tvm-python"
        if not found["tvm"]:
            return f"{python} has no TVM; install it there with: {INSTALL}"
        if not found["relay"]:
            return (
                f"the TVM of {python} has no relay (apache-tvm lost it in 0.20); in another "
                f"environment {INSTALL}, and give its interpreter with --tvm-python"
            )
        if not found["onnx"]:
            return f"{python} has no onnx, which building needs; install it with: {INSTALL}"
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


TVM = TvmTarget()
