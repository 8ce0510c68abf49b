"""One run of an artifact against what onnxruntime made of the same inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bridge.artifact import source_dims, to_source, trim
from bridge.targets.base import Array, Port, Session
from bridge.verify.comparison import Difference, Kind, SetResult
from bridge.verify.rounding import EPSILON, Floats
from bridge.verify.rows import (
    Columns,
    Group,
    Matching,
    Table,
    columns,
    groups,
    match,
    overlaps,
    table,
)

_SAME_OBJECT = 0.5
"""The overlap from which two boxes are told to be one object that moved; it excuses nothing."""

_MOST_MOVED = 200
"""Rows on either side beyond which nobody reads which of them moved where."""

STABLE = 0.25
"""The share of rows that noise alone may lose before the set is no measure of the others."""

_PATIENCE = 20
"""Replays in a row without news after which more of them are not worth their time."""


@dataclass(frozen=True, slots=True)
class Received:
    """Outputs of an artifact in the source's layout; both empty where their form is wrong.

    Attributes:
        padded: as they came.
        trimmed: real rows only.
        problems: types, shapes, counts and padding that break the contract.
    """

    padded: Mapping[str, Array]
    trimmed: Mapping[str, Array]
    problems: tuple[str, ...]


def receive(ports: Sequence[Port], raw: Mapping[str, Array]) -> Received:
    """Check the form of an artifact's outputs and cut them to their real rows."""
    problems = [text for port in ports for text in _form(port, raw.get(port.name))]
    if problems:
        return Received({}, {}, tuple(problems))
    padded = to_source(ports, raw)
    for port in ports:
        for rows in port.rows:
            problems += _padding(port, rows.axis, padded[port.name], padded[rows.count], rows.count)
    return Received(padded, trim(ports, padded), tuple(dict.fromkeys(problems)))


def receive_run(ports: Sequence[Port], session: Session, feeds: Mapping[str, Array]) -> Received:
    """Run an artifact and check the form of what it gives; that it fails is a problem like any."""
    try:
        raw = session.run(feeds)
    except Exception as error:
        text = f"running the artifact fails: {' '.join(str(error).split())}"
        return Received({}, {}, (text,))
    return receive(ports, raw)


def _form(port: Port, array: Array | None) -> Iterator[str]:
    if array is None:
        yield f"output {port.name!r} is missing"
    elif array.dtype.name != port.dtype or array.shape != port.shape:
        yield (
            f"output {port.name!r} is {array.dtype.name}{list(array.shape)}, "
            f"not {port.dtype}{list(port.shape)}"
        )


def _padding(port: Port, axis: int, array: Array, count: Array, name: str) -> Iterator[str]:
    real = float(count.reshape(-1)[0])
    if not real.is_integer() or not 0 <= real <= array.shape[axis]:
        yield f"count {name!r} is {real:g}; {port.name!r} has {array.shape[axis]} rows"
        return
    rest = array[(*[slice(None)] * axis, slice(int(real), None))]
    # NaN is not zero either, and != says so.
    if np.any(rest != 0):
        yield f"output {port.name!r} is not zero behind its {real:g} real rows"


def capped(
    outputs: Sequence[Port], expected: Mapping[str, Array]
) -> tuple[dict[str, Array], list[str]]:
    """The source's outputs cut to the rows an artifact has room for, and what was cut."""
    kept, cut = dict(expected), []
    for port in outputs:
        for rows in port.rows:
            room = source_dims(port)[rows.axis]
            found = kept[port.name].shape[rows.axis]
            if found > room:
                cut.append(f"{port.name!r} has {found} rows under onnxruntime and room for {room}")
                whole = [slice(None)] * rows.axis
                kept[port.name] = kept[port.name][(*whole, slice(0, room))]
    return kept, cut


