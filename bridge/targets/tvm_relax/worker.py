"""The process that holds apache-tvm's compiler: `python -m bridge.targets.tvm_relax.worker FOLDER`.

It reads `job.json` and `model.onnx` in the folder and leaves the library and `result.json` there.
"""

import json
import sys
from pathlib import Path
from typing import Any

import onnx

from bridge.targets.tvm import jobs


def _run(folder: Path) -> dict[str, Any]:
    from bridge.targets.tvm_relax import build

    job = json.loads((folder / jobs.JOB).read_text(encoding="utf-8"))
    settings = build.Settings(
        target=job["target"],
        opt_level=job["opt_level"],
        disabled_passes=tuple(job["disabled_passes"]),
        cc=job["cc"],
    )
    model = onnx.load(folder / jobs.MODEL)
    return build.build(model, tuple(job["border"]), settings, folder)


if __name__ == "__main__":
    jobs.answer(_run, Path(sys.argv[1]))
