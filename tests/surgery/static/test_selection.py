"""NonZero and TopK."""

import numpy as np
import pytest

from tests.surgery.static.held import ROWS, feeds, holds, operators, program, refuses, with_rows

EXTRA = """
    two = Constant <value_ints = [2]> ()
    twelve = Constant <value_ints = [12]> ()
    c3 = Constant <value_floats = [1.0, 0.8, 0.6]> ()
    w = Greater (l, five)
"""

REFUSED = {
    "in no order": (
        "v, o = TopK <axis = 0, sorted = 0> (t, best)",
        "int64[m] o",
        ("n_v", "TopK", "order"),
    ),
    "more than there are": (
        "h = Constant <value_ints = [13]> () v, o = TopK <axis = 0> (t, h)",
        "int64[m] o",
        ("n_v", "TopK", "13 of 12"),
    ),
    "k that is data": (
        "h = Slice (i, zero, one) v, o = TopK <axis = 0> (s, h)",
        "int64[m] o",
        ("n_v", "TopK", "depends on the data"),
    ),
}

HELD = {
    "nonzero of a mask": ("o = Identity (places)", "int64[1,m] o"),
    "nonzero of numbers": (
        "h = Mod (l, five) z = NonZero (h) o = Squeeze (z, zero)",
        "int64[m] o",
    ),
    "nonzero of floats": ("z = NonZero (c3) o = Identity (z)", "int64[1,m] o"),
    "nonzero of nothing": (
        "e = Slice (s, zero, zero) z = NonZero (e) o = Squeeze (z, zero)",
        "int64[m] o",
    ),
    "nonzero in rows": (
        "z = NonZero (w) o = Squeeze (z, zero) p = Gather <axis = 0> (b, o)",
        "int64[m] o, float[m,4] p",
    ),
    "nonzero in nonzero in rows": (
        "z = NonZero (w) j = Squeeze (z, zero) v = Gather <axis = 0> (t, j) "
        "limit = Constant <value_float = 0.7> () c = Greater (v, limit) y = NonZero (c) "
        "h = Squeeze (y, zero) o = Gather <axis = 0> (j, h) p = Gather <axis = 0> (k, o)",
        "int64[m] o, int64[m] p, int64[m] h",
    ),
    "nonzero of rows and columns": (
        "u = Unsqueeze (t, one) e = Mul (u, c3) limit = Constant <value_float = 0.45> () "
        "c = Greater (e, limit) z = NonZero (c) r, q = Split <axis = 0> (z) "
        "ri = Squeeze (r, zero) qi = Squeeze (q, zero) p = Gather <axis = 0> (b, ri)",
        "int64[2,m] z, int64[m] ri, int64[m] qi, float[m,4] p",
    ),
    "nonzero of two selections": (
        "u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) e = Sub (u, v) c = Greater (e, half) "
        "g1 = Less (e, half) z = NonZero (g1)",
        "int64[2,m] z",
    ),
    "nonzero of the best": (
        "limit = Constant <value_float = 0.66> () c = Greater (bt, limit) z = NonZero (c) "
        "h = Squeeze (z, zero) o = Gather <axis = 0> (bb, h) q = Gather <axis = 0> (bk, h)",
        "float[m,4] o, int64[m] q, int64[m] h",
    ),
    "topk, the best of all": ("v, o = TopK <axis = 0> (t, n)", "float[m] v, int64[m] o"),
    "topk, the worst": ("v, o = TopK <axis = 0, largest = 0> (t, best)", "float[m] v, int64[m] o"),
    "topk of finite numbers": (
        "v, o = TopK <axis = 0> (u01, n) p = Gather <axis = 0> (b, o)",
        "float[m] v, int64[m] o, float[m,4] p",
    ),
    "topk, the worst of finite numbers": (
        "v, o = TopK <axis = 0, largest = 0> (u01, best)",
        "float[m] v, int64[m] o",
    ),
    "topk of integers": (
        "v, o = TopK <axis = 0> (l, best) lv, lo = TopK <axis = 0, largest = 0> (l, best)",
        "int64[m] v, int64[m] o, int64[m] lv, int64[m] lo",
    ),
    "topk of integers in bounds": (
        "h = Mod (l, five) v, o = TopK <axis = 0> (h, best) p = Gather <axis = 0> (b, o)",
        "int64[m] v, int64[m] o, float[m,4] p",
    ),
    "topk by a loosely bounded number": (
        "z = Shape <start = 0, end = 1> (bt) h = Mul (n, z) z1 = Max (z, one) kk = Div (h, z1) "
        "v, o = TopK <axis = 0> (t, kk)",
        "float[m] v, int64[m] o",
    ),
    "topk of the best": ("v, o = TopK <axis = 0> (bt, two)", "float[2] v, int64[2] o"),
    "topk of positions": ("v, o = TopK <axis = 0> (k, best)", "int64[m] v, int64[m] o"),
    "topk of fixed rows by a count": (
        "fx = Clip (s, half) v, o = TopK <axis = 0> (fx, n)",
        "float[m] v, int64[m] o",
    ),
    "topk of fixed rows by a clamped count": (
        "fx = Clip (s, half) h = Min (n, five) v, o = TopK <axis = 0> (fx, h)",
        "float[m] v, int64[m] o",
    ),
    "topk of fixed rows": ("fx = Clip (s, half) v, o = TopK <axis = 0> (fx, five)",
                           "float[5] v, int64[5] o"),
    "topk along rows of columns": (
        "v, o = TopK <axis = 0> (b, best)",
        "float[m,4] v, int64[m,4] o",
    ),
    "argsort and cut": (
        "v, o = TopK <axis = 0> (t, n) p = Slice (o, zero, two) q = Gather <axis = 0> (b, p)",
        "float[m,4] q, int64[m] p",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(EXTRA + body, outputs), *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    sets = [dict(given, s=np.nan_to_num(given["s"])) for given in feeds()]
    holds(program(EXTRA + body, outputs), sets)


def test_topk_along_columns() -> None:
    body = "v, o = TopK (b, two)"
    holds(program(EXTRA + body, "float[m,2] v, int64[m,2] o"), with_rows())


@pytest.mark.parametrize("largest", [0, 1])
def test_an_infinite_row_comes_before_masked_ones(largest: int) -> None:
    """Masked rows hold an infinity too, and the lower index would win."""
    body = f"""
        limit = Constant <value_int = 3> ()
        sel = Greater (i, limit) z = NonZero (sel) p = Squeeze (z, zero)
        v0 = Gather <axis = 0> (s, p)
        m0 = Shape (p)
        v, o = TopK <axis = 0, largest = {largest}> (v0, m0)
        q = Gather <axis = 0> (x, p) r = Gather <axis = 0> (q, o)
    """
    infinity = np.float32(np.inf if not largest else -np.inf)
    sets = []
    for given in feeds():
        s = np.full(ROWS, infinity)
        s[[5, 7]] = 1, 2
        order = np.arange(ROWS)[::-1].copy()
        x = np.repeat(order[:, None], 4, axis=1).astype(np.float32)
        sets.append(dict(given, s=s, x=x, i=order))
    holds(program(body, "float[m] v, int64[m] o, float[m,4] r"), sets)


def test_numbers_that_overflow_come_before_masked_ones() -> None:
    body = """
        big = Constant <value_float = -1e30> () c = Mul (u01, big) d = Abs (c) e = Mul (c, d)
        v, o = TopK <axis = 0> (e, n) p = Gather <axis = 0> (b, o)
    """
    holds(program(body, "float[m] v, int64[m] o, float[m,4] p"))


def test_the_lowest_integer_comes_before_masked_ones() -> None:
    body = """
        limit = Constant <value_float = 0.6> ()
        sel = Greater (s, limit) z = NonZero (sel) p = Squeeze (z, zero)
        v0 = Gather <axis = 0> (i, p) m0 = Shape (p) v, o = TopK <axis = 0> (v0, m0)
    """
    i = np.full(ROWS, np.iinfo(np.int64).min)
    holds(program(body, "int64[m] v, int64[m] o"), [dict(given, i=i) for given in feeds()])


def test_scores_in_bounds_are_not_compacted_first() -> None:
    body = "v, o = TopK <axis = 0> (u01, best) p = Gather <axis = 0> (b, o)"
    assert operators(holds(program(body, "float[m,4] p"))).count("TopK") == 1


def test_many_coordinates_are_no_constant() -> None:
    body = """
        wide = Constant <value_ints = [12, 400]> () u = Unsqueeze (s, one) e = Expand (u, wide)
        c = Greater (e, half) z = NonZero (c) o = Slice (z, zero, five, one)
    """
    static = holds(program(body, "int64[2,m] o"))
    largest = max(int(np.prod(tensor.dims)) for tensor in static.model.graph.initializer)
    assert largest < 12 * 400 * 2


@pytest.mark.parametrize("dtype", ["int32", "double", "float16"])
def test_topk_of_other_types(dtype: str) -> None:
    code = {"int32": 6, "double": 11, "float16": 10}[dtype]
    body = f"c = Cast <to = {code}> (t) d = Cast <to = {code}> (l) v, o = TopK <axis = 0> (c, best)"
    holds(program(body, f"{dtype}[m] v, int64[m] o"))
