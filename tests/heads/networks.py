"""Small networks with random weights that end in raw outputs of any shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

OPSET = 17


@dataclass(frozen=True, slots=True)
class Raw:
    """An output of the network.

    Attributes:
        maps: stride and columns of each level that it holds.
        form: `map` [1, A * C, H, W]; `rows` [1, N, C] of all levels; `columns` [1, C, N] of all
            levels; or a permutation of `A H W C` with the batch in front, for one level.
        anchors: A, the priors of a cell.
        then: an operator that the network ends in.
    """

    name: str
    maps: tuple[tuple[int, int], ...]
    form: str
    anchors: int = 1
    then: str | None = None
    scale: float = 1.0


def network(size: tuple[int, int], outputs: Sequence[Raw], seed: int = 0) -> onnx.ModelProto:
    """From an image [1, 3, height, width] straight to the outputs, one convolution per level."""
    rng = np.random.default_rng(seed)
    width, height = size
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def add(op_type: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{op_type}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def constant(array: Array) -> str:
        constants.append(numpy_helper.from_array(array, f"constant_{len(constants)}"))
        return constants[-1].name

    def level(raw: Raw, stride: int, columns: int) -> str:
        channels = raw.anchors * columns
        weight = rng.normal(0, raw.scale / np.sqrt(3 * stride**2), (channels, 3, stride, stride))
        bias = rng.normal(0, raw.scale, channels)
        h, w = -(-height // stride), -(-width // stride)
        inputs = [
            "image",
            constant(weight.astype(np.float32)),
            constant(bias.astype(np.float32)),
        ]
        pads = [0, 0, h * stride - height, w * stride - width]
        made = add("Conv", inputs, strides=[stride, stride], pads=pads)
        if raw.then is not None:
            made = add(raw.then, [made])
        if raw.form == "map":
            return made
        opened = add("Reshape", [made, constant(np.asarray([raw.anchors, columns, h, w]))])
        wanted = "H W A C" if raw.form == "rows" else "C H W A"
        wanted = wanted if raw.form in ("rows", "columns") else raw.form
        laid = add("Transpose", [opened], perm=["ACHW".index(x) for x in wanted.split()])
        sizes = {"A": raw.anchors, "C": columns, "H": h, "W": w}
        shape = {"rows": [1, -1, columns], "columns": [1, columns, -1]}.get(
            raw.form, [1, *(sizes[x] for x in wanted.split())]
        )
        return add("Reshape", [laid, constant(np.asarray(shape))])

    graph_outputs = []
    for raw in outputs:
        parts = [level(raw, stride, columns) for stride, columns in raw.maps]
        last = parts[0]
        if len(parts) > 1:
            last = add("Concat", parts, axis=1 if raw.form == "rows" else 2)
        nodes.append(helper.make_node("Identity", [last], [raw.name], name=f"out_{raw.name}"))
        graph_outputs.append(helper.make_tensor_value_info(raw.name, TensorProto.FLOAT, None))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, height, width])
    graph = helper.make_graph(nodes, "network", [image], graph_outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    onnx.checker.check_model(inferred, full_check=True)
    return inferred


def image(size: tuple[int, int], seed: int = 1) -> Array:
    """Smooth noise, so that neighbouring cells differ but not wildly."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(0, 1, (1, 3, size[1] // 8 + 2, size[0] // 8 + 2))
    fine = coarse.repeat(8, 2).repeat(8, 3)[:, :, : size[1], : size[0]]
    return (fine + rng.normal(0, 0.5, fine.shape)).astype(np.float32)