@dataclass(frozen=True, slots=True)
class Scheme:
    """How outputs are read as tables, and what their columns are.

    Attributes:
        rounding: per group float64[V]; the deviation that the target itself is entitled to.
        detecting: per group; whether its rows are detections.
    """

    groups: tuple[Group, ...]
    columns: tuple[Columns, ...]
    rounding: tuple[Floats, ...]
    detecting: tuple[bool, ...]

    def limits(self, limit: float) -> tuple[Floats, ...]:
        """Per group, the deviation up to which two numbers of a column are the same."""
        return tuple(np.maximum(rounding, limit) for rounding in self.rounding)


def scheme(
    ports: Sequence[Port],
    expected: Sequence[Mapping[str, Array]],
    rounding: Mapping[str, int],
) -> Scheme:
    """The scheme for the outputs that `ports` describe.

    Args:
        ports: of the artifact.
        expected: the trimmed outputs of all runs, which tell what is a coordinate.
        rounding: outputs that may be off by so many units in the last place.
    """
    found = groups(ports)
    kinds = tuple(columns([table(group, run) for run in expected]) for group in found)
    floats = {port.name for port in ports if np.dtype(port.dtype).kind == "f"}
    allowed = []
    for group, kind in zip(found, kinds, strict=True):
        ulps = [rounding.get(name, 0) for name in group.axes if name in floats]
        allowed.append(EPSILON * np.repeat(np.array(ulps, np.float64), kind.widths))
    padded = any(group.count for group in found)
    detecting = tuple(
        group.count is not None or (not padded and bool(kind.widths))
        for group, kind in zip(found, kinds, strict=True)
    )
    return Scheme(found, kinds, tuple(allowed), detecting)


@dataclass(frozen=True, slots=True)
class Replay:
    """onnxruntime's own tail when its border moves by as much as the artifact's does.

    Attributes:
        outputs: trimmed.
        reason: what was moved, and by how much.
        decisions: which suppressions decided otherwise then, and by what margin.
    """

    outputs: Mapping[str, Array]
    reason: str
    decisions: Callable[[], tuple[str, ...]]


type Replays = Callable[[float], Iterator[Replay]]
"""From the deviation of the matched rows to the replays it justifies, the likeliest first."""


def compare(
    name: str,
    threads: int,
    plan: Scheme,
    expected: Mapping[str, Array],
    received: Received,
    limit: float = 0.0,
    replays: Replays | None = None,
    *,
    stable: float = STABLE,
) -> SetResult:
    """Match every row of an artifact's outputs to onnxruntime's.

    A row that is lost, extra, moved or out of order is excused if onnxruntime's own tail does the
    same in one of the replays.

    Args:
        name: of the set of inputs.
        threads: that the artifact ran on.
        plan: how the outputs are read.
        expected: onnxruntime's outputs, trimmed.
        received: the artifact's outputs.
        limit: the deviation up to which two floats are the same.
        replays: None where nothing excuses a difference.
        stable: the share of rows that the replays may lose before the set is no measure.
    """
    result = SetResult(name, threads, 0, 0.0, 0.0, 0.0, problems=received.problems)
    if not received.trimmed:
        return result
    pairs = [
        _Pair(group, kind, limits, table(group, expected), table(group, received.trimmed))
        for group, kind, limits in zip(plan.groups, plan.columns, plan.limits(limit), strict=True)
    ]
    for pair, detecting in zip(pairs, plan.detecting, strict=True):
        result = _with(result, pair, detecting=detecting)
    if result.differences and replays is not None:
        result = _excused(result, pairs, replays, stable)
    return result


@dataclass(frozen=True, slots=True)
class _Pair:
    """The tables of one group, expected and found."""

    group: Group
    columns: Columns
    limits: Floats
    expected: Table
    found: Table

    def match(self, other: Table | None = None) -> Matching:
        return match(self.expected, other or self.found, self.columns, self.limits)


