"""Objects are read from any outputs, and matched one to one."""

import numpy as np
import pytest
from numpy.typing import ArrayLike

from bridge.detection.boxes import BoxColumns
from bridge.static_model import Rows
from bridge.targets.base import Array, Port
from bridge.verify.objects import Objects, aligned, four_outputs, pair, view

ROOM = 20
COUNTED = (Rows(0, "count"),)


def _objects(boxes: ArrayLike, scores: ArrayLike, labels: ArrayLike) -> Objects:
    classes = np.asarray(labels, np.int64)
    return Objects(
        np.asarray(boxes, np.float64).reshape(-1, 4),
        np.asarray(scores, np.float64),
        classes if classes.ndim == 2 else classes[:, None],
    )


def _truth(seed: int, rows: int = 10) -> Objects:
    rng = np.random.default_rng(seed)
    low = rng.random((rows, 2)) * 200
    boxes = np.hstack([low, low + rng.random((rows, 2)) * 50 + 10]).astype(np.float32)
    scores = np.sort(rng.random(rows).astype(np.float32))[::-1]
    return _objects(boxes, scores, rng.integers(0, 5, rows))


# Matching


def test_objects_equal_themselves() -> None:
    one = _truth(0)
    found = pair(one, one)
    np.testing.assert_array_equal(found.rows[:, 0], found.rows[:, 1])
    np.testing.assert_array_equal(found.overlaps, 1)


BOX, NEAR, NEARER, FAR = [0, 0, 10, 10], [0, 0, 10, 15], [0, 0, 10, 12], [0, 0, 10, 20]


@pytest.mark.parametrize(
    ("expected", "found", "rows"),
    [
        # IoU must exceed 0.5: a box of twice the area does not.
        (_objects([BOX], [0.9], [0]), _objects([FAR], [0.9], [0]), []),
        (_objects([BOX], [0.9], [0]), _objects([NEAR], [0.1], [0]), [(0, 0)]),
        (_objects([BOX], [0.9], [0]), _objects([BOX], [0.9], [1]), []),
        (_objects([BOX], [0.9], [0]), _objects([NEAR, NEARER], [0.9, 0.8], [0, 0]), [(0, 1)]),
        # The best score chooses first, and one partner is nobody else's.
        (_objects([BOX, NEARER], [0.9, 0.8], [0, 0]), _objects([NEARER], [0.9], [0]), [(0, 0)]),
        (_objects([], [], []), _objects([BOX], [0.9], [0]), []),
        (_objects([BOX], [0.9], [0]), _objects([], [], []), []),
        # Another image of the batch is another object.
        (_objects([BOX], [0.9], [[0, 1]]), _objects([BOX], [0.9], [[0, 0]]), []),
    ],
)
def test_pairs(expected: Objects, found: Objects, rows: list[tuple[int, int]]) -> None:
    assert list(map(tuple, pair(expected, found).rows.tolist())) == rows


def test_axes_and_the_class_among_integers_are_what_matches_most() -> None:
    one = _truth(1)
    with_image = Objects(one.boxes, one.scores, np.hstack([0 * one.labels + 7, one.labels]))
    source, found = aligned([with_image], [one.turned()])
    assert len(pair(source[0], found[0]).rows) == len(one)
    source, found = aligned([one], [_truth(2)])
    assert not len(pair(source[0], found[0]).rows)


# Reading


def _read(
    ports: tuple[Port, ...], outputs: dict[str, Array], boxes: BoxColumns | None = None
) -> Objects:
    made = view(ports, [outputs], boxes)
    assert made is not None
    return made.objects(outputs)


def _float(name: str, *inner: int) -> Port:
    return Port(name, "float32", (ROOM, *inner), (None, *inner), rows=COUNTED)


def _same(found: Objects, wanted: Objects) -> None:
    np.testing.assert_allclose(found.boxes, wanted.boxes, rtol=1e-5)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    np.testing.assert_array_equal(found.labels, wanted.labels)


def test_three_outputs_in_any_order_of_rows() -> None:
    one = _truth(3)
    turned = np.random.default_rng(0).permutation(len(one))
    ports = (_float("s"), Port("l", "int64", (ROOM,), (None,), rows=COUNTED), _float("b", 4))
    outputs: dict[str, Array] = {
        "s": one.scores[turned].astype(np.float32),
        "l": one.labels[turned, 0],
        "b": one.boxes[turned].astype(np.float32),
    }
    _same(_read(ports, outputs), one)


