"""What a golden check came to: verdict, proofs, and every row that differs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bridge.verify.agreement import Agreement
from bridge.verify.golden import Golden

FLOAT_NOISE = 1e-4
"""What a float32 network may always be off by, relative to the size of its numbers.

Right implementations were seen to differ by 1e-7 to 5e-5 on inputs of the kind a network was made
for; a wrong layout, weight or operator by more than 1e-3. Decisions are held to the noise measured.
"""

_MOST_TEXTS = 50


class Verdict(StrEnum):
    """What the golden check came to."""

    MATCH = "match"
    MISMATCH = "mismatch"
    INCONCLUSIVE = "inconclusive"


class Kind(StrEnum):
    """How a row can differ."""

    LOST = "lost"
    EXTRA = "extra"
    MOVED = "moved"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs.

    Attributes:
        inputs: the set of inputs.
        outputs: the outputs that share the row.
        row: in onnxruntime's outputs; in the artifact's where it is extra.
        what: the row, and how far it moved.
        reason: why it is float noise of the network; None where nothing excuses it.
    """

    inputs: str
    outputs: str
    kind: Kind
    row: int
    what: str
    reason: str | None = None

    def __str__(self) -> str:
        excuse = f"; {self.reason}" if self.reason else ""
        return f"{self.inputs}: {self.outputs} row {self.row} {self.kind} ({self.what}){excuse}"


@dataclass(frozen=True, slots=True)
class SetResult:
    """One set of inputs through the artifact.

    Attributes:
        detections: rows matched one to one that say something.
        worst_box: largest distance of a coordinate within a pair, in the model's units.
        worst_score: largest distance of any other float within a pair.
        deviation: largest distance within a pair, relative to the size of the numbers.
        problems: what is wrong beside rows: a type, a shape, a count, padding.
        decisions: why the rows that differ do so, as the suppression sees it.
    """

    inputs: str
    threads: int
    detections: int
    worst_box: float
    worst_score: float
    deviation: float
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[str, ...]:
        """Everything that nothing excuses."""
        return (*self.problems, *(str(d) for d in self.differences if d.reason is None))


@dataclass(frozen=True, slots=True)
class Proof:
    """One of the proofs that a golden check consists of.

    Attributes:
        sets: how many sets of numbers were compared.
        exact: every one of them to the bit.
        problems: what disproves it; empty where it holds.
        note: what it does not show, or why it is not exact.
    """

    name: str
    sets: int
    exact: bool
    problems: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """An artifact held to onnxruntime on the untouched source model.

    Attributes:
        inputs: how many sets of golden inputs were compared.
        detections: matched one to one over all sets; the fewest of all thread counts.
        worst_box: in the model's units, on the user's inputs where there are any: noise can make
            boxes of any size.
        worst_score: likewise.
        deviation: the same over all sets, relative to the size of the numbers.
        unmatched: rows on either side without a partner, or out of order, that nothing excuses.
        noise: of the network at its border, relative to the size of the numbers; None where
            nothing stands before the border.
        caps: outputs whose rows did not all fit under `--max-detections`.
        failed: sets that onnxruntime itself cannot run the source on.
        proofs: the static model, the tail, the whole artifact.
        quantised: how far a quantised file finds what the source finds; `unmatched` are then its
            lost and extra detections, and no proof is of tensors of the network.
    """

    verdict: Verdict
    inputs: int
    detections: int
    worst_box: float
    worst_score: float
    unmatched: int
    runtime: str
    deviation: float = 0.0
    noise: float | None = None
    caps: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()
    sets: tuple[SetResult, ...] = ()
    quantised: Agreement | None = None

    @property
    def excused(self) -> tuple[Difference, ...]:
        """Rows that differ because of float noise of the network, each with its reason."""
        return tuple(d for one in self.sets for d in one.differences if d.reason is not None)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that speaks against the artifact."""
        return (
            *(f"{proof.name}: {text}" for proof in self.proofs for text in proof.problems),
            *(text for one in self.sets for text in one.wrong),
            *(() if self.quantised is None else self.quantised.problems),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """For the manifest: what did not fit, and what was not held to anything."""
        return (*self.caps, *(() if self.quantised is None else self.quantised.warnings))

    def as_dict(self) -> dict[str, object]:
        """The manifest's `golden` entry."""
        return {
            "inputs": self.inputs,
            "detections": self.detections,
            "worst_box": self.worst_box,
            "worst_score": self.worst_score,
            "unmatched": self.unmatched,
            "deviation": self.deviation,
            "noise": self.noise,
            "runtime": self.runtime,
            "caps": list(self.caps),
            "problems": _shortened(self.problems),
            "excused": _shortened([str(difference) for difference in self.excused]),
            "decisions": _shortened([f"{s.inputs}: {t}" for s in self.sets for t in s.decisions]),
            "failed": list(self.failed),
            "proofs": [
                {"name": p.name, "sets": p.sets, "exact": p.exact, "note": p.note}
                for p in self.proofs
            ],
            "per_input": [
                {
                    "name": one.inputs,
                    "threads": one.threads,
                    "detections": one.detections,
                    "worst_box": one.worst_box,
                    "worst_score": one.worst_score,
                    "differences": len(one.differences),
                }
                for one in self.sets
            ],
            "quantised": None if self.quantised is None else self.quantised.as_dict(),
        }


def _shortened(texts: Sequence[str]) -> list[str]:
    """A list that a person can read, and how much of it is hidden."""
    hidden = len(texts) - _MOST_TEXTS
    return [*texts[:_MOST_TEXTS], *([f"and {hidden} more"] if hidden > 0 else [])]


def conclude(
    golden: Golden,
    proofs: tuple[Proof, ...],
    results: tuple[SetResult, ...],
    noise: float | None = None,
    caps: tuple[str, ...] = (),
    *,
    suppresses: bool,
    quantised: Agreement | None = None,
) -> Comparison:
    """The verdict: wrong is wrong; nothing detected in any set shows nothing; else it agrees."""
    by_threads: dict[int, int] = {}
    for one in results:
        by_threads[one.threads] = by_threads.get(one.threads, 0) + one.detections
    detections = min(by_threads.values(), default=0)
    wrong = any(one.wrong for one in results) or any(proof.problems for proof in proofs)
    unmatched = sum(d.reason is None for one in results for d in one.differences)
    if quantised is not None:
        wrong |= bool(quantised.problems)
        unmatched = quantised.lost + quantised.extra
    verdict = Verdict.MATCH
    if wrong:
        verdict = Verdict.MISMATCH
    elif suppresses and not detections:
        verdict = Verdict.INCONCLUSIVE
    generated = {one.name for one in golden.sets if one.generated}
    given = [one for one in results if one.inputs not in generated] or results
    return Comparison(
        verdict=verdict,
        inputs=len(golden.sets),
        detections=detections,
        worst_box=max((one.worst_box for one in given), default=0.0),
        worst_score=max((one.worst_score for one in given), default=0.0),
        unmatched=unmatched,
        runtime=golden.runtime,
        deviation=max((one.deviation for one in results), default=0.0),
        noise=noise,
        caps=caps,
        failed=golden.failed,
        proofs=proofs,
        sets=results,
        quantised=quantised,
    )
