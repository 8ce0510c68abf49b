"""The proofs that start from the model's own inputs: the static model's, and the artifact's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from bridge.artifact import source_dims, to_artifact, trim
from bridge.static_model import StaticModel
from bridge.targets.base import Array, Lowered, Port, Session, Target, ports
from bridge.verify.comparison import FLOAT_NOISE, Proof, SetResult
from bridge.verify.golden import Golden, GoldenSet
from bridge.verify.judge import Judge, Run
from bridge.verify.noise import Tail, network_noise
from bridge.verify.outputs import Scheme, compare, receive, scheme
from bridge.verify.tail import THREADS

_MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Judged:
    """A golden set, and the judge's run on its inputs.

    Attributes:
        expected: the outputs the artifact is held to, trimmed.
    """

    golden: GoldenSet
    run: Run
    expected: Mapping[str, Array]


def prove_static(
    golden: Golden, static: StaticModel, judge: Judge
) -> tuple[Proof, tuple[str, ...]]:
    """Hold the static model to the untouched source, both under onnxruntime: bit for bit.

    Padded rows must be zero and counts right. Rows beyond a cap are cut.

    Returns:
        The proof, and a sentence for every output whose rows did not all fit.
    """
    _, outputs = ports(static)
    problems: list[str] = []
    caps: list[str] = []
    for one in golden.sets:
        received = receive(outputs, judge.whole(one.inputs).outputs)
        problems += [f"{one.name}: {text}" for text in received.problems]
        if not received.trimmed:
            continue
        expected, cut = capped(outputs, one.outputs)
        caps += [f"{one.name}: {text}" for text in cut]
        for name, array in expected.items():
            difference = _difference(array, received.trimmed[name])
            if difference:
                problems.append(f"{one.name}: output {name!r} {difference}")
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more"]
    proof = Proof("static model", len(golden.sets), not problems, tuple(problems))
    return proof, tuple(caps)


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


def judge_all(golden: Golden, judge: Judge, lowered: Lowered) -> Iterator[Judged]:
    """What the artifact is held to on every golden set.

    The source's own outputs, or, where the artifact has others, those of its reference.
    """
    for one in golden.sets:
        run = judge.whole(one.inputs)
        if lowered.reference is None:
            expected, _ = capped(lowered.outputs, one.outputs)
        else:
            expected = trim(lowered.outputs, run.outputs)
        yield Judged(one, run, expected)


def prove_whole(
    target: Target, lowered: Lowered, judge: Judge, judged: Sequence[Judged], seed: int
) -> tuple[Proof, tuple[SetResult, ...], float | None]:
    """Run the whole artifact on the golden inputs, on one thread and on several.

    Returns:
        The proof, the result of every set and thread count, and the noise of the network.
    """
    limit = judge.tolerance if judge.whole_is_tail else FLOAT_NOISE
    expected = [one.expected for one in judged]
    plan = scheme(lowered.outputs, expected, limit, lowered.rounding)
    results: list[SetResult] = []
    problems: list[str] = []
    noise: dict[str, float] = {}
    for threads in THREADS:
        with ExitStack() as stack:
            session = stack.enter_context(target.open(lowered.path, threads=threads))
            network = None
            if lowered.network is not None:
                network = stack.enter_context(target.open(lowered.network, threads=threads))
            for one in judged:
                feeds = to_artifact(lowered.inputs, one.golden.inputs)
                border = None if network is None else network.run(feeds)
                if border is not None:
                    _note(noise, network_noise(one.run.border, border))
                results.append(
                    _result(one, threads, plan, lowered, judge, session, feeds, border, seed)
                )
    problems = [
        f"the network is off by {off:.1e} at {name!r}, relative to the size of its numbers; "
        f"float noise stays below {FLOAT_NOISE:.0e}"
        for name, off in noise.items()
        if off > FLOAT_NOISE
    ]
    exact = all(r.deviation == 0 and not r.differences and not r.problems for r in results)
    proof = Proof("whole model", len(judged) * len(THREADS), exact, tuple(problems))
    worst = None if judge.whole_is_tail else max(noise.values(), default=None)
    return proof, tuple(results), worst


def _note(noise: dict[str, float], found: Mapping[str, float]) -> None:
    for name, off in found.items():
        noise[name] = max(noise.get(name, 0.0), off)


def _result(
    one: Judged,
    threads: int,
    plan: Scheme,
    lowered: Lowered,
    judge: Judge,
    session: Session,
    feeds: Mapping[str, Array],
    border: Mapping[str, Array] | None,
    seed: int,
) -> SetResult:
    received = receive(lowered.outputs, session.run(feeds))
    tail = Tail(judge, lowered.outputs, plan, one.run, seed)
    replays = tail.own_replays() if judge.whole_is_tail else tail.replays(border)
    return compare(one.golden.name, threads, plan, one.expected, received, replays)
