"""Artifacts of every form, of a small detector of our own that holds its suppression."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bridge.artifact import Manifest
from bridge.completion import Completion
from bridge.options import BoxUnits, NmsForm, Options, Outputs
from bridge.pipeline import Checks, convert
from bridge.preprocess import InputDtype, InputLayout, PreprocessOptions
from tests.clients.environment import FOLDER

EXAMPLES: Final = FOLDER.parents[1] / "examples"
LABELS: Final = FOLDER / "shape_names.txt"

FORMS: Final[Mapping[str, Options]] = {
    "v4": Options(nms=NmsForm.V4),
    "v4 with labels": Options(nms=NmsForm.V4, labels=LABELS),
    "detections": Options(outputs=Outputs.DETECTIONS, labels=LABELS),
    "postprocess": Options(nms=NmsForm.POSTPROCESS, labels=LABELS),
}


@dataclass(frozen=True)
class Artifact:
    """A converted file, and a scene as it is fed: uint8[1, 160, 160, 3]."""

    path: Path
    manifest: Manifest
    scene: NDArray[np.uint8]


def make(form: str, folder: Path) -> Artifact:
    """Convert the shapes detector, its preprocessing inside and its boxes as fractions."""
    preprocess = PreprocessOptions(InputDtype.UINT8, std=(255,), input_layout=InputLayout.NHWC)
    result = convert(
        EXAMPLES / "shapes.onnx",
        "tflite",
        folder / "shapes.tflite",
        FORMS[form],
        completion=Completion(preprocess=preprocess, box_units=BoxUnits.FRACTIONS),
        checks=Checks(skip=True),
    )
    assert result.path is not None
    with Image.open(EXAMPLES / "scenes" / "scene_0003.png") as scene:
        pixels = np.asarray(scene.convert("RGB"))
    return Artifact(result.path, result.manifest, pixels[None])
