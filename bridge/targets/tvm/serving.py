"""What a process that runs an artifact does: it answers every message, and ends with its input.

Standard input brings inputs, standard output takes outputs (`wire`).
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from bridge.targets.tvm import wire
from bridge.targets.tvm.reason import reason

Run = Callable[[dict[str, Any]], list[Any]]
Load = Callable[[Path], tuple[list[str] | None, Run]]
"""Gives the names of the outputs, None where the library does not know them, and what runs it."""


def serve(load: Load, path: Path) -> None:
    """Load an artifact, say its outputs' names, then answer every message."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever TVM prints must not get between the messages.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        names, run = load(path)
    except Exception as error:
        _answer(answers, {"error": reason(error)})
        return
    _answer(answers, {"outputs": names})
    while data := _message(sys.stdin.buffer):
        header, arrays = wire.unpack(data)
        try:
            made = run(dict(zip(header["inputs"], arrays, strict=True)))
        except Exception as error:
            _answer(answers, {"error": reason(error)})
        else:
            _answer(answers, {}, made)


def _message(stream: BinaryIO) -> bytes:
    """The next message; empty at the end."""
    length = stream.read(wire.LENGTH)
    if len(length) < wire.LENGTH:
        return b""
    return stream.read(int.from_bytes(length, "little"))


def _answer(stream: BinaryIO, header: dict[str, Any], arrays: list[Any] | None = None) -> None:
    stream.write(wire.pack(header, arrays or []))
    stream.flush()
