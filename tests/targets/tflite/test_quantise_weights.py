"""`--quantize weights` and `fp16`: narrow in the file, float32 in the arithmetic."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from bridge.errors import UsageError
from bridge.options import Quantization, Quantize
from bridge.targets.tflite import schema
from tests.targets.tflite.emitting import onnxruntime_outputs
from tests.targets.tflite.quantising import (
    CHANNEL_AXIS,
    NETWORK,
    SHAPE,
    WEIGHTS,
    Floats,
    floats,
    layers,
    lower,
    outputs,
    static,
    with_weights,
)

X = np.random.default_rng(2).random(SHAPE).astype(np.float32)
FORMS = (Quantize.WEIGHTS, Quantize.FP16)


def int8_rounded(name: str, weights: Floats) -> Floats:
    """Symmetric int8 per output channel, the scale a float32."""
    others = tuple(a for a in range(weights.ndim) if a != CHANNEL_AXIS[name])
    scale = (np.abs(weights).max(axis=others, keepdims=True) / np.float32(127)).astype(np.float64)
    return np.asarray(np.rint(weights / scale) * scale, np.float32)


def float16_rounded(name: str, weights: Floats) -> Floats:
    del name
    return weights.astype(np.float16).astype(np.float32)


# What must stay


def test_no_form_changes_nothing(tmp_path: Path) -> None:
    lowered = lower(static(), tmp_path, Quantization())
    assert not lowered.quantised
    assert "quantization" not in lowered.details


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_kept_float_computes_what_it_did(form: Quantize, tmp_path: Path) -> None:
    plain = lower(static(), tmp_path / "float", Quantization())
    kept = lower(static(), tmp_path / form, Quantization(form, keep_float=("*",)))
    assert layers(kept)["quantised"] == 0
    assert set(layers(kept)["float32"]) == {"first", "each", "wide", "up", "all"}
    np.testing.assert_array_equal(outputs(kept.path, X)["y"], outputs(plain.path, X)["y"])


@pytest.mark.parametrize(
    ("form", "name", "change", "reason"),
    [
        (Quantize.WEIGHTS, "w_first", lambda w: w[:3], "take no less space as int8"),
        (Quantize.WEIGHTS, "w_first", lambda w: w * np.float32(np.inf), "not finite"),
        (Quantize.WEIGHTS, "w_first", lambda w: w * np.float32(1e-44), "too small"),
        (Quantize.FP16, "w_first", lambda w: w[:2], "take no less space as float16"),
        (Quantize.FP16, "w_first", lambda w: w * np.float32(1e5), "float16's range"),
        (Quantize.FP16, "b_first", lambda b: b * np.float32(1e6), "float16's range"),
    ],
)
def test_a_layer_that_does_not_fit_stays_float(
    form: Quantize, name: str, change: Callable[[Floats], Floats], reason: str, tmp_path: Path
) -> None:
    text = """(float[1,3,16,16] x) => (float[1,M,16,16] y)
        { [first] y = Conv<pads=[1,1,1,1]>(x, w_first, b_first) }"""
    weights = {**WEIGHTS, name: change(WEIGHTS[name])}
    channels = len(weights["w_first"])
    weights["b_first"] = weights["b_first"][:channels]
    model = static(text.replace("M", str(channels)), weights)
    lowered = lower(model, tmp_path, Quantization(form))
    assert reason in layers(lowered)["float32"]["first"]


def test_weights_of_two_layers_stay_exact_for_the_one_kept_float(tmp_path: Path) -> None:
    text = """(float[1,3,16,16] x) => (float[1,32,16,16] y, float[1,32,8,8] z) {
        [narrow] y = Conv<pads=[1,1,1,1]>(x, w_first, b_first)
        [exact] z = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w_first, b_first)
    }"""
    lowered = lower(static(text), tmp_path, Quantization(Quantize.WEIGHTS, keep_float=("exact",)))
    found = outputs(lowered.path, X)
    y, z = map(floats, onnxruntime_outputs(static(text).model, {"x": X}))
    assert np.abs(found["z"] - z).max() < 1e-4
    assert np.abs(found["y"] - y).max() > 1e-3


def test_the_ends_stay_float32(tmp_path: Path) -> None:
    for form in FORMS:
        lowered = lower(static(), tmp_path / form, Quantization(form))
        assert [port.dtype for port in (*lowered.inputs, *lowered.outputs)] == ["float32"] * 2
        assert lowered.quantised


# What must change


@pytest.mark.parametrize(
    ("form", "rounded", "share"),
    [(Quantize.WEIGHTS, int8_rounded, 0.33), (Quantize.FP16, float16_rounded, 0.56)],
)
def test_it_computes_with_rounded_weights(
    form: Quantize, rounded: Callable[[str, Floats], Floats], share: float, tmp_path: Path
) -> None:
    model = static()
    lowered = lower(model, tmp_path / form, Quantization(form))
    names = CHANNEL_AXIS if form is Quantize.WEIGHTS else WEIGHTS
    numbers = {name: rounded(name, WEIGHTS[name]) for name in names}
    right = floats(onnxruntime_outputs(with_weights(model.model, numbers), {"x": X})[0])
    exact = floats(onnxruntime_outputs(model.model, {"x": X})[0])
    found = outputs(lowered.path, X)["y"]
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-5 * np.abs(exact).max())
    assert np.abs(found - exact).max() > 10 * np.abs(found - right).max()
    sizes = lowered.details["quantization"]["network_bytes"]  # type: ignore[index]  # object
    assert sizes["quantised"] < share * sizes["float32"]
    assert layers(lowered) == {"quantised": 5, "float32": {}}


@pytest.mark.parametrize("form", FORMS)
def test_xnnpack_takes_the_network_whole_and_the_kernels_agree(
    form: Quantize, tmp_path: Path
) -> None:
    plain = lower(static(), tmp_path / "float", Quantization())
    narrow = lower(static(), tmp_path / form, Quantization(form))
    assert delegated(narrow.path) == delegated(plain.path) == 1
    kernels = Interpreter(
        model_path=str(narrow.path),
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    kernels.allocate_tensors()
    found = kernels.get_signature_runner()(x=X.transpose(0, 2, 3, 1))["y"]
    np.testing.assert_allclose(found, outputs(narrow.path, X)["y"], rtol=1e-4, atol=1e-3)


def delegated(path: Path) -> int:
    """How many pieces of the file run in XNNPACK: one where nothing stands between them."""
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    return [operator["op_name"] for operator in interpreter._get_ops_details()].count("DELEGATE")


@pytest.mark.parametrize("form", FORMS)
def test_equal_models_give_equal_bytes(form: Quantize, tmp_path: Path) -> None:
    first, second = (lower(static(), tmp_path / n, Quantization(form)) for n in ("a", "b"))
    assert first.path.read_bytes() == second.path.read_bytes()


def test_a_constant_that_nobody_reads_is_not_written(tmp_path: Path) -> None:
    lowered = lower(static(), tmp_path, Quantization(Quantize.WEIGHTS))
    model = schema.unpack(lowered.path.read_bytes())
    used = {tensor.buffer for tensor in model.subgraphs[0].tensors}
    large = [i for i, b in enumerate(model.buffers) if b.content and len(b.content) > 8192]
    assert set(large) <= used


# What the user names


@pytest.mark.parametrize("pattern", ["wide", "w?de", "*ide"])
def test_a_pattern_names_source_nodes(pattern: str, tmp_path: Path) -> None:
    quantization = Quantization(Quantize.WEIGHTS, keep_float=(pattern,))
    found = layers(lower(static(), tmp_path, quantization))
    assert found == {"quantised": 4, "float32": {"wide": "--keep-float"}}


def test_the_node_fused_into_a_layer_names_it_too(tmp_path: Path) -> None:
    quantization = Quantization(Quantize.WEIGHTS, keep_float=("first_relu",))
    found = layers(lower(static(), tmp_path, quantization))
    assert found["float32"] == {"first": "--keep-float"}


def test_a_pattern_that_fits_nothing_is_refused_with_close_names(tmp_path: Path) -> None:
    quantization = Quantization(Quantize.WEIGHTS, keep_float=("each", "frist*"))
    with pytest.raises(UsageError, match=r"--keep-float frist\*: .* 'first'"):
        lower(static(), tmp_path, quantization)


def test_without_a_network_there_is_nothing_to_make_narrow(tmp_path: Path) -> None:
    text = "(float[1,8] x) => (float[1,8] y) { y = Abs(x) }"
    with pytest.raises(UsageError, match="nothing of this model is a network"):
        lower(static(text), tmp_path, Quantization(Quantize.FP16))


def test_the_network_reads_as_it_should() -> None:
    """Every operator that has weights is in the model that these tests are about."""
    assert all(name in NETWORK for name in WEIGHTS)
