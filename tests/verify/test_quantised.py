"""A quantised file: exact behind its network, and the network judged by what it detects."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bridge import surgery
from bridge.errors import InconclusiveError
from bridge.model import load
from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.targets.base import Array, Lowered, ports
from bridge.verify import Comparison, Terms, Verdict, hold, verify
from bridge.verify.golden import record
from bridge.verify.inputs import InputSet
from bridge.verify.quantised import NAME
from tests.verify.heads import (
    BORDER,
    BOXES,
    FaultyTarget,
    Head,
    as_postprocess,
    four_outputs,
    head,
    head_model,
    no_fault,
    save_tables,
    table_input,
    write_lowered,
)

NOISE = 0.05
"""So much of a coordinate, and a tenth of a score: int8, and no float noise."""


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Head:
    return head(tmp_path_factory.mktemp("head"))


def _noise(size: float) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {
        "corners": (size * rng.uniform(-1, 1, (1, BOXES, 4))).astype(np.float32),
        "probabilities": (size / 10 * rng.uniform(-1, 1, (1, BOXES, 3))).astype(np.float32),
    }


def _hold(
    detector: Head,
    lowered: Lowered,
    target: FaultyTarget | None = None,
    terms: Terms | None = None,
    *tables: Array,
) -> Comparison:
    given = tables or (table_input(0), table_input(1))
    sets = [InputSet(f"table {i}", {"x": table}) for i, table in enumerate(given)]
    golden = record(detector.source, sets)
    target = target or FaultyTarget(no_fault)
    return hold(golden, detector.static, replace(lowered, quantised=True), target, terms=terms)


def _proof(result: Comparison, name: str) -> tuple[str, ...]:
    return next(proof.problems for proof in result.proofs if proof.name == name)


def _with_weights(static: StaticModel, order: list[int]) -> StaticModel:
    """The network with the columns of its weights in another order."""
    model = onnx.ModelProto()
    model.CopyFrom(static.model)
    (weights,) = (tensor for tensor in model.graph.initializer if tensor.name == "weights")
    turned = np.ascontiguousarray(numpy_helper.to_array(weights)[:, order])
    weights.CopyFrom(numpy_helper.from_array(turned, "weights"))
    return replace(static, model=model)


# What must stay


def test_what_is_not_quantised_is_judged_as_ever(detector: Head, tmp_path: Path) -> None:
    lowered = write_lowered(detector.static, tmp_path, _noise(NOISE))
    golden = record(detector.source, [InputSet("table", {"x": table_input(0)})])
    result = hold(golden, detector.static, lowered, FaultyTarget(no_fault))
    assert result.verdict is Verdict.MISMATCH
    assert result.quantised is None
    assert result.as_dict()["quantised"] is None


def test_a_network_that_lost_nothing_matches(detector: Head, tmp_path: Path) -> None:
    result = _hold(detector, write_lowered(detector.static, tmp_path))
    told = result.quantised
    assert result.verdict is Verdict.MATCH, result.problems
    assert told is not None
    assert told.found == told.matched > 20
    assert (told.lost, told.extra, told.mean_iou) == (0, 0, 1.0)
    assert [proof.name for proof in result.proofs] == ["static model", "tail", NAME]
    assert all(not proof.problems and proof.sets for proof in result.proofs)


def test_no_tensor_tolerance_decides(detector: Head, tmp_path: Path) -> None:
    result = _hold(detector, write_lowered(detector.static, tmp_path, _noise(NOISE)))
    told = result.quantised
    assert result.verdict is Verdict.MATCH, result.problems
    assert told is not None
    assert told.worst_score > 1e-3
    assert told.matched > 0.8 * told.found
    assert result.unmatched == told.lost + told.extra
    assert "nothing was held to a limit" in result.warnings[-1]
    entry = result.as_dict()["quantised"]
    assert isinstance(entry, Mapping)
    assert entry["matched"] == told.matched


# What must be caught


@pytest.mark.parametrize("threads", [{1, 4}, {1}, {4}])
def test_a_file_that_ends_in_another_tail_is_caught(
    detector: Head, tmp_path: Path, threads: set[int]
) -> None:
    def fault(outputs: dict[str, Array]) -> None:
        scores = outputs["scores"]
        scores[0] = np.nextafter(scores[0], np.float32(0))

    lowered = write_lowered(detector.static, tmp_path, _noise(NOISE))
    result = _hold(detector, lowered, FaultyTarget(fault, threads=frozenset(threads)))
    assert result.verdict is Verdict.MISMATCH
    assert _proof(result, NAME)
    assert not _proof(result, "tail")


def test_a_tail_that_suppresses_otherwise_is_caught(detector: Head, tmp_path: Path) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(detector.static.model)
    for node in other.graph.node:
        for attribute in node.attribute:
            if attribute.name == "iou_threshold":
                attribute.f = 0.1
    lowered = write_lowered(replace(detector.static, model=other), tmp_path)
    result = _hold(detector, lowered)
    assert result.verdict is Verdict.MISMATCH
    assert _proof(result, "tail")
    assert _proof(result, NAME)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 5, 6, 4], [1, 2, 0, 3, 4, 5, 6]])
def test_a_network_with_channels_swapped_is_caught(
    detector: Head, tmp_path: Path, order: list[int]
) -> None:
    """Classes, or centres: all proofs hold, and it is another detector."""
    lowered = write_lowered(_with_weights(detector.static, order), tmp_path)
    result = _hold(detector, lowered)
    assert result.verdict is Verdict.MISMATCH
    assert not any(proof.problems for proof in result.proofs)
    assert "another detector" in result.problems[-1]


def test_padding_that_is_not_zero_is_caught(detector: Head, tmp_path: Path) -> None:
    def fault(outputs: dict[str, Array]) -> None:
        outputs["scores"][-1] = 1

    lowered = write_lowered(detector.static, tmp_path, _noise(NOISE))
    assert _hold(detector, lowered, FaultyTarget(fault)).verdict is Verdict.MISMATCH


def test_outputs_of_another_form_are_caught(detector: Head, tmp_path: Path) -> None:
    def fault(outputs: dict[str, Array]) -> None:
        outputs["scores"] = outputs["scores"][:-1]

    lowered = write_lowered(detector.static, tmp_path)
    result = _hold(detector, lowered, FaultyTarget(fault))
    assert result.verdict is Verdict.MISMATCH
    assert result.quantised is not None
    assert result.quantised.matched == 0


def test_a_target_that_hides_its_network_proves_nothing(detector: Head, tmp_path: Path) -> None:
    lowered = write_lowered(detector.static, tmp_path, network=False)
    assert _hold(detector, lowered).verdict is Verdict.MISMATCH


def test_a_limit_decides_where_there_is_one(detector: Head, tmp_path: Path) -> None:
    lowered = write_lowered(detector.static, tmp_path, _noise(NOISE))
    told = _hold(detector, lowered, None, Terms(max_ap_drop=1.0)).quantised
    assert told is not None
    drop = told.ap_drop
    assert drop is not None
    assert drop > 0
    assert _hold(detector, lowered, None, Terms(max_ap_drop=drop)).verdict is Verdict.MATCH
    strict = _hold(detector, lowered, None, Terms(max_ap_drop=drop / 2))
    assert strict.verdict is Verdict.MISMATCH
    assert "average precision falls by" in strict.problems[-1]


# What shows nothing


def test_nothing_detected_is_inconclusive(detector: Head, tmp_path: Path) -> None:
    empty = table_input(0)
    empty[..., 4:] = -9
    lowered = write_lowered(detector.static, tmp_path)
    assert _hold(detector, lowered, None, None, empty).verdict is Verdict.INCONCLUSIVE
    limited = _hold(detector, lowered, None, Terms(max_ap_drop=0.0), empty)
    assert limited.verdict is Verdict.INCONCLUSIVE


def test_noise_judges_only_where_there_is_nothing_else(detector: Head, tmp_path: Path) -> None:
    lowered = replace(write_lowered(detector.static, tmp_path), quantised=True)
    target = FaultyTarget(no_fault)
    result = verify(detector.source, detector.static, lowered, target, Options())
    assert result.quantised is not None
    assert result.quantised.judged_on == "generated noise"
    assert "give photos or arrays" in result.quantised.notes[0]
    inputs = save_tables(tmp_path, table_input(0))
    result = verify(detector.source, detector.static, lowered, target, Options(), inputs=inputs)
    assert result.quantised is not None
    assert result.quantised.judged_on == "1 sets of arrays"


# Outputs of other forms


def _operated(folder: Path, text: str) -> Head:
    """The head with other outputs."""
    model = head_model()
    del model.graph.output[:]
    (signature,) = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g () => ({text}) {{ }}'
    ).graph.output
    model.graph.output.append(signature)
    path = folder / "other.onnx"
    onnx.save(model, path)
    source = load(path)
    return Head(source, surgery.run(source.model, Options()).static)


def test_indices_alone_are_judged_by_what_is_selected(tmp_path: Path) -> None:
    other = _operated(tmp_path, "int64[n, 3] selected")
    result = _hold(other, write_lowered(other.static, tmp_path, _noise(NOISE)))
    assert result.verdict is Verdict.MATCH, result.problems
    assert result.quantised is not None
    assert result.quantised.matched > 20
    assert "what the suppressions select" in result.quantised.notes[0]
    swapped = _with_weights(other.static, [0, 1, 2, 3, 5, 6, 4])
    assert _hold(other, write_lowered(swapped, tmp_path)).verdict is Verdict.MISMATCH


def test_a_network_alone_is_refused(tmp_path: Path) -> None:
    other = _operated(tmp_path, "float[1, 60, 3] probabilities")
    path = tmp_path / "plain.onnx"
    onnx.save(other.static.model, path)
    inputs, outputs = ports(other.static)
    plain = Lowered(path, inputs, outputs, (), border=BORDER[1:], network=path, tail=path)
    with pytest.raises(InconclusiveError, match="complete the model with --head"):
        _hold(other, plain)


def test_the_four_outputs_are_judged_by_their_reference(detector: Head, tmp_path: Path) -> None:
    reference = four_outputs(detector.static)
    made = four_outputs(_with_weights(detector.static, [0, 1, 2, 3, 5, 6, 4]))
    for model, verdict in ((reference, Verdict.MATCH), (made, Verdict.MISMATCH)):
        alone = write_lowered(replace(detector.static, model=model), tmp_path)
        lowered = replace(
            as_postprocess(detector.static, tmp_path, model, reference),
            border=BORDER,
            tail=alone.tail,
            network=alone.network,
        )
        result = _hold(detector, lowered)
        assert result.verdict is verdict, result.problems
        assert not any(proof.problems for proof in result.proofs)
