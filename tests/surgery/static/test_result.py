"""The model that comes out: names, types, metadata, bytes; and what goes in."""

import hashlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bridge.errors import UnsupportedModelError
from bridge.static_model import tensor_types
from bridge.surgery.static import make_static
from tests.surgery.static.held import holds, operators, program, refuses


def test_names_and_metadata_are_kept() -> None:
    model = program("o = Neg (b)", "float[m,4] o")
    model.producer_name, model.producer_version, model.domain = "maker", "1.2", "org.example"
    model.model_version, model.doc_string = 7, "a model"
    helper.set_model_props(model, {"labels": "a,b"})
    graph = model.graph
    graph.doc_string = "a graph"
    graph.metadata_props.add(key="of", value="graph")
    graph.input[0].doc_string = "boxes"
    graph.output[0].doc_string = "negative boxes"
    graph.node[-1].doc_string = "negates"
    graph.node[-1].metadata_props.add(key="line", value="12")
    result = holds(model).model
    assert (result.producer_name, result.producer_version) == ("maker", "1.2")
    assert (result.domain, result.model_version, result.doc_string) == ("org.example", 7, "a model")
    assert {p.key: p.value for p in result.metadata_props} == {"labels": "a,b"}
    assert result.graph.name == "g"
    assert result.graph.doc_string == "a graph"
    assert result.graph.metadata_props[0].value == "graph"
    assert [value.name for value in result.graph.input] == ["x", "s", "i"]
    assert result.graph.input[0].doc_string == "boxes"
    assert result.graph.output[0].doc_string == "negative boxes"
    (node,) = [node for node in result.graph.node if node.op_type == "Neg"]
    assert (node.name, node.doc_string) == ("n_o", "negates")
    assert node.metadata_props[0].value == "12"


def test_plain_opset_17() -> None:
    model = holds(program("o = Neg (b)", "float[m,4] o")).model
    assert model.ir_version == 8
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert not model.functions


def test_a_suppression_brings_its_function() -> None:
    body = """
        bx = Unsqueeze (x, zero) both = Constant <value_ints = [0, 1]> () sc = Unsqueeze (s, both)
        limit = Constant <value_ints = [3]> () low = Constant <value_floats = [0.5]> ()
        o = NonMaxSuppression (bx, sc, limit, low, low)
    """
    model = holds(program(body, "int64[m,3] o")).model
    assert [function.name for function in model.functions] == ["StaticNMS"]
    assert {o.domain: o.version for o in model.opset_import} == {"": 17, "bridge": 1}


def test_a_fixed_model_comes_out_as_it_went_in() -> None:
    body = "a = Mul (x, half) e = Sigmoid (a) f = ReduceSum (e, one) o = Sqrt (f)"
    static = holds(program(body, "float[12,1] o"))
    assert operators(static) == ["Mul", "Sigmoid", "ReduceSum", "Sqrt"]
    assert [node.name for node in static.model.graph.node] == ["n_a", "n_e", "n_f", "n_o"]


def test_equal_nodes_are_one() -> None:
    body = "a = Neg (x) c = Neg (x) o = Add (a, c)"
    assert operators(holds(program(body, "float[12,4] o"))) == ["Neg", "Add"]


def test_random_nodes_are_not_one() -> None:
    body = "a = RandomNormalLike (x) c = RandomNormalLike (x) o = Sub (a, c)"
    static = make_static(program(body, "float[12,4] o"))
    assert operators(static) == ["RandomNormalLike", "RandomNormalLike", "Sub"]


def test_random_nodes_of_constants_are_not_folded() -> None:
    body = "a = Constant <value_floats = [1.0, 2.0]> () o = RandomNormalLike (a)"
    assert operators(make_static(program(body, "float[2] o"))) == ["RandomNormalLike"]


def test_constants_are_folded_by_what_judges_them() -> None:
    body = """
        a = Constant <value_floats = [0.1, 0.2, 0.3]> () e = Exp (a) f = Sigmoid (e)
        three = Constant <value_ints = [3]> () q = Slice (s, zero, three) o = Add (f, q)
    """
    assert operators(holds(program(body, "float[3] o"))) == ["Slice", "Add"]


def test_constants_do_not_grow() -> None:
    body = """
        wide = Constant <value_ints = [3000, 1000]> () e = Expand (half, wide)
        o = ReduceMax <keepdims = 0> (e)
    """
    model = holds(program(body, "float o")).model
    assert model.ByteSize() < 10_000


