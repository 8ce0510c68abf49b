"""NonMaxSuppression becomes StaticNMS."""

import numpy as np
import pytest

from bridge import static_nms
from tests.surgery.static.held import INPUTS, Feeds, feeds, holds, program, refuses

SETUP = """
    limit = Constant <value_ints = [100]> ()
    none = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [2]> ()
    iou = Constant <value_floats = [0.3]> ()
    low = Constant <value_floats = [0.6]> ()
    both = Constant <value_ints = [0, 1]> ()
    bx = Unsqueeze (b, zero)
    sc = Unsqueeze (t, both)
    pad2 = Constant <value_ints = [1, 2, 1]> ()
    c3 = Constant <value = float[3,1] {1.0, 0.9, 1.1}> ()
    tt = Unsqueeze (t, zero)
    tc = Mul (c3, tt)
    sc3 = Unsqueeze (tc, zero)
"""

REFUSED = {
    "a maximum known at run time": (
        "h = Slice (i, zero, one) o = NonMaxSuppression (bx, sc, h, iou)",
        INPUTS,
        ("max_output_boxes_per_class", "--freeze"),
    ),
    "an overlap known at run time": (
        "o = NonMaxSuppression (bx, sc, limit, q)",
        INPUTS + ", float[1] q",
        ("iou_threshold", "--freeze"),
    ),
    "a threshold known at run time": (
        "o = NonMaxSuppression (bx, sc, limit, iou, q)",
        INPUTS + ", float[1] q",
        ("score_threshold", "--freeze"),
    ),
    "images by rows": (
        "bi = Unsqueeze (b, one) si = Unsqueeze (t, both) sj = Transpose <perm = [2, 1, 0]> (si) "
        "o = NonMaxSuppression (bi, sj, limit, iou)",
        INPUTS,
        ("images or classes",),
    ),
    "a maximum by count for several classes": (
        "h = Min (n, two) o = NonMaxSuppression (bx, sc3, h, iou)",
        INPUTS,
        ("per class", "number of rows"),
    ),
}

HELD = {
    "rows": "o = NonMaxSuppression (bx, sc, limit, iou)",
    "rows above a threshold": "o = NonMaxSuppression (bx, sc, limit, iou, low)",
    "a maximum that cuts": "o = NonMaxSuppression (bx, sc, two, iou)",
    "a maximum of none": "o = NonMaxSuppression (bx, sc, none, iou)",
    "no maximum": "o = NonMaxSuppression (bx, sc)",
    "no overlap allowed": "o = NonMaxSuppression (bx, sc, limit)",
    "classes": "o = NonMaxSuppression (bx, sc3, two, iou)",
    "centres": "o = NonMaxSuppression <center_point_box = 1> (bx, sc, limit, iou)",
    "a maximum by count": "h = Min (n, two) o = NonMaxSuppression (bx, sc, h, iou)",
    "a maximum of half the rows": "h = Div (n, two) o = NonMaxSuppression (bx, sc, h, iou)",
    "a maximum as large as the rows": "o = NonMaxSuppression (bx, sc, n, iou)",
    "a maximum as large as the rows, classes": "o = NonMaxSuppression (bx, sc3, n, iou)",
    "the best": (
        "ba = Unsqueeze (bb, zero) bs = Unsqueeze (bt, both) "
        "o = NonMaxSuppression (ba, bs, limit, iou)"
    ),
    "a column points at rows": (
        "r = NonMaxSuppression (bx, sc, limit, iou) g1 = Gather <axis = 1> (r, two) "
        "h = Squeeze (g1, one) q = Gather <axis = 0> (b, h) ki = Gather <axis = 0> (k, h) "
        "ku = Unsqueeze (ki, one) hu = Unsqueeze (h, one) o = Concat <axis = 1> (ku, hu, hu)"
    ),
    "a second one on the first": (
        "r = NonMaxSuppression (bx, sc, limit, iou) g1 = Gather <axis = 1> (r, two) "
        "h = Squeeze (g1, one) q = Gather <axis = 0> (b, h) v = Gather <axis = 0> (t, h) "
        "q1 = Unsqueeze (q, zero) v1 = Unsqueeze (v, both) tight = Constant <value_floats = "
        "[0.05]> () "
        "o = NonMaxSuppression (q1, v1, two, tight)"
    ),
}


