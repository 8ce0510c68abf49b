"""The files that pass between the process that converts and its worker, in a folder of theirs."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from bridge.errors import BridgeError, LoweringError

JOB = "job.json"
MODEL = "model.onnx"
RESULT = "result.json"
LIBRARY = "model.so"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the compiler is told.

    Attributes:
        target: an LLVM target string, for Relax JSON as well; None means this machine's CPU.
        disabled_passes: names of relay, Relax or TIR passes left out.
        cc: the compiler that links; None means the first that TVM finds.
    """

    target: str | None = None
    opt_level: int = 3
    disabled_passes: tuple[str, ...] = ()
    cc: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to build of the model beside it.

    Attributes:
        border: the tensors between network and tail; empty where all is tail.
        executor: graph, or vm for the dynamic model; relay has both.
    """

    settings: Settings
    border: tuple[str, ...] = ()
    executor: str = "graph"


def hand_over(job: Job, model: onnx.ModelProto, folder: Path) -> None:
    """Write what `received` reads."""
    (folder / JOB).write_text(json.dumps(asdict(job)), encoding="utf-8")
    (folder / MODEL).write_bytes(model.SerializeToString(deterministic=True))


def received(folder: Path) -> tuple[Job, onnx.ModelProto]:
    """The job in a folder, and its model."""
    found = json.loads((folder / JOB).read_text(encoding="utf-8"))
    asked = found["settings"]
    passes = tuple(asked["disabled_passes"])
    settings = Settings(asked["target"], asked["opt_level"], passes, asked["cc"])
    job = Job(settings, tuple(found["border"]), found["executor"])
    return job, onnx.load(folder / MODEL)


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
