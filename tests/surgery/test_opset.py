"""Every rule that brings an operator to opset 17, held to onnxruntime bit for bit."""

import numpy as np
import onnx
import pytest
from onnx import parser

from bridge.errors import UnsupportedModelError
from bridge.model import InputKind, seeded_inputs
from bridge.surgery.opset import convert
from tests.surgery.judge import assert_same, run


def model(version: int, inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    """A model at an opset, in an IR version that allows it; output shapes are left open."""
    ir = 3 if version < 9 else 8 if version < 18 else 10
    return parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["" : {version}]> g ({inputs}) => ({outputs}) {{{body}}}'
    )


def converted(before: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(before)
    after, roundings = convert(copy)
    assert not roundings
    assert after.opset_import[0].version == 17
    after.ir_version = 8
    onnx.checker.check_model(after, full_check=True)
    return after


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


X = "float[2, 3, 4, 5] x"
Y = "float[a, b, c, d] y"

STAY = [
    (11, X, Y, "y = Transpose<perm = [3, 2, 1, 0]>(x)"),
    (9, "float[2, 3] x, float[3, 4] w, float[4] b", "float[a, b] y", "y = Gemm(x, w, b)"),
    (13, X, Y, "y = Softmax<axis = 1>(x)"),
    (20, "float[2, 3] x", "float[a, b] y", "y = HardSwish(x)"),
    (7, X, Y, "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "inputs", "outputs", "body"), STAY)
def test_nodes_of_an_unchanged_form_stay(
    version: int, inputs: str, outputs: str, body: str
) -> None:
    before = model(version, inputs, outputs, body)
    after = converted(before)
    assert list(after.graph.node) == list(before.graph.node)
    assert_same(before, after)


UP = [
    (12, "float[1, 3, 1] x", "float[a] y", "y = Squeeze(x)"),
    (11, "float[1, 3, 1] x", "float[a, b] y", "y = Squeeze<axes = [-1]>(x)"),
    (11, "float[3, 4] x", Y, "y = Unsqueeze<axes = [0, -1]>(x)"),
    (8, X, "float[a, b] y", "y = ReduceSum<axes = [1, 3], keepdims = 0>(x)"),
    (11, X, Y, "y = ReduceSum(x)"),
    (8, X, Y + ", float[a, b, c, d] z", "y, z = Split<axis = 3, split = [2, 3]>(x)"),
    (11, X, Y + ", float[a, b, c, d] z", "y, z = Split<axis = 2>(x)"),
    (9, X, Y, "y = Slice<axes = [1, 3], starts = [0, -4], ends = [2, 9999]>(x)"),
    (7, X, Y, "y = Slice<starts = [1, 1], ends = [2, -1]>(x)"),
    (7, X, Y, "y = Clip<min = 0.2, max = 0.5>(x)"),
    (10, X, Y, "y = Clip<max = 0.5>(x)"),
    (7, X, Y, "y = Clip(x)"),
    (10, X, Y, 'y = Pad<pads = [0, 0, 1, 2, 0, 1, -1, 0], value = 3.0>(x)'),
    (7, X, Y, 'y = Pad<pads = [0, 0, 1, 2, 0, 0, 1, 0], mode = "reflect">(x)'),
    (9, X, Y + ", int64[a, b, c, d] i", "y, i = TopK<axis = 2, k = 2>(x)"),
    (7, X, Y, "y = Dropout<ratio = 0.5>(x)"),
    (10, X, Y, "y = Dropout(x)"),
    (8, X + ", float[3] s, float[3] b, float[3] m, float[3] v", Y,
        "w = Abs(v) y = BatchNormalization<spatial = 1, epsilon = 0.1>(x, s, b, m, w)"),
    (9, X + ", float[3] s, float[3] b, float[3] m, float[3] v", Y,
        "w = Abs(v) y = BatchNormalization(x, s, b, m, w)"),
    (7, X, Y, "y = Softmax(x)"),
    (11, X, Y, "y = Softmax<axis = 2>(x)"),
    (11, X, Y, "y = Softmax<axis = 0>(x)"),
    (12, X, Y, "y = LogSoftmax<axis = -2>(x)"),
    (11, X, Y, "y = Hardmax<axis = 2>(x)"),
    (9, X, Y, "y = Softmax<axis = 3>(x)"),
    (12, X, Y, "y = Softmax<axis = -1>(x)"),
    (7, X, Y, 'y = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.5, 1.7]>(x)'),
    (7, X, Y, 'y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.5, 1.7]>(x)'),
    (9, X, Y, 's = Constant<value = float[4] {1.0, 1.0, 3.0, 2.0}>() y = Upsample(x, s)'),
    (9, X + ", float[4] s", Y, "one = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() "
        "zero = Sub(s, s) t = Add(one, zero) y = Upsample(x, t)"),
    (10, X, Y, 's = Constant<value = float[4] {1.0, 1.0, 1.7, 2.0}>() y = Resize(x, s)'),
    (10, X, Y, 's = Constant<value = float[4] {1.0, 1.0, 0.6, 0.5}>() y = Resize(x, s)'),
    (10, X, Y, 's = Constant<value = float[4] {1.0, 1.0, 0.6, 2.0}>() '
        'y = Resize<mode = "linear">(x, s)'),
    (11, X, Y, 's = Constant<value = float[4] {1.0, 1.0, 0.6, 2.0}>() '
        'r = Constant<value = float[0] {}>() y = Resize<mode = "cubic">(x, r, s)'),
    (10, X, Y, 'r = Constant<value = float[1, 4] {0.0, 1.0, 3.0, 4.0}>() '
        "i = Constant<value = int64[1] {1}>() "
        "y = RoiAlign<output_height = 2, output_width = 2>(x, r, i)"),
    (9, "float[3, 4] x, float[2, 2] u", "float[a, b] y",
        "i = Constant<value = int64[2, 2] {0, 2, 1, 0}>() y = Scatter<axis = 1>(x, i, u)"),
]  # fmt: skip

DOWN = [
    (18, X, Y, "p = Constant<value_ints = [1, 2, 0, 1]>() a = Constant<value_ints = [3, -3]>() "
        "y = Pad(x, p, , a)"),
    (18, X + ", float v", Y, "p = Constant<value_ints = [1, 2]>() a = Constant<value_ints = [-2]>()"
        " y = Pad(x, p, v, a)"),
    (19, X + ", int64[2] p", Y, "a = Constant<value_ints = [2]>() y = Pad(x, p, , a)"),
    (18, X, Y, 's = Constant<value_floats = [0.5, 2.0]>() '
        'y = Resize<axes = [3, 2], mode = "linear">(x, , s)'),
    (19, X, Y, "s = Constant<value_ints = [7, 3]>() y = Resize<axes = [2, 3]>(x, , , s)"),
    (18, X, Y, "s = Constant<value_ints = [2, 3, 8, 10]>() "
        'y = Resize<antialias = 0, keep_aspect_ratio_policy = "stretch">(x, , , s)'),
    (18, X, Y + ", float[a, b, c, d] z", "y, z = Split<axis = -1, num_outputs = 2>(x)"),
    (18, X, Y + ", float[a, b, c, d] z", "s = Constant<value_ints = [1, 3]>() "
        "y, z = Split<axis = 2>(x, s)"),
    (20, "float[1, 2, 4, 4] x, float[1, 3, 3, 2] g", Y,
        'y = GridSample<mode = "linear", align_corners = 1>(x, g)'),
    (20, "float[1, 2, 4, 4] x, float[1, 3, 3, 2] g", Y, 'y = GridSample<mode = "nearest">(x, g)'),
    (18, "float[3, 4] x, float[2, 2] u", "float[a, b] y",
        "i = Constant<value = int64[2, 2] {0, 2, 1, 0}>() "
        'y = ScatterElements<axis = 1, reduction = "add">(x, i, u)'),
    (19, X, "int64[a, b, c, d] y", "y = Cast<to = 7, saturate = 1>(x)"),
    (19, X + ", float s", "uint8[a, b, c, d] y",
        "one = Constant<value_float = 1.0>() t = Max(s, one) "
        "y = QuantizeLinear<saturate = 1>(x, t)"),
    (21, X, "uint8[a, b, c, d] y", "s = Constant<value_float = 0.1>() "
        "y = QuantizeLinear<block_size = 0, output_dtype = 2>(x, s)"),
    (20, "bool[2, 3, 4] x", "bool[a, b] y", "a = Constant<value_ints = [1]>() "
        "y = ReduceMax<keepdims = 0>(x, a)"),
    (20, "bool[2, 3, 4] x", "bool[a, b, c] y", "y = ReduceMin(x)"),
    (18, X, Y, "y = ReduceMean<noop_with_empty_axes = 1>(x)"),
    (18, X, Y, "y = LpPool<kernel_shape = [2, 2], dilations = [1, 1]>(x)"),
    (20, "float[2, 3] x", "float[a, b] y", "y = Gelu(x)"),
    (18, "float[2, 3] x", "float[a, b] y", "y = Mish(x)"),
    (24, "float[2, 3] x", "float[a, b] y", "y = Swish(x)"),
    (18, "float[1, 4, 3, 3] x, float[2] s, float[2] b", Y,
        "y = GroupNormalization<num_groups = 2>(x, s, b)"),
    (21, "float[1, 4, 3, 3] x, float[4] s, float[4] b", Y,
        "y = GroupNormalization<num_groups = 2>(x, s, b)"),
    *(
        (18, X, "float[a, b, c] y", f"a = Constant<value_ints = [-1]>() "
            f"y = {name}<keepdims = 0>(x, a)")
        for name in (
            "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
            "ReduceMin", "ReduceProd", "ReduceSumSquare",
        )
    ),
    (18, X, Y, "y = ReduceL2(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "inputs", "outputs", "body"), UP + DOWN)
def test_a_changed_form_computes_the_same(
    version: int, inputs: str, outputs: str, body: str
) -> None:
    before = model(version, inputs, outputs, body)
    sets = seeded_inputs(before, seed=5)
    if "int64[2] p" in inputs:
        sets = tuple({**feeds, "p": np.array([1, 2])} for feeds in sets)
    assert_same(before, converted(before), *sets)


ROUNDED = [
    (19, X, Y, "y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)"),
    (20, "float[9, 9] x", "float[a, b] y", 'y = Gelu<approximate = "tanh">(x)'),
]


@pytest.mark.parametrize(("version", "inputs", "outputs", "body"), ROUNDED)
def test_what_only_rounds_otherwise_is_said(
    version: int, inputs: str, outputs: str, body: str
) -> None:
    before = model(version, inputs, outputs, body)
    copy = onnx.ModelProto()
    copy.CopyFrom(before)
    after, (rounding,) = convert(copy)
    assert "equal but for rounding" in rounding.what
    for feeds in seeded_inputs(before, seed=5, kinds=[InputKind.UNIFORM, InputKind.NORMAL]):
        one, other = (run(m, feeds)["y"].astype(np.float64) for m in (before, after))
        assert np.abs(one - other).max() < 1e-6


REFUSED = [
    (6, X, Y, "y = Relu(x)", "opset 6"),
    (10, X, Y, "s = Constant<value = float[4] {1.0, 1.0, 0.6, 2.0}>() y = Resize(x, s)", "larger"),
    (10, X + ", float[4] s", Y, "y = Resize(x, s)", "computed"),
    (7, X, Y + ", float[a, b, c, d] m", "y, m = Dropout(x)", "mask"),
    (8, X + ", float[60] s", Y, "y = BatchNormalization<spatial = 0>(x, s, s, s, s)", "spatial"),
    (19, X, Y, "y = AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>(x)", "dilations"),
    (19, X, Y, "y = AveragePool<kernel_shape = [2, 2], ceil_mode = 1, count_include_pad = 1>(x)",
        "count_include_pad"),
    (18, X, Y, "s = Constant<value_floats = [1.0, 1.0, 0.5, 0.5]>() "
        'y = Resize<antialias = 1, mode = "linear">(x, , s)', "antialias=1"),
    (18, X, Y, 'p = Constant<value_ints = [0, 0, 1, 0, 0, 0, 0, 0]>() y = Pad<mode = "wrap">(x, p)',
        "wrap"),
    (18, X + ", int64[1] a", Y, "y = ReduceMax(x, a)", "axes .a. are computed"),
    (18, X, Y, "y = ReduceL1<noop_with_empty_axes = 1>(x)", "noop_with_empty_axes"),
    (18, "float[3, 4] x, float[2, 2] u", "float[a, b] y",
        "i = Constant<value = int64[2, 2] {0, 2, 1, 0}>() "
        'y = ScatterElements<reduction = "max">(x, i, u)', "reduction is max"),
    (18, "uint8[2] x", "uint8[a] y", "y = BitwiseNot(x)", "does not have it"),
    (20, "float[1, 2, 4, 4, 4] x, float[1, 3, 3, 3, 3] g", "float[a, b, c, d, e] y",
        "y = GridSample(x, g)", "rank 5"),
    (19, X, Y, "s = Constant<value_ints = [2, 3, 8, 10]>() y = Resize<"
        'coordinate_transformation_mode = "half_pixel_symmetric">(x, , , s)', "symmetric"),
    (21, X, "int16[a, b, c, d] y", "s = Constant<value_float = 0.1>() "
        "y = QuantizeLinear<output_dtype = 5>(x, s)", "output_dtype=5"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "inputs", "outputs", "body", "message"), REFUSED)
def test_what_17_cannot_say_is_refused_by_name(
    version: int, inputs: str, outputs: str, body: str, message: str
) -> None:
    before = model(version, inputs, outputs, body)
    before.graph.node[-1].name = "culprit"
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        convert(before)
    if version >= 7:
        assert before.graph.node[-1].op_type in str(caught.value)
        assert "culprit" in str(caught.value) or "writes" in str(caught.value)


def test_branches_and_bodies_are_converted_and_see_outer_constants() -> None:
    before = parser.parse_model("""
        <ir_version: 6, opset_import: ["" : 11]>
        g (float[2, 3] x, bool c) => (float[a, b, d] y, float[e, f] z)
        <int64 trips = {3}, bool go = {1}>
        {
          y = If (c) <
            then_branch = t () => (float[1, 2, 3] a) { a = Unsqueeze<axes = [0]>(x) },
            else_branch = e () => (float[2, 3, 1] b) { b = Unsqueeze<axes = [-1]>(x) }
          >
          z = Loop (trips, go, x) <body = l (int64 i, bool on, float[2, 3] s)
              => (bool still, float[2, 3] r) {
            still = Identity(on)
            m = ReduceSum<axes = [1], keepdims = 1>(s)
            r = Add(s, m)
          }>
        }
    """)
    after = converted(before)
    assert_same(before, after)
    branch = after.graph.node[0].attribute[0].g
    assert len(branch.node[0].input) == 2
