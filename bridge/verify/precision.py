"""Average precision as COCO defines it, and ground truth as COCO's JSON tells it."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge.errors import TargetMissingError, UsageError

_AT_50 = 0
"""The first of the thresholds 0.50, 0.55, ... 0.95."""

_DIGITS = 12

OPTION = "--ground-truth"


@dataclass(frozen=True, slots=True)
class Picture:
    """What is in one picture, or what a detector finds there.

    Attributes:
        boxes: float64[n, 4], x1, y1, x2, y2.
        labels: int64[n]; a detection of class -1 is of none that counts.
        scores: float64[n]; empty in ground truth.
        crowd: bool[n] of ground truth: a box around many; empty where there are none.
    """

    boxes: NDArray[np.floating]
    labels: NDArray[np.int64]
    scores: NDArray[np.floating] = field(default_factory=lambda: np.zeros(0))
    crowd: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(frozen=True, slots=True)
class AveragePrecision:
    """Means over classes: at IoU 0.5, and over IoU 0.50, 0.55, ... 0.95."""

    at_50: float
    mean: float


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """What is on photos.

    Attributes:
        path: of the file, for messages.
        pictures: by file name without folders; labels are places in `categories`.
        ids: of the categories, rising.
        categories: their names.
    """

    path: Path
    pictures: Mapping[str, Picture]
    ids: tuple[int, ...]
    categories: tuple[str, ...]


def average_precision(truth: Sequence[Picture], found: Sequence[Picture]) -> AveragePrecision:
    """Average precision over pictures, by COCO's own implementation.

    However many detections a picture has, all count: 0 where there are none, or nothing to find.

    Raises:
        TargetMissingError: pycocotools is not installed.
    """
    try:
        from pycocotools.coco import COCO  # type: ignore[import-untyped]  # has no stubs
        from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]  # alike
    except ImportError as error:
        raise TargetMissingError(
            f"average precision is pycocotools' to compute, and it cannot run here ({error}): pip "
            "install 'bridge[tflite]'"
        ) from error
    labels = sorted({int(label) for one in truth for label in one.labels})
    wanted = [entry for image, one in enumerate(truth) for entry in _wanted(image, one)]
    results = [entry for image, one in enumerate(found) for entry in _found(image, one)]
    if not results or not wanted:
        return AveragePrecision(at_50=0.0, mean=0.0)
    known = COCO()
    known.dataset = {
        "info": {},
        "images": [{"id": image} for image in range(len(truth))],
        "categories": [{"id": label, "name": str(label)} for label in labels],
        "annotations": [{"id": number, **entry} for number, entry in enumerate(wanted, start=1)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(results), "bbox")
        evaluation.params.maxDets = [max(100, *(len(one.boxes) for one in found))]
        evaluation.params.areaRng = evaluation.params.areaRng[:1]
        evaluation.params.areaRngLbl = evaluation.params.areaRngLbl[:1]
        evaluation.evaluate()
        evaluation.accumulate()
    # Thresholds, recalls, classes, areas, most detections; -1 where a class is not there.
    precision = evaluation.eval["precision"][:, :, :, 0, 0]
    return AveragePrecision(_mean(precision[_AT_50]), _mean(precision))


def _mean(precision: NDArray[np.floating]) -> float:
    there = precision[precision > -1]
    # A mean of ones is one: pycocotools divides by a little more than the number of detections.
    return round(float(there.mean()), _DIGITS) if there.size else 0.0


def _wanted(image: int, picture: Picture) -> list[dict[str, object]]:
    crowd = picture.crowd if len(picture.crowd) else np.zeros(len(picture.boxes), bool)
    return [
        {**_annotation(image, box, label), "iscrowd": int(many)}
        for box, label, many in zip(picture.boxes, picture.labels, crowd, strict=True)
    ]


def _found(image: int, picture: Picture) -> list[dict[str, object]]:
    rows = zip(picture.boxes, picture.labels, picture.scores, strict=True)
    return [
        {**_annotation(image, box, label), "score": float(score)}
        for box, label, score in rows
        if label >= 0 and np.isfinite(box).all() and np.isfinite(score)
    ]


def _annotation(image: int, box: NDArray[np.floating], label: np.int64) -> dict[str, object]:
    x1, y1, x2, y2 = (float(value) for value in box)
    return {
        "image_id": image,
        "category_id": int(label),
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "area": (x2 - x1) * (y2 - y1),
    }


def read_ground_truth(path: Path) -> GroundTruth:
    """Read COCO's JSON: `images` (id, file_name), `annotations` (bbox), `categories` (id, name).

    Raises:
        UsageError: it cannot be read, or is not that.
    """
    try:
        return _ground_truth(path, json.loads(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{OPTION} {path}: cannot read it: {error.strerror}") from error
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{OPTION} {path} is not COCO JSON ({type(error).__name__}: {error}): it needs images "
            "(id, file_name), annotations (image_id, category_id, bbox) and categories (id, name)"
        ) from error


def _ground_truth(path: Path, entry: Mapping[str, Any]) -> GroundTruth:
    names = {int(one["id"]): str(one["name"]) for one in entry["categories"]}
    ids = tuple(sorted(names))
    files = {one["id"]: PurePosixPath(one["file_name"]).name for one in entry["images"]}
    if len({*files.values()}) != len(files):
        raise UsageError(f"{OPTION} {path}: two images have the same file name")
    rows: dict[str, list[tuple[list[float], int, bool]]] = {name: [] for name in files.values()}
    for one in entry["annotations"]:
        x, y, width, height = (float(number) for number in one["bbox"])
        if not np.isfinite([x, y, width, height]).all() or width < 0 or height < 0:
            raise ValueError(f"the bbox {one['bbox']} is no box")
        box = [x, y, x + width, y + height]
        category = ids.index(int(one["category_id"]))
        rows[files[one["image_id"]]].append((box, category, bool(one.get("iscrowd", 0))))
    pictures = {
        name: Picture(
            boxes=np.array([box for box, _, _ in inside], np.float64).reshape(-1, 4),
            labels=np.array([label for _, label, _ in inside], np.int64),
            crowd=np.array([many for _, _, many in inside], bool),
        )
        for name, inside in rows.items()
    }
    return GroundTruth(path, pictures, ids, tuple(names[number] for number in ids))
