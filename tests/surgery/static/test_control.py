"""If and Loop: proven and walked in place, or refused."""

import pytest

from tests.surgery.static.held import holds, operators, program, refuses

BRANCHES = """
    seven = Constant <value_ints = [7]> ()
    two = Constant <value_ints = [2]> ()
    none = Constant <value_int = 0> ()
    size = Size (b)
    sh = Shape (b)
    product = ReduceProd <keepdims = 0> (sh)
    nn = Squeeze (n, zero)
    empty = Equal (nn, none)
    filled = Greater (nn, none)
    ones = Cast <to = 7> (mask)
    total = ReduceSum <keepdims = 0> (ones)
    any = ReduceMax <keepdims = 0> (ones)
"""

NOTHING = "then_branch = nothing () => (float[p,4] y) { y = Slice (x, zero, zero, zero) }"
SOMETHING = "else_branch = something () => (float[q,4] z) { z = Neg (b) }"
INVERTED = (
    "then_branch = something () => (float[q,4] z) { z = Neg (b) }, "
    "else_branch = nothing () => (float[p,4] y) { y = Slice (x, zero, zero, zero) }"
)


def _if(condition: str, branches: str = f"{NOTHING}, {SOMETHING}") -> str:
    return f"{condition} o = If (c) <{branches}>"


EMPTY = {
    "no rows": "c = Identity (empty)",
    "no elements": "c = Equal (size, none)",
    "the product of the shape": "e = Equal (product, none) c = Cast <to = 9> (e)",
    "a length of the shape": ("g1 = Gather (sh, none) c = Equal (g1, none)"),
    "the first of the shape": "g1 = Slice (sh, zero, one) g2 = Squeeze (g1) c = Equal (g2, none)",
    "fewer than one": "w = Squeeze (one, zero) c = Less (nn, w)",
    "at most none": "c = LessOrEqual (nn, none)",
    "not above none": "c = Not (filled)",
    "not not": "e = Not (empty) c = Not (e)",
    "as a number": "e = Cast <to = 7> (empty) c = Cast <to = 9> (e)",
    "as a number, compared": "e = Cast <to = 7> (empty) w = Squeeze (one, zero) c = Equal (e, w)",
    "a number, inverted": "e = Cast <to = 9> (nn) c = Not (e)",
    "of a multiple": "five0 = Squeeze (five, zero) e = Mul (nn, five0) c = Equal (e, none)",
    "no element of the mask": "c = Equal (total, none)",
    "not any element of the mask": "e = Cast <to = 9> (any) c = Not (e)",
    "as a vector of one": "c = Equal (n, zero)",
    "no rows among the best": "zb = Shape <start = 0, end = 1> (bb) c = Equal (zb, zero)",
}

FILLED = {
    "rows": "c = Identity (filled)",
    "at least one": "w = Squeeze (one, zero) c = GreaterOrEqual (nn, w)",
    "some elements": "c = Greater (size, none)",
    "not none": "c = Not (empty)",
    "any element of the mask": "c = Cast <to = 9> (any)",
    "elements of the mask": "c = Greater (total, none)",
}

REFUSED = {
    "data": "w = ReduceMax <keepdims = 0> (s) c = Greater (w, half)",
    "many rows": "w = Squeeze (five, zero) c = Greater (nn, w)",
    "exactly two rows": "w = Squeeze (two, zero) c = Equal (nn, w)",
    "an unrelated number": (
        "h = Constant <value_float = 0.7> () m2 = Greater (s, h) z2 = NonZero (m2) "
        "s2 = Size (z2) c = Equal (s2, none)"
    ),
}

