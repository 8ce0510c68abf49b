"""An artifact that runs in a process of its own, with TVM's runtime and nothing else."""

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.errors import LoweringError
from bridge.targets.base import Array, Session
from bridge.targets.tvm import child, dynamic, elf, wire

_START_SECONDS = 120.0
_RUN_SECONDS = 600.0
_GOODBYE_SECONDS = 5.0


class TvmSession(Session):
    """See `targets.base.Session`. Not for use from several threads at once."""

    def __init__(
        self,
        path: Path,
        threads: int,
        *,
        python: Path | None = None,
        runtime: str = "bridge.targets.tvm.runtime",
        seconds: float = _RUN_SECONDS,
    ) -> None:
        elf.check_runs_here(path)
        self._seconds = seconds
        self._folder = tempfile.TemporaryDirectory(prefix="bridge-tvm-")
        folder = Path(self._folder.name)
        self._path, self._log = path, folder / "runtime.log"
        self._process: subprocess.Popen[bytes] = child.start(
            runtime,
            [str(path.resolve())],
            folder,
            python=child.interpreter(python),
            log=self._log,
            environment={"TVM_USE_RUNTIME_LIB": "1", "TVM_NUM_THREADS": str(threads)},
            pipes=True,
        )
        try:
            header, _ = self._receive(_START_SECONDS)
            self._outputs: list[str] | None = header["outputs"]
            self._noted = dynamic.noted(path) if self._outputs is None else ()
        except BaseException:
            self._stop(at_once=True)
            raise

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name for one set of inputs.

        Raises:
            LoweringError: the library fails, crashes, or takes longer than allowed.
        """
        if self._process.stdin is None or self._process.poll() is not None:
            raise LoweringError(f"{self._path.name}: the session is closed")
        message = wire.pack({"inputs": list(feeds)}, list(feeds.values()))
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait(_GOODBYE_SECONDS)
            raise self._failure() from None
        _, arrays = self._receive(self._seconds)
        if self._outputs is None:
            return dynamic.padded(self._noted, arrays)
        return dict(zip(self._outputs, arrays, strict=True))

    def close(self) -> None:
        """End the process."""
        self._stop(at_once=False)

    def _receive(self, seconds: float) -> tuple[dict[str, Any], list[Any]]:
        deadline = time.monotonic() + seconds
        length = int.from_bytes(self._read(wire.LENGTH, deadline), "little")
        header, arrays = wire.unpack(self._read(length, deadline))
        if "error" in header:
            raise LoweringError(f"{self._path.name} does not run: {header['error']}")
        return header, arrays

    def _read(self, size: int, deadline: float) -> bytes:
        """So many bytes of the process's output.

        Raises:
            LoweringError: it ends before, or the deadline passes; it is gone then.
        """
        if self._process.stdout is None:
            raise LoweringError(f"{self._path.name}: the session is closed")
        pipe = self._process.stdout.fileno()
        parts = bytearray()
        while len(parts) < size:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([pipe], [], [], max(left, 0))
            if not ready:
                self._stop(at_once=True)
                raise LoweringError(f"{self._path.name}: no answer in time; the process was ended")
            part = os.read(pipe, min(size - len(parts), 1 << 20))
            if not part:
                self._process.wait(_GOODBYE_SECONDS)
                raise self._failure()
            parts += part
        return bytes(parts)

    def _failure(self) -> LoweringError:
        how = child.obituary(self._process, self._log)
        return LoweringError(f"{self._path.name}: the process that runs it {how}")

    def _stop(self, *, at_once: bool) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(0 if at_once else _GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill(self._process)
        self._folder.cleanup()
