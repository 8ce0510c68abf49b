"""ONNX operators that change the element type: Cast, QuantizeLinear, DequantizeLinear."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from bridge.targets.tflite.flatbuffer import Tensor
from bridge.targets.tflite.node import Node
from bridge.targets.tflite.operators_layout import ANY
from bridge.targets.tflite.operators_math import binary

QUANTISED: Final = ("uint8", "int8")


def _cast(node: Node) -> Tensor:
    """CAST. Floats are truncated, integers wrap, NaN and all but zero are True.

    What does not fit is undefined in ONNX. To 8 bits the kernel saturates where onnxruntime wraps;
    by way of int64 it wraps too.
    """
    builder, x = node.builder, node.require(0, ANY)
    if node.dtype not in ANY:
        raise node.unsupported(f"element type {node.dtype}", f"use one of {', '.join(ANY)}")
    if x.dtype == "float32" and node.dtype in ("uint8", "int8", "int16"):
        x = builder.cast(x, "int64")
    return builder.cast(x, node.dtype)


def _parameters(node: Node) -> tuple[Tensor, Tensor]:
    """Scale and zero point as float32, shaped to broadcast along `axis` where there are many."""
    scale = node.constant(1)
    zero = np.broadcast_to(node.constant(2) if node.has(2) else 0, scale.shape)
    rank = node.input(0).rank
    shape = [1] * rank
    if scale.size > 1:
        shape[node.axis(rank, 1)] = scale.size
    if scale.size == 1:
        shape = []
    pair = (node.builder.constant(array.reshape(shape), "float32") for array in (scale, zero))
    return next(pair), next(pair)


def _quantize(node: Node) -> Tensor:
    """saturate(round_half_even(x / scale) + zero): the sum is exact in float32 where it matters.

    Source: ONNX QuantizeLinear-13.
    """
    builder, x = node.builder, _as_float(node)
    if node.dtype not in QUANTISED:
        raise node.unsupported(f"element type {node.dtype}", "quantise to uint8 or int8")
    scale, zero = _parameters(node)
    rounded = builder.unary("ROUND", binary(builder, "DIV", x, scale))
    shifted = binary(builder, "ADD", rounded, zero)
    limits = np.iinfo(node.dtype)
    for kind, bound in (("MAXIMUM", limits.min), ("MINIMUM", limits.max)):
        shifted = binary(builder, kind, shifted, builder.constant(bound, "float32"))
    return builder.cast(builder.cast(shifted, "int32"), node.dtype)


def _as_float(node: Node) -> Tensor:
    """The first input as float32; int32 is rounded to it as onnxruntime rounds it."""
    return node.builder.cast(node.require(0, ("float32", "int32", *QUANTISED)), "float32")


def _dequantize(node: Node) -> Tensor:
    """(x - zero) * scale. Source: ONNX DequantizeLinear-13."""
    scale, zero = _parameters(node)
    shifted = binary(node.builder, "SUB", _as_float(node), zero)
    return binary(node.builder, "MUL", shifted, scale)


OPERATORS: Final[Mapping[str, Callable[[Node], Tensor]]] = {
    "Cast": _cast,
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
}
