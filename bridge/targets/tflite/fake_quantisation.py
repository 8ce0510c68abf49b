"""QuantizeLinear and DequantizeLinear inside a network, as float32 arithmetic of the same values.

onnx2tf writes such a pair as QUANTIZE and DEQUANTIZE, whose rounding is the kernel's. Written out,
the values are those of onnxruntime, and the network stays pure float32.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Floats = NDArray[np.float32]


def as_float(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    rank: Mapping[str, int],
) -> tuple[list[onnx.NodeProto], dict[str, Floats]]:
    """Nodes without quantisation, and the constants they read besides.

    Given    x -> QuantizeLinear(s, z) -> DequantizeLinear(s, z) -> y
    Result   x -> Div s -> Round -> Add z -> Clip -> Sub z -> Mul s -> y

    Args:
        nodes: every QuantizeLinear among them is read by DequantizeLinear only.
        constants: all that is known.
        rank: number of axes of every tensor.
    """
    written: list[onnx.NodeProto] = []
    extra: dict[str, Floats] = {}
    for node in nodes:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            values = numpy_helper.to_array(constants[node.input[0]])
            scale, zero = _parameters(node, constants, values.ndim)
            extra[node.output[0]] = (values.astype(np.float32) - zero) * scale
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = _parameters(node, constants, rank[node.input[0]])
            steps = _quantise if node.op_type == "QuantizeLinear" else _dequantise
            chain = steps(scale, zero, _limits(node, constants))
            written.extend(_chained(node, chain, extra))
        else:
            written.append(node)
    return written, extra


def _parameters(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], rank: int
) -> tuple[Floats, Floats]:
    """Scale and zero point, shaped to broadcast along `axis` where there is one per channel."""
    scale, zero = (
        numpy_helper.to_array(constants[name]).astype(np.float32)
        if name
        else np.zeros((), np.float32)
        for name in (*node.input[1:3], "")[:2]
    )
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [1] * rank
    if scale.size > 1:
        shape[axis] = scale.size
    spread = scale.reshape(shape if scale.size > 1 else ())
    return spread, np.broadcast_to(zero, scale.shape).reshape(spread.shape)


def _limits(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> np.iinfo[np.int8]:
    named = len(node.input) > 2 and node.input[2]
    element = constants[node.input[2]].data_type if named else onnx.TensorProto.UINT8
    limits: np.iinfo[np.int8] = np.iinfo(helper.tensor_dtype_to_np_dtype(element))
    return limits


Step = tuple[str, tuple[Floats, ...]]


def _quantise(scale: Floats, zero: Floats, limits: np.iinfo[np.int8]) -> Iterator[Step]:
    yield "Div", (scale,)
    yield "Round", ()
    if zero.any():
        yield "Add", (zero,)
    yield "Clip", (np.float32(limits.min), np.float32(limits.max))  # type: ignore[misc]  # scalars


def _dequantise(scale: Floats, zero: Floats, limits: np.iinfo[np.int8]) -> Iterator[Step]:
    del limits
    if zero.any():
        yield "Sub", (zero,)
    yield "Mul", (scale,)


def _chained(
    node: onnx.NodeProto, steps: Iterator[Step], extra: dict[str, Floats]
) -> Iterator[onnx.NodeProto]:
    source, target, chain = node.input[0], node.output[0], list(steps)
    for number, (op_type, operands) in enumerate(chain):
        names = [f"{target}/{op_type}/{position}" for position in range(len(operands))]
        extra.update(zip(names, map(np.asarray, operands), strict=True))
        made = target if number == len(chain) - 1 else f"{target}/{op_type}"
        yield helper.make_node(op_type, [source, *names], [made], name=node.name)
        source = made
