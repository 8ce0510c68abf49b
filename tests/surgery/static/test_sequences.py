"""Sequences of tensors, as TorchScript's lists are exported."""

import pytest

from tests.surgery.static.held import holds, operators, program, refuses

EXTRA = """
    p0 = Constant <value_int = 0> ()
    p1 = Constant <value_int = 1> ()
    m1 = Constant <value_int = -1> ()
    three = Constant <value_int = 3> ()
    go = Constant <value = bool {1}> ()
    sizes = Constant <value_ints = [5, 7]> ()
    nothing = SequenceEmpty <dtype = 1> ()
    two = SequenceConstruct (t, bt)
"""

REFUSED = {
    "a place that is data": (
        "w = Slice (i, zero, one) v = Squeeze (w, zero) o = SequenceAt (two, v)",
        "float[m] o",
        ("n_o", "SequenceAt", "place"),
    ),
    "a place behind the last": (
        "o = SequenceAt (two, three)",
        "float[m] o",
        ("n_o", "SequenceAt", "place 3"),
    ),
    "nothing joined": (
        "o = ConcatFromSequence <axis = 0> (nothing)",
        "float[m] o",
        ("n_o", "ConcatFromSequence", "no tensors"),
    ),
    "as many tensors as rows": (
        "q = SplitToSequence <axis = 0> (t) o = ConcatFromSequence <axis = 0> (q)",
        "float[m] o",
        ("n_q", "SplitToSequence", "as many tensors"),
    ),
    "another reader": ("o = Identity (two)", "seq(float[m]) o", ("n_o", "Identity", "sequence")),
    "a sequence returned": ("o = SequenceInsert (two, t)", "seq(float[m]) o", ("'o'", "sequence")),
    "no sequence": ("o = SequenceAt (t, p0)", "float[m] o", ("n_o", "not a sequence")),
}

HELD = {
    "joined": ("o = ConcatFromSequence <axis = 0> (two)", "float[m] o"),
    "inserted": (
        "a = SequenceInsert (nothing, t) c = SequenceInsert (a, bt) d = SequenceInsert (c, s, p0) "
        "o = ConcatFromSequence <axis = 0> (d)",
        "float[m] o",
    ),
    "inserted before the last": (
        "a = SequenceInsert (two, s, m1) o = ConcatFromSequence <axis = 0> (a)",
        "float[m] o",
    ),
    "taken out": (
        "a = SequenceErase (two, p0) o = SequenceAt (a, p0) c = SequenceErase (two) "
        "q = SequenceAt (c, m1)",
        "float[m] o, float[r] q",
    ),
    "at a place": ("o = SequenceAt (two, p1) q = SequenceAt (two, m1)", "float[m] o, float[r] q"),
    "counted": ("w = SequenceLength (two) o = Unsqueeze (w, zero)", "int64[1] o"),
    "stacked": (
        "u = Neg (t) q = SequenceConstruct (t, u) "
        "o = ConcatFromSequence <axis = 0, new_axis = 1> (q) "
        "p = ConcatFromSequence <axis = -1, new_axis = 1> (q)",
        "float[2,m] o, float[r,2] p",
    ),
    "split and joined": (
        "q = SplitToSequence <axis = 0> (s, sizes) a = SequenceAt (q, p1) o = Neg (a)",
        "float[7] o",
    ),
    "split into equal parts": (
        "q = SplitToSequence <axis = 0> (x, three) o = SequenceAt (q, p1) "
        "r = SplitToSequence <axis = 0> (s, five0) w = SequenceAt (r, m1)",
        "float[3,4] o, float[2] w",
    ),
    "split into single ones": (
        "q = SplitToSequence <axis = 0> (x) o = SequenceAt (q, p1) "
        "r = SplitToSequence <axis = 0, keepdims = 0> (x) w = SequenceAt (r, p1)",
        "float[1,4] o, float[4] w",
    ),
    "split into single ones by size": (
        "q = SplitToSequence <axis = 1, keepdims = 0> (b, p1) o = SequenceAt (q, p1) "
        "r = SplitToSequence <axis = 1> (b, p1) w = SequenceAt (r, p1) "
        "e = SplitToSequence <axis = 0, keepdims = 0> (s, sizes) f = SequenceAt (e, p0)",
        "float[m] o, float[r1,1] w, float[5] f",
    ),
    "columns of rows": (
        "q = SplitToSequence <axis = 1, keepdims = 0> (b) o = SequenceAt (q, p1)",
        "float[m] o",
    ),
    "collected in a loop": (
        """
        o0 = Loop (three, go, nothing)
        <body = body (int64 r, bool c, seq(float[p,4]) acc) => (bool c2, seq(float[q,4]) acc2)
        { c2 = Identity (c) cl = Mod (i, three) mine = Equal (cl, r) sel = And (mine, mask)
          z = NonZero (sel) j = Squeeze (z, zero) found = Gather <axis = 0> (x, j)
          acc2 = SequenceInsert (acc, found) }>
        o = ConcatFromSequence <axis = 0> (o0)
        """,
        "float[m,4] o",
    ),
    "of a guard": (
        """
        c = Equal (n, zero)
        q = If (c)
        <then_branch = none () => (seq(float[p]) y) { e = Slice (s, zero, zero)
          y = SequenceConstruct (e) },
         else_branch = some () => (seq(float[q]) w) { w = SequenceConstruct (t) }>
        o = ConcatFromSequence <axis = 0> (q)
        """,
        "float[m] o",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(EXTRA + body, outputs), *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    prelude = "five0 = Constant <value_int = 5> () " + EXTRA
    static = holds(program(prelude + body, outputs))
    assert not any("Sequence" in op_type for op_type in operators(static))


def test_a_guard_of_another_number_of_tensors_is_refused() -> None:
    body = """
        c = Equal (n, zero)
        q = If (c)
        <then_branch = none () => (seq(float[p]) y) { y = SequenceEmpty <dtype = 1> () },
         else_branch = some () => (seq(float[q]) w) { w = SequenceConstruct (t) }>
        o = ConcatFromSequence <axis = 0> (q)
    """
    refuses(program(EXTRA + body, "float[m] o"), "n_q", "ai.onnx::If", "0 tensors")
