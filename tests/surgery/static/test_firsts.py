"""A slice of first rows moves up to what makes the rows."""

import pytest

from bridge import static_nms
from bridge.static_model import StaticModel
from tests.surgery.static.held import holds, operators, program, with_rows

SETUP = """
    three = Constant <value_ints = [3]> ()
    two = Constant <value_ints = [2]> ()
    both = Constant <value_ints = [0, 1]> ()
    limit = Constant <value_ints = [100]> ()
    iou = Constant <value_floats = [0.3]> ()
    low = Constant <value_floats = [0.6]> ()
    bx = Unsqueeze (b, zero)
    sc = Unsqueeze (t, both)
    found = NonMaxSuppression (bx, sc, limit, iou, low)
    col = Gather <axis = 1> (found, two)
    keep = Squeeze (col, one)
"""

# The rows behind the suppression, as exporters write them; each is cut to three rows.
TAILS = {
    "positions": "r = Identity (keep)",
    "rows": "r = Gather <axis = 0> (b, keep)",
    "columns": "g1 = Gather <axis = 0> (b, keep) g2 = Gather <axis = 0> (t, keep) "
    "g3 = Unsqueeze (g2, one) r = Concat <axis = 1> (g1, g3)",
    "computed rows": "g1 = Gather <axis = 0> (b, keep) r = Mul (g1, half)",
    "rows on another axis": "g1 = Gather <axis = 1> (bx, keep) r = Squeeze (g1, zero)",
    "a slice of columns": "c2 = Slice (found, two, limit, one) r = Reshape (c2, minus)",
    "turned rows": "g1 = Gather <axis = 0> (b, keep) g2 = Transpose <perm = [1, 0]> (g1) "
    "r = Transpose <perm = [1, 0]> (g2)",
    "some columns": "g1 = Gather <axis = 0> (b, keep) r = Slice (g1, one, limit, one)",
    "an axis more": "g1 = Gather <axis = 0> (b, keep) r0 = Unsqueeze (g1, two) "
    "r = Squeeze (r0, two)",
}

SHAPES = {"positions": "int64[m]", "a slice of columns": "int64[m]", "columns": "float[m,5]"}


def _suppressions(static: StaticModel) -> list[int]:
    return [call.rows for call in static_nms.calls(static.model)]


@pytest.mark.parametrize("name", TAILS)
def test_a_suppression_ends_after_the_rows_that_are_kept(name: str) -> None:
    shape = SHAPES.get(name, "float[m,3]" if name == "some columns" else "float[m,4]")
    body = f"minus = Constant <value_ints = [-1]> () {TAILS[name]} o = Slice (r, zero, three, zero)"
    static = holds(program(SETUP + body, f"{shape} o"))
    (call,) = static_nms.calls(static.model)
    assert call.rows == 3
    assert call.max_output_boxes_per_class == 3
    assert call.name == "n_found"


def test_so_does_the_cap() -> None:
    static = holds(
        program(SETUP + TAILS["rows"] + " o = Neg (r)", "float[m,4] o"), max_detections=3
    )
    assert _suppressions(static) == [3]


def test_not_where_all_rows_are_needed_too() -> None:
    body = TAILS["rows"] + " o = Slice (r, zero, three, zero) p = ReduceMax <axes = [0]> (r)"
    static = holds(program(SETUP + body, "float[m,4] o, float[1,4] p"), with_rows())
    assert _suppressions(static) == [12]


def test_not_where_the_number_of_all_rows_is_needed() -> None:
    body = TAILS["rows"] + " o = Slice (r, zero, three, zero) p = Shape <start = 0, end = 1> (r)"
    static = holds(program(SETUP + body, "float[m,4] o, int64[1] p"))
    assert _suppressions(static) == [12]


def test_not_where_rows_are_brought_into_another_order() -> None:
    body = """
        r = Gather <axis = 0> (t, keep) m0 = Shape (r) v, j = TopK <axis = 0, largest = 0> (r, m0)
        p = Gather <axis = 0> (keep, j) o = Slice (p, zero, three, zero)
    """
    static = holds(program(SETUP + body, "int64[m] o"))
    assert _suppressions(static) == [12]


def test_classes_are_suppressed_in_order() -> None:
    body = """
        c2 = Constant <value = float[1,2,1] {1.0, 0.95}> () s2 = Mul (sc, c2)
        found2 = NonMaxSuppression (bx, s2, limit, iou, low) o = Slice (found2, zero, three, zero)
    """
    static = holds(program(SETUP + body, "int64[m,3] o"))
    assert _suppressions(static) == [3]


def test_a_sort_becomes_a_selection_of_the_best() -> None:
    body = """
        v, j = TopK <axis = 0> (u01, n) p = Gather <axis = 0> (b, j)
        q = Slice (p, zero, three, zero) w = Slice (v, zero, three, zero)
    """
    static = holds(program(SETUP + body, "float[m,4] q, float[m] w"))
    (node,) = [node for node in static.model.graph.node if node.op_type == "TopK"]
    sizes = {t.name: t for t in static.model.graph.initializer}
    assert list(sizes[node.input[1]].int64_data) == [3] or sizes[node.input[1]].raw_data[0] == 3


def test_a_slice_of_a_slice() -> None:
    body = "r = Slice (bb, one, limit, zero) o = Slice (r, zero, two, zero)"
    holds(program(SETUP + body, "float[m,4] o"))


def test_rows_behind_others() -> None:
    body = "h = Constant <value_floats = [1., 2.]> () r = Concat <axis = 0> (h, bt) "
    holds(program(SETUP + body + "o = Slice (r, zero, three, zero)", "float[m] o"))


def test_behind_gathered_rows_the_axis_is_another() -> None:
    body = """
        u = Unsqueeze (t, one) v = Unsqueeze (bt, zero) d = Sub (u, v)
        r = Gather <axis = 0> (d, bk) o = Slice (r, zero, three, one)
    """
    holds(program(SETUP + body, "float[m,r1] o"))


def test_along_columns_a_slice_of_rows_leaves_topk_alone() -> None:
    body = "v, j = TopK <axis = 1> (bb, two) o = Slice (v, zero, three, zero)"
    static = holds(program(SETUP + body, "float[m,2] o"), with_rows())
    assert "Slice" in operators(static)


def test_scattered_rows_are_compacted_as_far_as_needed() -> None:
    body = "three = Constant <value_ints = [3]> () o = Slice (b, zero, three, zero)"
    static = holds(program(body, "float[m,4] o"))
    assert "Slice" not in operators(static)
