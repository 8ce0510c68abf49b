"""Verification: an artifact held to onnxruntime on the untouched source model. Trusts nothing."""

from collections.abc import Sequence
from pathlib import Path

from bridge.model import Source
from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered, Target
from bridge.verify import golden as goldens
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
from bridge.verify.inputs import SEED, input_sets
from bridge.verify.judge import Judge
from bridge.verify.tail import BorderSet, prove_tail
from bridge.verify.whole import judge_all, prove_detections, prove_static, prove_whole

__all__ = ["Comparison", "Difference", "Kind", "Proof", "SetResult", "Verdict", "hold", "verify"]


def verify(
    source: Source,
    static: StaticModel,
    lowered: Lowered,
    target: Target,
    options: Options,
    images: Sequence[Path] = (),
    inputs: Path | None = None,
    *,
    seed: int = SEED,
) -> Comparison:
    """Hold an artifact to what onnxruntime makes of the untouched source.

    Three proofs, each on its own: the static model equals the source; the tail of the artifact
    equals the static model's on the same numbers; the whole artifact agrees with the source, rows
    matched one to one, decisions differing only within the float noise of its network.

    Raises:
        UsageError: `images` or `inputs` cannot be used.
        UnsupportedModelError: onnxruntime cannot load the source.
        InconclusiveError: onnxruntime runs the source on none of the inputs.
    """
    sets = input_sets(source, options, images, inputs, seed=seed)
    golden = goldens.record(source, sets, options, seed=seed)
    return hold(golden, static, lowered, target, seed=seed)


def hold(
    golden: Golden, static: StaticModel, lowered: Lowered, target: Target, *, seed: int = SEED
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
        whole, results, noise = prove_whole(target, lowered, judge, judged, seed)
        proofs.append(whole)
    return conclude(golden, tuple(proofs), results, noise, caps, suppresses=bool(judge.calls))
