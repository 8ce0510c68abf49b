"""What a model does between its last layers and an output: whether its boxes are decoded there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

_LAYERS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "QLinearConv"}
)
_MOVERS = frozenset(
    {"Reshape", "Transpose", "Concat", "Identity", "Flatten", "Squeeze", "Unsqueeze"}
)

_SHARE_OF_ROWS = 4
"""A model may decode each level for itself; the largest has more than a quarter of all rows."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What stands between the last layers and an output.

    Attributes:
        grid: the largest number of the constants that have a number per candidate or more: cells
            or priors, so boxes are decoded. None where there are none.
        last: the last operator that computes, empty if none does.
    """

    grid: float | None
    last: str


def ending(model: onnx.ModelProto, output: str, rows: int) -> Ending:
    """Walk from an output of `rows` candidates back to the layers it comes from."""
    constants = _constants(model)
    grids: list[float] = []
    last = ""
    for name, node in _walk(model, output):
        if name in constants:
            tensor = constants[name]
            # A number per channel is no grid, however many channels there are.
            spread = sum(dim > 1 for dim in tensor.dims) > 1
            if spread and np.prod(tensor.dims) >= max(rows / _SHARE_OF_ROWS, 2):
                grids.append(float(np.abs(numpy_helper.to_array(tensor)).max()))
        elif node is not None and node.op_type == "Range":
            grids.append(float(rows))
        if node is not None and node.op_type not in _MOVERS:
            last = last or node.op_type
    return Ending(max(grids, default=None), last)


def _walk(model: onnx.ModelProto, output: str) -> Iterator[tuple[str, onnx.NodeProto | None]]:
    """Values from an output backwards, each with the node that makes it unless that is a layer."""
    makers = {name: node for node in model.graph.node for name in node.output}
    pending, seen = [output], {""}
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = makers.get(name)
        if node is not None and node.op_type in _LAYERS:
            continue
        yield name, node
        if node is not None:
            pending.extend(node.input)


def _constants(model: onnx.ModelProto) -> Mapping[str, onnx.TensorProto]:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                constants[node.output[0]] = attribute.t
    return constants
