"""What becomes of every ONNX operator in relay: a converter of ours, or a refusal by name.

relay's own converters are not used. They are written for shapes that are not known, so each asks
for the type of everything above it (importing is quadratic), and a good number are wrong without a
word: a Clip with one bound, reductions over several axes, negative indices, scales that do not
divide. Here every type is known before a converter is called and checked after it.
"""

from bridge.targets.tvm.converters import detection, elementwise, indexing, network, resize
from bridge.targets.tvm.converters.node import Converter

CONVERTERS: dict[str, Converter] = {
    **elementwise.CONVERTERS,
    **indexing.CONVERTERS,
    **network.CONVERTERS,
    **resize.CONVERTERS,
    **detection.CONVERTERS,
}

__all__ = ["CONVERTERS", "Converter"]
