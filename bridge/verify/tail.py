"""The tail proof: what stands behind the network, on numbers that onnxruntime gets as well.

No float noise can hide here: both sides start from the same bits, so they must end in the same
bits. Where the tail holds an operator whose last bits are open (Exp, Sigmoid, a sum), floats may
be off by a few units in the last place, and a decision may fall otherwise only if onnxruntime's
does, too, when its border moves by as little. Where nothing was cut and the tail is the network
as well, it is held to what the whole model is held to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bridge.artifact import to_artifact, trim
from bridge.static_nms import StaticNms
from bridge.targets.base import Array, Lowered, Target
from bridge.verify.comparison import Proof
from bridge.verify.judge import Judge, Run
from bridge.verify.noise import Conditions, compare_noisy
from bridge.verify.outputs import STABLE, Received, compare, receive_run, scheme
from bridge.verify.suppression import SuppressionCase, cases

THREADS = (1, 4)

_FEW, _MANY = 20_000, 200_000
_WHOLE_IN_FLOAT32 = 2**24
_MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class BorderSet:
    """Border tensors by name."""

    name: str
    arrays: Mapping[str, Array]


def prove_tail(
    target: Target, lowered: Lowered, judge: Judge, golden: Iterable[BorderSet], seed: int
) -> Proof:
    """Run the tail and onnxruntime on the same border tensors, on one thread and on several.

    Args:
        target: opens the artifact.
        lowered: the artifact and its tail.
        judge: of the same border.
        golden: the border as onnxruntime has it on the golden inputs; variations of the first and
            the generated sets of `suppression` come on top.
        seed: of everything generated.
    """
    compared, exact = 0, True
    problems: list[str] = []
    with ExitStack() as stack:
        path = lowered.tail or lowered.path
        sessions = {
            threads: stack.enter_context(target.open(path, threads=threads)) for threads in THREADS
        }
        for one in _all_sets(judge, tuple(golden), seed):
            run = _run(judge, one)
            if run is None or not run.defined:
                continue
            compared += 1
            feeds = to_artifact(lowered.inputs, one.arrays) if judge.whole_is_tail else one.arrays
            for threads, session in sessions.items():
                received = receive_run(lowered.outputs, session, feeds)
                if not same_bits(run.outputs, received):
                    exact = False
                    problems += unexcused(one.name, threads, lowered, judge, run, received)
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more"]
    note = ""
    if judge.holds_network:
        note = "nothing was cut: the tail holds the network, and is held to its float noise"
    elif judge.tolerance:
        note = (
            f"its operators leave last bits open: floats within {judge.tolerance:.1e} of their size"
        )
    return Proof("tail", compared, exact, tuple(problems), note)


def _all_sets(judge: Judge, golden: tuple[BorderSet, ...], seed: int) -> Iterator[BorderSet]:
    if not judge.whole_is_tail:
        # Otherwise the whole artifact runs on the golden inputs anyway.
        yield from golden
    yield from variations(golden[0].arrays, seed)
    yield from generated(judge, golden[0].arrays, seed)


def _run(judge: Judge, one: BorderSet) -> Run | None:
    """The judge's run; None where the numbers make onnxruntime fail (an index out of range)."""
    try:
        return judge.tail(one.arrays)
    except Exception:
        return None


def same_bits(expected: Mapping[str, Array], received: Received) -> bool:
    """Whether padded outputs are onnxruntime's to the bit."""
    return not received.problems and all(
        np.array_equal(array, received.padded[name], equal_nan=array.dtype.kind == "f")
        for name, array in expected.items()
    )


def unexcused(
    name: str, threads: int, lowered: Lowered, judge: Judge, run: Run, received: Received
) -> Iterator[str]:
    """What stays wrong once rounding that the target or an operator is entitled to is allowed."""
    expected = trim(lowered.outputs, run.outputs)
    plan = scheme(lowered.outputs, [expected], lowered.rounding)
    conditions = Conditions(judge, lowered.outputs, plan, run, None, seed=0)
    if judge.holds_network:
        result, _ = compare_noisy(name, threads, conditions, expected, received, None)
    else:
        replays = conditions.replays_of_rounding()
        # A made-up set with overlaps on the limit itself is decided by how the kernel rounds.
        stable = 0.0 if lowered.rounding else STABLE
        result = compare(
            name, threads, plan, expected, received, judge.tolerance, replays, stable=stable
        )
    for text in result.wrong:
        yield f"{text} (threads: {threads})"


