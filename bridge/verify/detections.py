"""Detections in whatever form outputs hold them.

`--nms postprocess` gives four outputs of its own. They are held to the source's by what both tell:
the same boxes, scores and classes, whatever the order of axes, of corners and of rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bridge.targets.base import Array, Port
from bridge.verify.rows import Columns, Floats, Group, Integers, Table, columns, groups, table


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the outputs of a model hold boxes, scores and, if they do, classes.

    Attributes:
        label: the column of the classes, of the integers where `integers`; None if there is none.
    """

    group: Group
    boxes: int
    score: int
    label: int | None
    integers: bool

    def table(self, outputs: Mapping[str, Array], *, classes: bool) -> Table:
        """The detections as rows of corner intervals and a score, by falling score.

        A box is its two intervals, the lower one first, so that x and y may stand in any order.
        """
        rows = table(self.group, outputs)
        real = rows.detections()
        values = rows.values[real]
        label: Integers = np.zeros((len(values), 0), np.int64)
        if classes and self.label is not None:
            source = rows.exact[real] if self.integers else values
            label = source[:, [self.label]].astype(np.int64)
        numbers = np.concatenate(
            [_intervals(values[:, self.boxes : self.boxes + 4]), values[:, [self.score]]], axis=1
        )
        order = np.lexsort((*label.T, *numbers.T[:4], -numbers[:, 4]))
        return Table(label[order], numbers[order], (4, 1))


COLUMNS = Columns(boxes=None, score=4, coordinates=np.array([True] * 4 + [False]), widths=(4, 1))
"""What the floats of a `Reading`'s tables are."""


def read(ports: Sequence[Port], runs: Sequence[Mapping[str, Array]]) -> Reading | None:
    """Find detections in the trimmed outputs of all runs; None where boxes or scores are missing.

    Boxes are the numbers of an output with four columns, or the first four of a longer row if they
    are corners in every row; scores are the column with the most different numbers that are no
    coordinates; classes are the one column of integers, or of whole numbers.
    """
    for group in groups(ports):
        tables = [table(group, run) for run in runs]
        kind = columns(tables)
        if kind.boxes is None or kind.score is None:
            continue
        if tables[0].exact.shape[1] == 1:
            return Reading(group, kind.boxes, kind.score, 0, True)
        values = np.concatenate([one.values for one in tables])
        taken = {*range(kind.boxes, kind.boxes + 4), kind.score}
        whole = [
            column
            for column in range(values.shape[1])
            if column not in taken and (values[:, column] == np.floor(values[:, column])).all()
        ]
        return Reading(group, kind.boxes, kind.score, whole[0] if len(whole) == 1 else None, False)
    return None


def _intervals(boxes: Floats) -> Floats:
    """Corners float64[R, 4] as two intervals each, the lower one first."""
    pairs = np.sort(boxes.reshape(-1, 2, 2), axis=1).transpose(0, 2, 1)
    first, second = pairs[:, 0], pairs[:, 1]
    later = (first[:, 0] > second[:, 0]) | (
        (first[:, 0] == second[:, 0]) & (first[:, 1] > second[:, 1])
    )
    pairs[later] = pairs[later][:, ::-1]
    return pairs.reshape(-1, 4)


def difference(expected: Table, found: Table, room: int) -> str:
    """How two sets of detections differ; empty where they are the same to the bit.

    Args:
        expected: the source's.
        found: the artifact's, which has no more than `room` rows: the best of the source's.
        room: the most detections that fit.
    """
    wanted = min(len(expected), room)
    if len(found) != wanted:
        return f"has {len(found)} detections, and the source {wanted}"
    kept = Table(expected.exact[:wanted], expected.values[:wanted], expected.widths)
    for name, one, other in (
        ("classes", kept.exact, found.exact),
        ("boxes", kept.values[:, :4], found.values[:, :4]),
        ("scores", kept.values[:, 4:], found.values[:, 4:]),
    ):
        wrong = np.flatnonzero((one != other).any(axis=1))
        if len(wrong):
            row = int(wrong[0])
            return (
                f"differs from the source in the {name} of {len(wrong)} detections, first "
                f"{found.values[row].tolist()} instead of {kept.values[row].tolist()}"
            )
    return ""
