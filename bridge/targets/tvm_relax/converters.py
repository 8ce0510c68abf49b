"""What becomes of ONNX operators that TVM has no converter for, or one that is not exact.

A converter gives None where TVM's own is as good.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from bridge.targets.tvm.kernel import fence, limits_of, suppress
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.resampling import resamplings
from bridge.targets.tvm.roi_align import pooling_of, roi_align
from bridge.targets.tvm.tir import dtype_of
from bridge.targets.tvm.topk import top_k

Converter = Callable[[Any, Node], Any]


def constant(value: Any, dtype: str | None = None) -> Any:
    """A constant of exactly this type; `relax.const` takes int64 for int32."""
    array = np.array(value, dtype, order="C")
    return relax.const(tvm.runtime.tensor(array), array.dtype.name)


def _static_nms(builder: Any, node: Node) -> Any:
    limits = limits_of(node)
    return builder.emit_te(lambda b, s: suppress(b, s, limits), node.expr(0), node.expr(1))


def _roi_align(builder: Any, node: Node) -> Any:
    given = pooling_of(node)
    operands = [node.expr(index) for index in range(3)]
    return builder.emit_te(lambda x, rois, batch: roi_align(x, rois, batch, given), *operands)


def _topk(builder: Any, node: Node) -> Any:
    """A heap; TVM's own sorts by a function that its runtime alone does not have."""
    if node.type().dtype != "float32":
        raise node.refusal(f"of {node.type().dtype}")
    shape, axis = node.type().shape, node.axis(-1)
    (k,) = node.integers(1)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = builder.emit(relax.op.reshape(node.expr(), (outer, shape[axis], inner)))
    largest = bool(node.attributes.get("largest", 1))
    made = builder.emit_te(lambda x: top_k(x, k, largest=largest), flat)
    return [
        relax.op.reshape(relax.TupleGetItem(made, index), node.outputs[0].shape)
        for index in range(2)
    ]


def _resize(builder: Any, node: Node) -> Any:
    result, rank = node.expr(), len(node.type().shape)
    for one in resamplings(node):
        shape = [-1 if axis == one.axis else 1 for axis in range(rank)]
        total = None
        for index, weight in one.taps:
            part = relax.op.take(result, constant(index, "int64"), axis=one.axis)
            if weight is not None:
                part = _product(builder, part, constant(weight.reshape(shape), "float32"))
            total = part if total is None else relax.op.add(total, part)
        if one.outside is not None:
            filling = constant(np.float32(one.filling))
            total = relax.op.where(constant(one.outside.reshape(shape)), filling, total)
        result = builder.emit(total)
    return result


def _mul(builder: Any, node: Node) -> Any:
    if not node.type().dtype.startswith("float"):
        return None
    return _product(builder, node.expr(0), node.expr(1))


def _pow(builder: Any, node: Node) -> Any:
    """Powers that onnxruntime multiplies out (`pow.cc`); others are transcendental anyhow."""
    exponent = node.operand(1).value
    if exponent is None or exponent.size != 1 or exponent.item() not in (2, 3):
        return None
    power = node.expr(0)
    for _ in range(int(exponent.item()) - 1):
        power = _product(builder, power, node.expr(0))
    return [power]


def _product(builder: Any, one: Any, other: Any) -> Any:
    """A product that is rounded before anything is added to it."""

    def rounded(x: Any, y: Any) -> Any:
        made = topi.multiply(x, y)
        if not dtype_of(made(*made.op.axis)).startswith("float"):
            return made
        return te.compute(made.shape, lambda *i: fence(made(*i)), tag=topi.tag.ELEMWISE)

    operands = [builder.normalize(part) for part in (one, other)]
    return builder.emit_te(rounded, *operands)


CONVERTERS: Mapping[str, Converter] = {
    "Pow": _pow,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "StaticNMS": _static_nms,
    "TopK": _topk,
}
EXACT: Mapping[str, Converter] = {"Mul": _mul}
"""Where floats are held to onnxruntime's bits."""
