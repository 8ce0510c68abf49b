"""A model that is quantised in ONNX keeps its quantisation, in kernels of integers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bridge.errors import LoweringError, TargetMissingError, UnsupportedModelError, UsageError
from bridge.options import Options, Qdq, Quantization, Quantize
from bridge.pipeline import Checks, convert
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import Array, Lowered
from bridge.targets.tflite import TFLITE, qdq, quantise_process, schema
from bridge.targets.tflite.cut import cut
from bridge.targets.tflite.network import convert as convert_network
from bridge.targets.tflite.quantise import quantise as quantise_network
from bridge.targets.tflite.quantise_codes import common_steps
from examples.shapes.scenes import draw_scene, network_input
from tests.targets.tflite.emitting import onnxruntime_outputs
from tests.targets.tflite.quantising import NETWORK, SHAPE, floats, layers, outputs, static

MISSING = quantise_process.missing(None)
needs_quantizer = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
SHAPES = Path(__file__).resolve().parents[3] / "examples" / "shapes.onnx"
RNG = np.random.default_rng(11)
CODES = RNG.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
MORE_CODES = RNG.integers(-127, 128, (6, 8, 1, 1)).astype(np.int8)
STEPS = RNG.uniform(0.001, 0.01, 8).astype(np.float32)


def data(array: object, dtype: str = "float32") -> Array:
    return np.asarray(array, dtype)


CONSTANTS: Mapping[str, Array] = {
    "in_step": data(1 / 255),
    "in_zero": data(0, "uint8"),
    "step": data(0.02),
    "zero": data(7, "uint8"),
    "signed": data(-100, "int8"),
    "wide": data(-3, "int16"),
    "end_step": data(0.05),
    "end_zero": data(120, "uint8"),
    "steps": STEPS,
    "zeros": np.zeros(8, np.int8),
    "eight_steps": np.full(8, 0.02, np.float32),
    "eight_zeros": np.full(8, 7, np.uint8),
    "codes": CODES,
    "more_codes": MORE_CODES,
    "more_step": data(0.005),
    "more_zero": data(0, "int8"),
    "bias": (RNG.integers(-2000, 2000, 8) * (STEPS / 255)).astype(np.float32),
    "float_weights": RNG.standard_normal((8, 3, 3, 3)).astype(np.float32),
}
# As surgery leaves it: quantised constants are float32 numbers already.
FOLDED: Mapping[str, NDArray[np.float32]] = {
    "weights": CODES.astype(np.float32) * STEPS[:, None, None, None],
    "more_weights": MORE_CODES.astype(np.float32) * np.float32(0.005),
}
TWO_LAYERS = """
(float[1,3,16,16] x) => (float[1,6,16,16] y) {
    [q_in] q = QuantizeLinear(x, in_step, in_zero)
    [d_in] d = DequantizeLinear(q, in_step, in_zero)
    [first] a = Conv<pads=[1,1,1,1]>(d, weights, bias)
    [relu] r = Relu(a)
    [q_mid] m = QuantizeLinear(r, step, zero)
    [d_mid] e = DequantizeLinear(m, step, zero)
    [second] b = Conv(e, more_weights)
    [q_end] n = QuantizeLinear(b, end_step, end_zero)
    [d_end] y = DequantizeLinear(n, end_step, end_zero)
}
"""


def quantised(text: str = TWO_LAYERS) -> StaticModel:
    return static(text, {**CONSTANTS, **FOLDED})  # type: ignore[dict-item]  # integers, too


def lower(model: StaticModel, folder: Path, options: Options | None = None) -> Lowered:
    folder.mkdir(parents=True, exist_ok=True)
    return TFLITE.lower(model, options or Options(), folder)


def codes_of(path: Path) -> dict[tuple[int, ...], tuple[NDArray[np.int8], NDArray[np.float32]]]:
    """Codes and scales of the int8 weights in a file, by shape."""
    model = schema.unpack(path.read_bytes())
    found = {}
    for tensor in model.subgraphs[0].tensors:
        content = model.buffers[tensor.buffer].content
        if content and schema.type_name(tensor) == "int8":
            shape = tuple(int(size) for size in tensor.shape)
            codes = np.frombuffer(content, np.int8).reshape(shape)
            found[shape] = (codes, np.asarray(tensor.quantization.scale, np.float32))
    return found


# What must stay


@pytest.mark.parametrize("mode", list(Qdq))
def test_a_pair_around_float_layers_only_rounds(mode: Qdq, tmp_path: Path) -> None:
    """No kernel of integers stands for it: it stays onnxruntime's rounding, to the bit."""
    text = """(float[1,3,16,16] x) => (float[1,8,16,16] y) {
        [conv] a = Conv<pads=[1,1,1,1]>(x, float_weights)
        [q] q = QuantizeLinear(a, step, zero)
        [d] y = DequantizeLinear(q, step, zero)
    }"""
    lowered = lower(quantised(text), tmp_path, Options(qdq=mode))
    assert not lowered.quantised
    x = RNG.random(SHAPE).astype(np.float32)
    right = floats(onnxruntime_outputs(quantised(text).model, {"x": x})[0])
    # A value at the edge of a step may round the other way.
    assert np.mean(outputs(lowered.path, x)["y"] != right) < 1e-3


