"""Shape, Reshape, Expand, Tile, ConstantOfShape, Range: numbers of rows as dimensions."""

import pytest

from tests.surgery.static.held import holds, operators, program, refuses

SIZES = """
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    four = Constant <value_ints = [4]> ()
    minus = Constant <value_ints = [-1]> ()
    keep = Constant <value_ints = [0]> ()
    i0 = Constant <value_int = 0> ()
    i1 = Constant <value_int = 1> ()
    i3 = Constant <value_int = 3> ()
    nn = Squeeze (n, zero)
    z = Shape <start = 0, end = 1> (bb)
"""

REFUSED = {
    "rows among others": (
        "t1 = Concat <axis = 0> (four, n) o = Reshape (b, t1)",
        "float[4,m] o",
        ("Reshape", "mixes"),
    ),
    "two counts in one axis": (
        "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) p = Mul (u, v) o = Reshape (p, minus)",
        "float[m] o",
        ("Reshape", "data-dependent"),
    ),
    "fixed rows to a count": ("o = Expand (s, n)", "float[m] o", ("Expand", "12")),
    "one count to another": ("o = Expand (t, z)", "float[m] o", ("Expand", "data-dependent")),
    "a shape that is data": (
        "w = Slice (i, zero, one) o = Expand (one, w)",
        "int64[m] o",
        ("Expand", "not implied by constants"),
    ),
    "counting by two": (
        "i2 = Constant <value_int = 2> () o = Range (i0, nn, i2)",
        "int64[m] o",
        ("Range", "steps"),
    ),
    "rows repeated": ("o = Tile (t, two)", "float[m] o", ("Tile", "repeats")),
}