def _with(result: SetResult, pair: _Pair, *, detecting: bool) -> SetResult:
    """The result with what one group says added."""
    found = pair.match()
    moved = _moved(pair, found)
    rows = np.concatenate([found.pairs, np.array(list(moved.items()), np.int64).reshape(-1, 2)])
    with np.errstate(invalid="ignore"):
        apart = np.abs(pair.expected.values[rows[:, 0]] - pair.found.values[rows[:, 1]])
    apart = np.where(np.isnan(apart), 0, apart)
    real = pair.expected.detections()[found.pairs[:, 0]]
    coordinates = pair.columns.coordinates
    return replace(
        result,
        detections=result.detections + (int(real.sum()) if detecting else 0),
        worst_box=max(result.worst_box, float(apart[:, coordinates].max(initial=0))),
        worst_score=max(result.worst_score, float(apart[:, ~coordinates].max(initial=0))),
        deviation=max(result.deviation, found.deviation),
        differences=(*result.differences, *_differences(result.inputs, pair, found, moved)),
    )


def _moved(pair: _Pair, found: Matching) -> dict[int, int]:
    """Lost rows and the extra rows that are the same object, by overlap."""
    if pair.columns.boxes is None or max(len(found.lost), len(found.extra)) > _MOST_MOVED:
        return {}
    corners = slice(pair.columns.boxes, pair.columns.boxes + 4)
    lost, extra = list(found.lost), list(found.extra)
    overlap = overlaps(pair.expected.values[lost, corners], pair.found.values[extra, corners])
    same = (pair.expected.exact[lost][:, None] == pair.found.exact[extra][None]).all(axis=2)
    overlap = np.where(same, overlap, 0)
    moved: dict[int, int] = {}
    for row in range(len(lost)):
        if not len(extra) or not overlap[row].max() >= _SAME_OBJECT:
            continue
        best = int(overlap[row].argmax())
        moved[lost[row]] = extra[best]
        overlap[:, best] = 0
    return moved


def _differences(
    name: str, pair: _Pair, found: Matching, moved: Mapping[int, int]
) -> Iterator[Difference]:
    outputs = str(pair.group)
    for row in found.lost:
        if row in moved:
            what = f"{_text(pair.expected, row)} is {_text(pair.found, moved[row])}"
            yield Difference(name, outputs, Kind.MOVED, row, what)
        else:
            yield Difference(name, outputs, Kind.LOST, row, _text(pair.expected, row))
    for row in found.extra:
        if row not in moved.values():
            yield Difference(name, outputs, Kind.EXTRA, row, _text(pair.found, row))
    for row in found.reordered:
        yield Difference(name, outputs, Kind.REORDERED, row, _text(pair.expected, row))


def _text(rows: Table, row: int) -> str:
    numbers = [str(number) for number in rows.exact[row]]
    numbers += [f"{number:.7g}" for number in rows.values[row]]
    return " ".join(numbers[:8]) + (" ..." if len(numbers) > 8 else "")


def _excused(
    result: SetResult, pairs: Sequence[_Pair], replays: Replays, stable: float
) -> SetResult:
    """The result with a reason at every difference that measured noise explains.

    A row may pass another whose score is no further away than scores moved in this run. All else is
    left to the replays, and to whether they leave enough rows standing to judge by. They end when
    all is explained, or when they have long said nothing new.
    """
    questions = {str(pair.group): _Questions(pair) for pair in pairs}
    differences = [
        replace(difference, reason=questions[difference.outputs].near_tie(difference))
        for difference in result.differences
    ]
    if all(difference.reason for difference in differences):
        return replace(result, differences=tuple(differences))
    decisions: tuple[str, ...] = ()
    silent = 0
    for replayed in replays(result.deviation):
        learnt = [
            question.learn(table(question.pair.group, replayed.outputs))
            for question in questions.values()
        ]
        silent = 0 if any(learnt) else silent + 1
        if any(learnt) and not decisions:
            decisions = replayed.decisions()
        for index, difference in enumerate(differences):
            if difference.reason is None and questions[difference.outputs].explains(difference):
                differences[index] = replace(difference, reason=replayed.reason)
        if silent == _PATIENCE or all(difference.reason for difference in differences):
            break
    for index, difference in enumerate(differences):
        reason = difference.reason or questions[difference.outputs].undecided(stable)
        differences[index] = replace(difference, reason=reason)
    return replace(result, differences=tuple(differences), decisions=decisions)


