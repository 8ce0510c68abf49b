"""Detections are found and compared whatever columns and order they come in."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bridge.static_model import Rows
from bridge.targets.base import Array, Port
from bridge.verify.detections import Reading, difference, of_postprocess, readings

COUNTED = (Rows(0, "count"),)
ROOM = 8

MADE = (
    Port("boxes", "float32", (1, ROOM, 4), (1, None, 4), rows=(Rows(1, "count"),)),
    Port("classes", "float32", (1, ROOM), (1, None), rows=(Rows(1, "count"),)),
    Port("scores", "float32", (1, ROOM), (1, None), rows=(Rows(1, "count"),)),
    Port("count", "float32", (1,), (1,)),
)


def _truth(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Boxes x1, y1, x2, y2, distinct scores, classes; six of each."""
    rng = np.random.default_rng(seed)
    low = rng.random((6, 2)) * 200
    boxes = np.hstack([low, low + rng.random((6, 2)) * 50 + 1]).astype(np.float32)
    scores = ((rng.permutation(6) + 1) / 7).astype(np.float32)
    return boxes, scores, rng.integers(0, 5, 6)


def _postprocess(seed: int) -> dict[str, Array]:
    boxes, scores, labels = _truth(seed)
    order = np.argsort(-scores)
    return {
        "boxes": boxes[order][:, [1, 0, 3, 2]][None],
        "classes": labels[order][None].astype(np.float32),
        "scores": scores[order][None],
        "count": np.array([6], np.float32),
    }


type Outputs = tuple[tuple[Port, ...], dict[str, Array]]


def _three_outputs(seed: int) -> Outputs:
    boxes, scores, labels = _truth(seed)
    ports = (
        Port("b", "float32", (ROOM, 4), (None, 4), rows=COUNTED),
        Port("s", "float32", (ROOM,), (None,), rows=COUNTED),
        Port("l", "int64", (ROOM,), (None,), rows=COUNTED),
    )
    return ports, {"b": boxes, "s": scores, "l": labels}


def _joined(seed: int) -> Outputs:
    boxes, scores, labels = _truth(seed)
    ports = (Port("dets", "float32", (ROOM, 6), (None, 6), rows=COUNTED),)
    return ports, {"dets": np.hstack([boxes, scores[:, None], labels[:, None]]).astype(np.float32)}


def _turned(seed: int) -> Outputs:
    """Class and score first, corners reversed."""
    boxes, scores, labels = _truth(seed)
    ports = (Port("dets", "float32", (ROOM, 6), (None, 6), rows=COUNTED),)
    turned = boxes[:, [2, 3, 0, 1]]
    return ports, {"dets": np.hstack([labels[:, None], scores[:, None], turned]).astype(np.float32)}


def _centres(seed: int) -> Outputs:
    ports, outputs = _three_outputs(seed)
    boxes = outputs["b"].astype(np.float64)
    centres = np.hstack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]])
    return ports, outputs | {"b": centres.astype(np.float32)}


def _padded_by_itself(seed: int) -> Outputs:
    ports, outputs = _joined(seed)
    dets = np.zeros((1, 10, 6), np.float32)
    dets[0, :6] = outputs["dets"]
    del ports
    return (Port("dets", "float32", (1, 10, 6), (1, 10, 6)),), {"dets": dets}


def _wrong(reading: Reading, made: list[dict[str, Array]], runs: list[dict[str, Array]]) -> str:
    limit = 1e-5 if reading.centres else 0.0
    for one, run in zip(made, runs, strict=True):
        text = difference(reading.table(run), of_postprocess(MADE).table(one), ROOM, limit)
        if text:
            return text
    return ""


FORMS = [_three_outputs, _joined, _turned, _centres, _padded_by_itself]


@pytest.mark.parametrize("form", FORMS)
def test_the_same_detections_are_recognised(form: Callable[[int], Outputs]) -> None:
    ports, _ = form(0)
    runs = [form(seed)[1] for seed in range(4)]
    made = [_postprocess(seed) for seed in range(4)]
    assert any(not _wrong(reading, made, runs) for reading in readings(ports, runs))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", ["lost", "moved", "other class", "other score", "other image"])
def test_other_detections_fit_no_reading(form: Callable[[int], Outputs], fault: str) -> None:
    ports, _ = form(0)
    runs = [form(seed)[1] for seed in range(4)]
    made = [_postprocess(seed) for seed in range(4)]
    match fault:
        case "lost":
            made[2] = {name: array[:, :5] for name, array in made[2].items() if array.ndim > 1}
        case "moved":
            made[2]["boxes"] = made[2]["boxes"].astype(np.float32) + np.float32(0.01)
        case "other class":
            made[2]["classes"] = made[2]["classes"].astype(np.float32) + np.float32(1)
        case "other score":
            made[2]["scores"] = made[2]["scores"].astype(np.float32) * np.float32(1 + 1e-6)
        case "other image":
            made[2] = _postprocess(9)
    assert all(_wrong(reading, made, runs) for reading in readings(ports, runs))


def test_which_of_equal_scores_fit_is_left_open_where_there_is_no_more_room() -> None:
    group = of_postprocess(MADE)
    boxes = np.arange(40, dtype=np.float32).reshape(1, 10, 4)
    scores = np.array([[0.9, 0.8] + [0.5] * 8], np.float32)
    whole = {"boxes": boxes, "scores": scores, "classes": np.zeros((1, 10), np.float32)}
    first = {name: array[:, :8] for name, array in whole.items()}
    last = {
        name: np.roll(array, -2, axis=1)[:, [8, 9, *range(2, 8)]] for name, array in whole.items()
    }
    for cut in (first, last):
        assert not difference(group.table(whole), group.table(cut), 8, 0.0)
    better = dict(first)
    better["boxes"] = first["boxes"].copy()
    better["boxes"][0, 1] += 1
    assert "boxes" in difference(group.table(whole), group.table(better), 8, 0.0)
    fewer = {name: array[:, :7] for name, array in first.items()}
    assert "has 7 detections" in difference(group.table(whole), group.table(fewer), 8, 0.0)


def test_outputs_without_boxes_or_scores_have_no_reading() -> None:
    ports = (Port("kept", "int64", (ROOM, 3), (None, 3), rows=COUNTED),)
    assert not list(readings(ports, [{"kept": np.zeros((4, 3), np.int64)}]))
