"""Small static models of every shape a network, a head and a tail can have, through the door."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser, shape_inference

from bridge import static_nms
from bridge.errors import LoweringError, UnsupportedModelError
from bridge.options import Options, Qdq
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import Array, Lowered, Target
from bridge.targets.tflite import TFLITE
from tests.targets.tflite.emitting import onnxruntime_outputs

RNG = np.random.default_rng(0)
CONV = "Conv<pads=[1,1,1,1]>"
CONSTANTS: Mapping[str, Array] = {
    "w": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
    "b": RNG.standard_normal(4).astype(np.float32),
    "w4": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32),
    "codes": RNG.integers(-120, 120, (4, 3, 3, 3)).astype(np.int8),
    "steps": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
    "zeros": np.zeros(4, np.int8),
    "scale": np.array(0.02, np.float32),
    "point": np.array(3, np.uint8),
    "signed": np.array(-7, np.int8),
    "pixel": np.array(1 / 255, np.float32),
    "half": np.array(0.5, np.float32),
    "rows": np.array([1, 4, 64]),
    "boxes_first": np.array([1, 64, 4]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "five": np.array([5]),
    "fixed": np.array([1.5, 2.5], np.float32),
    "twelve": np.array([1, 4, 12, 12]),
    "third": np.array([1, 1, 4 / 3, 4 / 3], np.float32),
    "twice": np.array([1, 1, 2, 2], np.float32),
}


def static(text: str) -> StaticModel:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "bridge" : 1]> g {text}')
    read = {name for node in model.graph.node for name in node.input}
    read |= {value.name for value in model.graph.output}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in read
    )
    static_nms.attach(model)
    model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    types = tensor_types(model)
    shapes: dict[str, tuple[int | None, ...]] = {
        value.name: types[value.name].shape for value in model.graph.output
    }
    return StaticModel(model, shapes, (), ())


def feeds_for(model: StaticModel) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    types = tensor_types(model.model)
    feeds: dict[str, Array] = {}
    for value in model.model.graph.input:
        type_ = types[value.name]
        top = 1 if type_.dtype == "float32" else 250
        feeds[value.name] = (rng.random(type_.shape) * top).astype(type_.dtype)
    return feeds


def run(lowered: Lowered, feeds: Mapping[str, Array], path: Path | None = None) -> dict[str, Array]:
    turned = {
        port.name: feeds[port.name].transpose(port.transpose)
        if port.transpose
        else feeds[port.name]
        for port in lowered.inputs
    }
    with TFLITE.open(path or lowered.path, threads=2) as session:
        return session.run(turned)


@dataclass(frozen=True)
class Case:
    """`inputs`: the shape of each input in the artifact. `border`: what the tail begins with."""

    text: str
    inputs: Mapping[str, tuple[int, ...]]
    border: tuple[str, ...]
    options: Options = field(default_factory=Options)


KEPT = Options(keep_nchw=True)
NHWC, NCHW = (1, 8, 8, 3), (1, 3, 8, 8)
ONE_CONV = f"(float[1,3,8,8] x) => (float[1,4,8,8] y) {{ y = {CONV}(x, w, b) }}"
BYTES = (
    f"(uint8[1,3,8,8] x) => (float[1,4,8,8] y) "
    f"{{ f = Cast<to=1>(x) s = Mul(f, pixel) y = {CONV}(s, w, b) }}"
)

CASES = {
    "a network alone": Case(ONE_CONV, {"x": NHWC}, ("y",)),
    "NCHW kept": Case(ONE_CONV, {"x": NCHW}, ("y",), KEPT),
    "two images": Case(
        f"(float[1,3,8,8] x, float[1,3,8,8] z) => (float[1,4,8,8] y, float[1,4,8,8] q) "
        f"{{ y = {CONV}(x, w, b) q = {CONV}(z, w, b) }}",
        {"x": NHWC, "z": NHWC},
        ("y", "q"),
    ),
    "a batch of two": Case(
        f"(float[2,3,8,8] x) => (float[2,5] v, int64[2,5] i) "
        f"{{ a = {CONV}(x, w, b) f = Flatten(a) v, i = TopK(f, five) }}",
        {"x": (2, 8, 8, 3)},
        ("f",),
    ),
    "inputs and a constant passed through": Case(
        f"(float[1,3,8,8] x, int64[3] n) => "
        f"(float[1,4,8,8] y, float[1,3,8,8] p, int64[3] m, float[2] fixed) "
        f"{{ y = {CONV}(x, w, b) p = Identity(x) m = Identity(n) }}",
        {"x": NHWC, "n": (3,)},
        ("y", "p", "n"),
    ),
    "nothing but what passes through": Case(
        "(float[3] x, int64[3] n) => (float[3] p, int64[3] m, float[2] fixed) "
        "{ p = Identity(x) m = Identity(n) }",
        {"x": (3,), "n": (3,)},
        (),
    ),
    "an input nobody reads": Case(
        f"(float[1,3,8,8] x, int64[3] n) => (float[1,4,8,8] y) {{ y = {CONV}(x, w, b) }}",
        {"x": NHWC, "n": (3,)},
        ("y",),
    ),
    "an image that the tail reads keeps its layout": Case(
        f"(float[1,3,8,8] x) => (float[1,4,8,8] y, bool[1,3,8,8] m) "
        f"{{ y = {CONV}(x, w, b) m = Greater(x, half) }}",
        {"x": NCHW},
        ("y", "x"),
    ),
    "a byte image": Case(BYTES, {"x": NHWC}, ("y",)),
    "a byte image, NCHW kept": Case(BYTES, {"x": NCHW}, ("y",), KEPT),
    "a byte image in NHWC": Case(
        f"(uint8[1,8,8,3] x) => (float[1,4,8,8] y) {{ f = Cast<to=1>(x) "
        f"t = Transpose<perm=[0,3,1,2]>(f) y = {CONV}(t, w, b) }}",
        {"x": NHWC},
        ("y",),
    ),
    "a quantised image": Case(
        f"(uint8[1,3,8,8] x) => (float[1,4,8,8] y) "
        f"{{ f = DequantizeLinear(x, scale, point) y = {CONV}(f, w, b) }}",
        {"x": NHWC},
        ("y",),
    ),
    "a float image in NHWC": Case(
        f"(float[1,8,8,3] x) => (float[1,4,8,8] y) "
        f"{{ t = Transpose<perm=[0,3,1,2]>(x) y = {CONV}(t, w, b) }}",
        {"x": NHWC},
        ("y",),
    ),
    "an image without a batch axis": Case(
        f"(float[3,8,8] x) => (float[1,4,8,8] y) {{ t = Unsqueeze(x, zero) y = {CONV}(t, w, b) }}",
        {"x": (3, 8, 8)},
        ("y",),
    ),
    "quantisation inside": Case(
        f"(float[1,3,8,8] x) => (float[1,4,8,8] y) {{ q = QuantizeLinear(x, scale, point) "
        f"d = DequantizeLinear(q, scale, point) k = DequantizeLinear<axis=0>(codes, steps, zeros) "
        f"a = {CONV}(d, k, b) r = QuantizeLinear(a, scale, signed) "
        f"e = DequantizeLinear(r, scale, signed) y = {CONV}(e, w4, b) }}",
        {"x": NHWC},
        ("y",),
        Options(qdq=Qdq.FLOAT),
    ),
    "a mask inside": Case(
        f"(float[1,3,8,8] x) => (float[1,4,8,8] y) {{ a = {CONV}(x, w, b) "
        f"c = Greater(a, half) d = Where(c, a, half) y = {CONV}(d, w4, b) }}",
        {"x": NHWC},
        ("y",),
    ),
    "one tensor as three outputs": Case(
        f"(float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] q, float[1,256] r) "
        f"{{ y = {CONV}(x, w, b) q = Identity(y) r = Flatten(y) }}",
        {"x": NHWC},
        ("y", "q", "r"),
    ),
    "outputs of rank three, one transposed": Case(
        f"(float[1,3,8,8] x) => (float[1,4,64] r, float[1,64,4] t) {{ y = {CONV}(x, w, b) "
        f"q = Relu(y) r = Reshape(q, rows) t = Transpose<perm=[0,2,1]>(r) }}",
        {"x": NHWC},
        ("r",),
    ),
    "no network": Case(
        "(float[1,4,64] x) => (float[1,4,5] v, int64[1,4,5] i) { a = Abs(x) v, i = TopK(a, five) }",
        {"x": (1, 4, 64)},
        (),
    ),
    "a suppression behind a network": Case(
        f"(float[1,3,8,8] x) => (int64[6,3] rows_out, int64[1] count) {{ y = {CONV}(x, w, b) "
        "r = Reshape(y, rows) boxes = Transpose<perm=[0,2,1]>(r) s = Slice(r, zero, one, one) "
        "rows_out, count = bridge.StaticNMS<max_output_boxes_per_class = 6, iou_threshold = 0.5, "
        "score_threshold = 0.1, center_point_box = 0, rows = 6>(boxes, s) }",
        {"x": NHWC},
        ("r",),
    ),
    "nearest Resize, rounded as no kernel does": Case(
        f"(float[1,3,8,8] x) => (float[1,4,12,12] y) {{ a = {CONV}(x, w, b) "
        'y = Resize<mode="nearest", coordinate_transformation_mode="half_pixel", '
        'nearest_mode="floor">(a, , , twelve) }',
        {"x": NHWC},
        ("y",),
    ),
    "linear Resize by a scale that is not the ratio of the sizes": Case(
        f"(float[1,3,8,8] x) => (float[1,4,10,10] y) {{ a = {CONV}(x, w, b) "
        'y = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(a, , third) }',
        {"x": NHWC},
        ("y",),
    ),
    "Resize by two": Case(
        f"(float[1,3,8,8] x) => (float[1,4,16,16] y) {{ a = {CONV}(x, w, b) "
        'y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", '
        'nearest_mode="floor">(a, , twice) }',
        {"x": NHWC},
        ("y",),
    ),
    "names that others use": Case(
        f"(float[1,3,8,8] input_0) => (float[1,4,8,8] network) "
        f"{{ network = {CONV}(input_0, w, b) }}",
        {"input_0": NHWC},
        ("network",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lowered_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = static(case.text)
    feeds = feeds_for(model)
    lowered = TFLITE.lower(model, case.options, tmp_path)
    assert {port.name: port.shape for port in lowered.inputs} == case.inputs
    assert lowered.border == case.border
    found = run(lowered, feeds)
    names = [value.name for value in model.model.graph.output]
    for output, expected in zip(names, onnxruntime_outputs(model.model, feeds), strict=True):
        assert (found[output].dtype, found[output].shape) == (expected.dtype, expected.shape)
        assert np.allclose(found[output], expected, rtol=1e-5, atol=1e-5)
    if case.border:
        check_apart(model, lowered, feeds, found)


def check_apart(
    model: StaticModel, lowered: Lowered, feeds: Mapping[str, Array], whole: Mapping[str, Array]
) -> None:
    """The network gives the border as the static model has it, the tail makes the rest of it."""
    assert lowered.tail is not None
    border = run(lowered, feeds, lowered.network)
    assert set(border) == set(lowered.border)
    types = tensor_types(model.model)
    for tensor, array in border.items():
        assert (array.dtype.name, array.shape) == (types[tensor].dtype, types[tensor].shape)
    with TFLITE.open(lowered.tail) as session:
        behind = session.run(border)
    for output, array in whole.items():
        np.testing.assert_array_equal(array, behind[output])


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    contents = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = CASES["a suppression behind a network"].text
        contents.append(TFLITE.lower(static(text), Options(), folder).path.read_bytes())
    assert contents[0] == contents[1]


def test_the_model_is_left_alone(tmp_path: Path) -> None:
    model = static(CASES["quantisation inside"].text)
    before = model.model.SerializeToString(deterministic=True)
    TFLITE.lower(model, Options(), tmp_path)
    assert model.model.SerializeToString(deterministic=True) == before


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lowered = TFLITE.lower(static(ONE_CONV), Options(), tmp_path)
    run(lowered, feeds_for(static(ONE_CONV)))
    assert capfd.readouterr() == ("", "")


def test_an_operator_that_onnx2tf_lacks_is_named(tmp_path: Path) -> None:
    node = helper.make_node("Det", ["m"], ["y"], name="determinant")
    model = static(f"(float[1,3,8,8] x) => (float[1,4,8,8] m) {{ m = {CONV}(x, w, b) }}").model
    model.graph.node.append(node)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4]))
    model.graph.value_info.append(
        helper.make_tensor_value_info("m", onnx.TensorProto.FLOAT, [1, 4, 8, 8])
    )
    with pytest.raises(LoweringError, match=r"onnx2tf.*Det.*determinant"):
        TFLITE.lower(StaticModel(model, {"y": (1, 4)}, (), ()), Options(), tmp_path)


def test_a_second_stage_is_refused(tmp_path: Path) -> None:
    text = (
        f"(float[1,3,8,8] x) => (float[1,4,8,5] y) {{ a = {CONV}(x, w, b) "
        f"v, i = TopK(a, five) y = {CONV}(v, w4, b) }}"
    )
    with pytest.raises(UnsupportedModelError, match="two-stage"):
        TFLITE.lower(static(text), Options(), tmp_path)


def test_the_target_is_complete() -> None:
    target: Target = TFLITE
    assert (target.name, target.suffix, target.missing(Options())) == ("tflite", ".tflite", None)
