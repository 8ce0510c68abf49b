"""ScatterElements, ScatterND."""

import pytest

from tests.surgery.static.held import holds, operators, program, refuses

EXTRA = """
    two = Constant <value_ints = [2]> ()
    ten = Constant <value_ints = [10]> ()
    base = Clip (s, half)
    xx = Clip (x, half)
    lm = Mod (l, ten)
    neg = Sub (lm, ten)
    ku = Unsqueeze (k, one)
    bku = Unsqueeze (bk, one)
    lu = Unsqueeze (lm, one)
    nu = Unsqueeze (neg, one)
    rows = ConstantOfShape <value = float[1] {0.25}> (n)
    dt = Neg (t)
    dbt = Neg (bt)
    db = Neg (b)
    dbb = Neg (bb)
"""

REFUSED = {
    "as many axes as rows": (
        "o = ScatterND (x, k, t)",
        "float[a,c] o",
        ("ScatterND", "axes"),
    ),
    "rows of another selection": (
        "o = ScatterElements <axis = 0> (base, k, bt)",
        "float[m] o",
        ("ScatterElements", "different selections"),
    ),
}

HELD = {
    "through a selection": ("o = ScatterElements <axis = 0> (base, k, dt)", "float[12] o"),
    "a fixed index": (
        "f = Slice (dt, zero, one) o = ScatterElements <axis = 0> (base, k, dt) "
        "h = Constant <value_floats = [3.]> () q = ScatterElements <axis = 0> (rows, zero, h)",
        "float[12] o, float[m] q",
    ),
    "through the best of a selection": (
        "o = ScatterElements <axis = 0> (rows, bk, dbt)",
        "float[m] o",
    ),
    "through the best into fixed rows": (
        "p = Gather <axis = 0> (k, bk) o = ScatterElements <axis = 0> (base, p, dbt)",
        "float[12] o",
    ),
    "numbers, some masked out of range": (
        "o = ScatterElements <axis = 0> (base, lm, dt)",
        "float[12] o",
    ),
    "numbers from the end": ("o = ScatterElements <axis = 0> (base, neg, dt)", "float[12] o"),
    "numbers from the end of rows": (
        "h = Constant <value_ints = [-1]> () w = Constant <value_floats = [9.]> () "
        "o = ScatterElements <axis = 0> (rows, h, w)",
        "float[m] o",
    ),
    "added up": (
        'o = ScatterElements <axis = 0, reduction = "add"> (base, lm, dt) '
        'p = ScatterElements <axis = 0, reduction = "add"> (base, k, dt)',
        "float[12] o, float[12] p",
    ),
    "other types": (
        "lb = Greater (l, five) z = Greater (base, half) o = ScatterElements <axis = 0> (z, k, lb) "
        "l3 = Cast <to = 6> (l) i0 = Mod (i, ten) i3 = Cast <to = 6> (i0) "
        "p = ScatterElements <axis = 0> (i3, k, l3)",
        "bool[12] o, int32[12] p",
    ),
    "columns": (
        "h = Constant <value = int64[1,1] {2}> () w = Constant <value = float[1,1] {7.0}> () "
        "o = ScatterElements <axis = 1> (b, h, w)",
        "float[m,4] o",
    ),
    "columns of every row": (
        "sh = Concat <axis = 0> (n, one) h = ConstantOfShape <value = int64[1] {2}> (sh) "
        "w = Unsqueeze (t, one) o = ScatterElements <axis = 1> (b, h, w)",
        "float[m,4] o",
    ),
    "nd, through a selection": ("o = ScatterND (xx, ku, db)", "float[12,4] o"),
    "nd, through the best of a selection": ("o = ScatterND (b, bku, dbb)", "float[m,4] o"),
    "nd, numbers": ("o = ScatterND (xx, lu, db)", "float[12,4] o"),
    "nd, numbers from the end": ("o = ScatterND (xx, nu, db)", "float[12,4] o"),
    "nd, added up": ('o = ScatterND <reduction = "add"> (xx, lu, db)', "float[12,4] o"),
    "nd, fixed index into rows": (
        "f = Slice (xx, zero, one) zu = Unsqueeze (zero, one) o = ScatterND (b, zu, f)",
        "float[m,4] o",
    ),
    "nd, two columns": (
        "h = Mod (lm, two) v = Unsqueeze (h, one) p = Concat <axis = 1> (lu, v) "
        "o = ScatterND (xx, p, dt)",
        "float[12,4] o",
    ),
    "nd, two columns from the end": (
        "h = Mod (neg, two) h2 = Sub (h, two) v = Unsqueeze (h2, one) p = Concat <axis = 1> (nu, "
        "v) "
        "o = ScatterND (xx, p, dt)",
        "float[12,4] o",
    ),
    "nd, boolean mask of elements": (
        "limit = Constant <value_float = 10.0> () c = Greater (b, limit) z = NonZero (c) "
        "p = Transpose <perm = [1, 0]> (z) w = GatherND (b, p) v = Neg (w) o = ScatterND (b, p, v)",
        "float[m,4] o",
    ),
    "already padded": (
        "six = Constant <value_ints = [6]> () pad = Constant <value = float[6,4] {1., 2., 3., "
        "4., 5., "
        "6., 7., 8., 9., 1., 2., 3., 4., 5., 6., 7., 8., 9., 1., 2., 3., 4., 5., 6.}> () "
        "sh = Shape <start = 0, end = 1> (bb) c0 = Constant <value_int = 0> () "
        "c1 = Constant <value_int = 1> () m = Squeeze (sh, zero) r = Range (c0, m, c1) "
        "ru = Unsqueeze (r, one) o = ScatterND (pad, ru, dbb)",
        "float[6,4] o",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(EXTRA + body, outputs), "n_o", *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(EXTRA + body, outputs))


def test_through_a_selection_is_one_choice() -> None:
    body = "o = ScatterElements <axis = 0> (base, k, dt)"
    assert "ScatterElements" not in operators(holds(program(EXTRA + body, "float[12] o")))
