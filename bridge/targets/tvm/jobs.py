"""The files that pass between the process that converts and its worker, in a folder of theirs."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge.errors import BridgeError, LoweringError

JOB = "job.json"
MODEL = "model.onnx"
RESULT = "result.json"


def answer(work: Callable[[Path], dict[str, Any]], folder: Path) -> None:
    """Do the work in the folder; every outcome but a crash ends up in `result.json`."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    result: dict[str, Any]
    try:
        result = {"ok": work(folder)}
    except BridgeError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        message = "the machine has not enough memory to build it"
        result = {"error": LoweringError.__name__, "message": message}
    # Written whole or not at all: who waits takes an unfinished file for a crash.
    part = folder / f"{RESULT}.part"
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(folder / RESULT)
