"""Outputs as tables of rows, and the matching of two such tables one row to one."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bridge.targets.base import Array, Port
from bridge.verify.rounding import Floats, finite_magnitudes, relative, usual

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Outputs whose rows belong together: row i of each tells of the same detection.

    Attributes:
        axes: for every output, which axis counts the rows; None where leading axes are flattened.
        count: the output that counts the real rows; None where all rows are real.
        prefix: the leading axes that are flattened into rows where `count` is None.
    """

    axes: Mapping[str, int | None]
    count: str | None = None
    prefix: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "/".join(self.axes)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a group side by side: integers that must be equal, floats that may be near.

    Attributes:
        widths: how many columns of `values` each float output has.
    """

    exact: Integers
    values: Floats
    widths: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.exact)

    def detections(self) -> NDArray[np.bool_]:
        """bool[R]: rows that say something; a model's own padding is a row of zeros."""
        if not self.values.shape[1]:
            return np.ones(len(self), bool)
        return np.asarray(np.any(self.values != 0, axis=1))


@dataclass(frozen=True, slots=True)
class Columns:
    """What the float columns of a group are, told from the expected rows of all runs.

    Attributes:
        boxes: where the four corners of a box start, if a column block has them.
        score: the column that orders rows: of those within 0..1 the one with the most different
            numbers, or else (logits) of the outputs of one column; None where none has many.
        coordinates: bool[V]; boxes, points, and whatever else exceeds 1 and is not the score.
        widths: how many columns each float output has.
    """

    boxes: int | None
    score: int | None
    coordinates: NDArray[np.bool_]
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    """Which row of one table is which row of the other.

    Attributes:
        pairs: int64[P, 2], by expected row; (expected, found) with equal integers, near floats.
        lost: expected rows without a partner.
        extra: found rows without a partner.
        reordered: expected rows whose partner stands outside the common order.
        deviation: the worst distance within a pair, relative to the size of the numbers.
    """

    pairs: Integers
    lost: tuple[int, ...]
    extra: tuple[int, ...]
    reordered: tuple[int, ...]
    deviation: float


def groups(ports: Sequence[Port]) -> tuple[Group, ...]:
    """How the outputs of an artifact form tables.

    Outputs padded by the same count are one table. Outputs that are not padded are one where their
    leading axes agree (boxes [1, 100, 4] and scores [1, 100]). A count is no table: the number of
    rows tells it.
    """
    counts = {rows.count for port in ports for rows in port.rows}
    padded: dict[str, dict[str, int | None]] = {}
    plain = [port for port in ports if not port.rows and port.name not in counts]
    for port in ports:
        if port.rows:
            padded.setdefault(port.rows[0].count, {})[port.name] = port.rows[0].axis
    made = [Group(axes, count) for count, axes in padded.items()]
    for prefix in sorted({_prefix(_dims(port)) for port in plain}, key=len, reverse=True):
        members = [p for p in plain if prefix in (_dims(p), _prefix(_dims(p)))]
        plain = [port for port in plain if port not in members]
        if members:
            made.append(Group({port.name: None for port in members}, None, prefix))
    return tuple(made)


def _dims(port: Port) -> tuple[int, ...]:
    return tuple(size or 0 for size in port.source_shape)


def _prefix(dims: tuple[int, ...]) -> tuple[int, ...]:
    return dims[:-1] if len(dims) > 1 else dims


def table(group: Group, outputs: Mapping[str, Array]) -> Table:
    """The rows of a group, from trimmed outputs in the source's layout."""
    rows = None if group.count else int(np.prod(group.prefix, dtype=np.int64))
    exact: list[Integers] = []
    values: list[Floats] = []
    for name, axis in group.axes.items():
        array = outputs[name] if axis is None else np.moveaxis(outputs[name], axis, 0)
        rows = len(array) if rows is None else rows
        width = array.size // rows if rows else int(np.prod(array.shape[1:], dtype=np.int64))
        block = array.reshape(rows, width)
        if block.dtype.kind == "f":
            values.append(block.astype(np.float64))
        else:
            exact.append(block.astype(np.int64))
    rows = rows or 0
    return Table(
        np.concatenate([np.zeros((rows, 0), np.int64), *exact], axis=1),
        np.concatenate([np.zeros((rows, 0)), *values], axis=1),
        tuple(block.shape[1] for block in values),
    )


def columns(tables: Sequence[Table]) -> Columns:
    """What the float columns are: a column that exceeds 1 holds coordinates, not scores."""
    values = np.concatenate([one.values for one in tables])
    widths = tables[0].widths
    largest = finite_magnitudes(values).max(axis=0, initial=0)
    coordinates = largest > 1
    alone = np.repeat(np.array(widths, np.int64), widths) == 1
    boxes = None
    start = 0
    for width in widths:
        if _starts_with_corners(values[:, start : start + width]):
            boxes = start if boxes is None else boxes
            coordinates[start : start + 4] = True
        start += width
    score = _most_different(values, ~coordinates)
    if score is None and boxes is not None:
        score = _most_different(values, alone)
    if score is not None:
        coordinates[score] = False
    return Columns(boxes, score, coordinates, widths)


def _most_different(values: Floats, candidates: NDArray[np.bool_]) -> int | None:
    different = [len(np.unique(column)) for column in values.T[candidates]]
    if not different or max(different) * 4 < len(values):
        return None
    return int(np.flatnonzero(candidates)[int(np.argmax(different))])


def _starts_with_corners(values: Floats) -> bool:
    """Whether the first four columns are two opposite corners in every row, or all there is."""
    if values.shape[1] == 4:
        return True
    low, high = values[:, :2], values[:, 2:4]
    return values.shape[1] > 4 and bool((low <= high).all())