def test_float_computes_what_onnxruntime_does(tmp_path: Path) -> None:
    lowered = lower(quantised(), tmp_path, Options(qdq=Qdq.FLOAT))
    assert not lowered.quantised
    x = RNG.random(SHAPE).astype(np.float32)
    right = floats(onnxruntime_outputs(quantised().model, {"x": x})[0])
    assert np.mean(outputs(lowered.path, x)["y"] != right) < 0.01


# What must change


@needs_quantizer
def test_layers_become_integer_kernels_on_the_models_own_grids(tmp_path: Path) -> None:
    lowered = lower(quantised(), tmp_path)
    assert lowered.quantised
    assert layers(lowered) == {"quantised": 2, "float32": {}}
    model = schema.unpack(lowered.path.read_bytes())
    grids = {
        (round(float(t.quantization.scale[0]), 6), int(t.quantization.zeroPoint[0]))
        for t in model.subgraphs[0].tensors
        if schema.type_name(t) == "int8" and not model.buffers[t.buffer].content
    }
    # uint8 with zero point z is int8 with z - 128.
    assert grids == {(round(1 / 255, 6), -128), (0.02, 7 - 128), (0.05, 120 - 128)}


@needs_quantizer
def test_weights_keep_their_codes(tmp_path: Path) -> None:
    found = codes_of(lower(quantised(), tmp_path).path)
    codes, steps = found[8, 3, 3, 3]
    np.testing.assert_array_equal(codes, CODES.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(steps, STEPS, rtol=1e-6)
    more, step = found[6, 1, 1, 8]
    multiples = more * step[:, None, None, None]
    np.testing.assert_allclose(multiples, FOLDED["more_weights"].transpose(0, 2, 3, 1), rtol=1e-5)


@needs_quantizer
def test_what_comes_out_is_a_step_off_at_most(tmp_path: Path) -> None:
    lowered = lower(quantised(), tmp_path)
    for _ in range(3):
        x = RNG.random(SHAPE).astype(np.float32)
        right = floats(onnxruntime_outputs(quantised().model, {"x": x})[0])
        steps = np.abs(outputs(lowered.path, x)["y"] - right) / 0.05
        assert steps.max() < 1.5
        assert np.mean(steps > 0.5) < 0.05
        assert right.std() > 5 * 0.05


@needs_quantizer
def test_a_layer_that_makes_float32_stays_float32(tmp_path: Path) -> None:
    text = TWO_LAYERS.replace("[q_end] n = QuantizeLinear(b, end_step, end_zero)", "").replace(
        "[d_end] y = DequantizeLinear(n, end_step, end_zero)", "[out] y = Abs(b)"
    )
    lowered = lower(quantised(text), tmp_path)
    assert layers(lowered)["quantised"] == 1
    assert set(layers(lowered)["float32"]) == {"second"}


@needs_quantizer
def test_the_border_is_cut_behind_the_kernels(tmp_path: Path) -> None:
    """Network and tail apart give what the whole file gives."""
    lowered = lower(quantised(), tmp_path)
    assert lowered.network is not None
    assert lowered.tail is not None
    x = RNG.random(SHAPE).astype(np.float32)
    border = outputs(lowered.network, x)
    with TFLITE.open(lowered.tail) as tail:
        np.testing.assert_array_equal(tail.run(border)["y"], outputs(lowered.path, x)["y"])


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 10.0), st.integers(2, 127))
def test_steps_are_found_again(seed: int, step: float, most: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-most, most + 1, (4, 30))
    steps = (step * rng.uniform(0.5, 2, 4)).astype(np.float32)
    found = common_steps((codes.astype(np.float32) * steps[:, None]).astype(np.float32))
    assert found is not None
    again = np.rint(codes * steps[:, None].astype(np.float64) / found[:, None])
    np.testing.assert_allclose(again * found[:, None], codes * steps[:, None], rtol=1e-5)
    assert np.abs(again).max() <= most


def test_numbers_of_no_common_step_have_none() -> None:
    rng = np.random.default_rng(0)
    assert common_steps(rng.standard_normal((3, 40)).astype(np.float32)) is None
    assert common_steps(np.zeros((2, 5), np.float32)) is not None


