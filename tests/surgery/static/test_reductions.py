"""Operators that mix rows."""

import numpy as np
import pytest

from tests.surgery.static.held import feeds, holds, program, refuses, with_rows

REFUSED = {
    "softmax over rows": ("o = Softmax <axis = 0> (b)", "float[m,4] o", ("Softmax", "normalises")),
    "layer norm over rows": (
        "sc = Constant <value_floats = [1., 1., 1., 1.]> () o = LayerNormalization <axis = 0> "
        "(b, sc)",
        "float[m,4] o",
        ("LayerNormalization", "normalises"),
    ),
    "log of a sum of exponents": (
        "o = ReduceLogSumExp <axes = [0]> (b)",
        "float[1,4] o",
        ("ReduceLogSumExp", "masked row"),
    ),
    "the last of equal rows": (
        "o = ArgMax <axis = 0, select_last_index = 1> (t)",
        "int64[1] o",
        ("ArgMax", "last"),
    ),
}

HELD = {
    "max": ("o = ReduceMax <axes = [0]> (b)", "float[1,4] o"),
    "max of everything": ("o = ReduceMax <keepdims = 0> (b)", "float o"),
    "min": ("o = ReduceMin <axes = [0], keepdims = 0> (b)", "float[4] o"),
    "max of integers": ("o = ReduceMax <axes = [0]> (l)", "int64[1] o"),
    "min of integers": ("o = ReduceMin <axes = [0]> (l)", "int64[1] o"),
    "max of the best": ("o = ReduceMax <axes = [0]> (bb)", "float[1,4] o"),
    "max of positions": ("o = ReduceMax <axes = [0]> (k)", "int64[1] o"),
    "sum": ("o = ReduceSum (b, zero)", "float[1,4] o"),
    "sum of everything, integers": ("o = ReduceSum <keepdims = 0> (l)", "int64 o"),
    "sum of a square": ("o = ReduceSumSquare <axes = [0]> (b)", "float[1,4] o"),
    "lengths": (
        "o = ReduceL1 <axes = [0]> (b) p = ReduceL2 <axes = [0]> (b)",
        "float[1,4] o, float[1,4] p",
    ),
    "product": ("o = ReduceProd <axes = [0]> (b)", "float[1,4] o"),
    "mean": ("o = ReduceMean <axes = [0]> (b)", "float[1,4] o"),
    "mean over rows and columns": (
        "u = Unsqueeze (b, all) o = ReduceMean <axes = [0, 2], keepdims = 0> (u)",
        "float[4] o",
    ),
    "over columns": (
        "o = ReduceMax <axes = [1], keepdims = 0> (b)",
        "float[m] o",
    ),
    "over columns of all pairs": (
        "u = Unsqueeze (t, one) v = Unsqueeze (t, zero) d = Sub (u, v) "
        "o = ReduceMax <axes = [1], keepdims = 0> (d)",
        "float[m] o",
    ),
    "argmax": (
        "a = ArgMax <axis = 0, keepdims = 0> (t) o = Gather <axis = 0> (b, a)",
        "int64 a, float[4] o",
    ),
    "argmin of finite numbers": (
        "a = ArgMin <axis = 0> (u01) o = Gather <axis = 0> (b, a)",
        "int64[1] a, float[1,4] o",
    ),
    "argmax per column": ("a = ArgMax <axis = 0> (b) o = Add (a, one)", "int64[1,4] o"),
    "argmax over columns": ("o = ArgMax <axis = 1, keepdims = 0> (b)", "int64[m] o"),
    "cumulative sum": (
        "ax = Constant <value_int = 0> () o = CumSum (l, ax) p = CumSum <exclusive = 1> (b, ax) "
        "q = CumSum <reverse = 1> (b, ax)",
        "int64[m] o, float[m,4] p, float[m,4] q",
    ),
    "cumulative sum over columns": (
        "ax = Constant <value_int = 1> () o = CumSum (b, ax)",
        "float[m,4] o",
    ),
    "softmax over columns": ("o = Softmax <axis = 1> (b)", "float[m,4] o"),
    "log softmax over columns": ("o = LogSoftmax (b)", "float[m,4] o"),
    "layer norm over columns": (
        "sc = Constant <value_floats = [1., 2., 1., 1.]> () o = LayerNormalization (b, sc)",
        "float[m,4] o",
    ),
    "triangle": (
        "second = Constant <value_int = 2> () u = Unsqueeze (t, one) v = Unsqueeze (t, zero) "
        "d = Sub (u, v) o = Trilu (d, second) p = ReduceMax <axes = [0], keepdims = 0> (o)",
        "float[m,r] o, float[r] p",
    ),
    "identity matrix": (
        "u = Unsqueeze (t, one) v = Unsqueeze (t, zero) d = Sub (u, v) "
        "o = EyeLike (d) p = EyeLike <k = 1> (d)",
        "float[m,r] o, float[m,r] p",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(body, outputs), "n_o", *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(body, outputs))


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("o = ReduceMin <axes = [-1]> (l)", "int64[1] o"),
        ("o = ReduceMin <axes = [-1]> (b)", "float[m,1] o"),
        ("o = ReduceSum <noop_with_empty_axes = 1> (b)", "float[m,4] o"),
    ],
)
def test_axes_from_the_end_or_none(body: str, outputs: str) -> None:
    """Without rows onnxruntime gives a wrong shape here: [0] or [1, 1]."""
    holds(program(body, outputs), with_rows())


def test_an_infinite_row_wins_over_masked_ones() -> None:
    body = """
        sel = Greater (i, five) z = NonZero (sel) p = Squeeze (z, zero)
        v = Gather <axis = 0> (s, p) a = ArgMax <axis = 0, keepdims = 0> (v)
        q = Gather <axis = 0> (x, p) o = Gather <axis = 0> (q, a)
    """
    s = np.full(12, -np.inf, np.float32)
    i = np.arange(12)
    holds(program(body, "int64 a, float[4] o"), [dict(given, s=s, i=i) for given in feeds()])


@pytest.mark.parametrize("dtype", ["int32", "double", "float16"])
def test_other_types(dtype: str) -> None:
    code = {"int32": 6, "double": 11, "float16": 10}[dtype]
    body = f"c = Cast <to = {code}> (b) o = ReduceMax <axes = [0]> (c)"
    holds(program(body, f"{dtype}[1,4] o"))
