"""The float noise of a network, and what onnxruntime itself decides when its numbers move by it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bridge.artifact import trim
from bridge.static_nms import StaticNms
from bridge.targets.base import Array, Port
from bridge.verify.comparison import FLOAT_NOISE, SetResult
from bridge.verify.judge import Judge, NmsRun, Run
from bridge.verify.outputs import Received, Replay, Replays, Scheme, compare
from bridge.verify.rounding import EPSILON, Floats, finite_magnitudes, perturbed, relative
from bridge.verify.rows import match, overlaps, table

_SAMPLES = 240
_PROBES = 5
_JITTERS = 2

_GROWTH = 16
"""How many last-bit changes of its weights a network's own roundings may add up to."""

_CHAOS = 1e-2
"""Noise from which on a set of inputs shows nothing: a wrong network is off by no more."""

_MOST_DECISIONS = 12

_SMALL = EPSILON / FLOAT_NOISE
"""The least size of numbers: the last bit of a 1 is rounding, however small the others are.

Kernels compute what ends at 0 and 1 to that precision (onnxruntime's Sigmoid is 0 where LiteRT's
is 1.6e-9), and flush what is smaller by far.
"""


def network_noise(
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    roots: Collection[str] = (),
) -> dict[str, float]:
    """How far each border tensor is off, relative to the size of its numbers.

    The size of a number is its own magnitude or the 99th percentile of its tensor's, whichever is
    larger; a number that float32 cannot hold in full is as good as any other. Integers must be
    equal: otherwise the distance is infinite.

    Args:
        expected: by name.
        found: likewise.
        roots: names of square roots, of which the squares are compared. A root makes 2.4e-4 of the
            last bit of a 1 that is all a Sigmoid ending at 0 is precise to: FCOS scores so.
    """
    return {
        name: _tensor_noise(array, found[name], root=name in roots)
        for name, array in expected.items()
    }


def _tensor_noise(expected: Array, found: Array, *, root: bool) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, found) else np.inf
    one, other = expected.astype(np.float64), found.astype(np.float64)
    if root:
        one, other = one * np.abs(one), other * np.abs(other)
    magnitudes = finite_magnitudes(one)
    large = np.quantile(magnitudes, 0.99, method="higher") if magnitudes.size else 0.0
    return float(relative(one, other, np.maximum(magnitudes, max(large, _SMALL))).max(initial=0))


@dataclass(frozen=True, slots=True)
class Conditions:
    """One set of inputs under onnxruntime, and what is a rounding error away from it.

    Attributes:
        ports: of the artifact; they say how outputs are trimmed.
        plan: how trimmed outputs are read.
        inputs: what `base` was computed from; None where that is its border.
        seed: of the moves.
    """

    judge: Judge
    ports: Sequence[Port]
    plan: Scheme
    base: Run
    inputs: Mapping[str, Array] | None
    seed: int

    def limit(self) -> float:
        """What the network may be off by on these inputs, relative to the size of its numbers.

        A change in the last bit of every weight shows what a rounding error comes to on its way;
        LiteRT was seen to differ by 0.1 to 6.4 times that, on seven networks and 80 inputs, from
        1e-7 to 7e-2. Infinite where so much comes of it that onnxruntime does not agree with
        itself.
        """
        expected = _observed(self.judge, self.base)
        rng = np.random.default_rng(self.seed)
        grown = 0.0
        for jitter in range(_JITTERS):
            if self.inputs is None:
                run = self.judge.tail(perturbed(self.base.border, EPSILON, rng))
            else:
                moved = perturbed(self.inputs, EPSILON, rng)
                run = self.judge.unsteady(moved, self.seed + jitter)
            noise = network_noise(expected, _observed(self.judge, run), self.judge.roots)
            grown = max(grown, *noise.values(), 0.0)
        limit = max(_GROWTH * grown, FLOAT_NOISE)
        return limit if limit < _CHAOS else np.inf

    def replays(self, network: Mapping[str, Array] | None, limit: float) -> Replays:
        """Runs of the tail near the noise of the network.

        Args:
            network: the border as the artifact's own network gives it; None where it is not known.
                The noise is then taken to be what moves the matched rows as far as they moved.
            limit: what float noise may come to.
        """

        def generate(deviation: float) -> Iterator[Replay]:
            if network is None:
                noise = self._noise_that_moves(deviation, limit)
            else:
                off = network_noise(self.base.border, network, self.judge.roots)
                noise = max(off.values())
            # No noise excuses nothing, and nor does what is not float noise.
            if not 0 < noise <= limit:
                return
            if network is not None:
                yield self._replay(network, f"border as the artifact computes it, {noise:.1e} off")
            yield from self._moved(noise)

        return generate

    def replays_of_rounding(self) -> Replays | None:
        """Runs of the tail for what its operators, or the target's kernel, round.

        A kernel that rounds boxes makes nothing of scores, so that ties stay ties.
        """
        if self.judge.tolerance:
            return lambda _: self._moved(self.judge.tolerance)
        rounding = max((float(r.max(initial=0)) for r in self.plan.rounding), default=0.0)
        only = self.judge.box_border or frozenset(self.judge.border)
        return (lambda _: self._moved(rounding, only)) if rounding else None

    def _moved(self, noise: float, only: frozenset[str] | None = None) -> Iterator[Replay]:
        rng = np.random.default_rng(self.seed)
        for _ in range(_SAMPLES):
            border = perturbed(self.base.border, noise, rng)
            if only is not None:
                border = {n: border[n] if n in only else a for n, a in self.base.border.items()}
            yield self._replay(border, f"border moved by up to {noise:.1e}")

    def _replay(self, border: Mapping[str, Array], reason: str) -> Replay:
        run = self.judge.tail(border)
        return Replay(
            outputs=trim(self.ports, run.outputs),
            reason=f"so does onnxruntime with its {reason}, relative to the size of the numbers",
            decisions=lambda: decisions(self.base, run),
        )

    def _noise_that_moves(self, deviation: float, limit: float) -> float:
        """Twice the noise that moves onnxruntime's own rows as far as the artifact's moved.

        Twice, for what moves a few rows by so much may move another one by more.
        """
        rng = np.random.default_rng(self.seed)
        noise = EPSILON
        while noise < limit:
            moved = [
                self._deviation(self.judge.tail(perturbed(self.base.border, noise, rng)), limit)
                for _ in range(_PROBES)
            ]
            if np.median(moved) >= deviation:
                return min(2 * noise, limit)
            noise *= 2
        return limit

    def _deviation(self, run: Run, limit: float) -> float:
        expected, found = (trim(self.ports, one.outputs) for one in (self.base, run))
        parts = zip(self.plan.groups, self.plan.columns, self.plan.limits(limit), strict=True)
        return max(
            (
                match(table(group, expected), table(group, found), kind, limits).deviation
                for group, kind, limits in parts
            ),
            default=0.0,
        )


