"""The targets, in the order in which help and doctor list them."""

from dataclasses import replace

from bridge.errors import UsageError
from bridge.options import Options
from bridge.targets.base import Target
from bridge.targets.onnx_file import ONNX
from bridge.targets.tflite import TFLITE
from bridge.targets.tvm import TVM
from bridge.targets.tvm_relax import TVM_RELAX

TARGETS: tuple[Target, ...] = (ONNX, TFLITE, TVM, TVM_RELAX)


def find(name: str, options: Options | None = None) -> Target:
    """The target that `--to` names.

    Args:
        name: of it.
        options: what of them holds for running an artifact as well: the interpreter that has TVM.

    Raises:
        UsageError: there is none of that name.
    """
    if options is not None and options.tvm_python is not None:
        for tvm in (TVM, TVM_RELAX):
            if tvm.name == name:
                return replace(tvm, python=options.tvm_python)
    for target in TARGETS:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in TARGETS)
    raise UsageError(f"no target is called {name!r}; give one of {known}")
