"""Mean average precision of detections on drawn scenes, as COCO defines it."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.shapes.scenes import CLASSES, SIZE, Scene


@dataclass(frozen=True, slots=True)
class Detections:
    """What a detector found in one picture: boxes x1, y1, x2, y2 in pixels, best score first."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AveragePrecision:
    """Means over classes: at IoU 0.5, and over IoU 0.50, 0.55, ... 0.95."""

    at_50: float
    mean: float


def average_precision(scenes: Sequence[Scene], found: Sequence[Detections]) -> AveragePrecision:
    """Compare what was found with the scenes' ground truth, one entry per scene."""
    from pycocotools.coco import COCO  # type: ignore[import-untyped]  # has no stubs
    from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]  # alike

    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": i, "width": SIZE, "height": SIZE} for i in range(len(scenes))],
        "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES)],
        "annotations": [
            {"id": i, "iscrowd": 0, **annotation}
            for i, annotation in enumerate(
                (
                    _annotation(image, box, label)
                    for image, scene in enumerate(scenes)
                    for box, label in zip(scene.boxes, scene.labels, strict=True)
                ),
                start=1,
            )
        ],
    }
    results = [
        {**_annotation(image, box, label), "score": float(score)}
        for image, one in enumerate(found)
        for box, score, label in zip(one.boxes, one.scores, one.labels, strict=True)
    ]
    if not results:
        return AveragePrecision(at_50=0.0, mean=0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return AveragePrecision(at_50=float(evaluation.stats[1]), mean=float(evaluation.stats[0]))


def _annotation(
    image: int, box: NDArray[np.float32], label: np.int64
) -> dict[str, int | float | list[float]]:
    x1, y1, x2, y2 = (float(value) for value in box)
    return {
        "image_id": image,
        "category_id": int(label),
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "area": (x2 - x1) * (y2 - y1),
    }
