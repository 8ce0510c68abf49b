"""What is idle goes, what looks idle stays, and not a bit of any output moves."""

import numpy as np
import onnx
import pytest

from bridge.model import Array, seeded_inputs
from bridge.surgery.runner import Pass
from bridge.surgery.simplify import simplify
from tests.surgery.judge import assert_same
from tests.surgery.static_text import apply, operators, static_model

SIMPLIFY = Pass("simplify", simplify)
X, Y = "float[2, 3, 4, 4] x", "float[2, 3, 4, 4] y"


def extremes(
    model: onnx.ModelProto,
) -> dict[str, Array]:
    """One set of inputs of everything floats can be."""
    (feeds, *_) = seeded_inputs(model, seed=0)
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, -3e38, 1e-45]
    for array in feeds.values():
        if array.dtype.kind == "f":
            array.reshape(-1)[: len(special)] = special[: array.size]
    return feeds


def check(model: onnx.ModelProto, expected: list[str]) -> onnx.ModelProto:
    result, _, assumptions = apply(SIMPLIFY, model)
    assert operators(result) == expected
    assert not assumptions
    assert_same(model, result, extremes(model), *seeded_inputs(model, seed=1))
    return result


STAY = [
    # The shape stays, the values do not.
    "s = Constant<value_ints = [3]>() e = Constant<value_ints = [-9]>() "
    "a = Constant<value_ints = [2]>() t = Constant<value_ints = [-1]>() z = Slice(x, s, e, a, t) "
    "y = Neg(z)",
    "z = Transpose<perm = [0, 1, 3, 2]>(x) y = Neg(z)",
    "p = Constant<value_ints = [0, 0, 1, 0, 0, 0, -1, 0]>() z = Pad(x, p) y = Neg(z)",
    "z = Cast<to = 11>(x) w = Neg(z) y = Cast<to = 1>(w)",
    "s = Constant<value_ints = [2, 3, 2, 8]>() z = Reshape(x, s) w = Neg(z) "
    "t = Constant<value_ints = [2, 3, 4, 4]>() y = Reshape(w, t)",
    "z = Max(x, x) y = Neg(z)",
    # An input cannot be an output, nor one tensor two outputs, without a node between.
    "y = Identity(x)",
    "l = Constant<value_float = 0.0>() h = Constant<value_float = 1.0>() y = Clip(x, l, h)",
    "i = Constant<value_ints = [1, 0]>() y = Gather<axis = 0>(x, i)",
    'y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], auto_pad = "NOTSET">(x)',
]  # fmt: skip


@pytest.mark.parametrize("body", STAY)
def test_what_means_something_stays(body: str) -> None:
    model = static_model(X, Y, body)
    check(model, operators(model))


def test_one_tensor_for_two_outputs_keeps_its_identity() -> None:
    model = static_model(X, f"{Y}, float[2, 3, 4, 4] z", "y = Neg(x) z = Identity(y)")
    check(model, ["Neg", "Identity"])


def test_a_crop_of_full_size_stays() -> None:
    body = (
        "r = Constant<value_floats = [0.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0]>() "
        "s = Constant<value_ints = [2, 3, 4, 4]>() "
        'z = Resize<coordinate_transformation_mode = "tf_crop_and_resize">(x, r, , s) y = Neg(z)'
    )
    check(static_model(X, Y, body), ["Resize", "Neg"])


IDLE = [
    "z = Identity(x)",
    "z = Concat<axis = 1>(x)",
    "z = Split<axis = 1>(x)",
    "z = Cast<to = 1>(x)",
    "s = Constant<value_ints = [0, 3, -1, 4]>() z = Reshape(x, s)",
    "s = Constant<value_ints = [0, -3]>() e = Constant<value_ints = [9, 9]>() "
    "a = Constant<value_ints = [0, 1]>() z = Slice(x, s, e, a)",
    "p = Constant<value_ints = [0, 0, 0, 0, 0, 0, 0, 0]>() z = Pad(x, p)",
    "r = Constant<value_ints = [1, 1, 1, 1]>() z = Tile(x, r)",
    "s = Constant<value_ints = [1, 3, 1, 1]>() z = Expand(x, s)",
    "z = Transpose<perm = [0, 1, 2, 3]>(x)",
    "z = Dropout(x)",
    "z = Sum(x)",
    's = Constant<value_floats = [1.0, 1.0, 1.0, 1.0]>() z = Resize<mode = "linear">(x, , s)',
    "s = Constant<value_ints = [2, 3, 4, 4]>() "
    'z = Resize<mode = "cubic", coordinate_transformation_mode = "align_corners">(x, , , s)',
    "a = Cast<to = 1>(x) b = Identity(a) z = Concat<axis = 3>(b)",
]  # fmt: skip


