"""A small network with every operator that has weights, and its model in numpy's hands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser, shape_inference

from bridge.options import Options, Quantization
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import Array, Lowered
from bridge.targets.tflite import TFLITE

Floats = NDArray[np.float32]

RNG = np.random.default_rng(5)
WEIGHTS: Mapping[str, Floats] = {
    "w_first": RNG.standard_normal((32, 3, 3, 3)).astype(np.float32),
    "b_first": RNG.standard_normal(32).astype(np.float32),
    "w_each": RNG.standard_normal((32, 1, 5, 5)).astype(np.float32),
    "b_each": RNG.standard_normal(32).astype(np.float32),
    # Channels of very different size: one scale for all would drown the small ones.
    "w_wide": (
        RNG.standard_normal((24, 32, 1, 1)) * np.logspace(-3, 0, 24)[:, None, None, None]
    ).astype(np.float32),
    "w_up": RNG.standard_normal((24, 16, 2, 2)).astype(np.float32),
    "w_all": RNG.standard_normal((4096, 8)).astype(np.float32) / np.float32(64),
    "b_all": RNG.standard_normal(8).astype(np.float32),
}
ENTRY: Mapping[str, Floats] = {"w_entry": RNG.standard_normal((3, 3, 1, 1)).astype(np.float32)}
"""For a layer in front of the others: int8 leaves the one that reads the input alone."""
CHANNEL_AXIS = {"w_first": 0, "w_each": 0, "w_wide": 0, "w_up": 1, "w_all": 1}
SHAPE = (1, 3, 16, 16)
NETWORK = """
(float[1,3,16,16] x) => (float[1,8] y) {
    [first] a = Conv<pads=[1,1,1,1]>(x, w_first, b_first)
    [first_relu] ar = Relu(a)
    [each] e = Conv<group=32, pads=[2,2,2,2], strides=[2,2]>(ar, w_each, b_each)
    [each_sigmoid] es = Sigmoid(e)
    [each_mul] em = Mul(e, es)
    [wide] w = Conv(em, w_wide)
    [up] u = ConvTranspose<strides=[2,2]>(w, w_up)
    [flat] f = Flatten(u)
    [all] y = Gemm(f, w_all, b_all)
}
"""


def static(text: str = NETWORK, weights: Mapping[str, Floats] = WEIGHTS) -> StaticModel:
    """A static model of a graph as text."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name)
        for name, array in {**ENTRY, **weights}.items()
        if name in read
    )
    model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    types = tensor_types(model)
    shapes: dict[str, tuple[int | None, ...]] = {
        value.name: types[value.name].shape for value in model.graph.output
    }
    return StaticModel(model, shapes, (), ())


def with_weights(model: onnx.ModelProto, weights: Mapping[str, Floats]) -> onnx.ModelProto:
    """The model with other numbers in its initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for tensor in changed.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return changed


def lower(model: StaticModel, folder: Path, quantization: Quantization) -> Lowered:
    """The model as a TFLite file in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    return TFLITE.lower(model, Options(quantization=quantization), folder)


def floats(array: Array) -> Floats:
    """An array that must be float32."""
    assert array.dtype == np.float32
    return cast("Floats", array)


def outputs(path: Path, x: Floats) -> dict[str, Floats]:
    """What a file makes of an image in NCHW."""
    with TFLITE.open(path) as session:
        made = session.run({"x": x.transpose(0, 2, 3, 1)})
    return {name: floats(array) for name, array in made.items()}


def layers(lowered: Lowered) -> dict[str, Any]:
    """The manifest's list of layers."""
    quantization = cast("dict[str, dict[str, Any]]", lowered.details["quantization"])
    return quantization["layers"]
