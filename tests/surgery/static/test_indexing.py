"""Gather, GatherElements, GatherND, Compress."""

import pytest

from tests.surgery.static.held import holds, operators, program, refuses, with_rows

INDEX = """
    two = Constant <value_ints = [2]> ()
    four = Constant <value_ints = [4]> ()
    huge = Constant <value_ints = [4611686018427387904]> ()
    last = Constant <value_ints = [-1]> ()
    scalar = Constant <value_int = 0> ()
    scalar_last = Constant <value_int = -1> ()
    w = Greater (l, five)
    wz = NonZero (w)
    j = Squeeze (wz, zero)
    ten = Constant <value_ints = [10]> ()
    lm = Mod (l, ten)
"""

REFUSED = {
    "a column known at run time only": (
        "p = Unsqueeze (bk, one) q = Unsqueeze (bl, one) c = Concat <axis = 1> (q, p) "
        "f = Slice (i, zero, one) o = Gather <axis = 1> (c, f)",
        "int64[m,1] o",
        ("Gather", "column"),
    ),
    "batch dimensions": (
        "u = Unsqueeze (bk, one) o = GatherND <batch_dims = 1> (b, u)",
        "float[m] o",
        ("GatherND", "batch"),
    ),
    "as many axes as rows": ("o = GatherND (x, k)", "float[a,c] o", ("GatherND", "axes")),
}

HELD = {
    "positions where they point": ("o = Gather <axis = 0> (s, k)", "float[m] o"),
    "positions of positions": (
        "o = Gather <axis = 0> (b, j) p = Gather <axis = 0> (k, j) q = Gather <axis = 0> (x, p)",
        "float[m,4] o, int64[m] p, float[m,4] q",
    ),
    "the positions themselves": ("o = Identity (j) p = Identity (k)", "int64[m] o, int64[r] p"),
    "the positions as a column": ("o = Unsqueeze (j, one)", "int64[m,1] o"),
    "positions in rows read elsewhere": ("o = Gather <axis = 0> (s, j)", "float[m] o"),
    "positions of the best read elsewhere": ("o = Gather <axis = 0> (x, bk)", "float[m,4] o"),
    "numbers into fixed rows": ("o = Gather <axis = 0> (x, lm)", "float[m,4] o"),
    "positions into a longer axis": (
        "xx = Concat <axis = 0> (x, x) o = Gather <axis = 0> (xx, k)",
        "float[m,4] o",
    ),
    "numbers of another type": (
        "c = Cast <to = 6> (lm) o = Gather <axis = 0> (x, c)",
        "float[m,4] o",
    ),
    "numbers that overflow to the end of rows": (
        "f = Mod (l, four) h = Mul (f, huge) p = Div (h, huge) q = Slice (p, zero, one) "
        "o = Gather <axis = 0> (b, q)",
        "float[1,4] o",
    ),
    "numbers that masked rows would get out of range": (
        "o = Gather <axis = 0> (x, l)",
        "float[m,4] o",
    ),
    "numbers on another axis": (
        "y = Transpose <perm = [1, 0]> (x) o = Gather <axis = 1> (y, l)",
        "float[4,m] o",
    ),
    "numbers into rows": ("o = Gather <axis = 0> (b, zero)", "float[1,4] o"),
    "a number into rows": ("o = Gather <axis = 0> (b, scalar)", "float[4] o"),
    "the last row": ("o = Gather <axis = 0> (b, last)", "float[1,4] o"),
    "the last row as a scalar": ("o = Gather <axis = 0> (b, scalar_last)", "float[4] o"),
    "the last of the best": ("o = Gather <axis = 0> (bb, last)", "float[1,4] o"),
    "numbers from the end of rows": (
        "f = Slice (i, zero, one) g1 = Abs (f) h = Mod (g1, one) q = Sub (h, one) "
        "o = Gather <axis = 0> (b, q)",
        "float[1,4] o",
    ),
    "columns of rows": ("o = Gather <axis = 1> (b, two)", "float[m,1] o"),
    "a matrix of positions": (
        "p = Unsqueeze (bk, one) o = Gather <axis = 0> (b, p)",
        "float[m,1,4] o",
    ),
    "positions whose type is narrower": (
        "c = Cast <to = 6> (k) o = Gather <axis = 0> (s, c)",
        "float[m] o",
    ),
    "a mask over all rows is no work": ("o = Gather <axis = 0> (x, k)", "float[m,4] o"),
    "gather_nd, one column": ("p = Unsqueeze (j, one) o = GatherND (b, p)", "float[m,4] o"),
    "gather_nd, boolean index": (
        "p = Transpose <perm = [1, 0]> (wz) o = GatherND (b, p) q = Transpose <perm = [1, 0]> "
        "(places) "
        "r = GatherND (x, q)",
        "float[m,4] o, float[r,4] r",
    ),
    "gather_nd, boolean index of elements": (
        "limit = Constant <value_float = 10.0> () c = Greater (b, limit) z = NonZero (c) "
        "p = Transpose <perm = [1, 0]> (z) o = GatherND (b, p)",
        "float[m] o, int64[m,2] p",
    ),
    "gather_nd, two columns of numbers": (
        "u = Unsqueeze (lm, one) h = Mod (lm, two) v = Unsqueeze (h, one) p = Concat <axis = 1> "
        "(u, v) "
        "o = GatherND (x, p)",
        "float[m] o",
    ),
    "gather_nd, positions that are numbers there": (
        "u = Unsqueeze (bk, one) h = Mod (bl, two) v = Unsqueeze (h, one) "
        "p = Concat <axis = 1> (u, v) o = GatherND (x, p)",
        "float[m] o",
    ),
    "gather_nd, masked rows out of range": (
        "u = Unsqueeze (l, one) h = Mod (lm, two) v = Unsqueeze (h, one) p = Concat <axis = 1> "
        "(u, v) "
        "o = GatherND (x, p)",
        "float[m] o",
    ),
    "compress rows": ("o = Compress <axis = 0> (b, w)", "float[m,4] o"),
    "compress fixed rows": ("o = Compress <axis = 0> (x, mask)", "float[m,4] o"),
    "compress elements": (
        "limit = Constant <value_float = 10.0> () c = Greater (b, limit) d = Reshape (c, all) "
        "o = Compress (b, d)",
        "float[m] o",
    ),
}


HELD_WITH_ROWS = {
    "gather_elements on rows": (
        "av, ai = TopK <axis = 0> (b, best) o = GatherElements <axis = 0> (b, ai)",
        "float[m,4] o, int64[m,4] ai",
    ),
    "gather_elements on columns": (
        "av, ai = TopK <axis = 1> (b, two) o = GatherElements <axis = 1> (b, ai)",
        "float[m,2] o",
    ),
    "gather_elements of the first rows": (
        "f = Constant <value = int64[1,2] {3, 1}> () o = GatherElements <axis = 1> (b, f)",
        "float[1,2] o",
    ),
    "gather_elements out of range": (
        "u = Unsqueeze (l, one) o = GatherElements <axis = 0> (x, u)",
        "float[m,1] o",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(INDEX + body, outputs), "n_o", *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(INDEX + body, outputs))


@pytest.mark.parametrize("name", HELD_WITH_ROWS)
def test_held_with_rows(name: str) -> None:
    body, outputs = HELD_WITH_ROWS[name]
    holds(program(INDEX + body, outputs), with_rows())


def test_a_selection_of_all_rows_costs_no_gather() -> None:
    body = "o = ReduceMax <axes = [0]> (b)"
    assert "Gather" not in operators(holds(program(body, "float[1,4] o")))
