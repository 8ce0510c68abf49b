"""Child processes with TVM in them: how they are started, and what became of one that died."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import bridge

_LAST_LINES = 12
INTERPRETER = "BRIDGE_TVM_PYTHON"


def interpreter(chosen: Path | None) -> Path:
    """The Python that has TVM: the one asked for, that of the environment, or this one."""
    return chosen or Path(os.environ.get(INTERPRETER) or sys.executable)


def start(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    python: Path,
    log: Path,
    environment: Mapping[str, str],
    pipes: bool = False,
) -> subprocess.Popen[bytes]:
    """Run `python -m module`, in a process group of its own.

    Args:
        module: of bridge.
        arguments: for it.
        folder: where it works and keeps its temporary files; it gets a link to this bridge, so that
            another interpreter needs no bridge of its own.
        python: the interpreter.
        log: gets what it prints.
        environment: on top of this process's.
        pipes: whether standard input and output are pipes to here.
    """
    site = folder / "site"
    site.mkdir(exist_ok=True)
    link = site / "bridge"
    if not link.exists():
        link.symlink_to(Path(bridge.__file__).resolve().parent, target_is_directory=True)
    own = {
        "PYTHONPATH": str(site),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder),
        **environment,
    }
    with log.open("ab") as stderr:
        return subprocess.Popen(
            [str(python), "-m", module, *arguments],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else stderr,
            stderr=stderr,
            env={**os.environ, **own},
            cwd=folder,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started (a compiler), at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def obituary(process: subprocess.Popen[bytes], log: Path) -> str:
    """How a process ended, and the last that it said."""
    code = process.poll()
    if code is None:
        how = "is still running"
    elif code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        how = f"ended with status {code}"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    said = " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
    return f"{how}; it said last: {said}" if said else f"{how} without a word"
