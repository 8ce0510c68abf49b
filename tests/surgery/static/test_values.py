"""Arithmetic on numbers of rows: as data it stays at run time, as a shape it is followed."""

import pytest

from tests.surgery.static.held import holds, program, refuses

NUMBERS = """
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    four = Constant <value_ints = [4]> ()
    hundred = Constant <value_ints = [100]> ()
    minus = Constant <value_ints = [-1]> ()
    z = Shape <start = 0, end = 1> (bb)
    sh = Shape (b)
    sx = Shape (x)
"""

# Each computes w int64[1] from counts. It is returned, and the first w rows are as well.
COMPUTED = {
    "add": "w = Add (n, three)",
    "sub": "w = Sub (n, three)",
    "neg": "v = Neg (n) w = Add (v, hundred)",
    "mul": "w = Mul (n, three)",
    "mul of two counts": "w = Mul (n, z)",
    "div": "w = Div (n, three)",
    "div that is exact": "v = Mul (n, four) w = Div (v, four)",
    "div of what may be negative": "v = Sub (n, four) w = Div (v, three)",
    "div by a count": "m1 = Max (z, one) w = Div (n, m1)",
    "div of numbers beside a count": "low = Constant <value_ints = [-7]> () "
    "c = Concat <axis = 0> (n, low) d = Div (c, two) e = Slice (d, one, two) w = Add (e, five)",
    "mod of numbers beside a count": "low = Constant <value_ints = [-7]> () "
    "c = Concat <axis = 0> (n, low) d = Mod (c, three) w = Slice (d, one, two)",
    "mod": "w = Mod (n, three)",
    "mod of what may be negative": "v = Sub (n, four) w = Mod (v, three)",
    "mod as in C": "v = Sub (n, four) w = Mod <fmod = 1> (v, three)",
    "mod by more than all": "w = Mod (n, hundred)",
    "min": "w = Min (n, three)",
    "min of three": "w = Min (n, four, three)",
    "min that is decided": "w = Min (n, hundred)",
    "min of related counts": "w = Min (z, n)",
    "max": "v = Sub (n, four) w = Max (v, one)",
    "max of counts": "w = Max (n, z)",
    "the least of several": "c = Concat <axis = 0> (three, n) w = ReduceMin <axes = [0]> (c)",
    "the largest of several": "c = Concat <axis = 0> (three, n) w = ReduceMax <axes = [0]> (c)",
    "a sum of several": "c = Concat <axis = 0> (three, n, z) w = ReduceSum (c, zero)",
    "a product of several": "w = ReduceProd <axes = [0]> (sh)",
    "a product of counts": "c = Concat <axis = 0> (z, n) w = ReduceProd <axes = [0]> (c)",
    "a choice of the smaller": "c = Less (n, three) w = Where (c, n, three)",
    "a choice of the larger": "c = Less (n, three) w = Where (c, three, n)",
    "a choice of the smaller, or equal": "c = LessOrEqual (n, three) w = Where (c, n, three)",
    "a choice of the smaller, the other way": "c = Greater (n, three) w = Where (c, three, n)",
    "a choice of neither": "c = Less (n, three) w = Where (c, four, n)",
    "a choice that is decided": "c = Equal (n, minus) w = Where (c, one, n)",
    "torch's expand": "c = Equal (sh, minus) o1 = ConstantOfShape <value = int64[1] {1}> (two) "
    "v = Where (c, o1, sh) w = Slice (v, zero, one)",
    "gather": "w = Gather (sh, zero)",
    "gather from the end": "c = Concat <axis = 0> (three, n) w = Gather (c, minus)",
    "slice": "c = Concat <axis = 0> (three, n, z) w = Slice (c, one, two)",
    "slice backwards": "c = Concat <axis = 0> (three, n, z) far = Constant <value_ints = [-100]> "
    "() "
    "r = Slice (c, minus, far, zero, minus) w = Slice (r, one, two)",
    "squeeze and unsqueeze": "v = Squeeze (n, zero) w = Unsqueeze (v, zero)",
    "reshape": "v = Reshape (n, minus) w = Reshape (v, one)",
    "expand and reduce": "v = Expand (n, three) w = ReduceMin <axes = [0]> (v)",
    "transpose": "u = Unsqueeze (n, zero) v = Transpose (u) w = Reshape (v, minus)",
    "cast to int32 and back": "v = Cast <to = 6> (n) w = Cast <to = 7> (v)",
    "a comparison as a number": "c = Greater (n, three) w = Cast <to = 7> (c)",
    "a decided comparison as a number": "c = Greater (n, hundred) w = Cast <to = 7> (c)",
    "and": "c = Greater (n, three) d = Less (n, hundred) e = And (c, d) w = Where (e, four, three)",
    "and that is false": "c = Greater (n, hundred) d = Less (n, four) e = And (c, d) "
    "w = Where (e, four, n)",
    "or": "c = Greater (n, three) d = Less (n, hundred) e = Or (c, d) w = Where (e, n, three)",
    "xor": "c = Greater (n, three) d = Less (n, zero) e = Xor (d, c) w = Where (e, n, three)",
    "xor, the other way": "c = Greater (n, three) d = GreaterOrEqual (n, zero) e = Xor (c, d) "
    "w = Where (e, three, n)",
    "torch's floor division": "d = Div (n, three) a = Less (n, zero) c = Less (three, zero) "
    "e = Xor (a, c) r = Mod (n, three) q = Equal (r, zero) f = Not (q) h = And (e, f) "
    "j1 = Cast <to = 7> (h) w = Sub (d, j1)",
    "not": "c = Greater (n, three) e = Not (c) w = Where (e, n, three)",
    "at least": "c = GreaterOrEqual (n, three) w = Where (c, three, n)",
    "equal": "c = Equal (n, three) w = Where (c, four, n)",
    "the number in a mask": "m1 = Cast <to = 7> (mask) w = ReduceSum (m1, zero)",
    "whether a mask holds anywhere": "m1 = Cast <to = 7> (mask) w = ReduceMax <axes = [0]> (m1)",
    "size": "v = Size (b) w = Unsqueeze (v, zero)",
}