def test_a_node_that_cannot_run_is_not_decided_here() -> None:
    body = "a = Constant <value_ints = [4]> () d = Div (a, zero) o = Neg (x)"
    static = make_static(program(body, "float[12,4] o"), keep=("d",))
    assert operators(static) == ["Div", "Neg"]


def test_what_would_kill_the_process_is_not_run() -> None:
    body = """
        a = Constant <value = float[0,4] {}> () v, j = TopK <axis = 1> (a, one) o = Neg (x)
        q = Constant <value = int64[0,1] {}> () w = GatherElements <axis = 1> (a, q)
    """
    static = make_static(program(body, "float[12,4] o"), keep=("v", "w"))
    assert sorted(operators(static)) == ["GatherElements", "Neg", "TopK"]


def test_large_weights_are_copied_once() -> None:
    model = program("y = MatMul (x, w) o = Neg (y)", "float[12,60000] o")
    weights = np.random.default_rng(0).random((4, 60000)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    result = holds(model).model
    (tensor,) = [t for t in result.graph.initializer if t.name == "w"]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), weights)


def test_names_that_clash_are_told_apart() -> None:
    body = """
        c = Equal (n, zero)
        o = If (c) <then_branch = t1 () => (float[p,4] y) { y = Slice (x, zero, zero, zero) },
            else_branch = e1 () => (float[q,4] w) { v = Neg (b) w = Abs (v) }>
        r = If (c) <then_branch = t2 () => (float[p,4] y) { y = Slice (x, zero, zero, zero) },
            else_branch = e2 () => (float[q,4] w) { v = Abs (b) w = Neg (v) }>
    """
    model = program(body, "float[m,4] o, float[k1,4] r")
    for node in model.graph.node:
        for attribute in node.attribute:
            for k, inner in enumerate(attribute.g.node):
                inner.name = f"inner {k}"
    holds(model)


def test_nodes_without_a_name() -> None:
    model = program("o = Neg (b)", "float[m,4] o")
    for node in model.graph.node:
        node.name = ""
    holds(model)


def test_an_unnamed_node_is_named_by_what_it_writes() -> None:
    model = program("o = Unique (l)", "int64[m] o")
    for node in model.graph.node:
        node.name = ""
    refuses(model, "node 'o' (ai.onnx::Unique)")


def test_a_free_input_dimension_is_refused() -> None:
    model = program("o = Neg (x)", "float[m,4] o", "float[rows,4] x, float[12] s, int64[12] i")
    refuses(model, "'x'", "'rows'", "axis 0", "--input-shape x=")


def test_an_input_without_a_shape_is_refused() -> None:
    model = program("o = Neg (b)", "float[m,4] o")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    refuses(model, "'x'", "--input-shape")


def test_an_output_that_nothing_makes_is_refused() -> None:
    model = program("o = Neg (b)", "float[m,4] o")
    model.graph.output.append(helper.make_tensor_value_info("lost", 1, [1]))
    refuses(model, "'lost'")


def test_a_name_that_nothing_makes_is_refused() -> None:
    model = program("o = Neg (b)", "float[m,4] o")
    model.graph.node[-1].input[0] = "lost"
    refuses(model, "n_o", "'lost'")


def test_a_run_time_shape_is_refused_with_what_to_do() -> None:
    model = program("o = Reshape (x, q)", "float[a,c] o",
                    "float[12,4] x, float[12] s, int64[12] i, int64[2] q")  # fmt: skip
    refuses(model, "n_o", "ai.onnx::Reshape", "--freeze")


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="n_o"):
        make_static(program("y = Transpose (x) o = MatMul (y, y)", "float[a,c] o"))


def test_types_of_everything_are_written() -> None:
    static = holds(program("o = Neg (b)", "float[m,4] o"))
    model = onnx.ModelProto()
    model.CopyFrom(static.model)
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    written = tensor_types(static.model)
    for value in inferred.graph.value_info:
        dims = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if all(dims):
            assert written[value.name].shape == dims


BYTES = """
import hashlib, sys
import onnx
from bridge.surgery.static import make_static
static = make_static(onnx.load_from_string(sys.stdin.buffer.read()))
print(hashlib.sha256(static.model.SerializeToString(deterministic=True)).hexdigest())
"""


def test_equal_bytes_in_another_process() -> None:
    body = "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) o = Sub (u, v) p = Neg (b)"
    model = program(body, "float[m,r] o, float[m,4] p")
    here = make_static(model).model.SerializeToString(deterministic=True)
    there = subprocess.run(
        [sys.executable, "-c", BYTES],
        input=model.SerializeToString(),
        capture_output=True,
        check=True,
    )
    assert there.stdout.decode().strip() == hashlib.sha256(here).hexdigest()
