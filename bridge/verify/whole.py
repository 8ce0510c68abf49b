"""The proofs that start from the model's own inputs: the static model's, and the artifact's."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from bridge.artifact import source_dims, to_artifact, trim
from bridge.static_model import StaticModel
from bridge.targets.base import Array, Lowered, Session, Target, ports
from bridge.verify.comparison import Proof, SetResult
from bridge.verify.detections import difference, of_postprocess, readings
from bridge.verify.golden import Golden, GoldenSet
from bridge.verify.judge import Judge, Run
from bridge.verify.noise import Conditions, compare_noisy, network_noise, nothing_shown
from bridge.verify.outputs import Scheme, capped, compare, receive, receive_run, scheme
from bridge.verify.rounding import EPSILON
from bridge.verify.tail import THREADS

_MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Judged:
    """A golden set, and a judge's run on its inputs."""

    golden: GoldenSet
    run: Run


def judge_all(golden: Golden, judge: Judge) -> tuple[tuple[Judged, ...], tuple[str, ...]]:
    """A judge's run on every golden set, and what onnxruntime says where it fails."""
    judged, failures = [], []
    for one in golden.sets:
        try:
            judged.append(Judged(one, judge.whole(one.inputs)))
        except Exception as error:
            failures.append(f"{one.name}: onnxruntime fails: {' '.join(str(error).split())}")
    return tuple(judged), tuple(failures)


def prove_static(
    static: StaticModel, judged: Sequence[Judged], failures: Sequence[str]
) -> tuple[Proof, tuple[str, ...]]:
    """Hold the static model to the untouched source, both under onnxruntime: bit for bit.

    Padded rows must be zero and counts right. Rows beyond a cap are cut.

    Returns:
        The proof, and a sentence for every output whose rows did not all fit.
    """
    _, outputs = ports(static)
    problems = list(failures)
    caps: list[str] = []
    for one in judged:
        name = one.golden.name
        received = receive(outputs, one.run.outputs)
        problems += [f"{name}: {text}" for text in received.problems]
        if not received.trimmed:
            continue
        expected, cut = capped(outputs, one.golden.outputs)
        caps += [f"{name}: {text}" for text in cut]
        for output, array in expected.items():
            text = _difference(array, received.trimmed[output])
            if text:
                problems.append(f"{name}: output {output!r} {text}")
    sets = len(judged) + len(failures)
    return Proof("static model", sets, not problems, few(problems)), tuple(caps)


def _difference(expected: Array, found: Array) -> str:
    if expected.dtype != found.dtype:
        return f"is {found.dtype.name}, not {expected.dtype.name}"
    if expected.shape != found.shape:
        return f"has shape {list(found.shape)}, not {list(expected.shape)}"
    same = expected == found
    if expected.dtype.kind == "f":
        same |= np.isnan(expected) & np.isnan(found)
    if same.all():
        return ""
    at = tuple(int(index[0]) for index in np.nonzero(~same))
    return (
        f"differs in {int((~same).sum())} of {same.size} numbers, first at {list(at)}: "
        f"{found[at]} instead of {expected[at]}"
    )


def prove_detections(
    static: StaticModel, lowered: Lowered, judged: Sequence[Judged], failures: Sequence[str]
) -> Proof:
    """Hold a reference's detections to those in the source's own outputs, as sets.

    Of the ways in which the source's columns can be read, one must make all sets equal.
    """
    name = "detections of the source"
    _, outputs = ports(static)
    made = of_postprocess(lowered.outputs)
    room = max(source_dims(port)[rows.axis] for port in lowered.outputs for rows in port.rows)
    found = [made.table(trim(lowered.outputs, one.run.outputs)) for one in judged]
    problems = list(failures)
    for source in readings(outputs, [one.golden.outputs for one in judged]):
        # Corners are made of centres once here and once in float32 there.
        limit = 2 * EPSILON if source.centres else 0.0
        wrong = [
            f"{one.golden.name}: {text}"
            for one, table in zip(judged, found, strict=True)
            if (text := difference(source.table(one.golden.outputs), table, room, limit))
        ]
        if not wrong and not failures:
            note = "" if source.label is not None else "no column of the source holds classes"
            return Proof(name, len(judged), True, note=note)
        problems = problems or wrong
    if not problems:
        note = "the source's outputs hold no boxes with scores, so nothing was compared"
        return Proof(name, 0, False, note=note)
    return Proof(name, len(judged), False, few(problems))