@pytest.mark.parametrize("body", IDLE)
def test_what_does_nothing_goes(body: str) -> None:
    check(static_model(X, Y, f"{body} y = Neg(z)"), ["Neg"])


@pytest.mark.parametrize("body", IDLE)
def test_what_does_nothing_before_an_output_goes_and_the_name_stays(body: str) -> None:
    outputs = "float[2, 3, 4, 4] z, float[2, 3, 4, 4] w"
    body = f"v = Neg(x) w = Abs(v) {body.replace('(x', '(v')}"
    check(static_model(X, outputs, body), ["Neg", "Abs"])


def test_reshapes_to_rank_zero_and_one_are_not_mixed_up() -> None:
    body = "z = Neg(x) s = Constant<value_ints = [1]>() y = Reshape(z, s)"
    check(static_model("float x", "float[1] y", body), ["Neg", "Reshape"])


CLIPS = [
    ("float", "c = Constant<value_float = 0.5>() y = Clip(x, c)", "Clip"),
    ("float", "c = Constant<value_float = 0.5>() y = Clip(x, , c)", "Clip"),
    ("float", "y = Clip(x)", "Clip"),
    ("double", "c = Constant<value = double {0.5}>() y = Clip(x, , c)", "Clip"),
    ("int64", "c = Constant<value_int = 2>() y = Clip(x, c)", "Max"),
    ("int64", "c = Constant<value_int = 2>() y = Clip(x, , c)", "Min"),
    ("int32", "c = Constant<value = int32 {2}>() y = Clip(x, c)", "Max"),
]


@pytest.mark.parametrize(("kind", "body", "operator"), CLIPS)
def test_a_missing_bound_of_clip_is_written(kind: str, body: str, operator: str) -> None:
    model = static_model(f"{kind}[3, 5] x", f"{kind}[3, 5] y", body)
    result = check(model, [operator])
    inputs = len(result.graph.node[-1].input)
    assert inputs == (3 if operator == "Clip" else 2)


def test_a_computed_bound_of_clip_is_kept() -> None:
    model = static_model("float[3, 5] x, float c", "float[3, 5] y", "y = Clip(x, c)")
    assert_same(model, check(model, ["Clip"]))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (5, 2, 3), (6, 4, 1)])
