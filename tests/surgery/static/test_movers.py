"""Rules for what only moves elements."""

import pytest

from tests.surgery.static.held import feeds, holds, program, refuses

REFUSED = {
    "squeeze of rows": (
        "o = Squeeze (k, zero)",
        "int64 o",
        ("n_o", "ai.onnx::Squeeze", "squeezes"),
    ),
    "concat of two selections": (
        "same = Greater (t, half) c = Compress <axis = 0> (t, same) "
        "u = Unsqueeze (c, one) v = Unsqueeze (t, one) o = Concat <axis = 1> (u, v)",
        "float[m,2] o",
        ("n_o", "ai.onnx::Concat", "different selections"),
    ),
    "unsorted seams": (
        "parts = Constant <value_ints = [2, 3]> () q = Concat <axis = 0> (b, b) "
        "r = NonZero (q) z = Split (r, parts) o = Identity (r)",
        "int64[a,c] o",
        ("n_z", "ai.onnx::Split"),
    ),
}

HELD = {
    "identity": ("o = Identity (b)", "float[m,4] o"),
    "cast of positions to int32": ("o = Cast <to = 6> (k)", "int32[m] o"),
    "cast of positions to float": ("o = Cast <to = 1> (k)", "float[m] o"),
    "cast of rows": ("o = Cast <to = 11> (b)", "double[m,4] o"),
    "cast_like of positions": ("o = CastLike (k, half)", "float[m] o"),
    "cast to int32 and gather": (
        "c = Cast <to = 6> (bk) o = Gather <axis = 0> (b, c)",
        "float[m,4] o",
    ),
    "transpose": ("o = Transpose <perm = [1, 0]> (b)", "float[4,m] o"),
    "transpose of positions": (
        "u = Unsqueeze (k, one) o = Transpose <perm = [1, 0]> (u)",
        "int64[1,m] o",
    ),
    "unsqueeze in front": ("o = Unsqueeze (b, zero)", "float[1,m,4] o"),
    "unsqueeze behind": ("o = Unsqueeze (t, all)", "float[m,1] o"),
    "squeeze around rows": (
        "u = Unsqueeze (b, zero) v = Squeeze (u, zero) o = Unsqueeze (v, zero)",
        "float[1,m,4] o",
    ),
    "dropout": ("o = Dropout (b)", "float[m,4] o"),
    "concat of columns": (
        "u = Unsqueeze (t, one) c = Cast <to = 1> (l) v = Unsqueeze (c, one) "
        "o = Concat <axis = 1> (b, u, v)",
        "float[m,6] o",
    ),
    "concat of one": ("o = Concat <axis = 0> (b)", "float[m,4] o"),
    "concat of rows": ("o = Concat <axis = 0> (b, bb)", "float[m,4] o"),
    "concat of rows and fixed ones": ("o = Concat <axis = 0> (t, half1, s)", "float[m] o"),
    "concat of fixed and prefix rows": ("o = Concat <axis = 0> (half1, bt)", "float[m] o"),
    "concat of fixed and scattered rows": ("o = Concat <axis = 0> (half1, t)", "float[m] o"),
    "concat of prefix and fixed rows": ("o = Concat <axis = 0> (bt, half1)", "float[m] o"),
    "concat of positions of one space": ("o = Concat <axis = 0> (bk, bk)", "int64[m] o"),
    "concat of positions of two spaces": ("o = Concat <axis = 0> (bk, k)", "int64[m] o"),
    "concat of positions as columns": (
        "u = Unsqueeze (bk, one) v = Unsqueeze (bl, one) c = Concat <axis = 1> (v, u) "
        "o = Identity (c)",
        "int64[m,2] o",
    ),
    "columns are told apart behind a concat": (
        "u = Unsqueeze (bk, one) v = Unsqueeze (bl, one) c = Concat <axis = 1> (v, u) "
        "w = Gather <axis = 1> (c, one) p = Squeeze (w, one) o = Gather <axis = 0> (b, p) "
        "q = Gather <axis = 1> (c, zero)",
        "float[m,4] o, int64[m,1] q",
    ),
    "concat with a part of no rows": (
        "none = Slice (s, zero, zero) o = Concat <axis = 0> (none, t)",
        "float[m] o",
    ),
    "concat of two layouts": (
        "c, cj = TopK <axis = 0> (t, n) "
        "a1 = Unsqueeze (c, one) a2 = Unsqueeze (t, one) o = Concat <axis = 1> (a1, a2)",
        "float[m,2] o",
    ),
    "split of columns": (
        "two = Constant <value_ints = [1, 3]> () p, o = Split <axis = 1> (b, two) "
        "q = Mul (p, half)",
        "float[m,3] o, float[m,1] q",
    ),
    "split of rows at the seams": (
        "c = Concat <axis = 0> (b, bb) z = Shape <start = 0, end = 1> (bb) "
        "sizes = Concat <axis = 0> (n, z) p, q = Split <axis = 0> (c, sizes)",
        "float[m,4] p, float[r,4] q",
    ),
    "split of rows, but not at the seams": (
        "c = Concat <axis = 0> (b, bb) z = Shape <start = 0, end = 1> (bb) "
        "sizes = Concat <axis = 0> (z, n) p, q = Split <axis = 0> (c, sizes)",
        "float[m,4] p, float[r,4] q",
    ),
    "split of positions at the seams": (
        "c = Concat <axis = 0> (bk, bk) z = Shape <start = 0, end = 1> (bk) "
        "sizes = Concat <axis = 0> (z, z) p, q = Split <axis = 0> (c, sizes)",
        "int64[m] p, int64[r] q",
    ),
    "split of rows elsewhere": (
        "z = Shape <start = 0, end = 1> (bb) rest = Sub (n, z) "
        "sizes = Concat <axis = 0> (z, rest) p, q = Split <axis = 0> (b, sizes)",
        "float[m,4] p, float[r,4] q",
    ),
    "split of fixed rows by counts": (
        "whole = Shape (s) rest = Sub (whole, n) sizes = Concat <axis = 0> (n, rest) "
        "p, q = Split <axis = 0> (x, sizes)",
        "float[m,4] p, float[r,4] q",
    ),
    "split into one": ("o = Split <axis = 0> (b, n)", "float[m,4] o"),
}

EXTRA = """
    half1 = Constant <value_floats = [0.5, 0.75]> ()
"""


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(body, outputs), *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(EXTRA + body, outputs))


def test_squeeze_without_axes_excludes_a_single_row() -> None:
    model = program("u = Unsqueeze (bt, one) o = Squeeze (u)", "float[m] o")
    static = holds(model, [given for given in feeds() if (given["s"] > 0.5).sum() != 1])
    assert any("n_o" in sentence and "one row" in sentence for sentence in static.assumptions)