def variations(border: Mapping[str, Array], seed: int) -> Iterator[BorderSet]:
    """The same tensors with other floats: all equal, few different ones, turned, shuffled, larger.

    They reach what real inputs seldom do: ties, nothing above a limit, everything above it.
    """
    rng = np.random.default_rng(seed)
    makers: dict[str, Callable[[NDArray[np.floating]], NDArray[np.floating]]] = {
        "coarse": _coarse,
        "zeros": np.zeros_like,
        "ones": np.ones_like,
        "negated": lambda numbers: -numbers,
        "eightfold": lambda numbers: numbers * 8,
        "shuffled": lambda numbers: rng.permutation(numbers.reshape(-1)).reshape(numbers.shape),
        "repeated": lambda numbers: np.resize(numbers.reshape(-1)[::2], numbers.shape),
    }
    for name, make in makers.items():
        arrays: dict[str, Array] = {}
        for key, array in border.items():
            floats = array.dtype.kind == "f"
            arrays[key] = make(array.astype(np.float64)).astype(array.dtype) if floats else array
        yield BorderSet(f"border {name}", arrays)


def _coarse(numbers: NDArray[np.floating]) -> NDArray[np.floating]:
    """Seventeen different numbers at most."""
    step = np.abs(numbers[np.isfinite(numbers)]).max(initial=0) / 8
    return np.asarray(np.round(numbers / step) * step) if step else numbers


def generated(judge: Judge, border: Mapping[str, Array], seed: int) -> Iterator[BorderSet]:
    """The generated sets of `suppression`, laid into the border tensors.

    Boxes and scores are laid in where the suppression reads copies of border numbers, wherever
    views and transposes took them; where only one of both can be, only that one is.
    """
    for call in judge.calls:
        places = _places(judge, border, call)
        if not places:
            continue
        for repeat, case in _cases(judge, call, seed):
            numbers = _flat(border)
            for tensor, made in ((call.boxes, case.boxes), (call.scores, case.scores)):
                if tensor in places:
                    numbers[places[tensor]] = made
            yield BorderSet(f"{call.name} {case.name} {repeat}", _laid(border, numbers))


def _cases(judge: Judge, call: StaticNms, seed: int) -> Iterator[tuple[int, SuppressionCase]]:
    """More of them where they are small."""
    batch, classes, boxes = judge.types[call.scores].shape
    size = batch * boxes * (classes + 4)
    for repeat in range(4 if size <= _FEW else 2 if size <= _MANY else 1):
        for case in cases(
            batch,
            classes,
            boxes,
            call.iou_threshold,
            call.score_threshold,
            call.center_point_box,
            seed + repeat,
            max_output_boxes_per_class=call.max_output_boxes_per_class,
        ):
            yield repeat, case


def _places(
    judge: Judge, border: Mapping[str, Array], call: StaticNms
) -> dict[str, NDArray[np.int64]]:
    """For boxes and scores of a suppression, which border number each of theirs is a copy of.

    Found by running the tail on a border that holds the numbers 1, 2, 3, ...: what comes out of
    views and transposes is a whole number from that range, and no number twice.
    """
    total = len(_flat(border))
    if total >= _WHOLE_IN_FLOAT32:
        return {}
    counted = _laid(border, np.arange(1, total + 1, dtype=np.float32))
    run = _run(judge, BorderSet("places", counted))
    if run is None:
        return {}
    seen = next(nms for nms in run.nms if nms.call == call)
    places = {}
    for tensor, array in ((call.boxes, seen.boxes), (call.scores, seen.scores)):
        numbers = array.astype(np.float64)
        whole = (numbers == np.floor(numbers)) & (numbers >= 1) & (numbers <= total)
        if whole.all() and len(np.unique(numbers)) == numbers.size:
            places[tensor] = numbers.astype(np.int64) - 1
    return places


def _flat(border: Mapping[str, Array]) -> NDArray[np.float32]:
    """All float32 border tensors end to end."""
    parts = [array.reshape(-1) for array in border.values() if array.dtype == np.float32]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _laid(border: Mapping[str, Array], numbers: NDArray[np.float32]) -> dict[str, Array]:
    """The border with its float32 tensors taken from `numbers`, end to end."""
    laid, start = {}, 0
    for name, array in border.items():
        if array.dtype != np.float32:
            laid[name] = array
            continue
        laid[name] = numbers[start : start + array.size].reshape(array.shape)
        start += array.size
    return laid
