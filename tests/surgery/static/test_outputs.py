"""The way out: names of counts, the cap, zeros behind, what is reported."""

import numpy as np
import onnx
import pytest

from bridge.static_model import PaddedOutput, Rows, tensor_types
from bridge.surgery.static import make_static
from tests.surgery.judge import compiled
from tests.surgery.static.held import feeds, holds, program, refuses

WIDE = "float[20001] s0"
WIDE_ROWS = """
    half = Constant <value_float = 0.5> ()
    mask = Greater (s0, half)
    o = Compress <axis = 0> (s0, mask)
"""


def test_nothing_padded_adds_no_count() -> None:
    static = holds(program("o = ReduceMax <axes = [0]> (b)", "float[1,4] o"))
    assert static.counts == ()
    assert static.padded == ()
    assert [value.name for value in static.model.graph.output] == ["o"]


def test_one_count_for_outputs_of_one_number() -> None:
    static = holds(program("o = Neg (b) p = Identity (k)", "float[m,4] o, int64[m] p"))
    assert static.counts == ("num_detections",)
    assert static.padded == (
        PaddedOutput("o", (Rows(0, "num_detections"),)),
        PaddedOutput("p", (Rows(0, "num_detections"),)),
    )
    assert static.source_shapes == {"o": (None, 4), "p": (None,)}
    assert tensor_types(static.model)["num_detections"].shape == (1,)


def test_a_count_per_output_where_they_differ() -> None:
    static = holds(program("o = Neg (b) p = Neg (bb) q = Neg (bt)",
                           "float[m,4] o, float[r,4] p, float[r] q"))  # fmt: skip
    assert static.counts == ("o_count", "p_count", "q_count")


def test_a_count_per_axis() -> None:
    body = "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) o = Sub (u, v) p = Neg (b)"
    static = holds(program(body, "float[m,r] o, float[m,4] p"))
    assert static.counts == ("o_count_0", "o_count_1", "p_count")
    assert static.source_shapes["o"] == (None, None)


def test_two_axes_of_one_number_have_one_count() -> None:
    body = "u = Unsqueeze (t, one) v = Unsqueeze (t, zero) o = Sub (u, v)"
    static = holds(program(body, "float[m,r] o"))
    assert static.padded == (
        PaddedOutput("o", (Rows(0, "num_detections"), Rows(1, "num_detections"))),
    )


def test_rows_on_another_axis() -> None:
    static = holds(program("u = Unsqueeze (b, zero) o = Neg (u)", "float[1,m,4] o"))
    assert static.padded[0].rows == (Rows(1, "num_detections"),)


def test_the_source_s_own_count_serves() -> None:
    model = program("o = Neg (b) num_detections = Identity (n)",
                    "float[m,4] o, int64[1] num_detections")  # fmt: skip
    static = holds(model)
    assert static.counts == ()
    assert static.padded[0].rows == (Rows(0, "num_detections"),)


def test_another_output_of_that_name_does_not() -> None:
    model = program("o = Neg (b) num_detections = Add (n, one)",
                    "float[m,4] o, int64[1] num_detections")  # fmt: skip
    static = holds(model)
    assert static.counts == ("num_detections_2",)


def test_an_input_of_that_name_does_not() -> None:
    model = program("o = Neg (b)", "float[m,4] o",
                    "float[12,4] x, float[12] s, int64[12] i, float[1] num_detections")  # fmt: skip
    assert make_static(model).counts == ("num_detections_2",)


def test_the_first_rows_are_kept_under_a_cap() -> None:
    static = holds(program("o = Neg (b) p = Identity (k)", "float[m,4] o, int64[m] p"),
                   max_detections=3)  # fmt: skip
    assert tensor_types(static.model)["o"].shape == (3, 4)
    assert len(static.assumptions) == 2
    assert all("at most 3 rows" in sentence for sentence in static.assumptions)
    assert static.counts == ("num_detections",)


def test_a_cap_that_cannot_cut_is_no_assumption() -> None:
    static = holds(program("o = Neg (bb)", "float[m,4] o"), max_detections=5)
    assert tensor_types(static.model)["o"].shape == (5, 4)
    assert static.assumptions == ()


def test_a_cap_leaves_fixed_outputs_alone() -> None:
    static = holds(program("o = ReduceMax <axes = [1], keepdims = 0> (x) p = Neg (b)",
                           "float[12] o, float[m,4] p"), max_detections=2)  # fmt: skip
    assert tensor_types(static.model)["o"].shape == (12,)


def test_a_cap_cuts_behind_an_order_that_needs_all_rows() -> None:
    holds(program("v, j = TopK <axis = 0> (t, n) o = Gather <axis = 0> (b, j)", "float[m,4] o"),
          max_detections=2)  # fmt: skip


def test_very_many_rows_are_refused() -> None:
    model = program("", "float[m] o", WIDE, WIDE_ROWS)
    refuses(model, "'o'", "20001", "--max-detections")
    static = make_static(model, max_detections=7)
    assert tensor_types(static.model)["o"].shape == (7,)


def test_further_tensors_are_returned() -> None:
    body = """
        c = Equal (n, zero)
        o = If (c) <then_branch = nothing () => (float[p,4] y) { y = Slice (x, zero, zero, zero) },
            else_branch = rows () => (float[q,4] w) { v = Neg (b) w = Abs (v) }>
    """
    model = program(body, "float[m,4] o")
    static = make_static(model, keep=("v", "bk", "t", "no such tensor", "o"))
    names = [value.name for value in static.model.graph.output]
    assert names[:4] == ["o", "v", "bk", "t"]
    assert {output.name for output in static.padded} == {"o", "v", "bk", "t"}
    run = compiled(static.model)
    for given in feeds():
        got = run(given)
        rows = int((given["s"] > np.float32(0.5)).sum())
        assert int(got["v_count"][0]) == rows
        np.testing.assert_array_equal(got["o"][:rows], np.abs(got["v"][:rows]))


def test_further_tensors_are_not_capped() -> None:
    static = make_static(program("o = Neg (b)", "float[m,4] o"), keep=("t",), max_detections=2)
    types = tensor_types(static.model)
    assert types["o"].shape == (2, 4)
    assert types["t"].shape == (12,)


def test_what_was_padded_is_reported() -> None:
    static = holds(program("o = Neg (b)", "float[m,4] o"))
    (finding,) = [f for f in static.findings if f.what.startswith("static-max-output")]
    assert finding.node == "n_o"
    assert "'o'" in finding.what
    assert "12 rows" in finding.what


@pytest.mark.parametrize("dtype", ["float16", "double", "int32", "uint8", "int8", "uint16", "bool"])
def test_every_type_of_row(dtype: str) -> None:
    code = onnx.TensorProto.DataType.Value(dtype.upper())
    body = f"h = Clip (b, half) c = Cast <to = {code}> (h) o = Identity (c)"
    sets = [dict(given, x=np.nan_to_num(given["x"], posinf=9, neginf=9) % 100) for given in feeds()]
    holds(program(body, f"{dtype}[m,4] o"), sets)


def test_an_input_returned_as_it_is() -> None:
    model = program("o = Neg (b)", "float[m,4] o, float[12,4] x")
    static = holds(model)
    assert [value.name for value in static.model.graph.output] == ["o", "x", "num_detections"]


def test_outputs_that_are_inputs_constants_or_equal() -> None:
    body = "o = Identity (x) p = Constant <value_floats = [1.0]> () q = Neg (b) r = Identity (q)"
    holds(program(body, "float[12,4] o, float[1] p, float[m,4] q, float[r1,4] r"))
