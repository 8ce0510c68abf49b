"""The process that holds apache-tvm's compiler: `python -m bridge.targets.tvm_relax.worker FOLDER`.

It reads `job.json` and `model.onnx` in the folder and leaves the library and `result.json` there.
"""

import sys
from pathlib import Path
from typing import Any

from bridge.targets.tvm.jobs import answer, received


def _run(folder: Path) -> dict[str, Any]:
    from bridge.targets.tvm_relax import build

    job, model = received(folder)
    return build.build(model, job.border, job.settings, folder)


if __name__ == "__main__":
    answer(_run, Path(sys.argv[1]))