@pytest.mark.parametrize("operator", ["Conv", "MaxPool", "AveragePool"])
def test_auto_pad_becomes_pads(
    operator: str, size: int, kernel: int, stride: int, mode: str
) -> None:
    cells = -(-size // stride) if mode != "VALID" else (size - kernel) // stride + 1
    weights = f", float[2, 2, {kernel}, {kernel}] w" if operator == "Conv" else ""
    attributes = f'auto_pad = "{mode}", strides = [{stride}, {stride}]'
    if operator != "Conv":
        attributes += f", kernel_shape = [{kernel}, {kernel}]"
    model = static_model(
        f"float[1, 2, {size}, {size}] x{weights}",
        f"float[1, 2, {cells}, {cells}] y",
        f"y = {operator}<{attributes}>(x{', w' if weights else ''})",
    )
    result, _, _ = apply(SIMPLIFY, model)
    assert_same(model, result)
    assert {a.name for a in result.graph.node[0].attribute} >= {"pads"}
    assert "auto_pad" not in {a.name for a in result.graph.node[0].attribute}


INDICES = [
    ("float[3, 4, 4] y", "i = Constant<value = int64 {-1}>() y = Gather<axis = 0>(x, i)"),
    ("float[2, 3, 2, 4] y", "i = Constant<value_ints = [-1, 0]>() y = Gather<axis = -2>(x, i)"),
    ("float[2, 1, 1, 1] y", "i = Constant<value = int64[2, 1, 1, 1] {-1, 0}>() "
        "y = GatherElements<axis = 1>(x, i)"),
    ("float[2, 4] y", "i = Constant<value = int64[2, 3] {-1, 0, -4, 0, -2, 1}>() "
        "y = GatherND(x, i)"),
    ("float[2, 4, 4] y", "i = Constant<value = int64[2, 1] {-1, 0}>() "
        "y = GatherND<batch_dims = 1>(x, i)"),
    ("float[2, 3, 4, 4] y", "i = Constant<value = int64[1, 2] {-1, -3}>() "
        "u = Constant<value = float[1, 4, 4] {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>() "
        "y = ScatterND(x, i, u)"),
    ("float[2, 3, 4, 4] y", "i = Constant<value = int64[1, 1, 1, 1] {-2}>() "
        "u = Constant<value = float[1, 1, 1, 1] {7}>() y = ScatterElements<axis = 3>(x, i, u)"),
    ("float[2, 1, 4, 2] y", "s = Constant<value_ints = [-2, -99]>() "
        "e = Constant<value_ints = [-1, 99]>() a = Constant<value_ints = [-3, -1]>() "
        "t = Constant<value_ints = [1, 2]>() y = Slice(x, s, e, a, t)"),
    ("float[1, 3, 4, 4] y", "s = Constant<value_ints = [-1]>() "
        "e = Constant<value_ints = [9223372036854775807]>() y = Slice(x, s, e)"),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "body"), INDICES)
def test_negative_indices_are_counted_from_the_start(outputs: str, body: str) -> None:
    model = static_model(X, outputs, body)
    result, report, _ = apply(SIMPLIFY, model)
    assert report.changed
    assert_same(model, result)
    for tensor in result.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64:
            assert (onnx.numpy_helper.to_array(tensor) >= 0).all()


def test_computed_indices_stay() -> None:
    model = static_model(f"{X}, int64[2] i", "float[2, 3, 4, 4] y", "y = Gather<axis = 0>(x, i)")
    result, report, _ = apply(SIMPLIFY, model)
    assert result is model
    assert not report.findings


def scattered(operator: str, indices: Array) -> onnx.ModelProto:
    """Updates [2, 3] scattered onto zeros."""
    shape = ", ".join(map(str, indices.shape))
    flat = ", ".join(map(str, indices.reshape(-1)))
    body = (
        "z = Constant<value = float[2, 3] {0.0, 0.0, 0.0, 0.0, 0.0, 0.0}>() "
        f"at = Constant<value = int64[{shape}] {{{flat}}}>() "
        f"u = Neg(x) w = {operator}(z, at, u) y = Neg(w)"
    )
    return static_model("float[2, 3] x", "float[2, 3] y", body)


@pytest.mark.parametrize(
    ("operator", "indices"),
    [
        ("ScatterElements<axis = 0>", np.indices((2, 3))[0]),
        ("ScatterElements<axis = 1>", np.indices((2, 3))[1]),
        ("ScatterElements<axis = -1>", np.indices((2, 3))[1] - 3),
        ("ScatterND", np.array([[0], [1]])),
        ("ScatterND", np.moveaxis(np.indices((2, 3)), 0, -1)),
    ],
)
def test_a_scatter_onto_every_place_goes(operator: str, indices: Array) -> None:
    result = check(scattered(operator, indices), ["Neg", "Neg"])
    assert "Scatter" not in str(operators(result))


@pytest.mark.parametrize(
    ("operator", "indices"),
    [
        ("ScatterElements<axis = 0>", 1 - np.indices((2, 3))[0]),
        ("ScatterElements<axis = 1>", np.indices((2, 3))[1][:, ::-1]),
        ('ScatterElements<axis = 0, reduction = "add">', np.indices((2, 3))[0]),
        ("ScatterND", np.array([[1], [0]])),
        ('ScatterND<reduction = "mul">', np.array([[0], [1]])),
    ],
)
def test_a_scatter_that_moves_or_adds_stays(operator: str, indices: Array) -> None:
    result = apply(SIMPLIFY, scattered(operator, indices))[0]
    assert any("Scatter" in name for name in operators(result))