def few(problems: list[str]) -> tuple[str, ...]:
    """The first of them, and how many more there are."""
    hidden = len(problems) - _MOST_PROBLEMS
    return (*problems[:_MOST_PROBLEMS], *([f"and {hidden} more"] if hidden > 0 else []))


def _expected(one: Judged, lowered: Lowered) -> Mapping[str, Array]:
    """What the artifact is held to: the source's own outputs, or else those of its reference."""
    if lowered.reference is None:
        return capped(lowered.outputs, one.golden.outputs)[0]
    return trim(lowered.outputs, one.run.outputs)


def prove_whole(
    target: Target, lowered: Lowered, judge: Judge, judged: Sequence[Judged], seed: int
) -> tuple[Proof, tuple[SetResult, ...], float | None]:
    """Run the whole artifact on the golden inputs, on one thread and on several.

    Returns:
        The proof, the result of every set and thread count, and the noise of the network.
    """
    expected = [_expected(one, lowered) for one in judged]
    plan = scheme(lowered.outputs, expected, lowered.rounding)
    runs = _Runs(lowered, judge, plan, seed)
    for threads in THREADS:
        with ExitStack() as stack:
            session = stack.enter_context(target.open(lowered.path, threads=threads))
            network = None
            if lowered.network is not None:
                network = stack.enter_context(target.open(lowered.network, threads=threads))
            for one, wanted in zip(judged, expected, strict=True):
                runs.add(one, wanted, threads, session, network)
    exact = all(r.deviation == 0 and not r.differences and not r.problems for r in runs.results)
    problems = tuple(runs.problems.values())
    proof = Proof("whole model", len(runs.results), exact, problems)
    return proof, tuple(runs.results), max(runs.noise, default=None)


@dataclass(slots=True)
class _Runs:
    """The runs of a whole artifact so far.

    Attributes:
        problems: by border tensor; what shows that the network is not only noisy.
        noise: of the network on every set, where it can be asked.
    """

    lowered: Lowered
    judge: Judge
    plan: Scheme
    seed: int
    results: list[SetResult] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    noise: list[float] = field(default_factory=list)

    def add(
        self,
        one: Judged,
        expected: Mapping[str, Array],
        threads: int,
        session: Session,
        network: Session | None,
    ) -> None:
        """Run one set through the artifact, and through its network alone where there is one."""
        ports, name, judge = self.lowered.outputs, one.golden.name, self.judge
        feeds = to_artifact(self.lowered.inputs, one.golden.inputs)
        received = receive_run(ports, session, feeds)
        conditions = Conditions(judge, ports, self.plan, one.run, one.golden.inputs, self.seed)
        if judge.whole_is_tail and not judge.holds_network:
            replays = conditions.replays_of_rounding()
            result = compare(name, threads, self.plan, expected, received, judge.tolerance, replays)
        else:
            border = None if network is None else network.run(feeds)
            result, limit = compare_noisy(name, threads, conditions, expected, received, border)
            if border is not None:
                self._judge_network(name, one.run, border, limit)
        if not one.run.defined:
            result = nothing_shown(result, "a NaN is ordered here, and ONNX does not say where")
        self.results.append(result)

    def _judge_network(
        self, name: str, run: Run, border: Mapping[str, Array], limit: float
    ) -> None:
        noise = network_noise(run.border, border, self.judge.roots)
        self.noise.append(max(noise.values()))
        for tensor, off in noise.items():
            if off > limit:
                self.problems.setdefault(
                    tensor,
                    f"{name}: the network is off by {off:.1e} at {tensor!r}, relative to the size "
                    f"of its numbers; float noise stays below {limit:.1e} there",
                )
