"""From PyTorch all the way: the two programs people reported, and torchvision's one-stage kinds."""

from pathlib import Path

import pytest

import bridge
from bridge.export import export
from bridge.pytorch import Exporter, Input
from bridge.targets.table import find
from bridge.verify import Verdict
from scripts.export_torchvision import DETECTORS
from tests.surgery.test_torchvision import exported

MODELS = "tests.pytorch.models"
PROGRAMS = [
    pytest.param("two_convolutions", (1, 3, 32, 32), id="two-convolutions"),
    pytest.param("yolo", (1, 3, 64, 64), id="yolo"),
    pytest.param("random_ssd", (1, 3, 64, 64), id="ssd"),
    pytest.param("random_retinanet", (1, 3, 64, 64), id="retinanet"),
    pytest.param("random_fcos", (1, 3, 64, 64), id="fcos"),
]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", ["tflite", "tvm"])
@pytest.mark.parametrize("exporter", Exporter)
@pytest.mark.parametrize(("program", "shape"), PROGRAMS)
def test_a_program_becomes_an_artifact(
    tmp_path: Path, program: str, shape: tuple[int, ...], exporter: Exporter, target: str
) -> None:
    model = tmp_path / "model.onnx"
    export(f"{MODELS}:{program}", model, [Input("images", shape)], exporter=exporter)
    result = bridge.convert(model, target, tmp_path / f"model{find(target).suffix}")
    result.check()
    assert result.comparison is not None
    assert result.comparison.verdict is Verdict.MATCH
    assert result.comparison.detections > 0


FULL_SIZE = [
    # The fourth is tests/targets/tvm/test_exports.py's.
    (Exporter.TORCHSCRIPT, "tflite"),
    (Exporter.DYNAMO, "tflite"),
    (Exporter.DYNAMO, "tvm"),
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("exporter", "target"), FULL_SIZE)
def test_a_detector_of_full_size_becomes_an_artifact(
    tmp_path: Path, exporter: Exporter, target: str
) -> None:
    (detector,) = (one for one in DETECTORS if one.name.startswith("ssdlite320"))
    source = exported(detector, exporter)
    result = bridge.convert(source, target, tmp_path / f"model{find(target).suffix}")
    result.check()
    assert result.comparison is not None
    assert result.comparison.detections > 100
