"""bridge: ONNX detectors with their suppression inside, converted and proven right."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bridge.artifact import Detector, load
    from bridge.pipeline import Checks, Result, convert

__all__ = ["Checks", "Detector", "Result", "__version__", "convert", "load"]

_HOMES = {
    "Checks": "bridge.pipeline",
    "Detector": "bridge.artifact",
    "Result": "bridge.pipeline",
    "convert": "bridge.pipeline",
    "load": "bridge.artifact",
}


def __getattr__(name: str) -> object:
    """Import what is asked for, so that `import bridge` alone costs nothing."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bridge' has no attribute {name!r}")
