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


@dataclass(frozen=True, slots=True)
class _Graph:
    """Nodes and constants of a network of `size` (width, height) under construction."""

    size: tuple[int, int]
    rng: np.random.Generator
    nodes: list[onnx.NodeProto]
    constants: list[onnx.TensorProto]

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def constant(self, array: Array) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def map(self, raw: Raw, stride: int, columns: int) -> str:
        """[1, A * C, H, W]: one convolution whose kernel is a cell."""
        channels = raw.anchors * columns
        shape = (channels, 3, stride, stride)
        weight = self.rng.normal(0, raw.scale / np.sqrt(3 * stride**2), shape)
        bias = self.rng.normal(0, raw.scale, channels)
        inputs = ["image", *(self.constant(x.astype(np.float32)) for x in (weight, bias))]
        width, height = self.size
        pads = [0, 0, -height % stride, -width % stride]
        made = self.add("Conv", inputs, strides=[stride, stride], pads=pads)
        return made if raw.then is None else self.add(raw.then, [made])

    def level(self, raw: Raw, stride: int, columns: int) -> str:
        """A map in the form of the output."""
        made = self.map(raw, stride, columns)
        if raw.form == "map":
            return made
        h, w = -(-self.size[1] // stride), -(-self.size[0] // stride)
        sizes = {"A": raw.anchors, "C": columns, "H": h, "W": w}
        opened = self.add("Reshape", [made, self.constant(np.asarray(list(sizes.values())))])
        wanted = {"rows": "H W A C", "columns": "C H W A"}.get(raw.form, raw.form).split()
        laid = self.add("Transpose", [opened], perm=["ACHW".index(x) for x in wanted])
        shape = {"rows": [1, -1, columns], "columns": [1, columns, -1]}.get(
            raw.form, [1, *(sizes[x] for x in wanted)]
        )
        return self.add("Reshape", [laid, self.constant(np.asarray(shape))])


def network(size: tuple[int, int], outputs: Sequence[Raw], seed: int = 0) -> onnx.ModelProto:
    """From an image [1, 3, height, width] straight to the outputs, one convolution per level."""
    made = _Graph(size, np.random.default_rng(seed), [], [])
    for raw in outputs:
        parts = [made.level(raw, stride, columns) for stride, columns in raw.maps]
        last = parts[0]
        if len(parts) > 1:
            last = made.add("Concat", parts, axis=1 if raw.form == "rows" else 2)
        made.nodes.append(helper.make_node("Identity", [last], [raw.name], name=f"out_{raw.name}"))
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        made.nodes,
        "network",
        [helper.make_tensor_value_info("image", float32, [1, 3, size[1], size[0]])],
        [helper.make_tensor_value_info(raw.name, float32, None) for raw in outputs],
        made.constants,
    )
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
