"""Operators that compute each element from the elements at its place."""

import pytest

from tests.surgery.static.held import holds, program, refuses

REFUSED = {
    "rows against a fixed length": ("o = Add (t, s)", "float[m] o", ("Add", "fixed length 12")),
    "rows of two selections": ("o = Add (t, bt)", "float[m] o", ("Add", "different selections")),
    "a scale per row": (
        "sc = Expand (half, n) zp = ConstantOfShape <value = uint8[1] {0}> (n) "
        "o = QuantizeLinear <axis = 0> (b, sc, zp)",
        "uint8[m,4] o",
        ("QuantizeLinear", "scale"),
    ),
}

HELD = {
    "with a scalar": ("o = Mul (b, half)", "float[m,4] o"),
    "with a row": (
        "r = Constant <value_floats = [1., 2., 3., 4.]> () o = Sub (b, r)",
        "float[m,4] o",
    ),
    "with a column": ("u = Unsqueeze (t, one) o = Div (b, u)", "float[m,4] o"),
    "a lower rank first": (
        "limit = Constant <value_float = 5.0> () w = Greater (b, limit) u = Neg (t) "
        "r = Unsqueeze (u, one) o = Where (w, r, b)",
        "float[m,4] o",
    ),
    "a matrix of all pairs": (
        "u = Unsqueeze (t, one) v = Unsqueeze (t, zero) o = Sub (u, v)",
        "float[m,r] o",
    ),
    "a matrix of two selections": (
        "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) o = Sub (u, v)",
        "float[m,r] o",
    ),
    "positions are data": ("o = Add (k, one) p = Equal (k, l)", "int64[m] o, bool[m] p"),
    "positions among the best are data": ("o = Mul (bk, five)", "int64[m] o"),
    "positions under a condition": (
        "c = Greater (l, five) o = Where (c, k, l)",
        "int64[m] o",
    ),
    "clip": ("o = Clip (b, half)", "float[m,4] o"),
    "without an optional input": (
        "hi = Constant <value_float = 0.75> () o = Clip (b, , hi)",
        "float[m,4] o",
    ),
    "two layouts of one selection": (
        "sv, sk = TopK <axis = 0> (t, n) o = Add (sv, t)",
        "float[m] o",
    ),
    "quantised": (
        "sc = Constant <value_float = 0.1> () zp = Constant <value = uint8 {3}> () "
        "o = QuantizeLinear (b, sc, zp) q = DequantizeLinear (o, sc, zp)",
        "uint8[m,4] o, float[m,4] q",
    ),
    "quantised by column": (
        "sc = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> () "
        "zp = Constant <value = uint8[4] {3, 4, 5, 6}> () o = QuantizeLinear <axis = 1> (b, sc, "
        "zp)",
        "uint8[m,4] o",
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
