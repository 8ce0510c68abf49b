"""Verification: an artifact held to onnxruntime on the untouched source model. Trusts nothing."""

from collections.abc import Sequence
from pathlib import Path

from bridge.detection.boxes import BoxColumns, box_columns
from bridge.model import Source
from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered, Target
from bridge.verify import golden as goldens
from bridge.verify.agreement import Agreement, Terms
from bridge.verify.candidates import limited
from bridge.verify.comparison import (
    Comparison,
    Difference,
    Kind,
    Proof,
    SetResult,
    Verdict,
    conclude,
)
from bridge.verify.golden import Golden
from bridge.verify.inputs import GUESSES, SEED, as_fed, input_sets
from bridge.verify.judge import Judge
from bridge.verify.quantised import hold_quantised, prove_behind
from bridge.verify.tail import BorderSet, prove_tail
from bridge.verify.whole import judge_all, prove_detections, prove_static, prove_whole

__all__ = [
    "Agreement", "Comparison", "Difference", "Kind", "Proof", "SetResult", "Terms", "Verdict",
    "hold", "verify",
]  # fmt: skip


def verify(
    source: Source,
    static: StaticModel,
    lowered: Lowered,
    target: Target,
    options: Options,
    images: Sequence[Path] = (),
    inputs: Path | None = None,
    *,
    terms: Terms | None = None,
    seed: int = SEED,
) -> Comparison:
    """Hold an artifact to what onnxruntime makes of the untouched source.

    Three proofs, each on its own: the static model equals the source; the tail of the artifact
    equals the static model's on the same numbers; the whole artifact agrees with the source, rows
    matched one to one, decisions differing only within the float noise of its network. Of a
    quantised artifact, the third is what `quantised` says.

    Args:
        source: the model, its head and preprocessing inside.
        static: what the surgery made of it.
        lowered: the artifact.
        target: runs it.
        options: of the conversion.
        images: photos, fed as `Options.normalization` says, or else in every `GUESSES`.
        inputs: arrays.
        terms: what is asked of a quantised artifact.
        seed: of everything generated.

    Raises:
        UsageError: `images`, `inputs` or the ground truth cannot be used.
        UnsupportedModelError: onnxruntime cannot load the source.
        InconclusiveError: onnxruntime runs the source on none of the inputs, or nothing tells what
            a quantised artifact detects.
    """
    known = options.normalization
    ways = GUESSES if known is None else (as_fed(known),)
    sets = input_sets(source, options, images, inputs, preprocessing=ways, seed=seed)
    golden = goldens.record(source, sets, options, seed=seed)
    boxes = _boxes(source) if lowered.quantised else None
    return hold(golden, static, lowered, target, terms=terms, boxes=boxes, seed=seed)


def _boxes(source: Source) -> BoxColumns | None:
    """Where the graph says that the boxes are, if it is one place."""
    _, found = box_columns(source.model)
    return found[0] if len(found) == 1 else None


def hold(
    golden: Golden,
    static: StaticModel,
    lowered: Lowered,
    target: Target,
    *,
    terms: Terms | None = None,
    boxes: BoxColumns | None = None,
    seed: int = SEED,
) -> Comparison:
    """The same against a golden that was recorded already."""
    plain = Judge(static.model, () if lowered.reference is not None else lowered.border)
    judged, failures = judge_all(golden, plain)
    proof, caps = prove_static(static, judged, failures)
    proofs = [proof]
    judge = plain
    if lowered.reference is not None:
        judge = Judge(lowered.reference, lowered.border)
        judged, failures = judge_all(golden, judge)
        if not lowered.rounded_reference:
            proofs.append(prove_detections(static, lowered, judged, failures))
    results: tuple[SetResult, ...] = ()
    noise = None
    if judged:
        borders = [BorderSet(one.golden.name, one.run.border) for one in judged]
        best = limited(lowered.reference or static.model, lowered.nms)
        behind = judge if best is None else Judge(best, lowered.border)
        proofs.append(prove_tail(target, lowered, behind, borders, seed))
        if lowered.quantised:
            joined, ran = prove_behind(target, lowered, behind, judged)
            proofs.append(joined)
            return hold_quantised(
                golden, static, lowered, ran, tuple(proofs), caps, terms or Terms(), boxes
            )
        whole, results, noise = prove_whole(target, lowered, judge, judged, seed)
        proofs.append(whole)
    return conclude(golden, tuple(proofs), results, noise, caps, suppresses=bool(judge.calls))
