"""Outputs as tables of rows, and the matching of two such tables one row to one."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bridge.targets.base import Array, Port

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SAME_OBJECT = 0.5


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
    """What the float columns of a group are, told from its expected rows.

    Attributes:
        boxes: where the four corners of a box start, if a column block has them.
        coordinates: bool[V]; boxes, points, and whatever else exceeds 1.
        scales: float64[V]; the size that a rounding error of the column is relative to.
        widths: how many columns each float output has.
    """

    boxes: int | None
    coordinates: NDArray[np.bool_]
    scales: Floats
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
    """What the float columns are, told from all expected rows of a group.

    The numbers of a box share one size, and so do all columns that exceed 1 (coordinates in
    pixels); the others (scores, fractions) share theirs. A size is the 99th percentile of the
    magnitudes, so that one box thrown far out makes no tolerance for the others.
    """
    values = np.concatenate([one.values for one in tables])
    sizes = sizes_of(values)
    coordinates = np.zeros(len(sizes), bool)
    scales = np.zeros(len(sizes))
    boxes = None
    start = 0
    for width in tables[0].widths:
        block = slice(start, start + width)
        large = sizes[block] > 1
        if _starts_with_corners(values[:, block]):
            boxes = start if boxes is None else boxes
            large[:4] = True
        for members in (large, ~large):
            scales[block][members] = sizes[block][members].max(initial=0)
        coordinates[block] = large
        start += width
    return Columns(boxes, coordinates, scales, tables[0].widths)


def sizes_of(values: NDArray[np.floating]) -> Floats:
    """99th percentile of the magnitude of every column, what is not finite left out."""
    magnitudes = np.abs(np.where(np.isfinite(values), values, 0)).astype(np.float64)
    if not len(magnitudes):
        return np.zeros(values.shape[1:])
    return np.asarray(np.quantile(magnitudes, 0.99, axis=0, method="higher"), np.float64)


def _starts_with_corners(values: Floats) -> bool:
    """Whether the first four columns are two opposite corners in every row, or all there is."""
    if values.shape[1] == 4:
        return True
    low, high = values[:, :2], values[:, 2:4]
    return values.shape[1] > 4 and bool((low <= high).all())


def deviations(
    expected: NDArray[np.floating], found: NDArray[np.floating], columns: Columns
) -> Floats:
    """Distance of every number, relative to its size: float64[R, V].

    The size of a number is the largest of itself, the scale of its column and, for a coordinate,
    the other coordinates of the row. See `relative`.
    """
    sizes = np.maximum(np.where(np.isfinite(expected), np.abs(expected), 0), columns.scales)
    start = 0
    for width in columns.widths:
        members = start + np.flatnonzero(columns.coordinates[start : start + width])
        if len(members):
            sizes[..., members] = sizes[..., members].max(axis=-1, keepdims=True)
        start += width
    return relative(expected, found, sizes)


def relative(expected: NDArray[np.floating], found: NDArray[np.floating], sizes: Floats) -> Floats:
    """Distances in units of `sizes`.

    NaN is equal to NaN, an infinity to itself; what is not finite is infinitely far from the rest.
    """
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = np.abs(expected - found) / sizes
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))


def match(expected: Table, found: Table, columns: Columns, limits: Floats) -> Matching:
    """Match rows one to one: equal integers, and floats whose deviations are within `limits`.

    Rows of the same place are tried first; elsewhere the earliest free partner is taken, so that
    rows that cannot be told apart keep their order. The number of pairs is the largest possible.
    """
    partner = _in_place(expected, found, columns, limits)
    if partner is None:
        partner = _partners(expected, found, columns, limits)
    pairs = np.array([(i, j) for i, j in enumerate(partner) if j >= 0], np.int64).reshape(-1, 2)
    apart = deviations(expected.values[pairs[:, 0]], found.values[pairs[:, 1]], columns)
    taken = set(pairs[:, 1].tolist())
    return Matching(
        pairs=pairs,
        lost=tuple(i for i, j in enumerate(partner) if j < 0),
        extra=tuple(j for j in range(len(found)) if j not in taken),
        reordered=tuple(pairs[_outside_order(pairs[:, 1].tolist()), 0].tolist()),
        deviation=float(apart.max(initial=0)),
    )


def _in_place(expected: Table, found: Table, columns: Columns, limits: Floats) -> list[int] | None:
    """Every row's own place where all rows match there, which is nearly always."""
    if len(expected) != len(found) or not np.array_equal(expected.exact, found.exact):
        return None
    apart = deviations(expected.values, found.values, columns)
    return list(range(len(expected))) if (apart <= limits).all() else None


def _partners(expected: Table, found: Table, columns: Columns, limits: Floats) -> list[int]:
    """For every expected row its found row or -1: a largest matching, by augmenting paths."""
    near = _candidates(expected, found, columns, limits)
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


def _candidates(expected: Table, found: Table, columns: Columns, limits: Floats) -> list[list[int]]:
    """For every expected row the found rows that it may be, in their order."""
    keys: dict[bytes, list[int]] = {}
    for index, row in enumerate(found.exact):
        keys.setdefault(row.tobytes(), []).append(index)
    members = {key: np.array(rows, np.int64) for key, rows in keys.items()}
    near: list[list[int]] = []
    for exact, values in zip(expected.exact, expected.values, strict=True):
        rows = members.get(exact.tobytes())
        if rows is None:
            near.append([])
            continue
        apart = deviations(values, found.values[rows], columns)
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


def overlaps(expected: Table, found: Table, columns: Columns, lost: int, extra: int) -> bool:
    """Whether an unmatched row and another are the same object moved: same integers, IoU >= 0.5."""
    if columns.boxes is None or not np.array_equal(expected.exact[lost], found.exact[extra]):
        return False
    corners = slice(columns.boxes, columns.boxes + 4)
    return intersection_over_union(
        expected.values[lost, corners], found.values[extra, corners]
    ) >= (_SAME_OBJECT)


def intersection_over_union(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Of two boxes given by any two opposite corners; 0 where they have no area."""
    low_a, high_a = np.minimum(first[:2], first[2:]), np.maximum(first[:2], first[2:])
    low_b, high_b = np.minimum(second[:2], second[2:]), np.maximum(second[:2], second[2:])
    inner = np.clip(np.minimum(high_a, high_b) - np.maximum(low_a, low_b), 0, None).prod()
    union = (high_a - low_a).prod() + (high_b - low_b).prod() - inner
    return float(inner / union) if union > 0 else 0.0
