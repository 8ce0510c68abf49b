"""The targets, in the order in which help and doctor list them."""

from bridge.errors import UsageError
from bridge.targets.base import Target
from bridge.targets.onnx_file import ONNX
from bridge.targets.tflite import TFLITE
from bridge.targets.tvm import TVM

TARGETS: tuple[Target, ...] = (ONNX, TFLITE, TVM)


def find(name: str) -> Target:
    """The target that `--to` names.

    Raises:
        UsageError: there is none of that name.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in TARGETS)
    raise UsageError(f"no target is called {name!r}; give one of {known}")
