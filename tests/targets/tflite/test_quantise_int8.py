"""`--quantize int8` and `dynamic`: arithmetic in int8, by ai-edge-quantizer in a process."""

import json
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bridge.errors import LoweringError, UsageError
from bridge.options import Normalization, Options, Quantization, Quantize
from bridge.pipeline import Checks, convert
from bridge.targets.base import Lowered
from bridge.targets.tflite import TFLITE, quantise_process, schema
from bridge.targets.tflite.layers import INPUT, Layer
from bridge.targets.tflite.quantise_choice import (
    BUDGET,
    closed,
    first_weights,
    last_weights,
    spoilt,
    without_silu_tails,
)
from bridge.targets.tflite.quantise_process import Quantizer
from bridge.targets.tflite.quantise_report import noise
from tests.targets.tflite.emitting import onnxruntime_outputs
from tests.targets.tflite.quantising import (
    SHAPE,
    WEIGHTS,
    Floats,
    floats,
    layers,
    lower,
    outputs,
    static,
)

MISSING = quantise_process.missing(None)
needs_quantizer = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
RNG = np.random.default_rng(3)
SETS = RNG.random((12, *SHAPE)).astype(np.float32)

TWO_ENDS = """
(float[1,3,16,16] x) => (float[1,24,16,16] boxes, float[1,24,16,16] scores) {
    [entry] e = Conv(x, w_entry)
    [first] a = Conv<pads=[1,1,1,1]>(e, w_first, b_first)
    [first_relu] ar = Relu(a)
    [middle] m = Conv<group=32, pads=[2,2,2,2]>(ar, w_each, b_each)
    [middle_relu] mr = Relu(m)
    [boxes_conv] boxes = Conv(mr, w_wide)
    [scores_conv] s = Conv(mr, w_wide)
    [sigmoid] scores = Sigmoid(s)
}
"""


