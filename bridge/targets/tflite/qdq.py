"""A network that is quantised already: its QuantizeLinear nodes become grids of int8 tensors.

Given    x -> QuantizeLinear(s, z) -> DequantizeLinear(s, z) -> Conv -> QuantizeLinear(t, y) -> ...
Result   Conv on x, in float32, and the grids of x and of what Conv makes

From the float32 network and the grids, kernels in integers are made (`quantise`). A uint8 tensor
becomes int8 with a zero point 128 lower: the same values.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bridge.errors import UnsupportedModelError

Grid = tuple[float, float]
"""The smallest and the largest value of an 8-bit tensor."""

_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_FUSED: Final = frozenset({"Relu", "Clip"})
_EIGHT_BITS: Final = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
_INSTEAD: Final = "give --qdq float for the same values in float32 arithmetic"


def integer_layers(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
) -> list[str]:
    """Names of the layers that compute on quantised numbers: what they read and make is both.

    A pair around float32 layers alone only rounds, and is none of them.

    Args:
        nodes: of the whole model.
        constants: of it.
    """
    maker = {name: node for node in nodes for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def is_quantised(name: str) -> bool:
        return any(
            reader.op_type == "QuantizeLinear"
            or (reader.op_type in _FUSED and is_quantised(reader.output[0]))
            for reader in readers.get(name, ())
        )

    return [
        node.name
        for node in nodes
        if node.op_type in _WEIGHTED
        and node.input[0] in maker
        and maker[node.input[0]].op_type == "DequantizeLinear"
        and node.input[1] in constants
        and is_quantised(node.output[0])
    ]


def grids(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
) -> dict[str, Grid]:
    """The grid of every float32 tensor that a QuantizeLinear reads.

    Raises:
        UnsupportedModelError: one that int8 kernels have no tensor for, by node and reason.
    """
    found: dict[str, Grid] = {}
    for node in nodes:
        if node.op_type != "QuantizeLinear":
            continue
        grid = _grid(node, constants)
        if found.setdefault(node.input[0], grid) != grid:
            raise _refused(node, f"{node.input[0]} is quantised on two grids")
    return found


def _grid(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Grid:
    scale = numpy_helper.to_array(constants[node.input[1]])
    named = len(node.input) > 2 and node.input[2]
    element = constants[node.input[2]].data_type if named else onnx.TensorProto.UINT8
    if element not in _EIGHT_BITS:
        dtype = helper.tensor_dtype_to_np_dtype(element)
        raise _refused(node, f"it quantises to {dtype}, and the kernels take int8")
    if scale.size != 1:
        raise _refused(node, "it has a scale per channel, and activations have one per tensor")
    zero = int(numpy_helper.to_array(constants[node.input[2]]).reshape(())) if named else 0
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(element))
    step = float(scale.reshape(()))
    return (limits.min - zero) * step, (limits.max - zero) * step


def _refused(node: onnx.NodeProto, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"QuantizeLinear (domain {node.domain or 'ai.onnx'}, node '{node.name}'): {why}; {_INSTEAD}"
    )


def stripped(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
) -> Iterator[onnx.NodeProto]:
    """Nodes of a network without the pairs in it.

    Args:
        nodes: every QuantizeLinear among them is read by DequantizeLinear only.
        constants: all that is known.

    Raises:
        UnsupportedModelError: a pair scales, since its two nodes differ.
    """
    quantised = {node.output[0]: node for node in nodes if node.op_type == "QuantizeLinear"}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            continue
        if node.op_type == "DequantizeLinear" and node.input[0] in quantised:
            first = quantised[node.input[0]]
            if _parameters(first, constants) != _parameters(node, constants):
                raise _refused(first, f"DequantizeLinear '{node.name}' has another scale")
            yield helper.make_node("Identity", [first.input[0]], [node.output[0]], name=node.name)
        else:
            yield node


def _parameters(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> tuple[list[float], list[int]]:
    scale = numpy_helper.to_array(constants[node.input[1]])
    zero = [
        int(number)
        for name in node.input[2:3]
        if name
        for number in numpy_helper.to_array(constants[name]).reshape(-1)
    ]
    return scale.reshape(-1).tolist(), zero or [0] * scale.size