def sizes(table: Table, columns: Columns) -> Floats:
    """What a rounding error of each number is relative to: float64[R, V].

    Its own magnitude, for a coordinate the largest of its row's, yet no less than what is usual
    among the rows: the corner of a box at the edge of an image is as rough as that of any other.
    """
    made = finite_magnitudes(table.values)
    start = 0
    for width in columns.widths:
        members = start + np.flatnonzero(columns.coordinates[start : start + width])
        if len(members):
            made[:, members] = made[:, members].max(axis=1, keepdims=True)
        start += width
    for column in made.T:
        column[:] = np.maximum(column, usual(column))
    return made


def match(expected: Table, found: Table, columns: Columns, limits: Floats) -> Matching:
    """Match rows one to one: equal integers, and floats whose deviations are within `limits`.

    A deviation is a distance relative to `sizes` of the expected number.

    Rows of the same place are tried first; elsewhere the earliest free partner is taken, so that
    rows that cannot be told apart keep their order. The number of pairs is the largest possible.
    """
    scales = sizes(expected, columns)
    partner = _in_place(expected, found, scales, limits)
    if partner is None:
        partner = _partners(expected, found, scales, limits)
    pairs = np.array([(i, j) for i, j in enumerate(partner) if j >= 0], np.int64).reshape(-1, 2)
    one, other = pairs.T
    apart = relative(expected.values[one], found.values[other], scales[one])
    taken = set(pairs[:, 1].tolist())
    return Matching(
        pairs=pairs,
        lost=tuple(i for i, j in enumerate(partner) if j < 0),
        extra=tuple(j for j in range(len(found)) if j not in taken),
        reordered=tuple(pairs[_outside_order(pairs[:, 1].tolist()), 0].tolist()),
        deviation=float(apart.max(initial=0)),
    )


def _in_place(expected: Table, found: Table, scales: Floats, limits: Floats) -> list[int] | None:
    """Every row's own place where all rows match there, which is nearly always."""
    if len(expected) != len(found) or not np.array_equal(expected.exact, found.exact):
        return None
    apart = relative(expected.values, found.values, scales)
    return list(range(len(expected))) if (apart <= limits).all() else None


def _partners(expected: Table, found: Table, scales: Floats, limits: Floats) -> list[int]:
    """For every expected row its found row or -1: a largest matching, by augmenting paths."""
    near = _candidates(expected, found, scales, limits)
    owner = [-1] * len(found)
    partner = [-1] * len(expected)
    for row, candidates in enumerate(near):
        free = next((j for j in candidates if owner[j] < 0), None)
        if free is not None:
            owner[free], partner[row] = row, free
    for row in range(len(expected)):
        if partner[row] < 0 and near[row]:
            _augment(row, near, owner, partner)
    return partner


def _augment(row: int, near: list[list[int]], owner: list[int], partner: list[int]) -> None:
    """Give `row` a partner by moving others to theirs, if there is a way (breadth first)."""
    came_from: dict[int, int] = {}
    pending = [row]
    while pending:
        current = pending.pop(0)
        for candidate in near[current]:
            if candidate in came_from:
                continue
            came_from[candidate] = current
            if owner[candidate] >= 0:
                pending.append(owner[candidate])
                continue
            while candidate >= 0:
                mover = came_from[candidate]
                previous = partner[mover]
                owner[candidate], partner[mover] = mover, candidate
                candidate = previous if mover != row else -1
            return


def _candidates(expected: Table, found: Table, scales: Floats, limits: Floats) -> list[list[int]]:
    """For every expected row the found rows that it may be, in their order."""
    keys: dict[bytes, list[int]] = {}
    for index, row in enumerate(found.exact):
        keys.setdefault(row.tobytes(), []).append(index)
    members = {key: np.array(rows, np.int64) for key, rows in keys.items()}
    near: list[list[int]] = []
    for exact, values, size in zip(expected.exact, expected.values, scales, strict=True):
        rows = members.get(exact.tobytes())
        if rows is None:
            near.append([])
            continue
        apart = relative(values, found.values[rows], size)
        near.append(rows[(apart <= limits).all(axis=1)].tolist())
    return near


def _outside_order(places: list[int]) -> list[int]:
    """Positions that are not part of a longest increasing subsequence."""
    tails: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        length = bisect_left(tails, place)
        before.append(at[length - 1] if length else -1)
        if length == len(tails):
            tails.append(place)
            at.append(index)
        else:
            tails[length], at[length] = place, index
    kept = set()
    index = at[-1] if at else -1
    while index >= 0:
        kept.add(index)
        index = before[index]
    return [index for index in range(len(places)) if index not in kept]


def overlaps(first: Floats, second: Floats) -> Floats:
    """Intersection over union of every box [M, 4] with every other [N, 4]: float64[M, N].

    A box is given by any two opposite corners; one without area overlaps nothing.
    """
    one, other = first[:, None], second[None]
    low = np.maximum(*(np.minimum(boxes[..., :2], boxes[..., 2:]) for boxes in (one, other)))
    high = np.minimum(*(np.maximum(boxes[..., :2], boxes[..., 2:]) for boxes in (one, other)))
    with np.errstate(all="ignore"):
        inner = np.clip(high - low, 0, None).prod(axis=-1)
        union = np.abs(one[..., 2:] - one[..., :2]).prod(axis=-1) + (
            np.abs(other[..., 2:] - other[..., :2]).prod(axis=-1) - inner
        )
        share = inner / union
    return np.where((union > 0) & np.isfinite(share), share, 0.0)
