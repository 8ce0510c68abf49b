"""Mean average precision of the shapes detector under every runtime, as one Markdown table."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

import bridge
from bridge.command import exit_on_error, single_command
from bridge.model import Array, load
from bridge.options import NmsForm, Options
from bridge.targets.table import find
from bridge.verify.golden import reference_session
from examples.shapes.scenes import Scene, draw_scene, network_input
from scripts.average_precision import AveragePrecision, Detections, average_precision

SCENES = 200
MOST_LOST = 0.001
"""That an artifact's average precision may be away from onnxruntime's."""

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A target and the options that make a row of the table."""

    name: str
    target: str
    options: Options


ARTIFACTS = (
    Artifact("TFLite, NON_MAX_SUPPRESSION_V4", "tflite", Options(nms=NmsForm.V4)),
    Artifact("TFLite, TFLite_Detection_PostProcess", "tflite", Options(nms=NmsForm.POSTPROCESS)),
    Artifact("TVM", "tvm", Options()),
)


def main(
    *,
    model: Annotated[Path, typer.Option(help="the exported detector")] = Path(
        "examples/shapes.onnx"
    ),
    photos: Annotated[Path, typer.Option(help="pictures for the golden checks")] = Path(
        "examples/scenes"
    ),
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write the table there, too")
    ] = None,
    count: Annotated[int, typer.Option("--scenes", help="scenes to measure on")] = SCENES,
) -> None:
    """Print the table; status 1 where an artifact is further from onnxruntime than 0.001."""
    scenes = [draw_scene(seed) for seed in range(count)]
    with exit_on_error():
        measured = dict(measure(model, photos, scenes))
    text = table(measured, count)
    typer.echo(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    exact = measured["onnxruntime"].mean
    if any(abs(one.mean - exact) > MOST_LOST for one in measured.values()):
        raise typer.Exit(1)


def measure(
    model: Path, photos: Path, scenes: Sequence[Scene]
) -> Iterator[tuple[str, AveragePrecision]]:
    """The average precision of torch, onnxruntime and every artifact that can be made here."""
    yield "PyTorch", _precision(_torch(), scenes)
    yield "onnxruntime", _precision(_onnxruntime(model), scenes)
    with tempfile.TemporaryDirectory() as folder:
        for artifact in ARTIFACTS:
            path = Path(folder) / f"shapes{find(artifact.target).suffix}"
            checks = bridge.Checks(images=(photos,))
            bridge.convert(model, artifact.target, path, artifact.options, checks=checks).check()
            with bridge.load(path) as detector:
                yield artifact.name, _precision(detector.run, scenes)


def table(measured: Mapping[str, AveragePrecision], scenes: int) -> str:
    """The measured values as Markdown."""
    exact = measured["onnxruntime"]
    lines = [
        f"| {scenes} scenes | AP, IoU .50:.05:.95 | AP, IoU .50 | from onnxruntime |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {one.mean:.4f} | {one.at_50:.4f} | {one.mean - exact.mean:+.4f} |"
            for name, one in measured.items()
        ),
    ]
    return "\n".join(lines)


def _precision(run: Run, scenes: Sequence[Scene]) -> AveragePrecision:
    found = [_detections(run({"images": network_input(scene.image)})) for scene in scenes]
    return average_precision(scenes, found)


def _detections(outputs: Mapping[str, Array]) -> Detections:
    """From the model's own outputs, or from the four of TFLite_Detection_PostProcess."""
    if "detection_boxes" not in outputs:
        return Detections(
            outputs["boxes"].astype(np.float32),
            outputs["scores"].astype(np.float32),
            outputs["labels"].astype(np.int64),
        )
    boxes: NDArray[np.float32] = outputs["detection_boxes"][0].astype(np.float32)
    return Detections(
        boxes[:, [1, 0, 3, 2]],
        outputs["detection_scores"][0].astype(np.float32),
        outputs["detection_classes"][0].astype(np.int64),
    )


def _torch() -> Run:
    import torch

    from examples.shapes.model import WEIGHTS, detector

    model = detector()
    model.load_state_dict(torch.load(WEIGHTS, weights_only=True))

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.no_grad():
            outputs = model(torch.from_numpy(inputs["images"]))
        return dict(zip(("boxes", "scores", "labels"), (x.numpy() for x in outputs), strict=True))

    return run


def _onnxruntime(model: Path) -> Run:
    session = reference_session(load(model))
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run


if __name__ == "__main__":
    single_command(main)()
