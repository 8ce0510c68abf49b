"""Graphs of several nodes through the emitter: what one node knows of another, and refusals."""

import numpy as np
import onnx
import pytest
from onnx import helper, parser, shape_inference

from bridge.errors import UnsupportedModelError
from tests.targets.tflite.emitting import (
    Array,
    emitted,
    litert_outputs,
    node_model,
    onnxruntime_outputs,
)

F32, I64 = np.dtype("float32"), np.dtype("int64")


def graph(text: str) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def feeds_for(model: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value for dim in tensor.shape.dim]
        floats = dtype == F32
        feeds[value.name] = (
            rng.standard_normal(shape) if floats else rng.integers(0, 3, shape)
        ).astype(dtype)
    return feeds


# Graphs that need what is known of another node, or that name a tensor in an unusual place.
GRAPHS = {
    "int64 division of positions": """
        g (float[4,30] x) => (int64[7] row, int64[7] column)
        <int64[1] flat = {-1}, int64[1] k = {7}, int64 width = {30}> {
            all = Reshape(x, flat)
            values, at = TopK(all, k)
            row = Div(at, width)
            column = Mod(at, width)
        }""",
    "division of a count": """
        g (float[9] x) => (int64[1] half)
        <float limit = {0.0}, int64[1] two = {2}, int64[1] axis = {0}> {
            above = Greater(x, limit)
            one = Cast<to=7>(above)
            count = ReduceSum(one, axis)
            half = Div(count, two)
        }""",
    "a position from the end": """
        g (float[6] x, float[6,2] table) => (float[1,2] y) <int64[1] six = {6}, int64[1] k = {1}> {
            value, at = TopK(x, k)
            back = Sub(at, six)
            y = Gather(table, back)
        }""",
    "ArgMax of int64 masks": """
        g (float[5,9] x) => (int64[5] y) <float limit = {0.5}> {
            above = Greater(x, limit)
            ones = Cast<to=7>(above)
            y = ArgMax<axis=1, keepdims=0>(ones)
        }""",
    "an input as output": "g (float[3] x) => (float[3] y) { y = Identity(x) }",
    "one tensor under two names": """
        g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Identity(y) }""",
    "a constant as output": """
        g (float[3] x) => (float[3] y, float[2] c) <float[2] c = {1.5, 2.5}> { y = Neg(x) }""",
    "an output of no rows": """
        g (float[3] x) => (float[3] y, int64[0,3] none) <int64[0,3] none = {}> { y = Neg(x) }""",
    "an output that is read inside": """
        g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Exp(y) }""",
    "constants made inside": """
        g (float[3] x) => (float[3] y, int64[2] s) {
            two = Constant<value_float = 2.0>()
            s = Constant<value_ints = [3, 4]>()
            y = Mul(x, two)
        }""",
    "a computed scatter": """
        g (float[8] x) => (float[8] y) <int64[1] k = {3}, float[3] marks = {7.0, 8.0, 9.0}> {
            values, at = TopK(x, k)
            y = ScatterElements<axis=0>(x, at, marks)
        }""",
    "reshapes in a row": """
        g (float[2,6] x) => (float[2,6] y) <int64[1] flat = {-1}, int64[2] back = {2, 6},
        int64[3] deep = {3, 2, 2}> {
            a = Reshape(x, flat)
            b = Reshape(a, deep)
            y = Reshape(b, back)
        }""",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_equals_onnxruntime(name: str) -> None:
    model = graph(GRAPHS[name])
    feeds, content = feeds_for(model), emitted(model)
    outputs = [value.name for value in model.graph.output]
    expected = onnxruntime_outputs(model, feeds)
    for threads in (1, 4):
        found = litert_outputs(content, feeds, outputs, threads)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert np.allclose(a, b, rtol=1e-6, atol=0)


def zeros(dtype: str, *shape: int) -> Array:
    return np.zeros(shape, dtype)


# Every refusal names the operator, its domain and its node, says why and what to do.
REFUSED: dict[str, tuple[onnx.NodeProto, dict[str, Array], str]] = {
    "unknown operator": (
        helper.make_node("Det", ["x"], ["y"], name="node"),
        {"x": zeros("float32", 3, 3)},
        "this operator",
    ),
    "float64": (
        helper.make_node("Add", ["x", "x"], ["y"], name="node"),
        {"x": zeros("float64", 3)},
        "element type float64",
    ),
    "cast to float16": (
        helper.make_node("Cast", ["x"], ["y"], name="node", to=onnx.TensorProto.FLOAT16),
        {"x": zeros("float32", 3)},
        "element type float16",
    ),
    "scatter with a reduction": (
        helper.make_node("ScatterND", ["x", "i", "u"], ["y"], name="node", reduction="add"),
        {"x": zeros("float32", 3), "i": zeros("int64", 1, 1), "u": zeros("float32", 1)},
        "reduction add",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_the_node(name: str) -> None:
    node, feeds, why = REFUSED[name]
    model = node_model(node, feeds, {})
    with pytest.raises(UnsupportedModelError, match=why) as caught:
        emitted(model)
    assert f"{node.op_type} (domain ai.onnx, node 'node')" in str(caught.value)


def test_index_beyond_the_axis_is_refused_at_conversion() -> None:
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], name="node")
    model = node_model(node, {"x": zeros("float32", 3)}, {"i": np.array([3])})
    with pytest.raises(UnsupportedModelError, match="beyond"):
        emitted(model)