def calibrated(folder: Path, sets: Floats = SETS) -> Path:
    """The sets as the conversion lays them in its work folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "calibration.npz"
    np.savez(path, allow_pickle=False, **{f"x/{i}": one for i, one in enumerate(sets)})
    return path


def int8(folder: Path, text: str = TWO_ENDS, keep: Sequence[str] = ()) -> Lowered:
    asked = Quantization(Quantize.INT8, calibrated(folder), keep_float=tuple(keep))
    return lower(static(text), folder, asked)


def types_of(path: Path) -> dict[str, set[str]]:
    """Type of what each kind of operator makes."""
    names = {number: name for name, number in schema.TYPES.items()}
    model = schema.unpack(path.read_bytes())
    graph = model.subgraphs[0]
    found: dict[str, set[str]] = {}
    for operator in graph.operators:
        types = {names[graph.tensors[i].type] for i in operator.outputs}
        found.setdefault(schema.kind(model, operator), set()).update(types)
    return found


# Which operators stay float32


def chain(*kinds: str) -> list[Layer]:
    """Operators in a row."""
    return [Layer(kind, (), (), (f"{i}",), (i - 1,)) for i, kind in enumerate(kinds)]


def test_what_stands_behind_the_last_weights_stays_float_with_them() -> None:
    operators = chain("PAD", "CONV_2D", "LOGISTIC", "CONV_2D", "RESHAPE", "CONCATENATION")
    assert last_weights(operators) == {3}
    assert closed(operators, {3}) == {2, 3, 4, 5}


def test_each_way_to_the_end_has_its_last_weights() -> None:
    operators = [
        Layer("CONV_2D", (), (), ("a",), (INPUT,)),
        Layer("CONV_2D", (), (), ("b",), (0,)),
        Layer("DEPTHWISE_CONV_2D", (), (), ("c",), (0,)),
        Layer("FULLY_CONNECTED", (), (), ("d",), (2,)),
        Layer("CONCATENATION", (), (), ("e",), (1, 3)),
    ]
    assert last_weights(operators) == {1, 3}


def test_weights_that_the_end_reads_past_others_are_last() -> None:
    operators = [
        Layer("CONV_2D", (), (), ("a",), (INPUT,)),
        Layer("CONV_2D", (), (), ("b",), (0,)),
        Layer("ADD", (), (), ("c",), (0, 1)),
    ]
    assert last_weights(operators) == {0, 1}


def test_each_way_from_an_input_has_its_first_weights() -> None:
    operators = [
        Layer("PAD", (), (), ("a",), (INPUT,)),
        Layer("CONV_2D", (), (), ("b",), (0,)),
        Layer("CONV_2D", (), (), ("c",), (1,)),
        Layer("CONCATENATION", (), (), ("d",), (2, 0)),
        Layer("CONV_2D", (), (), ("e",), (3,)),
        Layer("CONV_2D", (), (), ("f",), (4,)),
    ]
    assert first_weights(operators) == {1, 4}


def test_what_stands_between_float_layers_stays_float() -> None:
    operators = chain("PAD", "CONV_2D", "LOGISTIC", "CONV_2D", "RELU", "CONV_2D", "RESHAPE")
    assert closed(operators, {1, 3, 5}) == {0, 1, 2, 3, 4, 5, 6}
    assert closed(operators, {3, 5}) == {2, 3, 4, 5, 6}
    assert closed(operators, {5}) == {4, 5, 6}


def test_a_network_without_weights_stays_float() -> None:
    assert closed(chain("EXP", "RESHAPE"), ()) == {0, 1}


def test_layers_stay_float_until_the_rest_keeps_to_the_budget() -> None:
    assert spoilt({1: 60.0, 2: 7.0, 3: 60.0}) == [2]
    assert spoilt({1: 60.0, 2: 60.0}) == []
    # Each alone is within it, together they are not.
    many = dict.fromkeys(range(100), 30.0)
    assert 0 < len(spoilt(many)) < 100
    assert 100 - len(spoilt(many)) == int(10 ** ((30 - BUDGET) / 10))
    assert spoilt({3: 0.0, 2: -5.0, 1: 10.0}) == [2, 3, 1]


def silu(*more: Layer) -> list[Layer]:
    """x times sigmoid(x), and what else reads x."""
    return [
        Layer("CONV_2D", (), (), ("x",), (INPUT,)),
        Layer("LOGISTIC", (), ("x",), ("s",), (0,)),
        Layer("MUL", (), ("x", "s"), ("y",), (0, 1)),
        *more,
    ]


def test_what_only_a_silu_reads_ends_where_it_gives_nothing() -> None:
    ranges = {"x": (-70.0, 3.0), "y": (-0.3, 3.0)}
    assert without_silu_tails(silu(), ranges) == {"x": (-8.0, 3.0), "y": (-0.3, 3.0)}
    assert without_silu_tails(silu(), {"x": (-2.0, 3.0)}) == {"x": (-2.0, 3.0)}
    assert without_silu_tails(silu(), {"x": (-70.0, -50.0)}) == {"x": (-50.0, -50.0)}


def test_what_others_read_as_well_keeps_its_range() -> None:
    ranges = {"x": (-70.0, 3.0)}
    add = Layer("ADD", (), ("x", "y"), ("z",), (0, 2))
    assert without_silu_tails(silu(add), ranges) == ranges
    other = [*silu()[:2], Layer("MUL", (), ("s", "t"), ("y",), (1,))]
    assert without_silu_tails(other, ranges) == ranges


def test_noise_is_told_for_each_tensor() -> None:
    exact = [np.array([3, 4, 1, 1, 1], np.float32)]
    found = [np.array([3, 4, 1, 1, 0], np.float32)]
    left = noise(exact, found, {"boxes": 2, "scores": 3})
    assert left["boxes"] == 200
    assert left["scores"] == pytest.approx(10 * np.log10(3))


# The process


def script(folder: Path, body: str) -> Path:
    """An interpreter that does something else."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo out of memory >&2; kill -9 $$", "was ended by SIGKILL.*out of memory"),
        ("exit 3", "ended with status 3 without a word"),
        ("sleep 60", "not done after 1 s"),
        (
            """echo '{"error": "ValueError: no"}' > result.json""",
            "refuses the network: ValueError: no",
        ),
    ],
)
def test_a_worker_that_gives_nothing_is_told_of(body: str, said: str, tmp_path: Path) -> None:
    quantizer = Quantizer(b"TFL3", None, script(tmp_path, f"exec 2>&1; {body}"), time_limit=1)
    with pytest.raises(LoweringError, match=said):
        next(quantizer.variants([[]]))


@pytest.mark.parametrize("form", [Quantize.INT8, Quantize.DYNAMIC])
def test_an_interpreter_without_the_package_is_missing(form: Quantize, tmp_path: Path) -> None:
    def missing(python: Path) -> str:
        quantization = Quantization(form, python=python)
        return str(TFLITE.missing(Options(quantization=quantization)))

    assert "make setup-quantize" in missing(tmp_path / "nothing")
    assert "does not run" in missing(Path(__file__))
    assert "has no ai-edge-quantizer" in missing(script(tmp_path, "exit 1"))


