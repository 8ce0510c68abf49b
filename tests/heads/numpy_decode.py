"""The decode of each shared model in plain numpy, written from its README alone.

Nothing here is shared with bridge: where both agree, they agree for two reasons.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Outputs = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Boxes [N, 4] as x1, y1, x2, y2 in input pixels, scores [N, C], further columns [N, E]."""

    boxes: Array
    scores: Array
    extras: Array | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Detections, best first."""

    boxes: Array
    scores: Array
    classes: NDArray[np.int64]
    extras: Array | None


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def cells(width: int, height: int) -> Array:
    """Column and row of every cell, row by row."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x.ravel(), y.ravel()], 1).astype(np.float32)


def around(center: Array, size: Array) -> Array:
    return np.concatenate([center - size / 2, center + size / 2], 1)


def ultraface_rfb(out: Outputs) -> Candidates:
    size = np.asarray([320, 240, 320, 240], np.float32)
    return Candidates(out["boxes"][0] * size, out["scores"][0][:, 1:])


def ultraface_slim(out: Outputs) -> Candidates:
    priors = []
    maps = [(40, 30), (20, 15), (10, 8), (5, 4)]
    squares = [(10, 16, 24), (32, 48), (64, 96), (128, 192, 256)]
    for (width, height), sizes in zip(maps, squares, strict=True):
        for row in range(height):
            for column in range(width):
                for s in sizes:
                    center = ((column + 0.5) / width, (row + 0.5) / height)
                    priors.append([*center, s / 320, s / 240])
    prior = np.clip(np.asarray(priors, np.float32), 0, 1)
    raw = out["boxes"][0]
    center = prior[:, :2] + 0.1 * raw[:, :2] * prior[:, 2:]
    size = prior[:, 2:] * np.exp(0.2 * raw[:, 2:])
    pixels = np.asarray([320, 240, 320, 240], np.float32)
    return Candidates(around(center, size) * pixels, out["scores"][0][:, 1:])


def yunet(out: Outputs) -> Candidates:
    boxes, scores, points = [], [], []
    for s in (8, 16, 32):
        cell = cells(320 // s, 320 // s)
        raw = out[f"bbox_{s}"][0]
        boxes.append(around((cell + raw[:, :2]) * s, np.exp(raw[:, 2:]) * s))
        scores.append(np.sqrt(out[f"cls_{s}"][0] * out[f"obj_{s}"][0]))
        points.append((np.tile(cell, 5) + out[f"kps_{s}"][0]) * s)
    return Candidates(*(np.concatenate(parts) for parts in (boxes, scores, points)))


def yolox(out: Outputs) -> Candidates:
    raw = out["output"][0]
    cell = np.concatenate([cells(n, n) for n in (52, 26, 13)])
    stride = np.repeat(np.asarray([8, 16, 32], np.float32), [52 * 52, 26 * 26, 13 * 13])[:, None]
    boxes = around((raw[:, :2] + cell) * stride, np.exp(raw[:, 2:4]) * stride)
    return Candidates(boxes, raw[:, 4:5] * raw[:, 5:])


def nanodet(out: Outputs) -> Candidates:
    boxes, scores = [], []
    for s in (8, 16, 32):
        center = (cells(320 // s, 320 // s) + 0.5) * s
        bins = softmax(out[f"dis_pred_stride_{s}"][0].reshape(-1, 4, 8))
        distance = (bins * np.arange(8)).sum(-1) * s
        boxes.append(np.concatenate([center - distance[:, :2], center + distance[:, 2:]], 1))
        scores.append(out[f"cls_pred_stride_{s}"][0])
    return Candidates(np.concatenate(boxes).astype(np.float32), np.concatenate(scores))


def fastestdet(out: Outputs) -> Candidates:
    raw = out["758"][0].reshape(85, 484).T
    center = (cells(22, 22) + np.tanh(raw[:, 1:3])) / 22 * 352
    size = sigmoid(raw[:, 3:5]) * 352
    return Candidates(around(center, size), raw[:, :1] ** 0.6 * raw[:, 5:] ** 0.4)


DECODERS: dict[str, Callable[[Outputs], Candidates]] = {
    "ultraface-rfb-320.onnx": ultraface_rfb,
    "ultraface-slim-320-raw.onnx": ultraface_slim,
    "yunet-n-320.onnx": yunet,
    "yolox-nano-416.onnx": yolox,
    "nanodet-m-320.onnx": nanodet,
    "fastestdet-352.onnx": fastestdet,
}


def overlap(box: Array, others: Array) -> Array:
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    inner = np.prod(np.clip(high - low, 0, None), 1)
    area = np.prod(box[2:] - box[:2])
    union = area + np.prod(others[:, 2:] - others[:, :2], 1) - inner
    return np.where(union > 0, inner / np.where(union > 0, union, 1), 0)


def greedy(boxes: Array, scores: Array, score: float, iou: float) -> list[int]:
    """Indices that non-maximum suppression keeps among the boxes of one class, best first."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > score]
    kept: list[int] = []
    while len(order):
        kept.append(int(order[0]))
        order = order[1:][overlap(boxes[order[0]], boxes[order[1:]]) <= iou]
    return kept


def detect(
    candidates: Candidates, score: float, iou: float, most: int = 100, *, agnostic: bool = False
) -> Found:
    """Suppress per class, or over all classes with one class per box; the best rows of all."""
    scores = candidates.scores
    if agnostic:
        best = scores.argmax(1)
        rows = greedy(candidates.boxes, scores.max(1), score, iou)
        pairs = [(i, int(best[i])) for i in rows]
    else:
        pairs = [
            (i, c)
            for c in range(scores.shape[1])
            for i in greedy(candidates.boxes, scores[:, c], score, iou)
        ]
    pairs.sort(key=lambda pair: -scores[pair])
    rows, classes = [p[0] for p in pairs[:most]], [p[1] for p in pairs[:most]]
    return Found(
        candidates.boxes[rows].reshape(-1, 4),
        scores[rows, classes],
        np.asarray(classes, np.int64),
        None if candidates.extras is None else candidates.extras[rows],
    )
