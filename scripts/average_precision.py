"""Mean average precision of detections on drawn scenes, as COCO defines it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bridge.verify import precision
from bridge.verify.precision import AveragePrecision, Picture
from examples.shapes.scenes import Scene

__all__ = ["AveragePrecision", "Detections", "average_precision"]


@dataclass(frozen=True, slots=True)
class Detections:
    """What a detector found in one picture: boxes x1, y1, x2, y2 in pixels, best score first."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]


def average_precision(scenes: Sequence[Scene], found: Sequence[Detections]) -> AveragePrecision:
    """Compare what was found with the scenes' ground truth, one entry per scene."""
    return precision.average_precision(
        [Picture(one.boxes, one.labels) for one in scenes],
        [Picture(one.boxes, one.labels, one.scores) for one in found],
    )