@pytest.mark.parametrize("name", COMPUTED)
def test_as_data_and_as_a_limit(name: str) -> None:
    """The number is exact in both places, whatever is known of it."""
    body = COMPUTED[name] + " top = Max (w, zero) cut = Slice (x, zero, top, zero)"
    holds(program(NUMBERS + body, "int64[1] w, float[m,4] cut"))


@pytest.mark.parametrize(
    "body",
    [
        "v = Mul (n, hundred) u8 = Cast <to = 2> (v) w = Cast <to = 7> (u8)",
        "big = Constant <value_ints = [9223372036854775807]> () v = Add (n, big) w = Mod (v, four)",
    ],
)
def test_what_wraps_around_is_data_only(body: str) -> None:
    holds(program(NUMBERS + body, "int64[1] w"))
    refuses(program(NUMBERS + body + " o = Slice (x, zero, w, zero)", "float[m,4] o"), "n_o")


def test_a_number_as_data_in_floats() -> None:
    body = "f = Cast <to = 1> (n) o = Div (f, half) p = Mul (t, o)"
    holds(program(NUMBERS + body, "float[1] o, float[m] p"))


def test_equal_counts_by_different_ways_are_one() -> None:
    body = """
        a = Min (n, three) c = Less (n, three) d = Where (c, n, three)
        p = Slice (t, zero, a, zero) q = Slice (t, zero, d, zero) o = Add (p, q)
    """
    holds(program(NUMBERS + body, "float[m] o"))


def test_counts_that_differ_are_not_one() -> None:
    body = """
        a = Min (n, three) p = Slice (t, zero, a, zero) q = Slice (t, zero, n, zero) o = Add (p, q)
    """
    refuses(program(NUMBERS + body, "float[m] o"), "n_o", "different selections")


def test_the_selection_of_a_mask_is_as_large_as_its_sum() -> None:
    body = """
        m1 = Cast <to = 7> (mask) w = ReduceSum <keepdims = 0> (m1) v = Unsqueeze (w, zero)
        e = Expand (half, v) o = Add (e, t)
    """
    holds(program(NUMBERS + body, "float[m] o"))
