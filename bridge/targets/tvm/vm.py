"""The model as it came, for relay's virtual machine: what is done where shapes stay dynamic.

relay's own importer and kernels, unchanged, to compare with. It decides unlike onnxruntime wherever
relay does (an IoU limit of zero, scores below zero, one-bound Clip, ...).
"""

from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relay

from bridge.errors import LoweringError
from bridge.targets.tvm.build import target_of
from bridge.targets.tvm.jobs import Settings
from bridge.targets.tvm.llvm import link, told
from bridge.targets.tvm.reason import reason


def build(model: onnx.ModelProto, settings: Settings, folder: Path) -> dict[str, Any]:
    """Write `model.so`, whose outputs have as many rows as they have.

    Raises:
        LoweringError: relay refuses the model, or it cannot be linked.
    """
    target = target_of(settings.target)
    config = {"tir.disable_cse_tir": True}
    try:
        module, params = relay.frontend.from_onnx(model, freeze_params=True)
        with tvm.transform.PassContext(
            opt_level=settings.opt_level,
            config=config,
            disabled_pass=list(settings.disabled_passes),
        ):
            made = relay.vm.compile(module, target, params=params)
    except Exception as error:
        raise LoweringError(f"relay refused the dynamic model: {reason(error)}") from error
    link(made.mod, settings, folder)
    return told(target, settings)