HELD = {
    "shape": ("o = Shape (b) q = Shape <start = 1> (b)", "int64[2] o, int64[1] q"),
    "shape of nothing": ("o = Shape <start = 1, end = 1> (b)", "int64[0] o"),
    "size": ("o = Size (b) q = Mul (o, i3)", "int64 o, int64 q"),
    "reshape to itself": ("t1 = Concat <axis = 0> (n, four) o = Reshape (b, t1)", "float[m,4] o"),
    "reshape with 0 and -1": (
        "t1 = Concat <axis = 0> (keep, two, minus) o = Reshape (b, t1)",
        "float[m,2,2] o",
    ),
    "reshape of zero sized target": (
        "t1 = Concat <axis = 0> (minus, four) o = Reshape (b, t1)",
        "float[m,4] o",
    ),
    "an axis of 1 in front": (
        "t1 = Concat <axis = 0> (one, minus, four) o = Reshape (b, t1)",
        "float[1,m,4] o",
    ),
    "rows and columns as one axis": ("o = Reshape (b, minus)", "float[m] o"),
    "best rows and columns as one axis": ("o = Reshape (bb, minus)", "float[m] o"),
    "merged and cut": (
        "f = Reshape (b, minus) e = Constant <value_ints = [6]> () o = Slice (f, zero, e, zero)",
        "float[m] o",
    ),
    "merged and given back": (
        "f = Reshape (b, minus) g = Neg (f) t1 = Concat <axis = 0> (minus, four) "
        "h = Reshape (g, t1) o = Add (b, h)",
        "float[m,4] o",
    ),
    "merged and half given back": (
        "f = Reshape (b, minus) t1 = Concat <axis = 0> (minus, two) o = Reshape (f, t1)",
        "float[m,2] o",
    ),
    "best merged and given back": (
        "f = Reshape (bb, minus) t1 = Concat <axis = 0> (minus, four) h = Reshape (f, t1) "
        "o = Add (bb, h)",
        "float[m,4] o",
    ),
    "merged on the left": (
        "u = Transpose <perm = [1, 0]> (b) o = Reshape (u, minus)",
        "float[m] o",
    ),
    "merged on the left, best rows": (
        "u = Transpose <perm = [1, 0]> (bb) o = Reshape (u, minus)",
        "float[m] o",
    ),
    "two axes of rows stay apart": (
        "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) p = Mul (u, v) "
        "t1 = Concat <axis = 0> (n, one, z) o = Reshape (p, t1)",
        "float[m,1,r] o",
    ),
    "two axes of rows, one solved": (
        "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) p = Mul (u, v) "
        "t1 = Concat <axis = 0> (n, minus) o = Reshape (p, t1)",
        "float[m,r] o",
    ),
    "-1 beside a count": (
        "t1 = Concat <axis = 0> (n, minus) o = Reshape (b, t1)",
        "float[m,4] o",
    ),
    "positions reshaped": (
        "t1 = Concat <axis = 0> (minus, one) p = Reshape (k, t1) o = GatherND (x, p)",
        "float[m,4] o, int64[m,1] p",
    ),
    "columns of positions reshaped": (
        "u = Unsqueeze (bk, one) v = Unsqueeze (bl, one) c = Concat <axis = 1> (v, u) "
        "o = Reshape (c, minus)",
        "int64[m] o",
    ),
    "columns of positions with an axis more": (
        "u = Unsqueeze (bk, one) v = Unsqueeze (bl, one) c = Concat <axis = 1> (v, u) "
        "t1 = Concat <axis = 0> (one, minus, two) o = Reshape (c, t1)",
        "int64[1,m,2] o",
    ),
    "flatten": (
        "t1 = Concat <axis = 0> (keep, two, two) r = Reshape (b, t1) o = Flatten (r) "
        "q = Flatten <axis = -1> (r)",
        "float[m,4] o, float[r,2] q",
    ),
    "flatten rows": ("o = Flatten <axis = 0> (bb)", "float[1,m] o"),
    "expand to a count": (
        "e = Expand (half, n) o = Mul (e, t)",
        "float[m] o, float[m] e",
    ),
    "expand columns": (
        "u = Unsqueeze (t, one) t1 = Concat <axis = 0> (n, three) o = Expand (u, t1)",
        "float[m,3] o",
    ),
    "expand with ones": (
        "t1 = Concat <axis = 0> (one, one) o = Expand (b, t1)",
        "float[m,4] o",
    ),
    "expand positions": (
        "u = Unsqueeze (k, one) t1 = Concat <axis = 0> (n, two) o = Expand (u, t1)",
        "int64[m,2] o",
    ),
    "expand to the best": ("e = Expand (half, z) o = Mul (e, bt)", "float[m] o"),
    "constant of shape": (
        "o = ConstantOfShape <value = int64[1] {7}> (n) p = Add (o, l)",
        "int64[m] o, int64[m] p",
    ),
    "constant of shape, by default zero": (
        "t1 = Concat <axis = 0> (n, two) o = ConstantOfShape (t1)",
        "float[m,2] o",
    ),
    "range": (
        "o = Range (i0, nn, i1) p = Gather <axis = 0> (b, o) q = Add (o, l)",
        "int64[m] o, float[m,4] p, int64[m] q",
    ),
    "range over the best": (
        "zz = Squeeze (z, zero) o = Range (i0, zz, i1) q = Add (o, bl)",
        "int64[m] o, int64[m] q",
    ),
    "range from elsewhere": (
        "e = Add (nn, i3) o = Range (i3, e, i1) q = Range (i3, nn, i1)",
        "int64[m] o, int64[r] q",
    ),
    "tile columns": (
        "t1 = Concat <axis = 0> (one, two) o = Tile (b, t1)",
        "float[m,8] o",
    ),
    "tile one row by a count": (
        "h = Unsqueeze (five, zero) t1 = Concat <axis = 0> (n, one) o = Tile (h, t1)",
        "int64[m,1] o",
    ),
    "tile fixed rows by a count": (
        "h = Constant <value_floats = [1.0, 2.0]> () o = Tile (h, n) q = Tile (h, z)",
        "float[m] o, float[r] q",
    ),
    "tile positions": (
        "u = Unsqueeze (k, one) t1 = Concat <axis = 0> (one, two) o = Tile (u, t1)",
        "int64[m,2] o",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(SIZES + body, outputs), "n_o", *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(SIZES + body, outputs))


def test_what_expands_to_a_count_meets_its_rows_as_they_are() -> None:
    body = "e = Expand (half, n) p = Mul (e, t) o = ReduceMax <axes = [0], keepdims = 0> (p)"
    assert "TopK" not in operators(holds(program(SIZES + body, "float o")))
