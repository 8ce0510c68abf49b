"""A published artifact held to a recorded golden: all there is are its manifest and its outputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bridge.artifact import Manifest, identify, open_session, source_dims, to_artifact
from bridge.errors import UsageError
from bridge.static_model import Rows
from bridge.targets.base import Array, Port
from bridge.verify.comparison import FLOAT_NOISE, Comparison, SetResult, conclude
from bridge.verify.detections import Reading, of_postprocess, readings
from bridge.verify.golden import Golden, ports_of
from bridge.verify.outputs import Received, Replay, Scheme, capped, compare, receive_run, scheme
from bridge.verify.quantised import check_quantised
from bridge.verify.rounding import EPSILON
from bridge.verify.rows import match, table
from bridge.verify.tail import THREADS

_GROWTH = 4
"""What right implementations were seen to differ by, in moves of the inputs by a few last bits."""

_CHAOS = 1e-2

_DETECTIONS = (
    Port("boxes", "float64", (0, 4), (None, 4), rows=(Rows(0, "count"),)),
    Port("scores", "float64", (0,), (None,), rows=(Rows(0, "count"),)),
    Port("classes", "int64", (0, 0), (None, None), rows=(Rows(0, "count"),)),
)


def check(golden: Golden, path: Path, max_ap_drop: float | None = None) -> Comparison:
    """Hold an artifact to a golden of its source, on one thread and on several.

    Rows are matched one to one; a row that differs is excused if the source itself loses or gains
    it under onnxruntime when its inputs move in their last bits, as the golden recorded. A
    quantised artifact is judged by what it detects.

    Args:
        golden: of the source.
        path: the artifact.
        max_ap_drop: the average precision that a quantised artifact may lose, the source's own
            detections being the truth.

    Raises:
        UsageError: artifact and golden are not of the same source, or of other inputs; or a limit
            is given and the artifact is not quantised.
        TargetMissingError: the target's runtime is not installed.
        InconclusiveError: a quantised artifact's outputs do not show what it detects.
    """
    manifest, target = identify(path)
    _same_source(golden, manifest, path)
    if max_ap_drop is not None and not manifest.quantised:
        raise UsageError(
            f"--max-ap-drop is for quantised artifacts, and {path} is none: its rows are matched "
            "one by one; leave it out"
        )
    received: dict[int, list[Received]] = {}
    for threads in THREADS:
        with open_session(target, path, threads) as session:
            received[threads] = [
                receive_run(manifest.outputs, session, to_artifact(manifest.inputs, one.inputs))
                for one in golden.sets
            ]
    if manifest.quantised:
        return check_quantised(golden, manifest, received, max_ap_drop)
    results: list[SetResult] = []
    caps: tuple[str, ...] = ()
    for threads, runs in received.items():
        found, caps = _results(golden, manifest, threads, runs)
        results += found
    return conclude(golden, (), tuple(results), None, caps, suppresses=bool(manifest.nms))


def _same_source(golden: Golden, manifest: Manifest, path: Path) -> None:
    if golden.source_sha256 != manifest.source_sha256:
        raise UsageError(
            f"{path} was converted from {manifest.source_file} "
            f"(sha256 {manifest.source_sha256[:12]}…), and the golden was recorded from "
            f"{golden.source_file} (sha256 {golden.source_sha256[:12]}…); record that model"
        )
    inputs = {port.name for port in manifest.inputs}
    recorded = golden.sets[0].inputs
    if only := sorted(set(recorded) - inputs):
        raise UsageError(
            f"input {only[0]!r} of the golden is a constant of {path}; record it again with "
            f"--freeze {only[0]}=..."
        )
    if only := sorted(inputs - set(recorded)):
        raise UsageError(
            f"input {only[0]!r} of {path} is frozen in the golden; record it again without "
            f"--freeze {only[0]}"
        )


def _results(
    golden: Golden, manifest: Manifest, threads: int, received: Sequence[Received]
) -> tuple[list[SetResult], tuple[str, ...]]:
    # A source may count its rows under the name that the four outputs of detections count theirs.
    if {port.name for port in manifest.outputs}.issuperset(golden.sets[0].outputs):
        return _own_outputs(golden, manifest, threads, received)
    return _detections(golden, manifest, threads, received), ()


def _own_outputs(
    golden: Golden, manifest: Manifest, threads: int, received: Sequence[Received]
) -> tuple[list[SetResult], tuple[str, ...]]:
    """The source's outputs under their own names."""
    ports = manifest.outputs
    cut = [capped(ports, one.outputs) for one in golden.sets]
    expected = [outputs for outputs, _ in cut]
    moved = [[capped(ports, outputs)[0] for outputs in one.moved] for one in golden.sets]
    plan = scheme(ports, expected, {})
    results = [
        _compare(one.name, threads, plan, wanted, other, variants)
        for one, wanted, other, variants in zip(golden.sets, expected, received, moved, strict=True)
    ]
    caps = tuple(
        f"{one.name}: {text}"
        for one, (_, texts) in zip(golden.sets, cut, strict=True)
        for text in texts
    )
    return results, caps