def test_the_forms_that_store_weights_need_no_second_environment(tmp_path: Path) -> None:
    for form in (Quantize.NONE, Quantize.WEIGHTS, Quantize.FP16):
        quantization = Quantization(form, python=tmp_path / "nothing")
        assert TFLITE.missing(Options(quantization=quantization)) is None


# The files


@needs_quantizer
def test_int8_computes_in_int8_between_the_first_weights_and_the_last(tmp_path: Path) -> None:
    lowered = int8(tmp_path)
    assert layers(lowered)["quantised"] == 2
    assert set(layers(lowered)["float32"]) == {"entry", "boxes_conv", "scores_conv"}
    types = types_of(lowered.path)
    assert types["DEPTHWISE_CONV_2D"] == {"int8"}
    assert types["CONV_2D"] == {"int8", "float32"}
    assert types["LOGISTIC"] == {"float32"}
    assert types["RESHAPE"] == {"float32"}
    activations = lowered.details["quantization"]["activations"]  # type: ignore[index]  # object
    assert activations["int8"] >= 3
    assert [port.dtype for port in (*lowered.inputs, *lowered.outputs)] == ["float32"] * 3


@needs_quantizer
def test_int8_comes_near_to_the_model(tmp_path: Path) -> None:
    lowered = int8(tmp_path)
    x = RNG.random(SHAPE).astype(np.float32)
    right = dict(
        zip(("boxes", "scores"), onnxruntime_outputs(static(TWO_ENDS).model, {"x": x}), strict=True)
    )
    found = outputs(lowered.path, x)
    for name, array in found.items():
        wanted = floats(right[name])
        error = np.sqrt(np.mean((array - wanted) ** 2)) / wanted.std()
        assert 1e-4 < error < 0.05, name


@needs_quantizer
def test_the_network_alone_is_the_same_as_in_the_file(tmp_path: Path) -> None:
    """The tail is judged behind `network`: it has to be the quantised one."""
    lowered = int8(tmp_path)
    assert lowered.quantised
    assert lowered.network is not None
    x = RNG.random(SHAPE).astype(np.float32)
    whole, alone = outputs(lowered.path, x), outputs(lowered.network, x)
    for name in ("boxes", "scores"):
        np.testing.assert_array_equal(whole[name], alone[name])


@needs_quantizer
def test_a_range_that_one_set_alone_reaches_is_kept(tmp_path: Path) -> None:
    """An average of ranges would clip it."""
    sets = SETS * np.float32(0.1)
    sets[-1] *= 10
    asked = Quantization(Quantize.INT8, calibrated(tmp_path, sets))
    lowered = lower(static(TWO_ENDS), tmp_path, asked)
    right = floats(onnxruntime_outputs(static(TWO_ENDS).model, {"x": sets[-1]})[0])
    found = outputs(lowered.path, sets[-1])["boxes"]
    assert np.sqrt(np.mean((found - right) ** 2)) < 0.05 * right.std()


@needs_quantizer
def test_a_layer_that_int8_spoils_stays_float(tmp_path: Path) -> None:
    """One channel a thousand times as large as the others, which the next layer evens out."""
    text = TWO_ENDS.replace("w_first", "w_spread").replace("w_each", "w_even")
    lowered = spread(tmp_path, text)
    kept = layers(lowered)["float32"]
    assert "first" in kept
    assert "leaves" in kept["first"]


def spread(folder: Path, text: str, report: Path | None = None) -> Lowered:
    size = np.full(32, 1, np.float32)
    size[0] = 1000
    weights = {
        **WEIGHTS,
        "w_spread": WEIGHTS["w_first"] * size[:, None, None, None],
        "w_even": WEIGHTS["w_each"] / size[:, None, None, None],
        "b_first": WEIGHTS["b_first"] * 0,
    }
    asked = Quantization(Quantize.INT8, calibrated(folder), report=report)
    return lower(static(text, weights), folder, asked)


@needs_quantizer
def test_a_layer_on_numbers_without_a_range_stays_float(tmp_path: Path) -> None:
    """The logarithm of a ReLU is minus infinity in places."""
    text = TWO_ENDS.replace("(ar, w_each", "(g, w_each").replace(
        "[middle] m", "[log] l = Log(ar) [tanh] t = Tanh(l) [add] g = Add(t, ar) [middle] m"
    )
    lowered = int8(tmp_path, text)
    x = RNG.random(SHAPE).astype(np.float32)
    assert np.isfinite(outputs(lowered.path, x)["boxes"]).all()
    assert types_of(lowered.path)["LOG"] == {"float32"}