@pytest.mark.slow
@needs_quantizer
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_detector_that_onnxruntime_quantised(per_channel: bool, tmp_path: Path) -> None:
    """Of the objects that onnxruntime finds on scenes, the integers find nearly all."""
    source = tmp_path / "quantised.onnx"
    quantise(SHAPES, source, per_channel=per_channel)
    checks = Checks(skip=True)
    files = {
        mode: convert(
            source, "tflite", tmp_path / f"{mode}.tflite", Options(qdq=mode), checks=checks
        )
        for mode in Qdq
    }
    integer = files[Qdq.INTEGER].manifest.details["quantization"]
    assert integer["layers"]["quantised"] == 18  # type: ignore[index]  # object
    wanted = found = 0
    with (
        TFLITE.open(tmp_path / "float.tflite") as exact,
        TFLITE.open(tmp_path / "integer.tflite") as narrow,
    ):
        for seed in range(40):
            x = network_input(draw_scene(seed).image).transpose(0, 2, 3, 1)
            one, other = (objects(session.run({"images": x})) for session in (exact, narrow))
            wanted += len(one)
            found += sum(any(near(a, b) for b in other) for a in one)
    assert wanted > 100
    assert found > 0.95 * wanted
    assert (tmp_path / "integer.tflite").stat().st_size < 0.45 * (
        tmp_path / "float.tflite"
    ).stat().st_size


def objects(outputs: Mapping[str, Array]) -> list[tuple[int, NDArray[np.float32]]]:
    count = int(outputs["num_detections"][0])
    boxes = floats(outputs["boxes"])[:count]
    return list(zip(outputs["labels"][:count].tolist(), boxes, strict=True))


def near(a: tuple[int, NDArray[np.float32]], b: tuple[int, NDArray[np.float32]]) -> bool:
    """The same class, corners within three pixels of 160."""
    return a[0] == b[0] and bool(np.abs(a[1] - b[1]).max() < 3)


def quantise(source: Path, target: Path, *, per_channel: bool) -> None:
    """Static quantisation as onnxruntime does it, on scenes."""
    from onnxruntime import quantization

    class Scenes(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            self.left = iter(range(500, 516))

        def get_next(self) -> dict[str, Array] | None:
            seed = next(self.left, None)
            return None if seed is None else {"images": network_input(draw_scene(seed).image)}

    quantization.quantize_static(
        *(source, target, Scenes()),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["Conv", "Relu", "Add", "Resize"],
    )


# What is refused, with the reason


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(r, step, zero)", "(r, step, wide)", "'q_mid'.*int16"),
        ("(r, step, zero)", "<axis=1>(r, eight_steps, eight_zeros)", "'q_mid'.*per channel"),
        ("(m, step, zero)", "(m, end_step, zero)", "'q_mid'.*'d_mid' has another scale"),
    ],
)
def test_what_no_kernel_has_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = TWO_LAYERS.replace(old, new)
    if "wide" in new or "eight" in new:
        text = text.replace(old.replace("(r", "(m"), new.replace("(r", "(m"))
    model = without_checks(text) if "wide" in new else quantised(text)
    with pytest.raises(UnsupportedModelError, match=said) as refused:
        lower(model, tmp_path)
    assert "--qdq float" in str(refused.value)


def without_checks(text: str) -> StaticModel:
    """int16 is beyond opset 17; a model that says so all the same must not pass."""
    model = quantised(text.replace("wide", "signed"))
    changed = onnx.ModelProto.FromString(
        model.model.SerializeToString().replace(b"signed", b"wide__")
    )
    for tensor in changed.graph.initializer:
        if tensor.name == "wide__":
            tensor.CopyFrom(onnx.numpy_helper.from_array(data(-3, "int16"), "wide__"))
    return replace(model, model=changed)


def test_two_grids_of_one_tensor_are_refused() -> None:
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", step], [f"q{step}"], name=step)
        for step in ("step", "end_step")
    ]
    constants = {
        name: onnx.numpy_helper.from_array(CONSTANTS[name], name) for name in ("step", "end_step")
    }
    with pytest.raises(UnsupportedModelError, match=r"'end_step'.*x is quantised on two grids"):
        qdq.grids(nodes, constants)


def test_quantising_it_once_more_is_refused(tmp_path: Path) -> None:
    options = Options(quantization=Quantization(Quantize.WEIGHTS))
    with pytest.raises(UsageError, match=r"quantised already.*--qdq float"):
        lower(quantised(), tmp_path, options)
    lowered = lower(quantised(), tmp_path, replace(options, qdq=Qdq.FLOAT))
    assert lowered.quantised


@needs_quantizer
def test_a_network_without_a_layer_on_grids_is_refused() -> None:
    model = static(NETWORK).model
    parts, types = cut(model), tensor_types(model)
    network = convert_network(parts, model, types, frozenset())
    assert network.grids is None
    with pytest.raises(LoweringError, match=r"no layer.*--qdq float"):
        quantise_network(replace(network, grids={}), Quantization(), ())


def test_without_the_second_environment_it_is_told_what_to_do(tmp_path: Path) -> None:
    options = Options(quantization=Quantization(python=tmp_path / "python"))
    with pytest.raises(TargetMissingError, match=r"make setup-quantize.*--qdq float"):
        lower(quantised(), tmp_path, options)