def test_centres_and_sizes_become_corners() -> None:
    one = _truth(4)
    centres = np.hstack(
        [(one.boxes[:, :2] + one.boxes[:, 2:]) / 2, one.boxes[:, 2:] - one.boxes[:, :2]]
    )
    outputs: dict[str, Array] = {
        "b": centres.astype(np.float32),
        "s": one.scores.astype(np.float32),
        "l": one.labels[:, 0],
    }
    ports = (_float("b", 4), _float("s"), Port("l", "int64", (ROOM,), (None,), rows=COUNTED))
    _same(_read(ports, outputs), one)


def test_a_packed_table_is_read_where_the_graph_says() -> None:
    """The columns of batch, box, class and score, which no numbers tell apart for sure."""
    one = _truth(5)
    columns = [np.zeros((len(one), 1)), one.boxes, one.labels, one.scores[:, None]]
    packed: dict[str, Array] = {"rows": np.hstack(columns).astype(np.float32)}
    found = _read((_float("rows", 7),), packed, BoxColumns("rows", 7, 1))
    _same(found, Objects(one.boxes, one.scores, np.hstack([0 * one.labels, one.labels])))


def test_a_models_own_padding_is_no_object() -> None:
    one = _truth(6)
    table = np.zeros((1, ROOM, 6), np.float32)
    table[0, : len(one)] = np.hstack([one.boxes, one.scores[:, None], one.labels])
    _same(_read((Port("t", "float32", (1, ROOM, 6), (1, ROOM, 6)),), {"t": table}), one)


def test_images_of_a_batch_are_kept_apart() -> None:
    one, other = _truth(7, ROOM), _truth(8, ROOM)
    tables = [np.hstack([o.boxes, o.scores[:, None], o.labels]) for o in (one, other)]
    ports = (Port("t", "float32", (2, ROOM, 6), (2, ROOM, 6)),)
    found = _read(ports, {"t": np.stack(tables).astype(np.float32)})
    assert sorted(set(found.labels[:, 1].tolist())) == [0, 1]
    assert len(found) == 2 * ROOM


def test_places_of_boxes_are_no_classes() -> None:
    one = _truth(9, ROOM)
    rows = np.hstack([0 * one.labels, one.labels, np.arange(ROOM)[:, None] * 13])
    ports = (
        _float("b", 4),
        _float("s"),
        Port("selected", "int64", (ROOM, 3), (None, 3), rows=COUNTED),
    )
    outputs: dict[str, Array] = {
        "b": one.boxes.astype(np.float32),
        "s": one.scores.astype(np.float32),
        "selected": rows,
    }
    assert _read(ports, outputs).labels.tolist() == rows[:, :2].tolist()


def test_nothing_detected_is_no_objects() -> None:
    outputs: dict[str, Array] = {
        "b": np.zeros((0, 4), np.float32),
        "s": np.zeros(0, np.float32),
        "l": np.zeros(0, np.int64),
    }
    ports = (_float("b", 4), _float("s"), Port("l", "int64", (ROOM,), (None,), rows=COUNTED))
    assert not len(_read(ports, outputs))


def test_outputs_without_boxes_and_scores_are_not_read() -> None:
    indices = Port("i", "int64", (ROOM, 3), (None, 3), rows=COUNTED)
    assert view((indices,), [{"i": np.zeros((2, 3), np.int64)}]) is None
    raw = Port("raw", "float32", (1, 100, 85), (1, 100, 85))
    assert view((raw,), [{"raw": np.ones((1, 100, 85), np.float32)}]) is None


def test_the_four_outputs_are_read_in_their_order() -> None:
    one = _truth(10)
    rows = (Rows(1, "count"),)
    ports = (
        Port("boxes", "float32", (1, ROOM, 4), (1, None, 4), rows=rows),
        Port("classes", "float32", (1, ROOM), (1, None), rows=rows),
        Port("scores", "float32", (1, ROOM), (1, None), rows=rows),
        Port("count", "float32", (1,), (1,)),
    )
    outputs: dict[str, Array] = {
        "boxes": one.turned().boxes[None].astype(np.float32),
        "classes": one.labels.T.astype(np.float32),
        "scores": one.scores[None].astype(np.float32),
        "count": np.array([len(one)], np.float32),
    }
    _same(four_outputs(ports).objects(outputs).turned(), one)
