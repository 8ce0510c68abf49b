"""Draw what an artifact finds in the demo scenes, side by side with onnxruntime on its source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import bridge
from bridge.artifact import read_manifest
from bridge.command import exit_on_error, single_command
from bridge.model import Array, load
from bridge.verify.golden import reference_session
from examples.shapes.scenes import CLASSES, SIZE, network_input

SCALE = 2
MARGIN = 24
LEAST_SCORE = 0.35
PICTURES_A_ROW = 2
COLOURS = ("#ff4d6d", "#ffe119", "#5dff7f", "#7fb0ff", "#ff8bf0")
BOX_NOISE = 0.01
"""Pixels that float noise of the network may move a corner of a drawn box."""


@dataclass(frozen=True, slots=True)
class Found:
    """Detections of at least `LEAST_SCORE`, as boxes x1, y1, x2, y2 in pixels and labels."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]


def main(
    artifact: Annotated[Path, typer.Argument(help="what bridge.run wrote")],
    scenes: Annotated[Path, typer.Argument(help="folder of pictures, 160x160")],
    *,
    source: Annotated[Path, typer.Option(help="the ONNX model it came from")] = Path(
        "examples/shapes.onnx"
    ),
    output: Annotated[Path, typer.Option("-o", "--output", help="the PNG to write")],
) -> None:
    """Write a PNG: a row per scene, onnxruntime left, the artifact right; then say the verdict."""
    pictures = [
        np.asarray(Image.open(path).convert("RGB")) for path in sorted(scenes.glob("*.png"))
    ]
    with exit_on_error():
        expected, found = detect(source, artifact, pictures)
        kind = read_manifest(artifact).target
    sheet(pictures, [("onnxruntime", expected), (kind, found)]).save(output)
    same = sum(_same(*pair) for pair in zip(expected, found, strict=True))
    shapes = sum(len(one.boxes) for one in expected)
    typer.echo(f"{shapes} shapes in {len(pictures)} scenes, drawn side by side in {output}")
    verdict = "MATCH" if same == len(pictures) and shapes else "MISMATCH"
    typer.echo(f"{verdict}: {same} of {len(pictures)} scenes equal to onnxruntime")
    if verdict != "MATCH":
        raise typer.Exit(1)


def detect(
    source: Path, artifact: Path, pictures: Sequence[NDArray[np.uint8]]
) -> tuple[list[Found], list[Found]]:
    """What onnxruntime finds with the source in each picture, and what the artifact finds."""
    session = reference_session(load(source))
    names = [value.name for value in session.get_outputs()]
    expected, found = [], []
    with bridge.load(artifact) as detector:
        for picture in pictures:
            feeds = {"images": network_input(picture)}
            expected.append(_found(dict(zip(names, session.run(names, feeds), strict=True))))
            found.append(_found(detector.run(feeds)))
    return expected, found


def sheet(
    pictures: Sequence[NDArray[np.uint8]], detectors: Sequence[tuple[str, Sequence[Found]]]
) -> Image.Image:
    """The detectors side by side on every picture, two pictures a row."""
    step = SIZE * SCALE + MARGIN
    rows = -(-len(pictures) // PICTURES_A_ROW)
    columns = PICTURES_A_ROW * len(detectors)
    drawn = Image.new("RGB", (columns * step + MARGIN, rows * step + MARGIN), "white")
    pen = ImageDraw.Draw(drawn)
    for number, picture in enumerate(pictures):
        row, place = divmod(number, PICTURES_A_ROW)
        for index, (name, results) in enumerate(detectors):
            left = MARGIN + (place * len(detectors) + index) * step
            top = MARGIN + row * step
            drawn.paste(_with_boxes(picture, results[number]), (left, top))
            pen.text((left, top - 18), name, fill="black", font=ImageFont.load_default(13))
    return drawn


def _found(outputs: Mapping[str, Array]) -> Found:
    boxes, scores = outputs["boxes"].astype(np.float32), outputs["scores"].astype(np.float32)
    sure = scores >= LEAST_SCORE
    return Found(boxes[sure], scores[sure], outputs["labels"].astype(np.int64)[sure])


def _same(expected: Found, found: Found) -> bool:
    """The same shapes in the same order, corners within the noise of the network."""
    return np.array_equal(expected.labels, found.labels) and bool(
        np.all(np.abs(expected.boxes - found.boxes) <= BOX_NOISE)
    )


def _with_boxes(picture: NDArray[np.uint8], found: Found) -> Image.Image:
    side = SIZE * SCALE
    image = Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(11)
    for box, score, label in zip(found.boxes, found.scores, found.labels, strict=True):
        x1, y1, x2, y2 = (float(value) * SCALE for value in box)
        colour = COLOURS[int(label)]
        pen.rectangle((x1, y1, x2, y2), outline=colour, width=2)
        text = f"{CLASSES[int(label)]} {score:.2f}"
        place = pen.textbbox((max(x1, 0), max(y1 - 13, 0)), text, font=font)
        pen.rectangle(place, fill="black")
        pen.text((max(x1, 0), max(y1 - 13, 0)), text, fill=colour, font=font)
    return image


if __name__ == "__main__":
    single_command(main)()
