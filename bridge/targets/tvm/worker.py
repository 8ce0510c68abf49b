"""The process that holds TVM's compiler: `python -m bridge.targets.tvm.worker FOLDER`.

It reads `job.json` and `model.onnx` in the folder and leaves the library and `result.json` there.
TVM and its LLVM never enter the process that converts: beside TensorFlow or torchvision they crash.
"""

import os
import sys
import types
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from bridge.targets.tvm.jobs import answer, received


def _run(folder: Path) -> dict[str, Any]:
    # Without this, every build asks a server for tuned schedules.
    os.environ["TOPHUB_LOCATION"] = "NONE"
    give_back_onnx_mapping()
    from bridge.targets.tvm import build, vm

    job, model = received(folder)
    if job.executor == "vm":
        return vm.build(model, job.settings, folder)
    return build.build(model, job.border, job.settings, folder)


def give_back_onnx_mapping() -> None:
    """Put the module `onnx.mapping` back: onnx lost it, and relay's own importer asks for it."""
    if hasattr(onnx, "mapping"):
        return
    table = {}
    for kind in TensorProto.DataType.values():
        try:
            table[kind] = helper.tensor_dtype_to_np_dtype(kind)
        except KeyError:
            continue
    mapping: Any = types.ModuleType("onnx.mapping")
    mapping.TENSOR_TYPE_TO_NP_TYPE = table
    mapping.NP_TYPE_TO_TENSOR_TYPE = {dtype: kind for kind, dtype in table.items()}
    sys.modules["onnx.mapping"] = mapping
    # The importer finds it either way.
    setattr(onnx, "mapping", mapping)  # noqa: B010  mypy knows that onnx has no such attribute


if __name__ == "__main__":
    answer(_run, Path(sys.argv[1]))
