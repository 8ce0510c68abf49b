"""Where the applications are that load artifacts, and what to do where they are not."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
PYTHON = Path(
    os.environ.get("BRIDGE_CLIENTS", Path(sys.prefix).parent / ".venv-clients" / "bin" / "python")
)
SECONDS = 180
"""Until a client that hangs is ended; the slowest seen took 6."""

if not PYTHON.is_file() and {"BRIDGE_CLIENTS", "CI"} & os.environ.keys():
    raise FileNotFoundError(f"there is no {PYTHON}; make setup-clients (in CI nothing is skipped)")

needs_clients = pytest.mark.skipif(
    not PYTHON.is_file(),
    reason=f"MediaPipe and Netron are not at {PYTHON.parent}: make setup-clients",
)


def lines_of(command: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The JSON objects that a client prints, one a line; it runs in a process of its own."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
