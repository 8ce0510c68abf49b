"""The golden check as a whole: right artifacts pass, and every way to be wrong is caught."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.options import Options
from bridge.targets.base import Array
from bridge.verify import Comparison, Kind, Verdict, hold, verify
from bridge.verify.golden import record
from bridge.verify.inputs import InputSet
from tests.verify.heads import (
    BOXES,
    LIMIT,
    Fault,
    FaultyTarget,
    Head,
    as_postprocess,
    four_outputs,
    head,
    no_fault,
    save_tables,
    table_input,
    write_lowered,
)

ROOM = 60


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Head:
    return head(tmp_path_factory.mktemp("head"))


def _check(
    detector: Head,
    folder: Path,
    *tables: Array,
    noise: Mapping[str, Array] | None = None,
    network: bool = True,
    target: FaultyTarget | None = None,
) -> Comparison:
    """Hold an artifact to the tables alone: what seeded noise adds is tested once."""
    lowered = write_lowered(detector.static, folder, noise, network=network)
    sets = [
        InputSet(f"table {number}", {"x": table})
        for number, table in enumerate(tables or (table_input(0),))
    ]
    golden = record(detector.source, sets)
    return hold(golden, detector.static, lowered, target or FaultyTarget(no_fault))


def _noise(seed: int, corners: float, probabilities: float) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    sizes = {"corners": ((1, BOXES, 4), corners), "probabilities": ((1, BOXES, 3), probabilities)}
    return {
        name: (size * rng.uniform(-1, 1, shape)).astype(np.float32)
        for name, (shape, size) in sizes.items()
    }


def test_an_exact_artifact_is_proven_exact(detector: Head, tmp_path: Path) -> None:
    lowered = write_lowered(detector.static, tmp_path)
    inputs = save_tables(tmp_path, table_input(0), table_input(1))
    result = verify(
        detector.source,
        detector.static,
        lowered,
        FaultyTarget(no_fault),
        Options(),
        inputs=inputs,
    )
    assert result.verdict is Verdict.MATCH, result.problems
    assert [proof.name for proof in result.proofs] == ["static model", "tail", "whole model"]
    assert all(proof.exact for proof in result.proofs)
    assert (result.inputs, result.unmatched, result.noise) == (7, 0, 0.0)
    assert result.detections > 200
    assert (result.worst_box, result.worst_score, result.deviation) == (0, 0, 0)
    # Golden borders, variations of them, and the generated sets of the suppression.
    assert result.proofs[1].sets > 100


def test_worst_distances_are_those_on_the_users_own_inputs(detector: Head, tmp_path: Path) -> None:
    lowered = write_lowered(detector.static, tmp_path, _noise(0, 1e-6, 1e-7))
    huge = InputSet("huge", {"x": table_input(0) * 9}, generated=True)
    golden = record(detector.source, [InputSet("own", {"x": table_input(0)}), huge])
    result = hold(golden, detector.static, lowered, FaultyTarget(no_fault))
    assert result.verdict is Verdict.MATCH, result.problems
    assert 5e-7 < result.worst_box < 2e-6
    assert 0 < result.worst_score < 2e-7
    assert result.noise is not None
    assert 0 < result.noise < 1e-5


# Faults of a whole artifact -------------------------------------------------------------------


def _count(outputs: dict[str, Array]) -> int:
    return int(outputs["num_detections"][0])


def _rows(outputs: dict[str, Array], order: Callable[[int], list[int]]) -> None:
    """Take the real rows in another order, or others of them; the count follows."""
    rows = order(_count(outputs))
    for name in ("boxes", "scores", "labels"):
        kept = outputs[name][rows]
        outputs[name][:] = 0
        outputs[name][: len(rows)] = kept
    outputs["num_detections"][:] = len(rows)


def _lose_first(outputs: dict[str, Array]) -> None:
    _rows(outputs, lambda count: list(range(1, count)))


def _lose_last(outputs: dict[str, Array]) -> None:
    _rows(outputs, lambda count: list(range(count - 1)) if count else [])


def _lose_all(outputs: dict[str, Array]) -> None:
    _rows(outputs, lambda _: [])


def _repeat_first(outputs: dict[str, Array]) -> None:
    _rows(outputs, lambda count: [0, *range(count)][:ROOM] if count else [])


def _swap(outputs: dict[str, Array]) -> None:
    _rows(outputs, lambda count: [1, 0, *range(2, count)] if count > 1 else list(range(count)))


def _turn_round(outputs: dict[str, Array]) -> None:
    _rows(outputs, lambda count: list(range(count))[::-1])


def _mix_rows(outputs: dict[str, Array]) -> None:
    count = _count(outputs)
    outputs["scores"][:count] = outputs["scores"][:count][::-1]


def _move(outputs: dict[str, Array]) -> None:
    if _count(outputs):
        outputs["boxes"][0] += np.float32(0.01)


def _scale(outputs: dict[str, Array]) -> None:
    outputs["boxes"] = outputs["boxes"].astype(np.float32) * np.float32(1.001)


def _transpose(outputs: dict[str, Array]) -> None:
    outputs["boxes"][:] = outputs["boxes"][:, [1, 0, 3, 2]]


def _other_score(outputs: dict[str, Array]) -> None:
    if _count(outputs):
        outputs["scores"][0] -= np.float32(0.001)


def _other_class(outputs: dict[str, Array]) -> None:
    if _count(outputs):
        outputs["labels"][0] += 1


def _nan_score(outputs: dict[str, Array]) -> None:
    if _count(outputs):
        outputs["scores"][0] = np.nan


def _nan_box(outputs: dict[str, Array]) -> None:
    if _count(outputs):
        outputs["boxes"][0, 2] = np.nan


def _dirty_padding(outputs: dict[str, Array]) -> None:
    outputs["boxes"][_count(outputs) :] = 1e-30


def _nan_padding(outputs: dict[str, Array]) -> None:
    outputs["scores"][_count(outputs) :] = np.nan


def _count_one_more(outputs: dict[str, Array]) -> None:
    outputs["num_detections"][:] = _count(outputs) + 1


def _count_too_many(outputs: dict[str, Array]) -> None:
    outputs["num_detections"][:] = ROOM + 1


def _count_below_zero(outputs: dict[str, Array]) -> None:
    outputs["num_detections"][:] = -1


def _int32_labels(outputs: dict[str, Array]) -> None:
    outputs["labels"] = outputs["labels"].astype(np.int32)


def _flat_boxes(outputs: dict[str, Array]) -> None:
    outputs["boxes"] = outputs["boxes"].reshape(-1)


def _no_scores(outputs: dict[str, Array]) -> None:
    del outputs["scores"]


FAULTS: dict[str, tuple[Fault, str]] = {
    "lose first": (_lose_first, "lost"),
    "lose last": (_lose_last, "lost"),
    "lose all": (_lose_all, "lost"),
    "repeat first": (_repeat_first, "extra"),
    "swap": (_swap, "reordered"),
    "turn round": (_turn_round, "reordered"),
    "mix rows": (_mix_rows, "lost|moved"),
    "move": (_move, "moved"),
    "scale": (_scale, "moved"),
    "transpose": (_transpose, "lost|moved"),
    "other score": (_other_score, "moved"),
    "other class": (_other_class, "lost"),
    "NaN score": (_nan_score, "moved"),
    "NaN box": (_nan_box, "lost"),
    "dirty padding": (_dirty_padding, "not zero behind"),
    "NaN padding": (_nan_padding, "not zero behind"),
    "count one more": (_count_one_more, "extra"),
    "count too many": (_count_too_many, "is 61"),
    "count below zero": (_count_below_zero, "is -1"),
    "int32 labels": (_int32_labels, "is int32.*not int64"),
    "flat boxes": (_flat_boxes, r"float32\[240\], not float32\[60, 4\]"),
    "no scores": (_no_scores, "'scores' is missing"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_whole_artifact_is_caught(detector: Head, tmp_path: Path, name: str) -> None:
    fault, text = FAULTS[name]
    result = _check(detector, tmp_path, target=FaultyTarget(fault))
    assert result.verdict is Verdict.MISMATCH
    assert not result.proofs[1].problems
    with pytest.raises(AssertionError, match=text):
        raise AssertionError("\n".join(result.problems))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_tail_is_caught(detector: Head, tmp_path: Path, name: str) -> None:
    target = FaultyTarget(FAULTS[name][0], files=frozenset({"tail.onnx"}))
    result = _check(detector, tmp_path, target=target)
    assert result.verdict is Verdict.MISMATCH
    assert result.proofs[1].problems
    assert not any(one.wrong for one in result.sets)


@pytest.mark.parametrize("name", ["lose first", "swap", "dirty padding", "other class"])
@pytest.mark.parametrize("file", ["whole.onnx", "tail.onnx"])
def test_a_fault_on_several_threads_only_is_caught(
    detector: Head, tmp_path: Path, name: str, file: str
) -> None:
    fault = FAULTS[name][0]
    target = FaultyTarget(fault, files=frozenset({file}), threads=frozenset({4}))
    assert _check(detector, tmp_path, target=target).verdict is Verdict.MISMATCH


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("network", [True, False])
def test_noise_of_the_network_hides_no_fault(
    detector: Head, tmp_path: Path, name: str, network: bool
) -> None:
    target = FaultyTarget(FAULTS[name][0])
    noise = _noise(1, 1e-6, 1e-7)
    result = _check(detector, tmp_path, noise=noise, network=network, target=target)
    assert result.verdict is Verdict.MISMATCH


@pytest.mark.parametrize("fault", [no_fault, _lose_all])
def test_nothing_detected_shows_nothing(detector: Head, tmp_path: Path, fault: Fault) -> None:
    nothing = np.full((1, BOXES, 7), -9, np.float32)
    result = _check(detector, tmp_path, nothing, target=FaultyTarget(fault))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (result.inputs, result.detections) == (1, 0)


# Noise ----------------------------------------------------------------------------------------


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.floats(0, 2e-5),
    network=st.booleans(),
)
def test_noise_never_gives_a_mismatch(
    detector: Head, tmp_path: Path, seed: int, size: float, network: bool
) -> None:
    result = _check(
        detector, tmp_path, table_input(seed), noise=_noise(seed, size, size / 3), network=network
    )
    assert result.verdict is Verdict.MATCH, result.problems


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.floats(2e-3, 10),
    tensor=st.sampled_from(["corners", "probabilities"]),
    network=st.booleans(),
)
def test_a_real_change_of_the_network_always_does(
    detector: Head, tmp_path: Path, seed: int, size: float, tensor: str, network: bool
) -> None:
    shape = (1, BOXES, 4 if tensor == "corners" else 3)
    change = {tensor: np.full(shape, size, np.float32)}
    result = _check(detector, tmp_path, table_input(seed), noise=change, network=network)
    assert result.verdict is Verdict.MISMATCH


def test_a_network_that_is_off_is_named(detector: Head, tmp_path: Path) -> None:
    noise = {"corners": np.full((1, BOXES, 4), 0.01, np.float32)}
    result = _check(detector, tmp_path, noise=noise)
    assert any("'corners'" in problem for problem in result.proofs[2].problems)
    assert result.noise is not None
    assert result.noise > 1e-4


# Flips ----------------------------------------------------------------------------------------


def _table_with(rows: Mapping[int, tuple[float, float, int, float]]) -> Array:
    """Boxes far apart that score nothing but those given: x, half size, class, score."""
    x = np.zeros((1, BOXES, 7), np.float64)
    x[0, :, 0] = np.arange(BOXES) * 10
    x[0, :, 4:] = -9
    for row, (place, half, label, score) in rows.items():
        x[0, row, 0] = place / 4
        x[0, row, 2:4] = np.log(half) / 0.3
        x[0, row, 4 + label] = np.log(score / (1 - score))
    return x.astype(np.float32)


def _shifted(tensor: str, index: tuple[int, ...], by: float) -> dict[str, Array]:
    change = np.zeros((1, BOXES, 4 if tensor == "corners" else 3), np.float32)
    change[index] = by
    return {tensor: change}


SURE = {0: (0.0, 1.0, 0, 0.9), 1: (40.0, 1.0, 1, 0.8), 2: (80.0, 1.0, 2, 0.7)}


@pytest.mark.parametrize("network", [True, False])
def test_a_score_at_the_limit_may_flip_within_the_noise(
    detector: Head, tmp_path: Path, network: bool
) -> None:
    table = _table_with(SURE | {5: (120.0, 1.0, 0, LIMIT + 2e-7)})
    noise = _noise(0, 0, 1e-6)
    noise["probabilities"][0, 5, 0] = -1e-6
    result = _check(detector, tmp_path, table, noise=noise, network=network)
    assert result.verdict is Verdict.MATCH, result.problems
    lost = [d for d in result.excused if d.inputs == "table 0"]
    assert {d.kind for d in lost} == {Kind.LOST}
    assert all(d.reason for d in lost)
    decisions = [text for one in result.sets for text in one.decisions]
    assert any("box 5 no longer selected" in t and "from the limit 0.3" in t for t in decisions)


@pytest.mark.parametrize("network", [True, False])
def test_a_score_off_the_limit_may_not(detector: Head, tmp_path: Path, network: bool) -> None:
    """The same lost row, its score a hundred times the noise away from the limit."""
    table = _table_with(SURE | {5: (120.0, 1.0, 0, LIMIT + 2e-5)})

    def lose_fifth(outputs: dict[str, Array]) -> None:
        scores = outputs["scores"]
        near = [i for i in range(_count(outputs)) if abs(scores[i] - LIMIT - 2e-5) < 1e-5]
        _rows(outputs, lambda count: [i for i in range(count) if i not in near])

    target = FaultyTarget(lose_fifth)
    noise = _noise(0, 0, 2e-7)
    result = _check(detector, tmp_path, table, noise=noise, network=network, target=target)
    assert result.verdict is Verdict.MISMATCH
    assert any("lost" in problem for problem in result.problems)


@pytest.mark.parametrize("network", [True, False])
def test_an_overlap_at_the_limit_may_flip_within_the_noise(
    detector: Head, tmp_path: Path, network: bool
) -> None:
    """Two boxes of half size 1, 2/3 apart: an IoU of one half within a rounding."""
    table = _table_with(SURE | {5: (120.0, 1.0, 0, 0.6), 6: (120 + 2 / 3 + 1e-5, 1.0, 0, 0.5)})
    noise = _noise(0, 5e-5, 0)
    noise["corners"][0, 6, [0, 2]] = -5e-5
    result = _check(detector, tmp_path, table, noise=noise, network=network)
    assert result.verdict is Verdict.MATCH, result.problems
    assert any(d.kind is Kind.LOST for d in result.excused if d.inputs == "table 0")
    decisions = [text for one in result.sets for text in one.decisions]
    assert any("box 6 no longer selected: IoU 0.499" in t for t in decisions)


@pytest.mark.parametrize("network", [True, False])
def test_rows_of_nearly_equal_scores_may_swap(
    detector: Head, tmp_path: Path, network: bool
) -> None:
    table = _table_with(SURE | {5: (120.0, 1.0, 0, 0.6), 6: (160.0, 1.0, 0, 0.6 - 3e-7)})
    noise = _noise(0, 0, 3e-7)
    noise["probabilities"][0, 6, 0] = 1e-6
    result = _check(detector, tmp_path, table, noise=noise, network=network)
    assert result.verdict is Verdict.MATCH, result.problems
    assert {d.kind for d in result.excused if d.inputs == "table 0"} == {Kind.REORDERED}


def test_equal_scores_may_not_swap_without_noise(detector: Head, tmp_path: Path) -> None:
    table = _table_with({5: (120.0, 1.0, 0, 0.6), 6: (160.0, 1.0, 0, 0.6)})
    result = _check(detector, tmp_path, table, target=FaultyTarget(_swap))
    assert any("table 0" in p and "reordered" in p for p in result.problems)


# Other shapes of artifact -----------------------------------------------------------------------


def test_every_number_of_the_manifest_entry_is_plain(detector: Head, tmp_path: Path) -> None:
    entry = _check(detector, tmp_path, noise=_noise(0, 1e-6, 1e-7)).as_dict()
    assert json.loads(json.dumps(entry)) == entry
    for key in ("inputs", "detections", "worst_box", "worst_score", "unmatched"):
        assert key in entry


def _fails(outputs: dict[str, Array]) -> None:
    raise ValueError(f"no kernel for {len(outputs)} outputs")


@pytest.mark.parametrize("file", ["whole.onnx", "tail.onnx"])
def test_an_artifact_that_does_not_run_is_a_finding(
    detector: Head, tmp_path: Path, file: str
) -> None:
    result = _check(detector, tmp_path, target=FaultyTarget(_fails, files=frozenset({file})))
    assert result.verdict is Verdict.MISMATCH
    assert any("fails: no kernel for 4 outputs" in problem for problem in result.problems)


def test_a_static_model_that_differs_is_a_finding(detector: Head, tmp_path: Path) -> None:
    """The source's limit is 0.3; this static model's is another."""
    lowered = write_lowered(detector.static, tmp_path)
    model = onnx.ModelProto()
    model.CopyFrom(detector.static.model)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "score_threshold":
                attribute.f = 0.25
    golden = record(detector.source, [InputSet("table", {"x": table_input(0)})])
    static = replace(detector.static, model=model)
    result = hold(golden, static, lowered, FaultyTarget(no_fault))
    assert result.verdict is Verdict.MISMATCH
    assert "has shape" in result.proofs[0].problems[0]


# The outputs of postprocess ---------------------------------------------------------------------


def test_other_outputs_are_held_to_a_reference_and_that_to_the_source(
    detector: Head, tmp_path: Path
) -> None:
    right = four_outputs(detector.static)
    golden = record(
        detector.source, [InputSet(f"table {i}", {"x": table_input(i)}) for i in range(3)]
    )
    lowered = as_postprocess(detector.static, tmp_path, right, right)
    result = hold(golden, detector.static, lowered, FaultyTarget(no_fault))
    assert result.verdict is Verdict.MATCH, result.problems
    names = ["static model", "detections of the source", "tail", "whole model"]
    assert [proof.name for proof in result.proofs] == names
    assert result.proofs[1].exact
    assert result.detections > 60


@pytest.mark.parametrize("wrong", ["artifact", "both"])
def test_classes_that_are_not_the_sources_are_caught(
    detector: Head, tmp_path: Path, wrong: str
) -> None:
    """Scores in place of classes: caught by the reference, or else by the source itself."""
    right, other = four_outputs(detector.static), four_outputs(detector.static, classes="scores")
    golden = record(
        detector.source, [InputSet(f"table {i}", {"x": table_input(i)}) for i in range(3)]
    )
    lowered = as_postprocess(
        detector.static, tmp_path, other, right if wrong == "artifact" else other
    )
    result = hold(golden, detector.static, lowered, FaultyTarget(no_fault))
    assert result.verdict is Verdict.MISMATCH
    assert bool(result.proofs[1].problems) == (wrong == "both")
