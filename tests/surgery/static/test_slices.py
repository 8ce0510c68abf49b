"""Slice: limits that are counts, and limits on a data-dependent number of rows."""

import pytest

from tests.surgery.static.held import holds, operators, program, refuses

LIMITS = """
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    last = Constant <value_ints = [-1]> ()
    last3 = Constant <value_ints = [-3]> ()
    step2 = Constant <value_ints = [2]> ()
    before = Constant <value_ints = [-9223372036854775807]> ()
    z = Shape <start = 0, end = 1> (bb)
    rest = Sub (n, three)
"""

REFUSED = {
    "every second row": ("o = Slice (b, zero, many, zero, step2)", "float[m,4] o", "2th"),
    "backwards from the middle": ("o = Slice (b, two, before, zero, last)", "float[m,4] o", "back"),
    "a limit that is data": (
        "w = Slice (i, zero, one) o = Slice (b, zero, w, zero)",
        "float[m,4] o",
        "depends on the data",
    ),
}

HELD = {
    "all rows": ("o = Slice (b, zero, many, zero)", "float[m,4] o"),
    "rows to their number": ("o = Slice (b, zero, n, zero)", "float[m,4] o"),
    "the first three": ("o = Slice (b, zero, three, zero)", "float[m,4] o"),
    "the first three of the best": ("o = Slice (bb, zero, three, zero)", "float[m,4] o"),
    "all but the first": ("o = Slice (b, one, many, zero)", "float[m,4] o"),
    "the second and third": ("o = Slice (b, one, three, zero)", "float[m,4] o"),
    "all but the last": ("o = Slice (b, zero, last, zero)", "float[m,4] o"),
    "all but the last three": ("o = Slice (b, zero, last3, zero)", "float[m,4] o"),
    "the last three": ("o = Slice (b, last3, many, zero)", "float[m,4] o"),
    "the last": ("o = Slice (b, last, many, zero)", "float[m,4] o"),
    "from the third last to the last": ("o = Slice (b, last3, last, zero)", "float[m,4] o"),
    "to a count that may be negative": ("o = Slice (b, zero, rest, zero)", "float[m,4] o"),
    "to another count": ("o = Slice (b, zero, z, zero)", "float[m,4] o"),
    "from a count": ("o = Slice (b, z, many, zero)", "float[m,4] o"),
    "from a count to a count": (
        "e = Add (z, two) o = Slice (b, z, e, zero)",
        "float[m,4] o",
    ),
    "from a count of fixed rows": ("o = Slice (x, n, many, zero)", "float[m,4] o"),
    "fixed rows to a count": ("o = Slice (x, zero, n, zero)", "float[m,4] o"),
    "reversed": ("o = Slice (b, last, before, zero, last)", "float[m,4] o"),
    "reversed from far behind": ("o = Slice (bb, many, before, zero, last)", "float[m,4] o"),
    "columns": ("o = Slice (b, one, three, one)", "float[m,2] o"),
    "columns and rows": (
        "st = Constant <value_ints = [0, 1]> () en = Constant <value_ints = [3, 3]> () "
        "ax = Constant <value_ints = [0, -1]> () o = Slice (b, st, en, ax)",
        "float[m,2] o",
    ),
    "columns backwards": ("o = Slice (b, last, before, one, last)", "float[m,4] o"),
    "positions": ("o = Slice (k, one, three, zero)", "int64[m] o"),
    "positions, read where they point": (
        "p = Slice (k, one, three, zero) o = Gather <axis = 0> (x, p)",
        "float[m,4] o",
    ),
    "positions in rows": (
        "w = Greater (l, five) nz = NonZero (w) p = Squeeze (nz, zero) q = Slice (p, one, many) "
        "o = Gather <axis = 0> (b, q)",
        "float[m,4] o, int64[m] q",
    ),
    "columns of positions": (
        "u = Unsqueeze (bk, one) v = Unsqueeze (bl, one) c = Concat <axis = 1> (v, u) "
        "w = Slice (c, one, two, one) p = Squeeze (w, one) o = Gather <axis = 0> (b, p)",
        "float[m,4] o",
    ),
    "reversed columns of positions": (
        "u = Unsqueeze (bk, one) v = Unsqueeze (bl, one) c = Concat <axis = 1> (v, u) "
        "r = Slice (c, last, before, one, last) w = Slice (r, zero, one, one) "
        "p = Squeeze (w, one) o = Gather <axis = 0> (b, p)",
        "float[m,4] o, int64[m,2] r",
    ),
    "in place of all rows, iota stays": (
        "p = Slice (k, zero, many, zero) o = Gather <axis = 0> (x, p)",
        "float[m,4] o",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, word = REFUSED[name]
    refuses(program(LIMITS + body, outputs), "n_o", "ai.onnx::Slice", word)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(LIMITS + body, outputs))


def test_to_the_number_of_rows_is_nothing() -> None:
    whole = holds(program("o = Neg (b)", "float[m,4] o"))
    cut = holds(program("c = Slice (b, zero, n, zero) o = Neg (c)", "float[m,4] o"))
    assert operators(cut) == operators(whole)
