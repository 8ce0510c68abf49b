"""The TFLite target; nothing here imports a backend before it is used."""

from bridge.targets.tflite.target import TFLITE

__all__ = ["TFLITE"]
