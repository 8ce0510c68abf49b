"""The process that holds ai-edge-quantizer: `python -I quantise_worker.py FOLDER`.

It runs in an environment of its own, since ai-edge-quantizer wants another ai-edge-litert than
onnx2tf does, and so it imports nothing of bridge. It reads `job.json` and `network.tflite` in the
folder and leaves `variant-0.tflite`, ... and `result.json` there.
"""

import contextlib
import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

JOB = "job.json"
NETWORK = "network.tflite"
RESULT = "result.json"
BITS = 8


def main(folder: Path) -> None:
    """Do the job in the folder; every outcome but a crash ends up in `result.json`."""
    try:
        result: dict[str, Any] = {"ok": _run(folder)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    # Written whole or not at all: who waits takes an unfinished file for a crash.
    part = folder / f"{RESULT}.part"
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(folder / RESULT)


def _run(folder: Path) -> dict[str, str]:
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    content = (folder / NETWORK).read_bytes()
    for number, operators in enumerate(job["variants"]):
        made = _quantised(content, operators, job["ranges"])
        (folder / f"variant-{number}.tflite").write_bytes(made)
    return {"ai_edge_quantizer": version("ai-edge-quantizer")}


def _quantised(
    content: bytes, operators: list[list[str]], ranges: dict[str, list[float]] | None
) -> bytes:
    """The network with some of its operators in int8.

    Args:
        content: the float32 flatbuffer.
        operators: for each, the names of its outputs.
        ranges: smallest and largest value of tensors by name; None: activations are quantised as
            they come.
    """
    import numpy as np
    from ai_edge_quantizer import quantizer

    # The regex is held against the names of an operator's outputs, each followed by ";".
    scopes = "|".join(re.escape("".join(f"{name};" for name in one)) for one in operators)
    work = quantizer.Quantizer(bytearray(content))
    if ranges is None:
        work.add_dynamic_config(f"^(?:{scopes})$", "*", BITS)
    else:
        work.add_static_config(f"^(?:{scopes})$", "*", BITS, BITS)
    calibrated = {
        name: {
            "min": np.full((1, 1), ends[0], np.float32),
            "max": np.full((1, 1), ends[1], np.float32),
        }
        for name, ends in (ranges or {}).items()
    }
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        result = work.quantize(calibrated or None, enable_progress_report=False)
    if result.quantized_model is None:
        raise RuntimeError("ai-edge-quantizer gave no model")
    return bytes(result.quantized_model)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
