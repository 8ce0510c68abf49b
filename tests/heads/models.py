"""The shared headless models: how each is fed and converted, and what its README says is found."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

from bridge.heads import HeadOptions
from tests.shared import SHARED

Array = NDArray[Any]
Run = Callable[[Array], dict[str, Array]]

PHOTOS = ("astronaut", "grace_hopper", "coffee", "cat", "collage_a")


@dataclass(frozen=True, slots=True)
class Case:
    """A shared model and the head for it.

    Attributes:
        size: (width, height) of the network input.
        keep_aspect: scaled to fit and pasted top left on `pad`, else stretched.
    """

    file: str
    head: str
    size: tuple[int, int]
    score: float
    iou: float
    overrides: tuple[str, ...] = ()
    keep_aspect: bool = False
    pad: float = 0
    bgr: bool = True
    mean: tuple[float, ...] = (0,)
    std: tuple[float, ...] = (1,)

    @property
    def options(self) -> HeadOptions:
        """Thresholds as the README used them."""
        return HeadOptions(
            score_threshold=self.score, iou_threshold=self.iou, overrides=self.overrides
        )

    def load(self) -> onnx.ModelProto:
        """The model as it is."""
        return onnx.load(SHARED / "models" / self.file)


RGB_HALVES: dict[str, Any] = {"bgr": False, "mean": (127,), "std": (128,)}
CASES = (
    Case(
        *("ultraface-rfb-320.onnx", "boxes", (320, 240), 0.7, 0.5),
        overrides=("box.units=fractions", "background=first"),
        **RGB_HALVES,
    ),
    Case("ultraface-slim-320-raw.onnx", "ssd", (320, 240), 0.7, 0.5, **RGB_HALVES),
    Case("yunet-n-320.onnx", "yunet", (320, 320), 0.7, 0.3, keep_aspect=True),
    Case("yolox-nano-416.onnx", "yolox", (416, 416), 0.5, 0.45, keep_aspect=True, pad=114),
    Case(
        *("nanodet-m-320.onnx", "nanodet", (320, 320), 0.45, 0.5),
        mean=(103.53, 116.28, 123.675),
        std=(57.375, 57.12, 58.395),
    ),
    Case("fastestdet-352.onnx", "fastestdet", (352, 352), 0.65, 0.45, std=(255,)),
)


@cache
def photo(case: Case, name: str) -> tuple[Array, tuple[float, float]]:
    """A photo as the network is fed, [1, 3, H, W], and photo pixels per input pixel (x, y)."""
    pixels, scale = resized(case, name)
    image = pixels[..., ::-1] if case.bgr else pixels
    normal = (image - np.asarray(case.mean, np.float32)) / np.asarray(case.std, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None], np.float32), scale


def resized(case: Case, name: str) -> tuple[Array, tuple[float, float]]:
    """A photo in the size of the input, RGB [H, W, 3] from 0 to 255."""
    image = Image.open(SHARED / "photos" / f"{name}.jpg").convert("RGB")
    width, height = case.size
    if not case.keep_aspect:
        scale = (image.width / width, image.height / height)
        return np.asarray(
            image.resize((width, height), Image.Resampling.BILINEAR), np.float32
        ), scale
    factor = min(width / image.width, height / image.height)
    small = image.resize(
        (round(image.width * factor), round(image.height * factor)), Image.Resampling.BILINEAR
    )
    canvas = np.full((height, width, 3), case.pad, np.float32)
    canvas[: small.height, : small.width] = np.asarray(small, np.float32)
    return canvas, (1 / factor, 1 / factor)


def runner(model: onnx.ModelProto) -> Run:
    """A model with one image input under onnxruntime: from the image to its outputs by name."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feed, names = session.get_inputs()[0].name, [out.name for out in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {feed: image}), strict=True))


def stated_counts(file: str) -> tuple[int, ...]:
    """Detections per photo, in the order of PHOTOS, as the README lists them."""
    of_file = (row[1:] for row in _rows() if row[0] == file)
    return next(tuple(map(int, row)) for row in of_file if "".join(row).isdigit())


def stated_best(file: str) -> Mapping[str, list[tuple[int, float, list[int]]]]:
    """Photo to its best three as class, score, box in photo pixels, as the README lists them."""
    found = {}
    for row in _rows():
        if row[0] == file and len(row) == 3 and row[1] in PHOTOS:
            triples = re.findall(r"(\d+):([\d.]+) \[([-\d,]+)\]", row[2])
            found[row[1]] = [
                (int(c), float(s), [int(v) for v in box.split(",")]) for c, s, box in triples
            ]
    return found


@cache
def _rows() -> list[list[str]]:
    text = (SHARED / "models" / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row] for row in rows]