def compare_noisy(
    name: str,
    threads: int,
    conditions: Conditions,
    expected: Mapping[str, Array],
    received: Received,
    network: Mapping[str, Array] | None,
) -> tuple[SetResult, float]:
    """Compare outputs that float noise of a network may have moved; see `outputs.compare`.

    Returns:
        The result, and what float noise may come to on these inputs: `FLOAT_NOISE`, or more where
        more is needed and the network makes more of a rounding error.
    """
    limit = FLOAT_NOISE
    noise = 0.0
    if network is not None:
        off = network_noise(conditions.base.border, network, conditions.judge.roots)
        noise = max(off.values())
    while True:
        replays = conditions.replays(network, limit)
        result = compare(name, threads, conditions.plan, expected, received, limit, replays)
        fits = noise <= limit and not any(d.reason is None for d in result.differences)
        if fits or limit != FLOAT_NOISE or (limit := conditions.limit()) == FLOAT_NOISE:
            return result, limit
        if limit == np.inf:
            reason = "onnxruntime itself gives other numbers when weights change in their last bit"
            return nothing_shown(result, reason), limit


def nothing_shown(result: SetResult, reason: str) -> SetResult:
    """The result of inputs on which a right implementation may give anything."""
    differences = tuple(replace(d, reason=d.reason or reason) for d in result.differences)
    return replace(result, detections=0, differences=differences)


def _observed(judge: Judge, run: Run) -> dict[str, Array]:
    """Floats in which the noise of a network shows: at its border, or in what is suppressed."""
    if judge.whole_is_tail:
        tensors = {
            name: array
            for nms in run.nms
            for name, array in ((nms.call.boxes, nms.boxes), (nms.call.scores, nms.scores))
        }
    else:
        tensors = dict(run.border)
    return {name: array for name, array in tensors.items() if array.dtype.kind == "f"}


def decisions(base: Run, other: Run) -> tuple[str, ...]:
    """Which boxes the suppressions select in one run only, and by what margin."""
    found = []
    for one, two in zip(base.nms, other.nms, strict=True):
        before, after = _triples(one), _triples(two)
        for triple in sorted(before ^ after):
            verb = "no longer selected" if triple in before else "selected as well"
            found.append(
                f"{one.call.name}: image {triple[0]} class {triple[1]} box {triple[2]} {verb}: "
                f"{_why(one, two, triple, before | after)}"
            )
    hidden = len(found) - _MOST_DECISIONS
    return (*found[:_MOST_DECISIONS], *([f"and {hidden} more"] if hidden > 0 else []))


def _triples(run: NmsRun) -> set[tuple[int, int, int]]:
    return {(int(image), int(label), int(box)) for image, label, box in run.selected}


def _why(
    one: NmsRun,
    two: NmsRun,
    triple: tuple[int, int, int],
    selected: set[tuple[int, int, int]],
) -> str:
    image, label, box = triple
    score, moved = (float(run.scores[image, label, box]) for run in (one, two))
    limit = one.call.score_threshold
    if (score > limit) != (moved > limit):
        return f"score {score:.9g} stands {abs(score - limit):.1e} from the limit {limit:g}"
    for other in sorted(selected):
        if other[:2] != (image, label) or other[2] == box:
            continue
        before, after = (_overlap(run, image, box, other[2]) for run in (one, two))
        limit = one.call.iou_threshold
        if (before > limit) != (after > limit):
            return (
                f"IoU {before:.9g} with box {other[2]} stands {abs(before - limit):.1e} from the "
                f"limit {limit:g}"
            )
        rival, rival_moved = (float(run.scores[image, label, other[2]]) for run in (one, two))
        if before > limit and (score < rival) != (moved < rival_moved):
            return f"score {score:.9g} stands {abs(score - rival):.1e} from that of box {other[2]}"
    return "a choice before it fell otherwise"


def _overlap(run: NmsRun, image: int, box: int, other: int) -> float:
    one, two = (_corners(run.call, run.boxes[image, index]) for index in (box, other))
    return float(overlaps(one[None], two[None])[0, 0])


def _corners(call: StaticNms, box: Array) -> Floats:
    numbers = box.astype(np.float64)
    if not call.center_point_box:
        return numbers
    centre, size = numbers[:2], numbers[2:]
    return np.concatenate([centre - size / 2, centre + size / 2])
