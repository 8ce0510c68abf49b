"""bridge: ONNX detectors with their suppression inside, converted and proven right."""

__version__ = "0.1.0"
