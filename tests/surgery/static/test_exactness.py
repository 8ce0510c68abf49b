"""Bits that depend on how many rows there are: one row, and rows in other places."""

import numpy as np
import pytest

from bridge.surgery.static import make_static
from tests.surgery.judge import compiled
from tests.surgery.static.held import Feeds, holds, operators, program

ROWS = 40
INPUTS = f"float[{ROWS},33,7] x, float[{ROWS}] s"
SELECT = """
    half = Constant <value_float = 0.5> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    mask = Greater (s, half)
    places = NonZero (mask)
    k = Squeeze (places, zero)
    b = Gather <axis = 0> (x, k)
    n = Shape (k)
    v0 = Gather <axis = 0> (s, k)
    v, j = TopK <axis = 0> (v0, n)
    bb = Gather <axis = 0> (b, j)
"""


def _feeds() -> list[Feeds]:
    rng = np.random.default_rng(1)
    sets: list[Feeds] = []
    for rows in (1, 1, 2, 3, 7, 40):
        s = np.zeros(ROWS, np.float32)
        s[rng.permutation(ROWS)[:rows]] = rng.random(rows) + 0.6
        sets.append({"x": rng.standard_normal((ROWS, 33, 7)).astype(np.float32), "s": s})
    return sets


EXACT = {
    "sum over the middle": ("o = ReduceSum (b, one)", "float[m,1,7] o"),
    "mean over the middle": ("o = ReduceMean <axes = [1], keepdims = 0> (b)", "float[m,7] o"),
    "sum over the middle of the best": ("o = ReduceSum (bb, one)", "float[m,1,7] o"),
    "sum over the last": ("o = ReduceSum (b, two)", "float[m,33,1] o"),
    "mean over the last": ("o = ReduceMean <axes = [2]> (b)", "float[m,33,1] o"),
    "sum over all but rows": ("o = ReduceMean <axes = [1, 2]> (b)", "float[m,1,1] o"),
    "sum over rows": ("o = ReduceSum (b, zero)", "float[1,33,7] o"),
    "sum over the first, rows last": (
        "y = Transpose <perm = [1, 2, 0]> (b) o = ReduceSum (y, zero)",
        "float[1,7,m] o",
    ),
    "length over the last": ("o = ReduceL2 <axes = [2]> (b)", "float[m,33,1] o"),
    "matmul of one row": (
        "sh = Constant <value_ints = [-1, 231]> () y = Reshape (b, sh) "
        "w0 = Slice (x, zero, one) "
        "sw = Constant <value_ints = [231, 1]> () w = Reshape (w0, sw) "
        "w2 = Concat <axis = 1> (w, w, w) o = MatMul (y, w2)",
        "float[m,3] o",
    ),
    "gemm of one row": (
        "sh = Constant <value_ints = [-1, 231]> () y = Reshape (b, sh) w0 = Slice (x, zero, two) "
        "sw = Constant <value_ints = [2, 231]> () w = Reshape (w0, sw) "
        "o = Gemm <transB = 1> (y, w)",
        "float[m,2] o",
    ),
    "matmul onto one row": (
        "sh = Constant <value_ints = [-1, 231]> () y = Reshape (b, sh) "
        "yt = Transpose <perm = [1, 0]> (y) w0 = Slice (x, zero, two) "
        "sw = Constant <value_ints = [2, 231]> () w = Reshape (w0, sw) o = MatMul (w, yt)",
        "float[2,m] o",
    ),
    "matmul of stacks": (
        "y = Transpose <perm = [0, 2, 1]> (b) o = MatMul (b, y)",
        "float[m,33,33] o",
    ),
    "functions": (
        "p = Sigmoid (b) q = Exp (b) r = Tanh (b) t = Erf (b) u = Sqrt (q) w = Softmax (b) "
        "a1 = Pow (q, half) o = Sum (p, q, r, t, u, w, a1)",
        "float[m,33,7] o",
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_bits_are_the_source_s(name: str) -> None:
    body, outputs = EXACT[name]
    assert holds(program(body, outputs, INPUTS, SELECT), _feeds()).assumptions == ()


NOTED = {
    "sum along rows": ("v1 = Gather <axis = 0> (s, k) o = ReduceSum (v1, zero)", "float[1] o"),
    "sum of all": ("o = ReduceSum <keepdims = 0> (b)", "float o"),
    "sum over the last, rows in between": (
        "y = Transpose <perm = [1, 0, 2]> (b) o = ReduceSum (y, two)",
        "float[33,m,1] o",
    ),
    "logarithm": ("y = Abs (b) o = Log (y)", "float[m,33,7] o"),
    "softplus": ("o = Softplus (b)", "float[m,33,7] o"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_cannot_be_had_is_noted(name: str) -> None:
    body, outputs = NOTED[name]
    static = make_static(program(body, outputs, INPUTS, SELECT))
    (sentence,) = static.assumptions
    assert "'n_o'" in sentence
    run, source = compiled(static.model), compiled(program(body, outputs, INPUTS, SELECT))
    for given in _feeds():
        expected, got = source(given)["o"], run(given)["o"]
        inside = tuple(slice(0, length) for length in expected.shape)
        assert np.abs(np.subtract(got[inside], expected, dtype=np.float64)).max() < 1e-4


def test_without_masked_rows_nothing_is_noted() -> None:
    body = "y = Abs (x) z = Log (y) o = ReduceSum (z, two)"
    static = holds(program(body, f"float[{ROWS},33,1] o", INPUTS, SELECT), _feeds())
    assert static.assumptions == ()
    assert operators(static) == ["Abs", "Log", "ReduceSum"]


def test_integers_add_up_in_any_order() -> None:
    body = "c = Cast <to = 7> (b) o = ReduceSum <keepdims = 0> (c)"
    assert holds(program(body, "int64 o", INPUTS, SELECT), _feeds()).assumptions == ()