REFUSED_BRANCHES = {
    "a row where there is none": "then_branch = nothing () => (float[p,4] y) "
    "{ y = Slice (x, zero, one, zero) }, " + SOMETHING,
    "other columns": "then_branch = nothing () => (float[p,3] y) "
    "{ w = Slice (x, zero, zero, zero) h = Constant <value_ints = [3]> () "
    "y = Slice (w, zero, h, one) }, else_branch = something () => (float[q,4] z) { z = Neg (b) }",
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_condition_is_refused(name: str) -> None:
    model = program(BRANCHES + _if(REFUSED[name]), "float[m,4] o")
    refuses(model, "n_o", "ai.onnx::If")


@pytest.mark.parametrize("name", REFUSED_BRANCHES)
def test_another_result_without_rows_is_refused(name: str) -> None:
    model = program(BRANCHES + _if(EMPTY["no rows"], REFUSED_BRANCHES[name]), "float[m,k] o")
    refuses(model, "n_o", "ai.onnx::If", "output 0")


def test_a_number_that_is_not_zero_without_rows_is_refused() -> None:
    branches = (
        "then_branch = nothing () => (int64 y) { y = Constant <value_int = -1> () }, "
        "else_branch = something () => (int64 z) { z = Identity (nn) }"
    )
    refuses(program(BRANCHES + _if(EMPTY["no rows"], branches), "int64 o"), "ai.onnx::If")


def test_data_in_both_branches_is_refused() -> None:
    branches = (
        "then_branch = nothing () => (float y) { y = Constant <value_float = 0.0> () }, "
        "else_branch = something () => (float z) { z = ReduceMax <keepdims = 0> (t) }"
    )
    refuses(program(BRANCHES + _if(EMPTY["no rows"], branches), "float o"), "ai.onnx::If")


@pytest.mark.parametrize("name", EMPTY)
def test_the_branch_for_rows_is_taken(name: str) -> None:
    static = holds(program(BRANCHES + _if(EMPTY[name]), "float[m,4] o"))
    (guard,) = [f for f in static.findings if f.what.startswith("remove-empty-if")]
    assert guard.node == "n_o"
    assert guard.changed


@pytest.mark.parametrize("name", FILLED)
def test_the_inverted_guard(name: str) -> None:
    holds(program(BRANCHES + _if(FILLED[name], INVERTED), "float[m,4] o"))


def test_a_decided_condition_takes_its_branch() -> None:
    body = """
        w = Shape (x) h = Gather (w, none) lim = Constant <value_int = 100> () c = Less (h, lim)
    """
    static = holds(program(BRANCHES + _if(body, INVERTED), "float[m,4] o"))
    assert any("always true" in f.what for f in static.findings)


def test_a_bound_decides() -> None:
    body = "lim = Constant <value_int = 13> () c = Less (nn, lim)"
    holds(program(BRANCHES + _if(body, INVERTED), "float[m,4] o"))


def test_several_outputs_and_outer_values() -> None:
    branches = (
        "then_branch = nothing () => (float[p,4] y, int64 y2, int64[p] y3, float[p,4] y4) "
        "{ y = Slice (x, zero, zero, zero) y2 = Constant <value_int = 0> () "
        "y3 = Slice (i, zero, zero, zero) y4 = Identity (bb) }, "
        "else_branch = something () => (float[q,4] z, int64 z2, int64[q] z3, float[q,4] z4) "
        "{ z = Identity (b) z2 = Identity (nn) z3 = Add (k, one) z4 = Neg (bb) }"
    )
    body = f"{EMPTY['no rows']} o, o2, o3, o4 = If (c) <{branches}>"
    outputs = "float[m,4] o, int64 o2, int64[m] o3, float[r,4] o4"
    holds(program(BRANCHES + body, outputs))


def test_outer_values_passed_through_both_branches() -> None:
    branches = (
        "then_branch = nothing () => (float[p,4] y) { y = Identity (b) }, "
        "else_branch = something () => (float[q,4] z) { z = Identity (b) }"
    )
    holds(program(BRANCHES + _if(EMPTY["no rows"], branches), "float[m,4] o"))


def test_constants_returned() -> None:
    branches = (
        "then_branch = nothing () => (int64[p] y) { y = Constant <value = int64[0] {}> () }, "
        "else_branch = something () => (int64[q] z) { z = Identity (bk) }"
    )
    holds(program(BRANCHES + _if(EMPTY["no rows"], branches), "int64[m] o"))


def test_nested() -> None:
    inner = (
        "z9 = Shape <start = 0, end = 1> (bb) c9 = Equal (z9, zero) "
        "z = If (c9) <then_branch = inner_nothing () => (float[p,4] y9) "
        "{ y9 = Slice (x, zero, zero, zero) }, "
        "else_branch = inner_something () => (float[q,4] w9) { w9 = Neg (bb) }>"
    )
    branches = f"{NOTHING}, else_branch = something () => (float[q,4] z) {{ {inner} }}"
    static = holds(program(BRANCHES + _if(EMPTY["no rows"], branches), "float[m,4] o"))
    assert sum(f.what.startswith("remove-empty-if") for f in static.findings) == 2


def test_equal_names_in_both_branches() -> None:
    branches = (
        "then_branch = nothing () => (float[p,4] y) { v = Slice (x, zero, zero, zero) "
        "y = Neg (v) }, else_branch = something () => (float[q,4] y) { v = Abs (b) y = Neg (v) }"
    )
    holds(program(BRANCHES + _if(EMPTY["no rows"], branches), "float[m,4] o"))


LOOP = """
    rounds = Constant <value_int = 3> ()
    go = Constant <value = bool {1}> ()
    start = Clip (s, half)
"""

LOOPS_REFUSED = {
    "as many rounds as rows": "nn = Squeeze (n, zero) o, sc = Loop (nn, go, start) "
    "<body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2, float[12] u) "
    "{ c2 = Identity (c) a2 = Neg (a) u = Identity (a) }>",
    "until the data says so": "o, sc = Loop (rounds, go, start) "
    "<body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2, float[12] u) "
    "{ w = ReduceMax <keepdims = 0> (a) c2 = Less (w, half) a2 = Neg (a) u = Identity (a) }>",
    "too many rounds": "lots = Constant <value_int = 100000> () o, sc = Loop (lots, go, start) "
    "<body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2, float[12] u) "
    "{ c2 = Identity (c) a2 = Neg (a) u = Identity (a) }>",
}


@pytest.mark.parametrize("name", LOOPS_REFUSED)
def test_another_loop_is_refused(name: str) -> None:
    model = program(LOOP + LOOPS_REFUSED[name], "float[12] o, float[a,12] sc")
    refuses(model, "n_o", "ai.onnx::Loop")


def test_a_loop_of_constant_rounds() -> None:
    body = (
        "o, sc = Loop (rounds, go, start) "
        "<body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2, float[12] u) "
        "{ c2 = Identity (c) f = Cast <to = 1> (r) a2 = Add (a, f) u = Mul (a, f) }>"
    )
    static = holds(program(LOOP + body, "float[12] o, float[3,12] sc"))
    assert any("3 rounds" in finding.what for finding in static.findings)


def test_a_loop_that_ends_by_its_condition() -> None:
    body = """
        zero0 = Constant <value_int = 0> () limit = Constant <value_int = 3> ()
        forever = Constant <value_int = 9223372036854775807> ()
        c0 = Less (zero0, limit)
        j, o, sc = Loop (forever, c0, zero0, start)
        <body = body (int64 r, bool c, int64 j0, float[12] a) =>
            (bool c2, int64 j1, float[12] a2, float[12] u)
        { inc = Constant <value_int = 1> () j1 = Add (j0, inc) c2 = Less (j1, limit)
          f = Cast <to = 1> (j0) a2 = Add (a, f) u = Mul (a, f) }>
    """
    static = holds(program(LOOP + body, "int64 j, float[12] o, float[3,12] sc"))
    assert any("3 rounds" in finding.what for finding in static.findings)


def test_a_loop_that_does_not_begin() -> None:
    body = (
        "never = Constant <value = bool {0}> () o = Loop (rounds, never, start) "
        "<body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2) "
        "{ c2 = Identity (c) a2 = Neg (a) }>"
    )
    holds(program(LOOP + body, "float[12] o"))


@pytest.mark.slow
def test_loops_in_loops_have_an_end() -> None:
    inner = (
        "<body = deep (int64 r{0}, bool c{0}, float[12] a{0}) => (bool d{0}, float[12] e{0}) "
        "{{ d{0} = Identity (c{0}) {1} }}>"
    )
    body = "e3 = Neg (a3) " + " ".join(f"w{k} = Abs (a3)" for k in range(8))
    for k in (3, 2, 1):
        body = f"e{k - 1} = Loop (lots, go, a{k - 1}) " + inner.format(k, body)
    body = body.replace("e0 = ", "o = ").replace("a0)", "start)")
    model = program(LOOP + "lots = Constant <value_int = 200> () " + body, "float[12] o")
    refuses(model, "50000 nodes")


def test_a_loop_over_classes_joins_rows() -> None:
    """Each round selects rows of its class and puts them behind those before."""
    body = """
        first = Slice (x, zero, zero, zero)
        o = Loop (rounds, go, first)
        <body = body (int64 r, bool c, float[p,4] acc) => (bool c2, float[q,4] acc2)
        { c2 = Identity (c) three = Constant <value_int = 3> () cl = Mod (i, three)
          mine = Equal (cl, r) both = And (mine, mask) z = NonZero (both) j = Squeeze (z, zero)
          rows = Gather <axis = 0> (x, j) acc2 = Concat <axis = 0> (acc, rows) }>
    """
    holds(program(LOOP + body, "float[m,4] o"))


def test_a_loop_that_collects_rows_of_one_selection() -> None:
    body = """
        o, sc = Loop (rounds, go, start)
        <body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2, float[m] u)
        { c2 = Identity (c) a2 = Identity (a) f = Cast <to = 1> (r) u = Add (t, f) }>
    """
    holds(program(LOOP + body, "float[12] o, float[3,m] sc"))


def test_a_loop_that_collects_different_selections_is_refused() -> None:
    body = """
        o, sc = Loop (rounds, go, start)
        <body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2, float[m] u)
        { c2 = Identity (c) a2 = Identity (a) f = Cast <to = 1> (r) w = Greater (s, f)
          u = Compress <axis = 0> (s, w) }>
    """
    refuses(program(LOOP + body, "float[12] o, float[3,m] sc"), "n_o", "different number")


def test_a_loop_without_a_condition() -> None:
    body = (
        "o = Loop (rounds, , start) "
        "<body = body (int64 r, bool c, float[12] a) => (bool c2, float[12] a2) "
        "{ c2 = Identity (go) a2 = Add (a, a) }>"
    )
    holds(program(LOOP + body, "float[12] o"))


def test_scan_is_refused_by_name() -> None:
    body = """
        o = Scan <num_scan_inputs = 1, body = step (float[4] e) => (float[4] f) { f = Neg (e) }> (b)
    """
    refuses(program(body, "float[m,4] o"), "n_o", "ai.onnx::Scan")


def test_a_body_without_rows_is_refused_too() -> None:
    body = """
        o = Scan <num_scan_inputs = 1, body = step (float[4] e) => (float[4] f) { f = Neg (e) }> (x)
    """
    refuses(program(body, "float[12,4] o"), "n_o", "ai.onnx::Scan", "body")


def test_unique_is_refused_by_name() -> None:
    refuses(program("o = Unique (l)", "int64[m] o"), "n_o", "ai.onnx::Unique")
    refuses(program("o = Unique (i)", "int64[m] o"), "n_o", "ai.onnx::Unique")


def test_another_domain_is_refused_by_name() -> None:
    model = program("o = Neg (b)", "float[m,4] o")
    model.graph.node[-1].domain = "com.example"
    refuses(model, "n_o", "com.example::Neg")


def test_the_taken_branch_costs_what_it_holds() -> None:
    plain = holds(program("o = Neg (b)", "float[m,4] o"))
    guarded = holds(program(BRANCHES + _if(EMPTY["no rows"]), "float[m,4] o"))
    assert operators(plain) == operators(guarded)