@needs_quantizer
def test_keep_float_holds_for_int8(tmp_path: Path) -> None:
    lowered = int8(tmp_path, keep=("middle",))
    assert layers(lowered)["float32"]["middle"] == "--keep-float"
    assert types_of(lowered.path)["DEPTHWISE_CONV_2D"] == {"float32"}


@needs_quantizer
@pytest.mark.parametrize("form", [Quantize.INT8, Quantize.DYNAMIC])
def test_equal_models_and_data_give_equal_bytes(form: Quantize, tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        data = calibrated(tmp_path / name) if form is Quantize.INT8 else None
        made.append(lower(static(TWO_ENDS), tmp_path / name, Quantization(form, data)))
    assert made[0].path.read_bytes() == made[1].path.read_bytes()


@needs_quantizer
def test_dynamic_needs_no_data(tmp_path: Path) -> None:
    lowered = lower(static(TWO_ENDS), tmp_path, Quantization(Quantize.DYNAMIC))
    x = RNG.random(SHAPE).astype(np.float32)
    right = floats(onnxruntime_outputs(static(TWO_ENDS).model, {"x": x})[0])
    found = outputs(lowered.path, x)["boxes"]
    assert 1e-4 < np.sqrt(np.mean((found - right) ** 2)) / right.std() < 0.05
    assert types_of(lowered.path)["CONV_2D"] == {"float32"}
    assert set(layers(lowered)["float32"]) == {"boxes_conv", "scores_conv"}


@needs_quantizer
def test_a_network_fed_by_a_head_is_calibrated_on_what_the_head_makes(tmp_path: Path) -> None:
    """The bytes of an image, cast in front of the network: the ranges are of the cast ones."""
    text = TWO_ENDS.replace("float[1,3,16,16] x", "uint8[1,3,16,16] p").replace(
        "{", "{ x = Cast<to=1>(p)", 1
    )
    tmp_path.joinpath("in").mkdir()
    data = tmp_path / "calibration.npz"
    sets = (SETS * 255).astype(np.uint8)
    np.savez(data, allow_pickle=False, **{f"p/{i}": one for i, one in enumerate(sets)})
    lowered = lower(static(text), tmp_path, Quantization(Quantize.INT8, data))
    assert lowered.inputs[0].dtype == "uint8"
    right = floats(onnxruntime_outputs(static(text).model, {"p": sets[0]})[0])
    with TFLITE.open(lowered.path) as session:
        found = floats(session.run({"p": sets[0].transpose(0, 2, 3, 1)})["boxes"])
    assert np.sqrt(np.mean((found - right) ** 2)) < 0.05 * right.std()


@needs_quantizer
def test_the_report_lists_layers_by_what_int8_costs_them(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    text = TWO_ENDS.replace("w_first", "w_spread").replace("w_each", "w_even")
    lowered = spread(tmp_path, text, report=path)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert (told["form"], told["sets"], told["probed"]) == ("int8", len(SETS), 4)
    assert told["layers"][0]["node"] == "first"
    assert told["layers"][0]["operator"] == "CONV_2D"
    assert {one["node"] for one in told["layers"]} == {
        *("entry", "first", "middle", "boxes_conv", "scores_conv")
    }
    worst = [min(one["border_decibels"].values()) for one in told["layers"]]
    assert worst == sorted(worst)
    kept = {one["node"]: one["stays_float32"] for one in told["layers"]}
    assert {name: why for name, why in kept.items() if why} == layers(lowered)["float32"]


@needs_quantizer
def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--quantize-report"):
        spread(tmp_path, TWO_ENDS, report=tmp_path / "no" / "report.json")


@needs_quantizer
def test_the_report_counts_what_the_tail_finds(tmp_path: Path) -> None:
    shapes = Path(__file__).resolve().parents[3] / "examples" / "shapes.onnx"
    path = tmp_path / "report.json"
    quantization = Quantization(Quantize.INT8, shapes.parent / "scenes", report=path)
    options = Options(quantization=quantization, normalization=Normalization(std=(255.0,)))
    result = convert(shapes, "tflite", tmp_path / "a.tflite", options, checks=Checks(skip=True))
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["float32_detections"] > 4
    assert all(one["detections"] > 0 for one in told["layers"])
    assert result.manifest.details["quantization"]["layers"]["quantised"] == 13  # type: ignore[index]
    assert any("calibrated on" in one for one in result.manifest.assumptions)
    assert any("are few" in one for one in result.manifest.warnings)


def test_this_interpreter_comes_before_the_one_beside_it() -> None:
    chosen = quantise_process.interpreter(None)
    assert chosen == Path(sys.executable) or chosen.parts[-3] == quantise_process.ENVIRONMENT
    assert quantise_process.interpreter(Path("own")) == Path("own")
