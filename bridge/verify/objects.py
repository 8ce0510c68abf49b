"""Detections as objects, each a box, a score and a class, and which of them are the same ones.

A narrow network moves every number, so that no tolerance tells a right file from a wrong one. What
can be told is whether it finds the same objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bridge.detection.boxes import BoxColumns
from bridge.targets.base import Array, Port
from bridge.verify.judge import NmsRun
from bridge.verify.rounding import Floats
from bridge.verify.rows import Group, Integers, columns, groups, overlaps, table

SAME = 0.5
"""Two boxes of one class that overlap by more than this are the same object."""

_MOST_COLUMNS = 32
_PLACES = 8
"""From so many rows on, integers that are all different are places of candidates, no classes."""


@dataclass(frozen=True, slots=True)
class Objects:
    """Detections by falling score.

    Attributes:
        boxes: float64[n, 4], the lower corner and then the upper one; whether x or y comes first,
            and what the coordinates count, is as the outputs have it.
        scores: float64[n].
        labels: int64[n, L], all that must be equal in two detections of one object: the class,
            and the image of a batch.
    """

    boxes: Floats
    scores: Floats
    labels: Integers

    def __len__(self) -> int:
        return len(self.scores)

    def turned(self) -> "Objects":
        """The same with the axes of the boxes swapped."""
        return replace(self, boxes=self.boxes[:, [1, 0, 3, 2]])

    def best(self, room: int) -> "Objects":
        """The first of them, as many as there is room for."""
        return Objects(self.boxes[:room], self.scores[:room], self.labels[:room])


@dataclass(frozen=True, slots=True)
class View:
    """Where outputs hold objects: columns of the floats, and of the integers, of one group.

    Attributes:
        boxes: the first of four columns.
        centres: the four are centre and size.
        classes: columns of the floats that are whole numbers.
        integers: columns of the integers.
    """

    group: Group
    boxes: int
    score: int
    classes: tuple[int, ...] = ()
    integers: tuple[int, ...] = ()
    centres: bool = False

    def objects(self, outputs: Mapping[str, Array]) -> Objects:
        """The objects in trimmed outputs; a model's own padding, rows of zeros, is left out."""
        rows = table(self.group, outputs)
        real = rows.detections()
        values = rows.values[real]
        labels = [
            rows.exact[real][:, list(self.integers)],
            values[:, list(self.classes)].astype(np.int64),
        ]
        if len(self.group.prefix) > 1 and self.group.prefix[0] > 1:
            per_image = int(np.prod(self.group.prefix[1:]))
            labels.append((np.flatnonzero(real) // per_image)[:, None])
        boxes = values[:, self.boxes : self.boxes + 4]
        return _sorted(boxes, values[:, self.score], np.hstack(labels), centres=self.centres)


def four_outputs(ports: Sequence[Port]) -> View:
    """The outputs of TFLite_Detection_PostProcess: boxes y1, x1, y2, x2, classes, scores, count."""
    return View(groups(ports)[0], boxes=0, score=5, classes=(4,))


def view(
    ports: Sequence[Port],
    runs: Sequence[Mapping[str, Array]],
    boxes: BoxColumns | None = None,
) -> View | None:
    """How trimmed outputs are read as objects; None where no group holds boxes and scores.

    Args:
        ports: the outputs.
        runs: them, of several inputs: their numbers tell scores from classes.
        boxes: where the graph says that the boxes are; None: the numbers tell that, too.
    """
    for group in groups(ports):
        found = _view(group, ports, runs, boxes)
        if found is not None:
            return found
    return None


def _view(
    group: Group,
    ports: Sequence[Port],
    runs: Sequence[Mapping[str, Array]],
    told: BoxColumns | None,
) -> View | None:
    shapes = {port.name: port.source_shape for port in ports}
    if group.count is not None and any(_images(shapes[name]) > 1 for name in group.axes):
        return None
    tables = [table(group, run) for run in runs]
    real = [one.detections() for one in tables]
    values = np.concatenate([one.values[rows] for one, rows in zip(tables, real, strict=True)])
    if not 5 <= values.shape[1] <= _MOST_COLUMNS:
        return None
    kind = columns(tables)
    first = kind.boxes if told is None else _told(group, runs[0], tables[0].widths, told)
    if first is None:
        return None
    rest = [c for c in range(values.shape[1]) if not first <= c < first + 4]
    score = _score(values, rest)
    whole = (values == np.floor(values)).all(axis=0)
    exact = [one.exact[rows] for one, rows in zip(tables, real, strict=True)]
    return View(
        group,
        first,
        score,
        classes=tuple(c for c in rest if c != score and whole[c] and len(values)),
        integers=tuple(c for c in range(exact[0].shape[1]) if not _counts_places(exact, c)),
        centres=_centres(values[:, first : first + 4]),
    )


def _images(shape: Sequence[int | None]) -> int:
    """How many images the leading axis of padded rows counts."""
    return (shape[0] or 1) if len(shape) > 1 and shape[0] is not None else 1


def _told(
    group: Group, run: Mapping[str, Array], widths: Sequence[int], told: BoxColumns
) -> int | None:
    """The first column of the boxes among all floats of the group."""
    start = 0
    floats = (name for name in group.axes if run[name].dtype.kind == "f")
    for name, width in zip(floats, widths, strict=True):
        if name == told.output:
            return start + told.first
        start += width
    return None


def _score(values: Floats, rest: Sequence[int]) -> int:
    """Of the columns within 0..1, or else of all, the one with the most different numbers."""
    part = values[:, rest]
    within = [c for c in rest if np.all((values[:, c] >= 0) & (values[:, c] <= 1))]
    different = {c: len(np.unique(values[:, c])) for c in rest}
    broken = {c: bool((part[:, i] != np.floor(part[:, i])).any()) for i, c in enumerate(rest)}
    return max(within or rest, key=lambda c: (different[c], broken[c], -c))


def _counts_places(tables: Sequence[Integers], column: int) -> bool:
    """Whether integers are all different in every run: places of boxes, as NonMaxSuppression's."""
    numbers = [one[:, column] for one in tables]
    rows = sum(map(len, numbers))
    return rows >= _PLACES and all(len(np.unique(one)) == len(one) for one in numbers)


def _centres(boxes: Floats) -> bool:
    """Whether boxes are centre and size: sizes are positive, and seldom larger than centres."""
    crossed = (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    return bool((boxes[:, 2:] >= 0).all() and 2 * crossed.sum() > len(boxes))


def _sorted(boxes: Floats, scores: Floats, labels: Integers, *, centres: bool) -> Objects:
    one, other = boxes[:, :2], boxes[:, 2:]
    if centres:
        one, other = one - other / 2, one + other / 2
    corners = np.hstack([np.minimum(one, other), np.maximum(one, other)])
    order = np.argsort(-scores, kind="stable")
    return Objects(corners[order], scores[order], labels[order].astype(np.int64))


def selected(runs: Sequence[NmsRun]) -> Objects:
    """What the suppressions of a run selected, whatever becomes of it behind them."""
    boxes, scores, labels = [np.zeros((0, 4))], [np.zeros(0)], [np.zeros((0, 3), np.int64)]
    for number, run in enumerate(runs):
        image, label, box = run.selected.astype(np.int64).T
        corners = run.boxes[image, box].astype(np.float64)
        if run.call.center_point_box:
            centre, size = corners[:, :2], corners[:, 2:]
            corners = np.hstack([centre - size / 2, centre + size / 2])
        boxes.append(corners)
        scores.append(run.scores[image, label, box].astype(np.float64))
        labels.append(np.stack([np.full_like(image, number), image, label], axis=1))
    return _sorted(
        np.concatenate(boxes), np.concatenate(scores), np.concatenate(labels), centres=False
    )


@dataclass(frozen=True, slots=True)
class Pairs:
    """Objects matched one to one.

    Attributes:
        rows: int64[P, 2], expected and found.
        overlaps: float64[P], intersection over union.
    """

    rows: NDArray[np.int64]
    overlaps: Floats


def pair(expected: Objects, found: Objects) -> Pairs:
    """Match objects one to one: equal labels, overlap above `SAME`, the best score first.

    Each takes, of those that are free, the one it overlaps most.
    """
    free = np.ones(len(found), bool)
    rows: list[tuple[int, int]] = []
    shares: list[float] = []
    for index in range(len(expected)):
        same = np.flatnonzero(free & (found.labels == expected.labels[index]).all(axis=1))
        if not len(same):
            continue
        share = overlaps(expected.boxes[[index]], found.boxes[same])[0]
        best = int(share.argmax())
        if share[best] > SAME:
            free[same[best]] = False
            rows.append((index, int(same[best])))
            shares.append(float(share[best]))
    return Pairs(np.array(rows, np.int64).reshape(-1, 2), np.array(shares, np.float64))


def aligned(
    expected: Sequence[Objects], found: Sequence[Objects]
) -> tuple[list[Objects], list[Objects]]:
    """Objects that two kinds of outputs hold, made comparable: the axes, and what the class is.

    Outputs do not say whether x or y comes first, nor which of several integers is the class: what
    matches most is taken.
    """
    width = expected[0].labels.shape[1]
    columns = [[c] for c in range(width)] or [[]]
    best: tuple[list[Objects], list[Objects]] = (list(expected), list(found))
    most = -1
    for kept in columns:
        wanted = [replace(one, labels=one.labels[:, kept]) for one in expected]
        for turn in (False, True):
            other = [
                replace(one.turned() if turn else one, labels=one.labels[:, : len(kept)])
                for one in found
            ]
            matched = sum(len(pair(*both).rows) for both in zip(wanted, other, strict=True))
            if matched > most:
                best, most = (wanted, other), matched
    return best