@dataclass(slots=True)
class _Questions:
    """What the replays seen so far did to the rows of one group that differ.

    Attributes:
        lost: lost rows that some replay loses as well.
        extra: extra rows that some replay has as well.
        moved: lost rows and the extra rows they became.
        passed: for a row out of order, the rows it passed whose scores are not as near as noise.
        inverted: those of them that it passes in some replay as well.
        noise: how far the scores of matched rows moved.
        unstable: expected rows that some replay loses.
    """

    pair: _Pair
    lost: set[int] = field(default_factory=set)
    extra: set[int] = field(default_factory=set)
    found: Matching = field(init=False)
    moved: dict[int, int] = field(init=False)
    passed: dict[int, set[int]] = field(init=False)
    inverted: dict[int, set[int]] = field(init=False)
    noise: float = field(init=False)
    unstable: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.found = self.pair.match()
        self.moved = _moved(self.pair, self.found)
        self.noise = self._score_noise()
        self.passed = {row: self._passed(row) for row in self.found.reordered}
        self.inverted = {row: set() for row in self.passed}

    def _score_noise(self) -> float:
        column = self.pair.columns.score
        if column is None or not len(self.found.pairs):
            return 0.0
        expected, found = self.found.pairs.T
        moved = self.pair.expected.values[expected, column] - self.pair.found.values[found, column]
        return float(np.abs(moved).max())

    def _passed(self, row: int) -> set[int]:
        passed = _inverted(self.found, row)
        if not self.noise:
            return passed
        scores = self.pair.expected.values[:, self.pair.columns.score]
        return {other for other in passed if abs(scores[row] - scores[other]) > 2 * self.noise}

    def near_tie(self, difference: Difference) -> str | None:
        """Why a row may be out of order: scores moved by half the gap between those it passed."""
        if difference.kind is not Kind.REORDERED or self.passed[difference.row]:
            return None
        return f"it passed scores less than 2 x {self.noise:.1e} away, and scores moved by that"

    def learn(self, replayed: Table) -> bool:
        """Take in one replay's rows; whether they say anything new."""
        known = self._size()
        to_expected = self.pair.match(replayed)
        self.unstable.update(to_expected.lost)
        self.lost.update(set(self.found.lost) & set(to_expected.lost))
        if self.found.extra:
            new = set(to_expected.extra)
            to_found = match(self.pair.found, replayed, self.pair.columns, self.pair.limits)
            shared = {int(row) for row, other in to_found.pairs if other in new}
            self.extra.update(set(self.found.extra) & shared)
        for row, passed in self.passed.items():
            self.inverted[row].update(passed & _inverted(to_expected, row))
        return self._size() > known

    def undecided(self, stable: float) -> str | None:
        """Why the whole table says nothing: noise alone turns much of it over.

        Scores that all reach 1, or boxes that are all the same, tie; what is selected among them
        then follows from the last bit.
        """
        rows = len(self.pair.expected)
        if not self.unstable or len(self.unstable) < stable * rows:
            return None
        return (
            f"nothing decides here: onnxruntime itself loses {len(self.unstable)} of {rows} rows "
            "under that noise"
        )

    def _size(self) -> int:
        return len(self.lost) + len(self.extra) + sum(map(len, self.inverted.values()))

    def explains(self, difference: Difference) -> bool:
        """Whether the replays did the same to this row."""
        match difference.kind:
            case Kind.LOST:
                return difference.row in self.lost
            case Kind.EXTRA:
                return difference.row in self.extra
            case Kind.MOVED:
                return difference.row in self.lost and self.moved[difference.row] in self.extra
            case Kind.REORDERED:
                return self.passed[difference.row] == self.inverted[difference.row]


def _inverted(matching: Matching, row: int) -> set[int]:
    """Expected rows that stand on the other side of `row` in the order of their partners."""
    at = np.flatnonzero(matching.pairs[:, 0] == row)
    if not len(at):
        return set()
    expected, found = matching.pairs.T
    turned = (expected < row) != (found < found[at[0]])
    turned[at[0]] = False
    return set(expected[turned].tolist())
