"""TFLite_Detection_PostProcess on uint8: bit for bit what onnxruntime makes of the same bytes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper, parser

import bridge
from bridge import calibration, surgery
from bridge.completion import Completion
from bridge.errors import UnsupportedModelError, UsageError
from bridge.options import NmsForm, Normalization, Options, Quantization, Quantize
from bridge.preprocess import PreprocessOptions
from bridge.static_model import tensor_types
from bridge.targets.tflite import postprocess, quantise_process
from bridge.targets.tflite.flatbuffer import Builder
from bridge.targets.tflite.form import Form
from tests.shared import SHARED, needs_shared

Feeds = dict[str, NDArray[np.float32]]

MISSING = quantise_process.missing(None)
N, C = 24, 3
SSD = """<ir_version: 8, opset_import: ["" : 17]>
ssd (float[1, 24, 4] enc, float[1, 24, 3] logits)
=> (float[n, 4] boxes, float[n] scores, int64[n] labels) {
    axes = Constant<value_ints = [2]>() zero = Constant<value_ints = [0]>()
    two = Constant<value_ints = [2]>() four = Constant<value_ints = [4]>()
    half = Constant<value_float = 2.0>() tenth = Constant<value_float = 0.1>()
    fifth = Constant<value_float = 0.2>() bound = Constant<value_float = 1.0>()
    xy = Slice(enc, zero, two, axes) wh = Slice(enc, two, four, axes)
    reach = Mul(tenth, sizes) moved = Mul(xy, reach) center = Add(places, moved)
    %s
    halves = Div(size, half) low = Sub(center, halves) high = Add(center, halves)
    corners = Concat<axis = 2>(low, high)
    probability = Sigmoid(logits) by_class = Transpose<perm = [0, 2, 1]>(probability)
    per = Constant<value_ints = [20]>() iou = Constant<value_floats = [0.5]>()
    limit = Constant<value_floats = [%s]>()
    rows = NonMaxSuppression(corners, by_class, per, iou, limit)
    c1 = Constant<value_int = 1>() c2 = Constant<value_int = 2>()
    label = Gather<axis = 1>(rows, c1) box = Gather<axis = 1>(rows, c2)
    flat = Squeeze(corners, zero) found = Gather<axis = 0>(flat, box)
    value = GatherND(by_class, rows)
    k = Constant<value_ints = [10]>() there = Shape(value) most = Min(k, there)
    scores, best = TopK(value, most)
    boxes = Gather<axis = 0>(found, best) labels = Gather<axis = 0>(label, best)
}"""
EXP = "grown = Mul(wh, fifth) scaled = Exp(grown) size = Mul(sizes, scaled)"
SQUARE = "doubled = Add(wh, half) squared = Mul(doubled, doubled) size = Mul(sizes, squared)"
CUT_OFF = (
    "grown = Mul(wh, fifth) low_end = Neg(bound) cut = Clip(grown, low_end, bound) "
    "scaled = Exp(cut) size = Mul(sizes, scaled)"
)


def model(size: str = EXP, limit: float = 0.3) -> ModelProto:
    """An SSD head: offsets from anchors in units of 4, of a few sizes."""
    made = parser.parse_model(SSD % (size, limit))
    chance = np.random.default_rng(1)
    constants = {
        "places": chance.integers(2, 30, (1, N, 2)).astype(np.float32) * 4,
        "sizes": chance.choice(np.array([16, 24, 40], np.float32), (1, N, 2)),
    }
    made.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    for node in made.graph.node:
        node.name = f"n_{node.output[0]}"
    return made


def form(folder: Path, made: ModelProto, reach: float = 6.0) -> Form:
    """What `--integer-postprocess` makes of a head, calibrated on encodings up to `reach`."""
    path = folder / "calibration.npz"
    encodings = np.linspace(-reach, reach, N * 4, dtype=np.float32).reshape(1, N, 4)
    sets = {"enc/0": encodings, "logits/0": np.zeros((1, N, C), np.float32)}
    np.savez(path, allow_pickle=False, **sets)
    asked = Quantization(form=Quantize.INT8, calibrate=path, integer_postprocess=True)
    options = Options(nms=NmsForm.POSTPROCESS, quantization=asked)
    return postprocess.form(surgery.run(made, options).static, options)


def kernel(made: Form, threads: int) -> Callable[[Feeds], Feeds]:
    """The operator, fed with what stands in front of it under onnxruntime."""
    front = onnxruntime.InferenceSession(made.model.SerializeToString())
    builder = Builder()
    names = [value.name for value in made.model.graph.output]
    types = tensor_types(made.model)
    given = {
        name: builder.input(f"given_{i}", types[name].shape, "float32")
        for i, name in enumerate(names)
    }
    for name, tensor in made.finish(builder, given).items():
        builder.output(name, tensor)
    interpreter = Interpreter(model_content=builder.pack(), num_threads=threads)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("serving_default")

    def run(feeds: Feeds) -> Feeds:
        values = front.run(names, feeds)
        return dict(runner(**{f"given_{i}": value for i, value in enumerate(values)}))

    return run


def judge(made: Form) -> Callable[[Feeds], Feeds]:
    assert made.reference is not None
    session = onnxruntime.InferenceSession(made.reference.SerializeToString())
    names = [port.name for port in made.outputs]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


# Must stay: what the operator cannot decode on bytes.


@pytest.mark.parametrize(
    ("size", "limit", "why"),
    [
        (SQUARE, 0.3, "not centre"),
        (CUT_OFF, 0.3, "not for all of -6 .. 6"),
        (EXP, -0.5, "below zero"),
    ],
    ids=["another decode", "a decode that cuts off", "a limit below zero"],
)
def test_what_it_cannot_decode_is_refused(
    tmp_path: Path, size: str, limit: float, why: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        form(tmp_path, model(size, limit))


@pytest.mark.parametrize(
    ("nms", "quantize"),
    [(NmsForm.V4, Quantize.INT8), (NmsForm.POSTPROCESS, Quantize.DYNAMIC)],
)
def test_it_goes_with_int8_and_postprocess(nms: NmsForm, quantize: Quantize) -> None:
    asked = Quantization(form=quantize, calibrate=Path("photos"), integer_postprocess=True)
    with pytest.raises(UsageError, match="--integer-postprocess"):
        calibration.check(Options(nms=nms, quantization=asked), "tflite")


# Must change.


def test_anchors_on_a_lattice_lose_nothing(tmp_path: Path) -> None:
    (text,) = (one for one in form(tmp_path, model()).assumptions if "8 bits" in one)
    assert "anchors up to 0 off" in text


def test_a_cut_off_that_no_data_reach_is_no_obstacle(tmp_path: Path) -> None:
    assert form(tmp_path, model(CUT_OFF), reach=4.0).rounded_reference


@pytest.mark.parametrize("threads", [1, 4])
def test_it_decides_as_onnxruntime_on_equal_bytes(tmp_path: Path, threads: int) -> None:
    made = form(tmp_path, model())
    expected, found = judge(made), kernel(made, threads)

    @settings(max_examples=150, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0.5, 4), steps=st.integers(2, 40))
    def hold(seed: int, spread: float, steps: int) -> None:
        """Scores of few different values are equal in many rows."""
        chance = np.random.default_rng(seed)
        feeds = {
            "enc": chance.normal(0, spread, (1, N, 4)).astype(np.float32),
            "logits": (chance.integers(-steps, steps, (1, N, C)) * (6 / steps)).astype(np.float32),
        }
        wanted, got = expected(feeds), found(feeds)
        for name, array in wanted.items():
            np.testing.assert_array_equal(got[name], array, err_msg=name)

    hold()


@pytest.mark.slow
@needs_shared
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_real_ssd_finds_its_faces_on_bytes(tmp_path: Path) -> None:
    """Calibrated on other photos than it is judged on; the file itself holds uint8."""
    photos = SHARED / "photos"
    pictures = [photos / name for name in ("astronaut.jpg", "grace_hopper.jpg", "cat.jpg")]
    calibrated = tmp_path / "calibrated"
    calibrated.mkdir()
    for picture in pictures:
        (calibrated / picture.name).symlink_to(picture)
    result = bridge.convert(
        SHARED / "models" / "ultraface-slim-320-raw.onnx",
        "tflite",
        tmp_path / "faces.tflite",
        Options(
            nms=NmsForm.POSTPROCESS,
            normalization=Normalization(),
            quantization=Quantization(
                form=Quantize.INT8, calibrate=calibrated, integer_postprocess=True
            ),
        ),
        completion=Completion(head="ssd", preprocess=PreprocessOptions(mean=(127,), std=(128,))),
        checks=bridge.Checks(images=(photos / "collage_a.jpg",)),
    )
    result.check()
    assert result.comparison is not None
    assert result.path is not None
    judged = result.comparison.quantised
    assert judged is not None
    assert (judged.matched, judged.lost) == (6, 0)
    assert read_by_operator(result.path) == ["uint8", "uint8", "uint8"]


def read_by_operator(path: Path) -> list[str]:
    """The types of what TFLite_Detection_PostProcess reads."""
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    types = {one["index"]: np.dtype(one["dtype"]).name for one in interpreter.get_tensor_details()}
    (operator,) = (
        one
        for one in interpreter._get_ops_details()
        if one["op_name"] == "TFLite_Detection_PostProcess"
    )
    return [types[index] for index in operator["inputs"]]
