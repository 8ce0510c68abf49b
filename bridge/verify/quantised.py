"""The golden check of a quantised file: exact behind its network, and the same objects found.

The static model and the tail are held to the bit, as always. The whole file is held to its own
network: on the border that this really gives, onnxruntime's tail must end in the file's outputs.
What a narrow network may cost is then no matter of tensors: objects are matched with those of the
float source under onnxruntime, and average precision is held to what the user allows.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from bridge.artifact import Manifest, source_dims, to_artifact, trim
from bridge.detection.boxes import BoxColumns
from bridge.errors import InconclusiveError
from bridge.static_model import StaticModel
from bridge.targets.base import Array, Lowered, Target, ports
from bridge.verify.agreement import Agreement, Found, Terms, agreement, apart
from bridge.verify.comparison import Comparison, Proof, SetResult, conclude
from bridge.verify.golden import Golden, GoldenSet, ports_of
from bridge.verify.judge import Judge, NmsRun
from bridge.verify.objects import Objects, View, aligned, four_outputs, pair, selected, view
from bridge.verify.outputs import Received, capped, receive_run
from bridge.verify.tail import THREADS, same_bits, unexcused
from bridge.verify.whole import Judged, few

NAME = "tail behind the quantised network"


@dataclass(frozen=True, slots=True)
class Ran:
    """A quantised file on one set of inputs.

    Attributes:
        nms: what onnxruntime's tail suppresses on the border that the file's network gives; None
            where it does not run on it.
    """

    judged: Judged
    threads: int
    received: Received
    nms: tuple[NmsRun, ...] | None


def prove_behind(
    target: Target, lowered: Lowered, judge: Judge, judged: Sequence[Judged]
) -> tuple[Proof, tuple[Ran, ...]]:
    """Hold the whole file to onnxruntime's tail on what the file's own network gives.

    Each number of threads is held to its own network: kernels may sum in another order.

    Args:
        target: opens the files.
        lowered: the file, and its network alone.
        judge: of the same border; it compares as many candidates as the file.
        judged: golden sets.
    """
    problems: list[str] = []
    ran: list[Ran] = []
    compared, exact = 0, True
    if lowered.network is None or judge.whole_is_tail:
        problems.append("the target shows no network alone, so nothing tells what is behind it")
    for threads in THREADS:
        with ExitStack() as stack:
            whole = stack.enter_context(target.open(lowered.path, threads=threads))
            network = None
            if lowered.network is not None:
                network = stack.enter_context(target.open(lowered.network, threads=threads))
            for one in judged:
                feeds = to_artifact(lowered.inputs, one.golden.inputs)
                received = receive_run(lowered.outputs, whole, feeds)
                run = None if network is None else judge.tail(network.run(feeds))
                ran.append(Ran(one, threads, received, None if run is None else run.nms))
                if run is None or not run.defined:
                    continue
                compared += 1
                if not same_bits(run.outputs, received):
                    exact = False
                    name = one.golden.name
                    problems += unexcused(name, threads, lowered, judge, run, received)
    return Proof(NAME, compared, exact and compared > 0, few(problems)), tuple(ran)


def hold_quantised(
    golden: Golden,
    static: StaticModel,
    lowered: Lowered,
    ran: Sequence[Ran],
    proofs: tuple[Proof, ...],
    caps: tuple[str, ...],
    terms: Terms,
    boxes: BoxColumns | None,
) -> Comparison:
    """The verdict on a quantised file, from what it gave.

    Args:
        golden: the float source under onnxruntime.
        static: the static model.
        lowered: the file.
        ran: the file, on every golden set and number of threads.
        proofs: all that is held to the bit.
        caps: outputs whose rows did not all fit.
        terms: what the user asks.
        boxes: where the graph says that the source's boxes are.

    Raises:
        InconclusiveError: nothing in the outputs, nor in the graph, can be read as detections.
        UsageError: the ground truth does not fit.
    """
    source, found, notes = _objects(static, lowered, ran, boxes)
    seen = [
        Found(
            one.judged.golden.name,
            one.threads,
            one.judged.golden.generated,
            one.judged.golden.photo,
            *both,
            problems=one.received.problems,
        )
        for one, both in zip(ran, zip(source, found, strict=True), strict=True)
    ]
    four = lowered.reference is not None and not lowered.rounded_reference
    told = agreement(seen, terms, notes, y_first=True if four else None, boxes=boxes)
    return judged_by(golden, seen, told, proofs, caps)


def _objects(
    static: StaticModel, lowered: Lowered, ran: Sequence[Ran], boxes: BoxColumns | None
) -> tuple[list[Objects], list[Objects], tuple[str, ...]]:
    """The float source's objects and the file's, for each run, and what is to be noted of them."""
    outputs, received = lowered.outputs, [one.received for one in ran]
    if lowered.reference is not None and not lowered.rounded_reference:
        made = four_outputs(outputs)
        source = [made.objects(trim(outputs, one.judged.run.outputs)) for one in ran]
        return source, [_seen(made, *both) for both in zip(received, source, strict=True)], ()
    given = ports(static)[1] if lowered.rounded_reference else outputs
    expected = [capped(given, one.judged.golden.outputs)[0] for one in ran]
    telling = [
        wanted for one, wanted in zip(ran, expected, strict=True) if _tells(one.judged.golden)
    ]
    reading = view(given, telling or expected, boxes)
    if reading is not None:
        source = [reading.objects(one) for one in expected]
        made = four_outputs(outputs) if lowered.rounded_reference else reading
        found = [_seen(made, *both) for both in zip(received, source, strict=True)]
        return (*(aligned(source, found) if lowered.rounded_reference else (source, found)), ())
    if any(not one.judged.run.nms or one.nms is None for one in ran):
        names = ", ".join(repr(port.name) for port in outputs)
        raise InconclusiveError(
            f"a quantised file is judged by what it detects, and its outputs ({names}) hold no "
            "boxes with scores, nor does a NonMaxSuppression select any: complete the model with "
            "--head, or go without a proof with --no-verify"
        )
    note = (
        "the outputs hold no boxes with scores: compared is what the suppressions select, in "
        "their boxes, whatever the model makes of it"
    )
    source = [selected(one.judged.run.nms) for one in ran]
    return source, [selected(one.nms or ()) for one in ran], (note,)


def _tells(one: GoldenSet) -> bool:
    """Whether outputs show what their columns are: noise makes scores of any size."""
    return not one.generated


def _seen(reading: View, received: Received, source: Objects) -> Objects:
    """The file's objects; none where its outputs have another form than they must have."""
    if received.trimmed:
        return reading.objects(received.trimmed)
    return Objects(source.boxes[:0], source.scores[:0], source.labels[:0])


