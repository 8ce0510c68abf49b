"""What each form of `--quantize` costs and gains on four detectors, as one Markdown table."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import bridge
from bridge import artifact
from bridge.command import exit_on_error, single_command
from bridge.completion import Completion, completed
from bridge.heads import HeadOptions
from bridge.model import Array, load
from bridge.options import Options, Quantization, Quantize
from bridge.targets.table import find
from bridge.verify.golden import reference_session
from examples.shapes.scenes import Scene, draw_scene, network_input
from scripts.average_precision import Detections, average_precision
from scripts.pictures import Feeding, Floats, others, photos

SHARED = Path(os.environ.get("BRIDGE_SHARED", Path(__file__).resolve().parents[2] / "shared"))
SHAPES = Path(__file__).resolve().parents[1] / "examples" / "shapes.onnx"

SCENES = 200
FIRST_CALIBRATED = 5000
"""Seed of the first scene that shapes is calibrated on; it is judged on those from 0."""
CALIBRATED = 32
SAME_OBJECT = 0.5
"""Overlap above which a detection of the same class is the same object."""
ROUNDS = 40

MOST_LOST_PRECISION = 0.01
MOST_LOST = {("yolox-nano", Quantize.INT8): 1, ("yolox-nano", Quantize.WEIGHTS): 0}
"""Of the 16 detections of the float model on the photos."""


@dataclass(frozen=True, slots=True)
class Detector:
    """A model, how it is converted, and how it is fed.

    Attributes:
        feeding: None for shapes, which is fed scenes and not photos.
        least: score of a detection that counts.
    """

    name: str
    model: Path
    input: str
    feeding: Feeding | None = None
    least: float = 0.0
    options: Options = field(default_factory=Options)
    completion: Completion = field(default_factory=Completion)


def detectors(models: Path) -> tuple[Detector, ...]:
    """The four of the table; the first three lie in `models`."""
    yolox = HeadOptions(score_threshold=0.3, iou_threshold=0.45)
    faces = HeadOptions(
        score_threshold=0.7,
        iou_threshold=0.5,
        overrides=("box.units=fractions", "background=first"),
    )
    return (
        Detector(
            *("yolox-nano", models / "yolox-nano-416.onnx", "images"),
            feeding=Feeding(416, 416, keep_aspect=True, bgr=True),
            completion=Completion(head="yolox", head_options=yolox),
        ),
        Detector(
            *("ultraface-rfb", models / "ultraface-rfb-320.onnx", "input"),
            feeding=Feeding(320, 240, mean=(127.0,), std=(128.0,)),
            completion=Completion(head="boxes", head_options=faces),
        ),
        Detector(
            *("rtmdet-nano", models / "rtmdet-nano-person.onnx", "input"),
            feeding=Feeding(
                *(320, 320),
                keep_aspect=True,
                bgr=True,
                mean=(103.53, 116.28, 123.675),
                std=(57.375, 57.12, 58.395),
            ),
            least=0.4,
            options=Options(input_shapes={"input": (1, 3, 320, 320)}),
        ),
        Detector("shapes", SHAPES, "images"),
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """Detections of a file against those of the float model under onnxruntime.

    Attributes:
        score: mean difference of the scores of matched pairs, without its sign.
    """

    matched: int
    lost: int
    extra: int
    score: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table.

    Attributes:
        narrow: layers with weights that are quantised, of all of them; None for the float file.
        latency: of the whole file on one thread, over that of the float one.
        precision: mean average precision, IoU .50:.05:.95, on the scenes.
    """

    detector: str
    form: Quantize
    size: int
    narrow: tuple[int, int] | None
    latency: float
    agreement: Agreement
    precision: float | None