def _detections(
    golden: Golden, manifest: Manifest, threads: int, received: Sequence[Received]
) -> list[SetResult]:
    """The four outputs of postprocess, against what the source's outputs hold."""
    room = max(source_dims(port)[rows.axis] for port in manifest.outputs for rows in port.rows)
    made = of_postprocess(manifest.outputs)
    first: list[SetResult] = []
    for reading in readings(ports_of(golden), [one.outputs for one in golden.sets]):
        both = _Reading(reading, made, room)
        found = list(both.results(golden, threads, received))
        first = first or found
        if not any(one.wrong for one in found):
            return found
    if not first:
        raise UsageError(
            "the source's outputs hold no boxes with scores, so that a golden of it says nothing "
            "of --nms postprocess; check a --nms v4 artifact instead"
        )
    return first


@dataclass(frozen=True, slots=True)
class _Reading:
    """One way to read the source's outputs, beside that of the artifact's.

    Attributes:
        room: the most detections that the artifact holds.
    """

    source: Reading
    made: Reading
    room: int

    def results(
        self, golden: Golden, threads: int, received: Sequence[Received]
    ) -> Iterator[SetResult]:
        """Every set, the detections as rows by falling score.

        Where there is no more room, which detections of about the lowest score are in is a matter
        of order; the others are compared.
        """
        floors = [self._floor(one.outputs) for one in golden.sets]
        expected = [
            self._rows(self.source, one.outputs, floor)
            for one, floor in zip(golden.sets, floors, strict=True)
        ]
        plan = scheme(_DETECTIONS, expected, {})
        for one, floor, wanted, other in zip(golden.sets, floors, expected, received, strict=True):
            moved = [self._rows(self.source, outputs, floor) for outputs in one.moved]
            found = other
            if other.trimmed:
                trimmed = self._rows(self.made, other.trimmed, floor)
                found = Received({}, trimmed, (*other.problems, *self._full(other, floor)))
            yield _compare(one.name, threads, plan, wanted, found, moved)

    def _floor(self, outputs: Mapping[str, Array]) -> float:
        scores = self.source.table(outputs).values[:, 4]
        if len(scores) < self.room:
            return -np.inf
        lowest = float(scores[self.room - 1])
        return lowest + abs(lowest) * FLOAT_NOISE

    def _full(self, received: Received, floor: float) -> Iterator[str]:
        rows = len(self.made.table(received.trimmed))
        if floor > -np.inf and rows < self.room:
            yield f"{rows} detections, and the source has as many as fit: {self.room}"

    def _rows(
        self, reading: Reading, outputs: Mapping[str, Array], floor: float
    ) -> dict[str, Array]:
        rows = reading.table(outputs)
        kept = rows.values[:, 4] > floor
        classes = rows.exact[kept] if self.source.label is not None else rows.exact[kept, :0]
        return {
            "boxes": rows.values[kept, :4],
            "scores": rows.values[kept, 4],
            "classes": classes,
        }


def _compare(
    name: str,
    threads: int,
    plan: Scheme,
    expected: Mapping[str, Array],
    received: Received,
    moved: Sequence[Mapping[str, Array]],
) -> SetResult:
    def replays(_: float) -> Iterator[Replay]:
        reason = f"so does onnxruntime when the inputs move by {4 * EPSILON:.0e}"
        return (Replay(outputs, reason, tuple) for outputs in moved)

    limit = _limit(plan, expected, moved)
    return compare(name, threads, plan, expected, received, limit, replays)


def _limit(
    plan: Scheme, expected: Mapping[str, Array], moved: Sequence[Mapping[str, Array]]
) -> float:
    """What float noise may come to: more than `FLOAT_NOISE` where the moves say so."""
    parts = list(zip(plan.groups, plan.columns, plan.limits(_CHAOS), strict=True))
    worst = [
        match(table(group, expected), table(group, outputs), kind, limits).deviation
        for outputs in moved
        for group, kind, limits in parts
    ]
    grown = _GROWTH * float(np.median(worst)) if worst else 0.0
    return min(max(FLOAT_NOISE, grown), _CHAOS)
