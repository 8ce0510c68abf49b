"""Outputs as tables, and matching rows one to one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bridge.static_model import Rows
from bridge.targets.base import Port
from bridge.verify.rows import Columns, Matching, Table, columns, groups, match, overlaps, table

COUNTED = (Rows(0, "count"),)


def _port(name: str, dtype: str, *shape: int, rows: tuple[Rows, ...] = ()) -> Port:
    padded = {entry.axis for entry in rows}
    source = tuple(None if axis in padded else size for axis, size in enumerate(shape))
    return Port(name, dtype, shape, source, rows=rows)


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (
            [
                _port("boxes", "float32", 9, 4, rows=COUNTED),
                _port("labels", "int64", 9, rows=COUNTED),
                _port("count", "int64", 1),
            ],
            ["boxes/labels"],
        ),
        (
            [
                _port("a", "float32", 9, 4, rows=COUNTED),
                _port("b", "float32", 5, 4, rows=(Rows(0, "other"),)),
                _port("count", "int64", 1),
                _port("other", "int64", 1),
            ],
            ["a", "b"],
        ),
        (
            [
                _port("boxes", "float32", 1, 100, 4),
                _port("scores", "float32", 1, 100),
                _port("number", "int32", 1),
            ],
            ["boxes/scores", "number"],
        ),
        ([_port("scalar", "float32"), _port("raw", "float32", 1, 84, 10)], ["raw", "scalar"]),
        (
            [
                _port("dets", "float32", 1, 9, 5, rows=(Rows(1, "count"),)),
                _port("labels", "int64", 1, 9, rows=(Rows(1, "count"),)),
            ],
            ["dets/labels"],
        ),
    ],
)
def test_outputs_that_share_their_rows_are_one_table(
    ports: list[Port], expected: list[str]
) -> None:
    assert sorted(map(str, groups(ports))) == sorted(expected)


def test_a_table_has_integers_and_floats_side_by_side() -> None:
    ports = [
        _port("dets", "float32", 1, 9, 5, rows=(Rows(1, "count"),)),
        _port("labels", "int64", 1, 9, rows=(Rows(1, "count"),)),
    ]
    dets = np.arange(15, dtype=np.float32).reshape(1, 3, 5)
    made = table(groups(ports)[0], {"dets": dets, "labels": np.array([[7, 8, 9]])})
    np.testing.assert_array_equal(made.values, dets[0])
    np.testing.assert_array_equal(made.exact, [[7], [8], [9]])
    empty = table(groups(ports)[0], {"dets": dets[:, :0], "labels": np.zeros((1, 0), np.int64)})
    assert (len(empty), empty.values.shape) == (0, (0, 5))


def test_columns_are_told_by_what_they_hold() -> None:
    rng = np.random.default_rng(0)
    corners = np.sort(rng.random((50, 2, 2)) * 300, axis=1).reshape(50, 4)
    scores = rng.random((50, 1))
    labels = rng.integers(0, 80, (50, 1))
    joined = Table(np.zeros((50, 0), np.int64), np.hstack([corners, scores, labels]), (6,))
    found = columns([joined])
    assert (found.boxes, found.score) == (0, 4)
    np.testing.assert_array_equal(found.coordinates, [True] * 4 + [False, True])
    fractions = Table(joined.exact, np.hstack([scores, corners / 300]), (1, 4))
    assert (columns([fractions]).boxes, columns([fractions]).score) == (1, 0)
    logits = Table(joined.exact, np.hstack([corners, scores * 20 - 10]), (4, 1))
    assert columns([logits]).score == 4


def test_a_row_of_zeros_is_no_detection() -> None:
    rows = Table(np.zeros((2, 1), np.int64), np.array([[0.0, 0], [0, 0.1]]), (2,))
    np.testing.assert_array_equal(rows.detections(), [False, True])
    indices = Table(np.zeros((2, 3), np.int64), np.zeros((2, 0)), ())
    assert indices.detections().all()


def _floats(values: NDArray[np.float64]) -> Table:
    return Table(np.zeros((len(values), 0), np.int64), values, (values.shape[1],))


def _match(expected: Table, found: Table, limit: float = 1e-4) -> Matching:
    width = expected.values.shape[1]
    kind = Columns(None, None, np.zeros(width, bool), expected.widths)
    return match(expected, found, kind, np.full(width, limit))


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_shuffled_table_matches_whole(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 6, (rows, 2)).astype(np.float64)
    order = rng.permutation(rows)
    found = _match(_floats(values), _floats(values[order] * (1 + 5e-5)))
    assert len(found.pairs) == rows
    assert not found.lost
    assert not found.extra
    np.testing.assert_allclose(found.deviation, 5e-5)
    one, other = found.pairs.T
    np.testing.assert_array_equal(values[one], values[order][other])


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_lost_and_extra_rows_are_named_and_the_others_keep_their_order(
    seed: int, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    values = np.arange(1, rows + 1, dtype=np.float64)[:, None] * 10
    lost = set(rng.choice(rows, rng.integers(0, rows), replace=False).tolist())
    kept = [value for row, value in enumerate(values) if row not in lost]
    extra = int(rng.integers(0, len(kept) + 1))
    found = _match(_floats(values), _floats(np.array([*kept[:extra], [5.0], *kept[extra:]])))
    assert set(found.lost) == lost
    assert found.extra == (extra,)
    assert not found.reordered


@settings(deadline=None)  # the machine may be busy
@given(st.permutations(range(8)))
def test_rows_out_of_order_are_those_outside_a_longest_order(order: list[int]) -> None:
    values = np.arange(1, 9, dtype=np.float64)[:, None] * 10
    found = _match(_floats(values), _floats(values[order]))
    rest = [row for row in order if row not in found.reordered]
    assert rest == sorted(rest)
    if order == sorted(order):
        assert not found.reordered
    else:
        assert found.reordered


def test_every_row_gets_a_partner_where_that_is_possible() -> None:
    """The second row fits the first found row only, which the first row takes at first sight."""
    expected = _floats(np.array([[1.00008], [1.0]]))
    found = _match(expected, _floats(np.array([[1.0], [1.00015]])))
    assert not found.lost
    np.testing.assert_array_equal(found.pairs, [[0, 1], [1, 0]])


def test_integers_must_be_equal() -> None:
    values = np.ones((2, 1))
    one = Table(np.array([[1], [2]]), values, (1,))
    other = Table(np.array([[1], [3]]), values, (1,))
    found = _match(one, other)
    assert (found.lost, found.extra) == ((1,), (1,))


def test_nan_is_equal_to_nan_and_to_nothing_else() -> None:
    rows = np.array([[np.nan], [np.inf], [-np.inf], [1.0]])
    assert not _match(_floats(rows), _floats(rows)).lost
    other = np.array([[1.0], [np.nan], [np.inf], [np.nan]])
    found = _match(_floats(rows), _floats(other))
    assert len(found.pairs) == 3
    assert found.lost == (2,)


def test_one_box_thrown_far_out_makes_no_tolerance_for_the_others() -> None:
    boxes = np.array([[1.0, 1, 2, 2], [3, 3, 4, 4], [0, 0, 1e30, 1e30]])
    moved = boxes.copy()
    moved[0, 0] += 0.01
    kind = Columns(0, None, np.ones(4, bool), (4,))
    found = match(_floats(boxes), _floats(moved), kind, np.full(4, 1e-4))
    assert found.lost == (0,)


def test_overlap_takes_any_two_opposite_corners() -> None:
    one = np.array([[0.0, 0, 2, 2], [5, 5, 5, 9]])
    other = np.array([[2.0, 0, 0, 2], [1, 0, 3, 2], [5, 5, 5, 9]])
    expected = np.array([[1.0, 1 / 3, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(overlaps(one, other), expected)