def _clean() -> list[Feeds]:
    """No NaN in what is compared; masked rows still hold what would be selected first."""
    sets: list[Feeds] = []
    for given in feeds():
        rest = ~(given["s"] > 0.5)
        s, x = given["s"].copy(), np.nan_to_num(given["x"])
        x[rest] = [0, 0, 30, 30]
        sets.append(dict(given, s=s, x=x.astype(np.float32)))
    return sets


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, inputs, words = REFUSED[name]
    refuses(program(SETUP + body, "int64[m,3] o", inputs), "n_o", "NonMaxSuppression", *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    static = holds(program(SETUP + HELD[name], "int64[m,3] o"), _clean())
    assert all(call.rows <= 36 for call in static_nms.calls(static.model))


def test_every_absent_input_is_written_down() -> None:
    static = holds(
        program(SETUP + "o = NonMaxSuppression (bx, sc, limit)", "int64[m,3] o"), _clean()
    )
    (call,) = static_nms.calls(static.model)
    assert call.name == "n_o"
    assert call.max_output_boxes_per_class == 12
    assert call.iou_threshold == 0.0
    assert call.score_threshold == -np.inf
    assert not call.center_point_box
    assert call.rows == 12


def test_without_threshold_an_infinite_score_is_excluded() -> None:
    body = "o = NonMaxSuppression (bx, sc, limit, iou)"
    (sentence,) = holds(program(SETUP + body, "int64[m,3] o"), _clean()).assumptions
    assert "n_o" in sentence
    assert "-inf" in sentence


@pytest.mark.parametrize(
    "body",
    [
        "o = NonMaxSuppression (bx, sc, limit, iou, low)",
        "sg = Sigmoid (sc) o = NonMaxSuppression (bx, sg, limit, iou)",
        "sg = Sigmoid (sc) u = Concat <axis = 1> (sg, sg) w = Mul (u, u) "
        "o = NonMaxSuppression (bx, w, limit, iou)",
        "sg = Softmax <axis = 1> (sc3) o = NonMaxSuppression (bx, sg, limit, iou)",
    ],
)
def test_a_threshold_or_bounded_scores_exclude_nothing(body: str) -> None:
    assert holds(program(SETUP + body, "int64[m,3] o"), _clean()).assumptions == ()


def test_thresholds_are_folded() -> None:
    body = """
        a = Constant <value_float = 0.1> () c = Constant <value_float = 0.2> () d = Add (a, c)
        e = Unsqueeze (d, zero) m1 = Constant <value_int = 50> () m2 = Mul (m1, m1)
        h = Unsqueeze (m2, zero) o = NonMaxSuppression (bx, sc, h, e)
    """
    (call,) = static_nms.calls(holds(program(SETUP + body, "int64[m,3] o"), _clean()).model)
    assert call.iou_threshold == pytest.approx(0.3, abs=1e-7)


def test_two_images() -> None:
    body = """
        limit = Constant <value_ints = [3]> () iou = Constant <value_floats = [0.3]> ()
        low = Constant <value_floats = [0.4]> ()
        y = Concat <axis = 0> (x, x) shape = Constant <value_ints = [2, 12, 4]> ()
        bx = Reshape (y, shape) f = Mul (s, half) r = Concat <axis = 0> (s, f)
        c = Constant <value_ints = [2, 1, 12]> () s1 = Reshape (r, c)
        one_less = Constant <value_float = 0.95> () s2 = Mul (s1, one_less)
        sc = Concat <axis = 1> (s2, s1)
        o = NonMaxSuppression (bx, sc, limit, iou, low)
    """
    (call,) = static_nms.calls(holds(program(body, "int64[m,3] o"), _clean()).model)
    assert call.rows == 2 * 2 * 3
