"""The embedded detector: small, what its weights and source make, and good at finding shapes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import bridge
from bridge.command import single_command
from bridge.export import export
from bridge.model import load
from bridge.pytorch import Input
from bridge.verify.golden import reference_session
from examples.shapes.model import WEIGHTS
from examples.shapes.scenes import Scene, draw_scene, network_input
from scripts import demo, measure_ap, train_shapes
from scripts.average_precision import AveragePrecision, Detections, average_precision

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES / "shapes.onnx"
NAMES = ("boxes", "scores", "labels")


def _found(model: Path, scenes: list[Scene]) -> list[Detections]:
    session = reference_session(load(model))
    runs = [session.run(NAMES, {"images": network_input(scene.image)}) for scene in scenes]
    return [Detections(*outputs) for outputs in runs]


def test_model_and_weights_are_small() -> None:
    assert MODEL.stat().st_size + WEIGHTS.stat().st_size < 500_000


def test_the_model_has_the_whole_tail_inside() -> None:
    operators = [node.op_type for node in load(MODEL).model.graph.node]
    assert operators.count("If") == 1
    assert "NonZero" in operators


def test_it_finds_shapes() -> None:
    scenes = [draw_scene(seed) for seed in range(60)]
    assert average_precision(scenes, _found(MODEL, scenes)).at_50 > 0.9


def test_the_model_is_the_export_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "shapes.onnx"
    done = export(
        "examples.shapes.model:detector",
        path,
        [Input("images", (1, 3, 160, 160))],
        weights=WEIGHTS,
        output_names=NAMES,
    )
    assert done.agreement is not None
    assert done.agreement.different == 0
    scenes = [draw_scene(seed) for seed in range(5)]
    for ours, again in zip(_found(MODEL, scenes), _found(path, scenes), strict=True):
        np.testing.assert_allclose(ours.boxes, again.boxes, atol=1e-3)
        np.testing.assert_array_equal(ours.labels, again.labels)


def _truth(scene: Scene, shift: float = 0.0) -> Detections:
    scores = np.linspace(0.9, 0.5, len(scene.labels), dtype=np.float32)
    return Detections(scene.boxes + np.float32(shift), scores, scene.labels)


def test_average_precision_is_one_for_the_truth_and_nothing_for_nothing() -> None:
    scenes = [draw_scene(seed) for seed in range(8)]
    assert average_precision(scenes, [_truth(one) for one in scenes]) == AveragePrecision(1.0, 1.0)
    none = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    assert average_precision(scenes, [none] * 8) == AveragePrecision(0.0, 0.0)


def test_average_precision_falls_with_the_overlap() -> None:
    """Boxes 20 wide, moved by 2: their IoU is 18 / 22 = 0.82, right up to 0.80 of ten limits."""
    boxes = np.array([[10, 10, 30, 30], [60, 60, 80, 80]], np.float32)
    scene = Scene(np.zeros((160, 160, 3), np.uint8), boxes, np.array([0, 1]))
    moved = boxes + np.array([2, 0, 2, 0], np.float32)
    result = average_precision([scene], [Detections(moved, np.ones(2, np.float32), scene.labels)])
    assert result.at_50 == pytest.approx(1.0)
    assert result.mean == pytest.approx(0.7)


def test_training_is_seeded(tmp_path: Path) -> None:
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for file in files:
        train_shapes.train(output=file, scenes=32, epochs=1, seed=0, threads=1, evaluation=4)
    first, second = (torch.load(file, weights_only=True) for file in files)
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_point_stands_for_the_shape_it_fits_best() -> None:
    """Two shapes, one inside the other; the third row is padding."""
    points = torch.tensor([[8.0, 8.0], [24.0, 24.0], [60.0, 60.0]]).repeat(4, 1)
    boxes = torch.tensor([[[0.0, 0, 16, 16], [0.0, 0, 32, 32], [0.0, 0, 0, 0]]])
    labels = torch.tensor([[0, 1, -1]])
    predicted = torch.tensor([[0.0, 0, 16, 16], [0.0, 0, 32, 32], [50.0, 50, 70, 70]])
    scores = torch.full((1, 12, 5), 0.5)
    shape, quality = train_shapes.assign(
        points, predicted.repeat(4, 1)[None], scores, boxes, labels
    )
    assert shape[0, :2].tolist() == [0, 1]
    assert quality[0, :2].tolist() == pytest.approx([1.0, 1.0])
    assert quality[0, 2] == 0


def test_the_demo_draws_and_judges(tmp_path: Path) -> None:
    artifact, picture = tmp_path / "shapes.onnx", tmp_path / "shapes.png"
    bridge.convert(MODEL, "onnx", artifact, checks=bridge.Checks(skip=True))
    arguments = [
        str(artifact),
        str(EXAMPLES / "scenes"),
        "--source",
        str(MODEL),
        "-o",
        str(picture),
    ]
    shown = CliRunner().invoke(single_command(demo.main), arguments)
    assert shown.exit_code == 0, shown.output
    assert "MATCH: 6 of 6 scenes" in shown.output
    with Image.open(picture) as image:
        assert image.width > 4 * 160


def test_the_demo_says_mismatch(tmp_path: Path) -> None:
    """An artifact of other weights."""
    other = tmp_path / "other.onnx"
    model = load(MODEL).model
    bias = next(t for t in model.graph.initializer if list(t.dims) == [4])
    moved = np.frombuffer(bias.raw_data, np.float32) + np.float32(0.1)
    bias.raw_data = moved.tobytes()
    other.write_bytes(model.SerializeToString())
    artifact = tmp_path / "artifact.onnx"
    bridge.convert(other, "onnx", artifact, checks=bridge.Checks(skip=True))
    arguments = [str(artifact), str(EXAMPLES / "scenes"), "--source", str(MODEL)]
    shown = CliRunner().invoke(
        single_command(demo.main), [*arguments, "-o", str(tmp_path / "shapes.png")]
    )
    assert shown.exit_code == 1
    assert "MISMATCH" in shown.output


@pytest.mark.slow
def test_every_runtime_is_as_precise_as_onnxruntime() -> None:
    scenes = [draw_scene(seed) for seed in range(measure_ap.SCENES)]
    measured = dict(measure_ap.measure(MODEL, EXAMPLES / "scenes", scenes))
    assert len(measured) == 5
    exact = measured["onnxruntime"]
    assert exact.at_50 > 0.9
    for name, one in measured.items():
        assert one.mean == pytest.approx(exact.mean, abs=measure_ap.MOST_LOST), name
