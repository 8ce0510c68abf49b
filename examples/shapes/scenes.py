"""Drawn scenes of overlapping shapes with their ground truth. Needs numpy and pillow only."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

CLASSES = ("circle", "square", "triangle", "star", "cross")
SIZE = 160

_SUPERSAMPLING = 3
_MOST_SHAPES = 9
_RADII = (9.0, 30.0)
_LEAST_VISIBLE = 0.5
_MOST_OVERLAP_SAME_CLASS = 0.35
_MOST_OVERLAP = 0.65
_LEAST_CONTRAST = 70.0

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture and what is in it.

    Attributes:
        image: uint8[SIZE, SIZE, 3], RGB.
        boxes: float32[n, 4], x1, y1, x2, y2 in pixels: the extent of the whole shape, also of
            what another shape hides, cut at the picture's edge.
        labels: int64[n], indices into CLASSES.
    """

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


def draw_scene(seed: int) -> Scene:
    """The scene of a number: the same picture for the same seed.

    A shape stays out where it would hide more than half of another one, so every box of the
    ground truth can be seen.
    """
    rng = np.random.default_rng(seed)
    background = _background(rng)
    canvas = Image.fromarray(background).resize(
        (SIZE * _SUPERSAMPLING,) * 2, Image.Resampling.BICUBIC
    )
    owner: NDArray[np.int64] = np.full((SIZE, SIZE), -1)
    areas: list[int] = []
    boxes: list[NDArray[np.float64]] = []
    labels: list[int] = []
    for _ in range(int(rng.integers(1, _MOST_SHAPES + 1))):
        label = int(rng.integers(len(CLASSES)))
        outline = _placed(_OUTLINES[CLASSES[label]], rng)
        colour = _contrasting(background.mean((0, 1)), rng)
        box = np.clip(np.concatenate([outline.min(0), outline.max(0)]), 0, SIZE)
        mask = _mask(outline)
        after = np.where(mask, len(boxes), owner)
        if _hides_too_much(after, [*areas, int(mask.sum())]) or _too_close(
            box, label, boxes, labels
        ):
            continue
        owner = after
        areas.append(int(mask.sum()))
        boxes.append(box)
        labels.append(label)
        points = [(x, y) for x, y in outline * _SUPERSAMPLING]
        ImageDraw.Draw(canvas).polygon(points, fill=colour)
    small = np.asarray(canvas.resize((SIZE, SIZE), Image.Resampling.BOX), np.float64)
    noisy = small + rng.normal(0, rng.uniform(0, 6), small.shape)
    return Scene(
        image=np.clip(np.rint(noisy), 0, 255).astype(np.uint8),
        boxes=np.asarray(boxes, np.float32).reshape(-1, 4),
        labels=np.asarray(labels, np.int64),
    )


def network_input(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A picture, uint8[SIZE, SIZE, 3], as the network takes it: float32[1, 3, SIZE, SIZE], 0..1."""
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255))


def _regular(corners: int, phase: float = 0.0) -> Points:
    angles = phase + 2 * math.pi * np.arange(corners) / corners
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def _star() -> Points:
    points = _regular(10)
    points[1::2] *= 0.42
    return points


def _cross() -> Points:
    arm, half = 1.0, 0.32
    corners = [(arm, -half), (arm, half), (half, half), (half, arm), (-half, arm), (-half, half)]
    return np.array([*corners, *((-x, -y) for x, y in corners)])


_OUTLINES = {
    "circle": _regular(48),
    "square": _regular(4, math.pi / 4),
    "triangle": _regular(3),
    "star": _star(),
    "cross": _cross(),
}


def _placed(outline: Points, rng: np.random.Generator) -> Points:
    radius = math.exp(rng.uniform(*np.log(_RADII)))
    stretch = math.exp(rng.uniform(-0.2, 0.2))
    angle = rng.uniform(0, 2 * math.pi)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    points: Points = outline @ turn.T * radius * np.array([stretch, 1 / stretch])
    return points + rng.uniform(0.6 * radius, SIZE - 0.6 * radius, 2)


def _background(rng: np.random.Generator) -> NDArray[np.uint8]:
    """A gradient between two near colours, crossed by a few faint lines."""
    first = rng.uniform(0, 255, 3)
    second = np.clip(first + rng.uniform(-50, 50, 3), 0, 255)
    direction = rng.uniform(-1, 1, 2)
    rows, columns = np.mgrid[0:SIZE, 0:SIZE] / (SIZE - 1)
    ramp = direction[0] * rows + direction[1] * columns
    ramp = (ramp - ramp.min()) / max(float(np.ptp(ramp)), 1e-6)
    picture = Image.fromarray((first + ramp[..., None] * (second - first)).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(0, 6))):
        ends = [float(value) for value in rng.uniform(0, SIZE, 4)]
        shade = np.clip(first + rng.uniform(-60, 60, 3), 0, 255)
        pen.line(ends, fill=_rgb(shade), width=int(rng.integers(1, 4)))
    return np.array(picture)


def _contrasting(background: NDArray[np.float64], rng: np.random.Generator) -> tuple[int, int, int]:
    while True:
        colour = rng.uniform(0, 255, 3)
        if float(np.linalg.norm(colour - background)) >= _LEAST_CONTRAST:
            return _rgb(colour)


def _rgb(colour: NDArray[np.float64]) -> tuple[int, int, int]:
    red, green, blue = (int(channel) for channel in colour)
    return red, green, blue


def _mask(outline: Points) -> NDArray[np.bool_]:
    picture = Image.new("1", (SIZE, SIZE))
    ImageDraw.Draw(picture).polygon([(x, y) for x, y in outline], fill=1)
    return np.array(picture)


def _hides_too_much(owner: NDArray[np.int64], areas: list[int]) -> bool:
    visible = np.bincount(owner[owner >= 0], minlength=len(areas))
    return any(seen < _LEAST_VISIBLE * area for seen, area in zip(visible, areas, strict=True))


def _too_close(
    box: NDArray[np.float64], label: int, boxes: list[NDArray[np.float64]], labels: list[int]
) -> bool:
    limits = [_MOST_OVERLAP_SAME_CLASS if label == other else _MOST_OVERLAP for other in labels]
    return any(_iou(box, other) > limit for other, limit in zip(boxes, limits, strict=True))


def _iou(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    width, height = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    shared = max(float(width), 0.0) * max(float(height), 0.0)
    areas = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]))
    return shared / max(areas - shared, 1e-9)
