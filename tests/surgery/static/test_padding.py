"""Pad: behind rows, by counts, and around fixed axes."""

import pytest

from tests.surgery.static.held import holds, program, refuses

EXTRA = """
    seven = Constant <value_ints = [7]> ()
    zeros2 = Constant <value_ints = [0, 0]> ()
    z = Shape <start = 0, end = 1> (bb)
    left = Sub (five, z)
    fill = Constant <value_float = 8.5> ()
"""

REFUSED = {
    "in front of rows": (
        "p = Concat <axis = 0> (one, zero) o = Pad (t, p)",
        "float[m] o",
        "in front",
    ),
    "rows by reflection": (
        'p = Concat <axis = 0> (zero, one) o = Pad <mode = "edge"> (t, p)',
        "float[m] o",
        "repeating",
    ),
    "an amount that is data": (
        "w = Slice (i, zero, one) p = Concat <axis = 0> (zero, w) o = Pad (t, p)",
        "float[m] o",
        "depends on the data",
    ),
}

HELD = {
    "to a fixed number": (
        "p = Concat <axis = 0> (zero, left) o = Pad (bt, p)",
        "float[5] o",
    ),
    "to a fixed number, with a value": (
        "p = Concat <axis = 0> (zeros2, left, zero) o = Pad (bb, p, fill)",
        "float[5,4] o",
    ),
    "scattered rows to a fixed number": (
        "twelve = Constant <value_ints = [12]> () d = Sub (twelve, n) p = Concat <axis = 0> "
        "(zero, d) "
        "o = Pad (t, p, fill)",
        "float[12] o",
    ),
    "more than all": (
        "big = Constant <value_ints = [20]> () d = Sub (big, n) p = Concat <axis = 0> (zero, d) "
        "o = Pad (t, p, fill)",
        "float[20] o",
    ),
    "by a constant": ("p = Concat <axis = 0> (zero, seven) o = Pad (t, p, fill)", "float[m] o"),
    "by a constant away": (
        "h = Constant <value_ints = [-1]> () p = Concat <axis = 0> (zero, h) "
        "fu = Unsqueeze (fill, zero) r = Concat <axis = 0> (fu, t) o = Pad (r, p)",
        "float[m] o",
    ),
    "by as many": ("p = Concat <axis = 0> (zero, n) o = Pad (t, p, fill)", "float[m] o"),
    "fixed rows by a count": ("p = Concat <axis = 0> (zero, n) o = Pad (s, p)", "float[m] o"),
    "columns": (
        "p = Concat <axis = 0> (zero, one, zero, seven) o = Pad (b, p, fill)",
        "float[m,12] o",
    ),
    "columns by reflection": (
        'p = Concat <axis = 0> (zero, one, zero, one) o = Pad <mode = "reflect"> (b, p)',
        "float[m,6] o",
    ),
    "rows and columns": (
        "p = Concat <axis = 0> (zero, one, left, zero) o = Pad (bb, p, fill)",
        "float[5,5] o",
    ),
    "by nothing": (
        "p = Concat <axis = 0> (zeros2, zeros2) o = Pad (b, p)",
        "float[m,4] o",
    ),
    "positions": ("p = Concat <axis = 0> (zero, left) o = Pad (bk, p)", "int64[5] o"),
    "a mask": (
        "w = Greater (bt, half) p = Concat <axis = 0> (zero, left) o = Pad (w, p)",
        "bool[5] o",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, word = REFUSED[name]
    refuses(program(EXTRA + body, outputs), "n_o", "ai.onnx::Pad", word)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(EXTRA + body, outputs))


def test_rows_to_a_fixed_number_are_padded_no_more() -> None:
    body = "p = Concat <axis = 0> (zero, left) o = Pad (bt, p)"
    assert holds(program(EXTRA + body, "float[5] o")).padded == ()
