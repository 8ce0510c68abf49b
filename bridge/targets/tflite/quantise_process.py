"""The interpreter that has ai-edge-quantizer, and jobs for it."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bridge.errors import LoweringError
from bridge.targets.tflite import quantise_worker
from bridge.targets.tflite.layers import Layer

PACKAGE: Final = "ai_edge_quantizer"
ENVIRONMENT: Final = ".venv-quantize"
INSTALL: Final = "make setup-quantize"
TIME_LIMIT: Final = 900.0
"""Seconds for one job: far more than any takes."""
_AT_ONCE: Final = 1 << 28
"""Bytes of variants that one job may leave on the disk."""
_LAST_LINES: Final = 5

Ranges = Mapping[str, tuple[float, float]]


def interpreter(chosen: Path | None) -> Path:
    """The Python that is asked for; else this one if it has the package; else the one beside it."""
    if chosen is not None:
        return chosen
    if importlib.util.find_spec(PACKAGE) is not None:
        return Path(sys.executable)
    return Path(sys.prefix).parent / ENVIRONMENT / "bin" / "python"


def missing(chosen: Path | None) -> str | None:
    """What to do so that ai-edge-quantizer runs; None where it does."""
    python = interpreter(chosen)
    if not python.exists():
        return (
            f"ai-edge-quantizer needs an environment of its own, and there is none at {python}: "
            f"make it with {INSTALL}, or name an interpreter that has it with --quantize-python"
        )
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({PACKAGE!r}) is None)"
    try:
        done = subprocess.run(
            [python, "-I", "-c", probe], capture_output=True, timeout=60, check=False, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return f"the interpreter {python} does not run; name another with --quantize-python"
    if done.returncode != 0:
        return f"{python} has no ai-edge-quantizer; make an environment that has: {INSTALL}"
    return None


@dataclass(frozen=True, slots=True)
class Quantizer:
    """ai-edge-quantizer on one network.

    Attributes:
        content: the float32 flatbuffer.
        ranges: of its tensors by name; None for activations that are quantised as they come.
        python: the interpreter.
        time_limit: in seconds, of one job.
    """

    content: bytes
    ranges: Ranges | None
    python: Path
    time_limit: float = TIME_LIMIT

    def variants(self, chosen: Sequence[Sequence[Layer]]) -> Iterator[bytes]:
        """The network once for each choice of operators that become int8, a few in one process.

        Raises:
            LoweringError: ai-edge-quantizer refuses one, or did not live to tell.
        """
        step = max(1, _AT_ONCE // len(self.content))
        for start in range(0, len(chosen), step):
            with TemporaryDirectory(prefix="bridge-quantise-") as folder:
                some = chosen[start : start + step]
                self._work(some, Path(folder))
                for number in range(len(some)):
                    yield (Path(folder) / f"variant-{number}.tflite").read_bytes()

    def _work(self, variants: Sequence[Sequence[Layer]], folder: Path) -> None:
        job = {
            "variants": [[layer.outputs for layer in chosen] for chosen in variants],
            "ranges": None if self.ranges is None else dict(self.ranges),
        }
        (folder / quantise_worker.JOB).write_text(json.dumps(job), encoding="utf-8")
        (folder / quantise_worker.NETWORK).write_bytes(self.content)
        log = folder / "log"
        code = self._run(folder, log)
        result = folder / quantise_worker.RESULT
        if not result.is_file():
            raise LoweringError(f"ai-edge-quantizer {_obituary(code, log)}")
        told = json.loads(result.read_text(encoding="utf-8"))
        if "error" in told:
            raise LoweringError(
                f"ai-edge-quantizer refuses the network: {told['error'][:500]}; leave layers "
                "float with --keep-float, or give --quantize weights"
            )

    def _run(self, folder: Path, log: Path) -> int:
        """Run the worker to its end, in a process group of its own; its exit status."""
        try:
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    [self.python, "-I", quantise_worker.__file__, folder],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    cwd=folder,
                    env={**os.environ, "TMPDIR": str(folder)},
                    start_new_session=True,
                )
        except OSError as error:
            raise LoweringError(f"{self.python} cannot be run: {error.strerror}") from error
        try:
            return process.wait(self.time_limit)
        except subprocess.TimeoutExpired as error:
            raise LoweringError(
                f"ai-edge-quantizer was not done after {self.time_limit:.0f} s and was ended"
            ) from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _obituary(code: int, log: Path) -> str:
    """How a process ended, and the last that it said."""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    said = " | ".join(line.strip() for line in lines if line.strip())
    return f"{how}; it said last: {said}" if said else f"{how} without a word"
