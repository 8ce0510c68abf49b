"""What is in a detection model, in the words the whole package uses."""

from bridge.detection.classes import NoClasses, RecoveredClasses, recover
from bridge.detection.look import inspect
from bridge.detection.spec import (
    Cause,
    DetectionSpec,
    Guard,
    Layout,
    NmsSite,
    Provenance,
    Role,
    Shape,
    Value,
)

__all__ = [
    "Cause", "DetectionSpec", "Guard", "Layout", "NmsSite", "NoClasses", "Provenance",
    "RecoveredClasses", "Role", "Shape", "Value", "inspect", "recover",
]  # fmt: skip
