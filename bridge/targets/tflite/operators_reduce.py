"""ONNX operators that sum or compare along axes: Reduce*, Softmax, MatMul, Gemm.

Sums of floats are not bit-equal to onnxruntime's: the order of summation is each runtime's own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.node import Node
from bridge.targets.tflite.operators_layout import transpose
from bridge.targets.tflite.operators_math import (
    FLOAT,
    NUMBER,
    SMALL,
    absolute,
    binary,
    outside_delegates,
    widened,
)


def _axes(node: Node) -> list[int]:
    """Axes from the attribute (all but ReduceSum up to opset 17) or from the second input."""
    rank = node.input(0).rank
    if node.has(1):
        axes: list[int] = node.integers(1)
    else:
        axes = list(node.attribute("axes", ()))
    if not axes and not node.attribute("noop_with_empty_axes", 0):
        axes = list(range(rank))
    return [axis % rank for axis in axes]


def _reduced(kind: str, node: Node, x: Tensor) -> Tensor:
    if not (axes := _axes(node)):
        return x
    return node.builder.reduce(kind, x, axes, keep=bool(node.attribute("keepdims", 1)))


def _reduce(kind: str, node: Node) -> Tensor:
    x = node.require(0, NUMBER + SMALL)
    return widened(node.builder, partial(_reduced, kind, node), x)


def _reduce_mean(node: Node) -> Tensor:
    return _reduced("MEAN", node, node.require(0, FLOAT))


def _reduce_l1(node: Node) -> Tensor:
    return _reduced("SUM", node, absolute(node.builder, node.require(0, NUMBER)))


def _reduce_sum_square(node: Node) -> Tensor:
    x = node.require(0, NUMBER)
    return _reduced("SUM", node, node.builder.binary("MUL", x, x))


def _reduce_l2(node: Node) -> Tensor:
    node.require(0, FLOAT)
    return outside_delegates(node.builder, "SQRT", _reduce_sum_square(node))


def _softmax(kind: str, node: Node) -> Tensor:
    """SOFTMAX or LOG_SOFTMAX, which work on the last axis. Source: ONNX Softmax-13."""
    builder, x = node.builder, node.require(0, FLOAT)
    axis = node.axis(x.rank, -1)
    permutation = list(range(x.rank))
    permutation[axis], permutation[-1] = permutation[-1], permutation[axis]
    rows = transpose(builder, x, permutation)
    flat = builder.reshape(rows, (x.size // rows.shape[-1], rows.shape[-1]))
    if kind == "SOFTMAX":
        result = builder.op(kind, [flat], flat.shape, beta=1.0)
    else:
        result = builder.unary(kind, flat)
    return transpose(builder, builder.reshape(result, rows.shape), permutation)


def _matrix_product(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    """BATCH_MATMUL of operands whose batch axes broadcast."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (builder.broadcast_to(t, (*batch, *t.shape[-2:])) for t in (a, b))
    flat = [builder.reshape(t, (int(np.prod(batch)), *t.shape[-2:])) for t in (left, right)]
    shape = (flat[0].shape[0], a.shape[-2], b.shape[-1])
    return builder.reshape(builder.op("BATCH_MATMUL", flat, shape), (*batch, *shape[1:]))


def _matmul(node: Node) -> Tensor:
    a, b = node.require(0, FLOAT), node.require(1, FLOAT)
    a = node.builder.reshape(a, (1, *a.shape)) if a.rank == 1 else a
    b = node.builder.reshape(b, (*b.shape, 1)) if b.rank == 1 else b
    return node.builder.reshape(_matrix_product(node.builder, a, b), node.shape)


def _gemm(node: Node) -> Tensor:
    """The sum alpha * A' * B' + beta * C. Source: ONNX Gemm-13."""
    builder = node.builder
    a, b = node.require(0, FLOAT), node.require(1, FLOAT)
    a = builder.transpose(a, (1, 0)) if node.attribute("transA", 0) else a
    b = builder.transpose(b, (1, 0)) if node.attribute("transB", 0) else b
    result = _scaled(builder, _matrix_product(builder, a, b), node.attribute("alpha", 1.0))
    if node.has(2):
        addend = _scaled(builder, node.input(2), node.attribute("beta", 1.0))
        result = binary(builder, "ADD", result, addend)
    return result


def _scaled(builder: Builder, x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else builder.binary("MUL", x, builder.constant(factor, "float32"))


OPERATORS: Final[Mapping[str, Callable[[Node], Tensor]]] = {
    "Gemm": _gemm,
    "LogSoftmax": partial(_softmax, "LOG_SOFTMAX"),
    "MatMul": _matmul,
    "ReduceL1": _reduce_l1,
    "ReduceL2": _reduce_l2,
    "ReduceMax": partial(_reduce, "REDUCE_MAX"),
    "ReduceMean": _reduce_mean,
    "ReduceMin": partial(_reduce, "REDUCE_MIN"),
    "ReduceProd": partial(_reduce, "REDUCE_PROD"),
    "ReduceSum": partial(_reduce, "SUM"),
    "ReduceSumSquare": _reduce_sum_square,
    "Softmax": partial(_softmax, "SOFTMAX"),
}
