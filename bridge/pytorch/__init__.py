"""PyTorch models to ONNX.

Only this module can be imported without torch; the others are imported by `bridge.export` once it
is known to be there.
"""

from dataclasses import dataclass
from enum import StrEnum


class Exporter(StrEnum):
    """`torchscript` traces the model once; `dynamo` is what torch.onnx.export does by itself."""

    TORCHSCRIPT = "torchscript"
    DYNAMO = "dynamo"


@dataclass(frozen=True, slots=True)
class Input:
    """A float32 input of the exported model, of a fixed shape."""

    name: str
    shape: tuple[int, ...]