def main(
    *,
    models: Annotated[Path, typer.Option(help="folder of the real detectors")] = SHARED / "models",
    judged: Annotated[Path, typer.Option("--photos", help="photos to judge on")] = (
        SHARED / "photos"
    ),
    only: Annotated[list[str] | None, typer.Option("--only", help="a detector's name")] = None,
    count: Annotated[int, typer.Option("--scenes", help="scenes to judge shapes on")] = SCENES,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write the table there, too")
    ] = None,
) -> None:
    """Print the table; status 1 where a form is further from the float model than it may be."""
    rows = []
    with exit_on_error(), tempfile.TemporaryDirectory() as folder:
        for detector in detectors(models):
            if not only or detector.name in only:
                rows += measure(detector, tuple(Quantize), judged, count, Path(folder))
    text = table(rows)
    typer.echo(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    told = failures(rows)
    for one in told:
        typer.echo(one, err=True)
    if told:
        raise typer.Exit(1)


def table(rows: Sequence[Measured]) -> str:
    """The measured values as Markdown."""
    lines = [
        "| detector | form | bytes | layers | time / float | matched | lost | extra "
        "| score difference | AP on scenes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        found = row.agreement
        cells = (
            row.detector,
            row.form.value,
            str(row.size),
            "-" if row.narrow is None else f"{row.narrow[0]} of {row.narrow[1]}",
            f"{row.latency:.2f}",
            *(str(number) for number in (found.matched, found.lost, found.extra)),
            f"{found.score:.3f}",
            "" if row.precision is None else f"{row.precision:.4f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def failures(rows: Sequence[Measured]) -> list[str]:
    """What is further from the float model than it may be, a sentence each."""
    exact = {row.detector: row.precision for row in rows if row.form is Quantize.NONE}
    told = []
    for row in rows:
        most = MOST_LOST.get((row.detector, row.form))
        if most is not None and row.agreement.lost > most:
            told.append(f"{row.detector} {row.form}: {row.agreement.lost} lost, at most {most}")
        before = exact.get(row.detector)
        if row.form is Quantize.INT8 and row.precision is not None and before is not None:
            drop = before - row.precision
            if drop > MOST_LOST_PRECISION:
                told.append(f"{row.detector} {row.form}: average precision falls by {drop:.4f}")
    return told


def measure(
    detector: Detector, forms: Sequence[Quantize], judged: Path, scenes: int, folder: Path
) -> list[Measured]:
    """A row for each form: the first must be `none`, which the times of the others are held to."""
    pictures = _judged(detector, judged, scenes)
    expected = _reference(detector, pictures.inputs, folder)
    converted = [_convert(detector, form, folder) for form in forms]
    times = _times([path for path, _ in converted], {detector.input: pictures.inputs[0]})
    rows = []
    for form, (path, narrow), seconds in zip(forms, converted, times, strict=True):
        with bridge.load(path) as file:
            runs = (file.run({detector.input: x}) for x in pictures.inputs)
            found = [_detections(detector, outputs) for outputs in runs]
        precision = average_precision(pictures.scenes, found).mean if pictures.scenes else None
        rows.append(
            Measured(
                detector=detector.name,
                form=form,
                size=path.stat().st_size,
                narrow=narrow,
                latency=seconds / times[0],
                agreement=agreement(expected, found),
                precision=precision,
            )
        )
    return rows


# What is fed


@dataclass(frozen=True, slots=True)
class _Judged:
    inputs: Sequence[Floats]
    scenes: Sequence[Scene] = ()


def _judged(detector: Detector, folder: Path, count: int) -> _Judged:
    if detector.feeding is None:
        scenes = [draw_scene(seed) for seed in range(count)]
        return _Judged([network_input(scene.image) for scene in scenes], scenes)
    return _Judged([detector.feeding(photo) for photo in photos(folder)])


def calibration(detector: Detector, folder: Path) -> Path:
    """An `.npz` of pictures that the detector is not judged on."""
    if detector.feeding is None:
        seeds = range(FIRST_CALIBRATED, FIRST_CALIBRATED + CALIBRATED)
        arrays = [network_input(draw_scene(seed).image) for seed in seeds]
    else:
        arrays = [detector.feeding(picture) for picture in others()]
    path = folder / f"{detector.name}.npz"
    sets = {f"{detector.input}/{number}": one for number, one in enumerate(arrays)}
    np.savez(path, allow_pickle=False, **sets)
    return path


# What is made


def _convert(
    detector: Detector, form: Quantize, folder: Path
) -> tuple[Path, tuple[int, int] | None]:
    """The file in a form, unverified: what it finds is what is measured; and its layers."""
    computed = form in (Quantize.INT8, Quantize.DYNAMIC)
    data = calibration(detector, folder) if computed else None
    options = replace(detector.options, quantization=Quantization(form, calibrate=data))
    path = folder / f"{detector.name}-{form}.tflite"
    result = bridge.convert(
        *(detector.model, "tflite", path, options),
        completion=detector.completion,
        checks=bridge.Checks(skip=True),
    )
    return path, _layers(result.manifest.details)


def _layers(details: Mapping[str, object]) -> tuple[int, int] | None:
    """How many layers are quantised, of how many."""
    match details.get("quantization"):
        case {"layers": {"quantised": int(narrow), "float32": dict(left)}}:
            return narrow, narrow + len(left)
    return None


def _times(paths: Sequence[Path], feeds: Mapping[str, Array]) -> list[float]:
    """Seconds of each file on one thread: minima over runs in turns."""
    runs = []
    for path in paths:
        manifest = artifact.identify(path)[0]
        session = find("tflite").open(path, threads=1)
        laid = artifact.to_artifact(manifest.inputs, feeds)
        given = {name: np.ascontiguousarray(array) for name, array in laid.items()}
        runs.append(partial(session.run, given))
    least = [float("inf")] * len(runs)
    for turn in range(ROUNDS + 1):
        for place, run in enumerate(runs):
            start = time.perf_counter()
            run()
            if turn:
                least[place] = min(least[place], time.perf_counter() - start)
    return least


# What is found


def _reference(detector: Detector, inputs: Sequence[Floats], folder: Path) -> list[Detections]:
    """Detections of the float model, its head attached, under onnxruntime."""
    source, _, _ = completed(load(detector.model), detector.completion, detector.options, folder)
    session = reference_session(source)
    names = [output.name for output in session.get_outputs()]
    runs = (session.run(names, {detector.input: x}) for x in inputs)
    return [_detections(detector, dict(zip(names, run, strict=True))) for run in runs]


def _detections(detector: Detector, outputs: Mapping[str, Array]) -> Detections:
    if "dets" in outputs:
        rows = outputs["dets"][0].astype(np.float32)
        boxes, scores, labels = rows[:, :4], rows[:, 4], outputs["labels"][0]
    else:
        boxes = outputs["boxes"].astype(np.float32)
        scores = outputs["scores"].astype(np.float32)
        labels = outputs["labels" if "labels" in outputs else "classes"]
    counts = scores > detector.least
    return Detections(boxes[counts], scores[counts], labels[counts].astype(np.int64))


def agreement(expected: Sequence[Detections], found: Sequence[Detections]) -> Agreement:
    """Match picture by picture: each expected one, best first, takes the best overlap left."""
    matched, differences = 0, []
    for right, ours in zip(expected, found, strict=True):
        left = list(range(len(ours.scores)))
        for row in range(len(right.scores)):
            overlaps = [
                (_overlap(right.boxes[row], ours.boxes[i]), i)
                for i in left
                if ours.labels[i] == right.labels[row]
            ]
            best, partner = max(overlaps, default=(0.0, -1))
            if best > SAME_OBJECT:
                left.remove(partner)
                matched += 1
                differences.append(abs(float(ours.scores[partner] - right.scores[row])))
    return Agreement(
        matched=matched,
        lost=sum(len(one.scores) for one in expected) - matched,
        extra=sum(len(one.scores) for one in found) - matched,
        score=float(np.mean(differences)) if differences else 0.0,
    )


def _overlap(first: Floats, second: Floats) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width, height = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    shared = max(float(width), 0.0) * max(float(height), 0.0)
    areas = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]))
    return shared / max(areas - shared, 1e-9)


if __name__ == "__main__":
    single_command(main)()