def check_quantised(
    golden: Golden,
    manifest: Manifest,
    received: Mapping[int, Sequence[Received]],
    max_ap_drop: float | None,
) -> Comparison:
    """The verdict on a published file: all there is are a golden and its outputs.

    Args:
        golden: of the source.
        manifest: of the file.
        received: its outputs on every set, by the number of threads.
        max_ap_drop: the limit, the source's own detections being the truth.

    Raises:
        InconclusiveError: nothing in the outputs can be read as detections.
    """
    own = {port.name for port in manifest.outputs} & set(golden.sets[0].outputs)
    caps: list[str] = []
    expected: list[Mapping[str, Array]] = []
    for one in golden.sets:
        kept, cut = capped(manifest.outputs, one.outputs) if own else (dict(one.outputs), [])
        expected.append(kept)
        caps += [f"{one.name}: {text}" for text in cut]
    boxes = _recorded(manifest)
    telling = [wanted for one, wanted in zip(golden.sets, expected, strict=True) if _tells(one)]
    reading = view(manifest.outputs if own else ports_of(golden), telling or expected, boxes)
    if reading is None:
        raise InconclusiveError(
            f"{manifest.artifact_file} is quantised and judged by what it detects, and the outputs "
            "of its source hold no boxes with scores; convert again: the check of a conversion "
            "looks at its suppressions, too"
        )
    made = reading if own else four_outputs(manifest.outputs)
    seen: list[Found] = []
    for threads, runs in received.items():
        source = [reading.objects(one) for one in expected]
        found = [_seen(made, *both) for both in zip(runs, source, strict=True)]
        if not own:
            room = max(source_dims(port)[r.axis] for port in manifest.outputs for r in port.rows)
            source, found = aligned([one.best(room) for one in source], found)
        seen += [
            Found(one.name, threads, one.generated, one.photo, *both, problems=run.problems)
            for one, run, both in zip(
                golden.sets, runs, zip(source, found, strict=True), strict=True
            )
        ]
    told = agreement(seen, Terms(max_ap_drop=max_ap_drop), boxes=boxes)
    return judged_by(golden, seen, told, (), tuple(caps))


def _recorded(manifest: Manifest) -> BoxColumns | None:
    """Where the conversion found the boxes in the source's outputs."""
    told = (manifest.golden or {}).get("quantised")
    boxes = told.get("boxes") if isinstance(told, Mapping) else None
    if not isinstance(boxes, Mapping):
        return None
    return BoxColumns(str(boxes["output"]), int(boxes["columns"]), int(boxes["first"]))


def judged_by(
    golden: Golden,
    seen: Sequence[Found],
    told: Agreement,
    proofs: tuple[Proof, ...] = (),
    caps: tuple[str, ...] = (),
) -> Comparison:
    """The comparison that an agreement comes to."""
    counted = frozenset(told.inputs)
    results = tuple(_result(one, counts=one.inputs in counted) for one in seen)
    return conclude(golden, proofs, results, None, caps, suppresses=True, quantised=told)


def _result(one: Found, *, counts: bool) -> SetResult:
    """One set of inputs; what does not count has no detections that are matched."""
    rows = pair(one.source, one.file).rows if counts else np.zeros((0, 2), np.int64)
    box, score = apart(one, rows)
    return SetResult(one.inputs, one.threads, len(rows), box, score, 0.0, problems=one.problems)
