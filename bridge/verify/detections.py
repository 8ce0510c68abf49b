"""Detections in whatever form outputs hold them.

`--nms postprocess` gives four outputs of its own. They are held to the source's by what both tell:
the same boxes, scores and classes, whatever the order of axes, of corners and of rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray

from bridge.targets.base import Array, Port
from bridge.verify.rounding import Floats
from bridge.verify.rows import Columns, Group, Integers, Table, columns, groups, table

COLUMNS = Columns(boxes=None, score=4, coordinates=np.array([True] * 4 + [False]), widths=(4, 1))
"""What the floats of a `Reading`'s tables are."""

_MOST_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Reading:
    """Where outputs hold boxes, scores and, if they do, classes.

    Attributes:
        boxes: the first of four columns.
        centres: the four are centre and size, not two corners.
        label: the column of the classes, of the integers where `integers`; None if there is none.
    """

    group: Group
    boxes: int
    score: int
    label: int | None = None
    integers: bool = False
    centres: bool = False

    def table(self, outputs: Mapping[str, Array]) -> Table:
        """The detections as class, corner intervals and score, by falling score.

        A box is its two intervals, the lower one first, so that x and y may stand in any order.
        """
        rows = table(self.group, outputs)
        real = rows.detections()
        values = rows.values[real]
        label: Integers = np.zeros((len(values), 0), np.int64)
        if self.label is not None:
            source = rows.exact[real] if self.integers else values
            label = source[:, [self.label]].astype(np.int64)
        boxes = values[:, self.boxes : self.boxes + 4]
        if self.centres:
            centre, size = boxes[:, :2], boxes[:, 2:]
            boxes = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
        numbers = np.concatenate([_intervals(boxes), values[:, [self.score]]], axis=1)
        order = np.lexsort((*label.T, *numbers.T[:4], -numbers[:, 4]))
        return Table(label[order], numbers[order], (4, 1))


def of_postprocess(ports: Sequence[Port]) -> Reading:
    """The outputs of TFLite_Detection_PostProcess: boxes, classes, scores, count, in its order."""
    return Reading(groups(ports)[0], boxes=0, score=5, label=4)


def readings(ports: Sequence[Port], runs: Sequence[Mapping[str, Array]]) -> Iterator[Reading]:
    """Every way in which trimmed outputs can hold boxes and scores, the likeliest first.

    Classes are any whole numbers beside them; a reading does without only where there are none.
    """
    for group in groups(ports):
        tables = [table(group, run) for run in runs]
        values = np.concatenate([one.values for one in tables])
        width = values.shape[1]
        if not 5 <= width <= _MOST_COLUMNS:
            continue
        kind = columns(tables)
        likely = [] if kind.boxes is None or kind.score is None else [(kind.boxes, kind.score)]
        whole = np.flatnonzero((values == np.floor(values)).all(axis=0))
        for boxes, score in chain(likely, product(range(width - 3), range(width))):
            taken = {*range(boxes, boxes + 4), score}
            if len(taken) < 5:
                continue
            labels: list[tuple[int | None, bool]] = [
                *((column, True) for column in range(tables[0].exact.shape[1])),
                *((int(column), False) for column in whole if column not in taken),
            ]
            for (label, integers), centres in product(labels or [(None, False)], (False, True)):
                yield Reading(group, boxes, score, label, integers, centres)


def _intervals(boxes: Floats) -> Floats:
    """Corners float64[R, 4] as two intervals each, the lower one first."""
    pairs = np.sort(boxes.reshape(-1, 2, 2), axis=1).transpose(0, 2, 1)
    first, second = pairs[:, 0], pairs[:, 1]
    later = (first[:, 0] > second[:, 0]) | (
        (first[:, 0] == second[:, 0]) & (first[:, 1] > second[:, 1])
    )
    pairs[later] = pairs[later][:, ::-1]
    return pairs.reshape(-1, 4)


def difference(expected: Table, found: Table, room: int, limit: float) -> str:
    """How two sets of detections differ; empty where they are the same.

    Where there is room for no more, which of several detections of the lowest score are in is a
    matter of order, and all that is asked is that as many are.

    Args:
        expected: the source's.
        found: the artifact's; its classes are compared if both have some.
        room: the most detections that the artifact can hold: the best of the source's.
        limit: how far a box may be off, relative to its largest coordinate.
    """
    wanted = min(len(expected), room)
    if len(found) != wanted:
        return f"has {len(found)} detections, and the source {wanted}"
    one, other = _above_cut(expected, room), _above_cut(found, room)
    if len(one) != len(other):
        return f"has {len(other)} detections above the lowest score, and the source {len(one)}"
    size = np.abs(one.values[:, :4]).max(axis=1, initial=0, keepdims=True)
    apart = np.abs(one.values[:, :4] - other.values[:, :4])
    for name, wrong in (
        ("scores", one.values[:, 4] != other.values[:, 4]),
        ("boxes", ~(apart <= limit * size).all(axis=1)),
        ("classes", _differ(one.exact, other.exact)),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            return (
                f"differs from the source in the {name} of {int(wrong.sum())} detections, first "
                f"{other.values[row].tolist()} instead of {one.values[row].tolist()}"
            )
    return ""


def _differ(expected: Integers, found: Integers) -> NDArray[np.bool_]:
    if expected.shape != found.shape:
        return np.zeros(len(expected), bool)
    return np.asarray((expected != found).any(axis=1))


def _above_cut(rows: Table, room: int) -> Table:
    """Rows that are in whatever the order of equal scores; `rows` go by falling score."""
    kept = len(rows)
    if kept >= room:
        scores = rows.values[:room, 4]
        kept = int((scores > scores[-1]).sum())
    return Table(rows.exact[:kept], rows.values[:kept], rows.widths)
