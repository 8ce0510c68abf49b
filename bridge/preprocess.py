"""Preprocessing moves into the graph, so that an application feeds the bytes of its camera.

Given:   %images float32[1, 3, H, W] (BGR, (x - mean) / std) -> network
Result:  %images uint8[1, H, W, 3] (RGB) -> Cast -> Transpose -> channels -> Sub -> Div -> network

The order is fixed: cast, layout, channel order, mean, std; `mean` and `std` are given in the order
of the network's channels and in units of the bytes. Every step but the division and subtraction
moves numbers only, and those are the float32 operations `(x - mean) / std` in that order. So the
result equals the same done outside in float32, bit for bit; done outside in float64 and rounded it
may differ in the last bit. Resizing stays outside: filters differ too much between platforms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge.errors import UsageError
from bridge.model import graphs


class ChannelOrder(StrEnum):
    """What the network was trained on. The application feeds RGB."""

    RGB = "rgb"
    BGR = "bgr"


class InputLayout(StrEnum):
    """The axes of the input that the application feeds."""

    NCHW = "nchw"
    NHWC = "nhwc"


class InputDtype(StrEnum):
    """The element type that the application feeds."""

    UINT8 = "uint8"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class PreprocessOptions:
    """What is done to the image input inside the graph; the defaults do nothing.

    Attributes:
        input_dtype: None keeps the network's own.
        mean: subtracted, one number or one per channel of the network.
        std: divided by, one number or one per channel of the network.
        input_layout: None keeps the network's own.
        input_name: which input, where the model has several images.
    """

    input_dtype: InputDtype | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    channel_order: ChannelOrder = ChannelOrder.RGB
    input_layout: InputLayout | None = None
    input_name: str | None = None


@dataclass(slots=True)
class _Chain:
    """Nodes in a row, from the new input to the name that the network reads."""

    prefix: str
    tensor: str
    nodes: list[onnx.NodeProto]

    def add(self, op_type: str, *constants: NDArray[np.generic], **attributes: Any) -> None:
        inputs = [self.tensor]
        for constant in constants:
            name = f"{self.prefix}/constant_{len(self.nodes)}"
            value = numpy_helper.from_array(constant, name)
            # Constants as nodes: before IR 4 an initializer would have to be an input, too.
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=value))
            inputs.append(name)
        self.tensor = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        node = helper.make_node(op_type, inputs, [self.tensor], name=self.tensor, **attributes)
        self.nodes.append(node)


def add_preprocessing(model: onnx.ModelProto, options: PreprocessOptions) -> onnx.ModelProto:
    """The model with its preprocessing inside; the argument is left alone.

    The input keeps its name.

    Raises:
        UsageError: no image input, or numbers that do not fit its channels.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    value = _image_input(result, options.input_name)
    dims = [d.dim_value if d.HasField("dim_value") else None for d in _dims(value)]
    own = _own_layout(value.name, dims)
    channels = dims[1 if own is InputLayout.NCHW else 3] or 0
    chain = _Chain(_free_prefix(result, value.name), value.name, [])
    dtype = value.type.tensor_type.elem_type
    if options.input_dtype is not None:
        wanted = helper.np_dtype_to_tensor_dtype(np.dtype(options.input_dtype.value))
        if wanted != dtype:
            value.type.tensor_type.elem_type = wanted
            chain.add("Cast", to=dtype)
    if options.input_layout not in (None, own):
        perm = [0, 3, 1, 2] if own is InputLayout.NCHW else [0, 2, 3, 1]
        _transpose(value, np.argsort(perm).tolist())
        chain.add("Transpose", perm=perm)
    _arithmetic(chain, options, own, channels, dtype)
    if chain.nodes:
        _insert(result, value.name, chain)
    return result


def _arithmetic(
    chain: _Chain, options: PreprocessOptions, layout: InputLayout, channels: int, dtype: int
) -> None:
    axis = 1 if layout is InputLayout.NCHW else 3
    if options.channel_order is ChannelOrder.BGR:
        if channels != 3:
            raise UsageError(f"--channel-order bgr: the input has {channels} channels, not 3")
        chain.add("Gather", np.asarray([2, 1, 0], np.int64), axis=axis)
    shape = [1, -1, 1, 1] if layout is InputLayout.NCHW else [1, 1, 1, -1]
    numpy_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    for option, numbers, operator in (("mean", options.mean, "Sub"), ("std", options.std, "Div")):
        if numbers:
            array = _per_channel(option, numbers, channels).astype(numpy_dtype)
            chain.add(operator, array.reshape(shape))


def _per_channel(option: str, numbers: Sequence[float], channels: int) -> NDArray[np.float64]:
    array = np.asarray(numbers, np.float64)
    if len(array) not in (1, channels):
        raise UsageError(f"--{option}: give one number or {channels}, not {len(array)}")
    if not np.isfinite(array).all() or (option == "std" and not (array > 0).all()):
        kind = "finite numbers above 0" if option == "std" else "finite numbers"
        raise UsageError(f"--{option} {','.join(map(str, numbers))}: give {kind}")
    return array


def _image_input(model: onnx.ModelProto, name: str | None) -> onnx.ValueInfoProto:
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs: list[onnx.ValueInfoProto] = [
        value for value in model.graph.input if value.name not in initializers
    ]
    images = [v for v in inputs if len(_dims(v)) == 4 and (name is None or v.name == name)]
    if len(images) != 1:
        known = ", ".join(value.name for value in inputs)
        raise UsageError(
            f"the model has {len(images)} inputs of four dimensions"
            + (f" named {name!r}" if name else "")
            + f" to put preprocessing behind; its inputs are {known}"
        )
    return images[0]


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def _own_layout(name: str, dims: Sequence[int | None]) -> InputLayout:
    if dims[1] in (1, 3, 4):
        return InputLayout.NCHW
    if dims[3] in (1, 3, 4):
        return InputLayout.NHWC
    raise UsageError(
        f"input {name!r} has shape {dims} and no axis of 1, 3 or 4 channels, so it is no image"
    )


def _transpose(value: onnx.ValueInfoProto, perm: Sequence[int]) -> None:
    old = [onnx.TensorShapeProto.Dimension.FromString(d.SerializeToString()) for d in _dims(value)]
    del value.type.tensor_type.shape.dim[:]
    value.type.tensor_type.shape.dim.extend(old[axis] for axis in perm)


def _free_prefix(model: onnx.ModelProto, name: str) -> str:
    taken = {n for graph in graphs(model) for node in graph.node for n in (*node.output, node.name)}
    prefix = f"{name}/preprocessed"
    while any(other.startswith(prefix) for other in taken):
        prefix += "_"
    return prefix


def _insert(model: onnx.ModelProto, name: str, chain: _Chain) -> None:
    """Let every reader of the input read the end of the chain, and put the chain first."""
    for graph in graphs(model):
        for node in graph.node:
            for place, read in enumerate(node.input):
                if read == name:
                    node.input[place] = chain.tensor
        if isinstance(graph, onnx.GraphProto):
            for output in graph.output:
                if output.name == name and graph is not model.graph:
                    output.name = chain.tensor
    nodes = [*chain.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
