"""Preprocessing in the graph against the same steps in numpy, bit for bit."""

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, parser

from bridge.errors import UsageError
from bridge.preprocess import (
    ChannelOrder,
    InputDtype,
    InputLayout,
    PreprocessOptions,
    add_preprocessing,
)

MEAN, STD = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)


def identity(shape: str = "1,3,5,7", dtype: str = "float", opset: int = 17) -> onnx.ModelProto:
    """A network that gives back what it is fed, and a branch that reads the input from outside."""
    kind = f"{dtype}[{shape}]"
    model = parser.parse_model(
        f"""<ir_version: 7, opset_import: ["": {opset}]>
        network ({kind} images, bool yes) => ({kind} seen, {kind} inner)
        {{
            seen = Identity (images)
            inner = If (yes) <
                then_branch = a () => ({kind} x) {{ x = Identity (images) }},
                else_branch = b () => ({kind} y) {{ y = Neg (images) }}
            >
        }}"""
    )
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, image: NDArray[np.generic]) -> NDArray[np.generic]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    seen, inner = session.run(None, {"images": image, "yes": np.asarray(True)})
    np.testing.assert_array_equal(seen, inner)
    return np.asarray(seen)


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_nothing_asked_nothing_done() -> None:
    model = identity()
    same = add_preprocessing(model, PreprocessOptions())
    assert same.SerializeToString() == model.SerializeToString()
    already = PreprocessOptions(InputDtype.FLOAT32, input_layout=InputLayout.NCHW)
    assert add_preprocessing(model, already).SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("opset", [9, 13, 17, 20])
def test_camera_bytes(opset: int) -> None:
    options = PreprocessOptions(InputDtype.UINT8, MEAN, STD, ChannelOrder.BGR, InputLayout.NHWC)
    model = add_preprocessing(identity(opset=opset), options)
    (images, _) = model.graph.input
    assert images.name == "images"
    assert images.type.tensor_type.elem_type == TensorProto.UINT8
    assert [d.dim_value for d in images.type.tensor_type.shape.dim] == [1, 5, 7, 3]
    rgb = pixels(1, 5, 7, 3)
    mean, std = np.asarray(MEAN, np.float32), np.asarray(STD, np.float32)
    outside = ((rgb[..., ::-1].astype(np.float32) - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(run(model, rgb), outside)


@pytest.mark.parametrize(
    ("options", "operators"),
    [
        (PreprocessOptions(InputDtype.UINT8), ["Cast"]),
        (PreprocessOptions(input_layout=InputLayout.NHWC), ["Transpose"]),
        (PreprocessOptions(channel_order=ChannelOrder.BGR), ["Gather"]),
        (PreprocessOptions(mean=(127,)), ["Sub"]),
        (PreprocessOptions(std=(1, 2, 3)), ["Div"]),
    ],
)
def test_one_step_is_one_operator(options: PreprocessOptions, operators: list[str]) -> None:
    nodes = add_preprocessing(identity(), options).graph.node
    added = [node.op_type for node in nodes if node.op_type not in ("Constant", "Identity", "If")]
    assert added == operators


def test_a_network_that_is_fed_channels_last() -> None:
    model = identity("1,5,7,3")
    options = PreprocessOptions(InputDtype.UINT8, MEAN, STD, ChannelOrder.BGR, InputLayout.NCHW)
    rgb = pixels(1, 3, 5, 7)
    mean, std = np.asarray(MEAN, np.float32), np.asarray(STD, np.float32)
    outside = (rgb.transpose(0, 2, 3, 1)[..., ::-1].astype(np.float32) - mean) / std
    np.testing.assert_array_equal(run(add_preprocessing(model, options), rgb), outside)


def test_half_precision_networks_compute_in_half_precision() -> None:
    model = add_preprocessing(
        identity(dtype="float16"), PreprocessOptions(InputDtype.UINT8, std=(255,))
    )
    image = pixels(1, 3, 5, 7)
    np.testing.assert_array_equal(run(model, image), image.astype(np.float16) / np.float16(255))


def test_before_ir_4_a_constant_would_be_an_input() -> None:
    model = identity(opset=8)
    model.ir_version = 3
    done = add_preprocessing(model, PreprocessOptions(std=(255,)))
    assert [value.name for value in done.graph.input] == ["images", "yes"]
    assert not done.graph.initializer


def test_symbolic_sizes_stay_symbolic() -> None:
    model = identity("n,3,h,w")
    done = add_preprocessing(model, PreprocessOptions(input_layout=InputLayout.NHWC))
    dims = done.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["n", "h", "w", 3]


def test_the_argument_is_left_alone() -> None:
    model = identity()
    before = model.SerializeToString()
    add_preprocessing(model, PreprocessOptions(InputDtype.UINT8, MEAN, STD, ChannelOrder.BGR))
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ("1,3,5,7", PreprocessOptions(mean=(1, 2)), "--mean: give one number or 3, not 2"),
        ("1,3,5,7", PreprocessOptions(std=(1, 0, 1)), "--std 1,0,1: give finite numbers above 0"),
        ("1,3,5,7", PreprocessOptions(mean=(float("inf"),)), "--mean inf: give finite numbers"),
        ("1,1,5,7", PreprocessOptions(channel_order=ChannelOrder.BGR), "has 1 channels, not 3"),
        ("1,8,5,7", PreprocessOptions(std=(255,)), "no axis of 1, 3 or 4 channels"),
        ("1,35", PreprocessOptions(std=(255,)), "the model has 0 inputs of four dimensions"),
        ("1,3,5,7", PreprocessOptions(std=(255,), input_name="x"), "named 'x'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    shape: str, options: PreprocessOptions, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        add_preprocessing(identity(shape), options)
    assert message in str(error.value)


def test_one_of_two_images_by_name() -> None:
    model = identity()
    extra = helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 3, 5, 7])
    model.graph.input.append(extra)
    with pytest.raises(UsageError, match="the model has 2 inputs of four dimensions"):
        add_preprocessing(model, PreprocessOptions(std=(255,)))
    done = add_preprocessing(model, PreprocessOptions(InputDtype.UINT8, input_name="images"))
    types = {value.name: value.type.tensor_type.elem_type for value in done.graph.input}
    assert types["images"] == TensorProto.UINT8
    assert types["other"] == TensorProto.FLOAT
