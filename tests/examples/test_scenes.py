"""Drawn scenes: the same for the same seed, and their ground truth is what is drawn."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from examples.shapes.scenes import CLASSES, SIZE, draw_scene, network_input

PICTURES = sorted((Path(__file__).resolve().parents[2] / "examples" / "scenes").glob("*.png"))


def test_a_seed_is_a_scene() -> None:
    first, second, other = draw_scene(3), draw_scene(3), draw_scene(4)
    np.testing.assert_array_equal(first.image, second.image)
    np.testing.assert_array_equal(first.boxes, second.boxes)
    assert not np.array_equal(first.image, other.image)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_the_demo_pictures_are_scenes(path: Path) -> None:
    scene = draw_scene(int(path.stem.removeprefix("scene_")))
    np.testing.assert_array_equal(np.asarray(Image.open(path)), scene.image)


def test_there_are_demo_pictures() -> None:
    assert len(PICTURES) >= 4


@pytest.mark.parametrize("seed", range(40))
def test_boxes_lie_in_the_picture_and_tell_shapes_apart(seed: int) -> None:
    scene = draw_scene(seed)
    assert scene.image.shape == (SIZE, SIZE, 3)
    assert scene.boxes.shape == (len(scene.labels), 4)
    assert len(scene.labels) >= 1
    assert ((scene.labels >= 0) & (scene.labels < len(CLASSES))).all()
    low, high = scene.boxes[:, :2], scene.boxes[:, 2:]
    assert (low >= 0).all()
    assert (high <= SIZE).all()
    assert (high - low > 5).all()


def test_scenes_hold_every_class_and_overlaps() -> None:
    scenes = [draw_scene(seed) for seed in range(60)]
    labels = np.concatenate([scene.labels for scene in scenes])
    assert set(labels) == set(range(len(CLASSES)))
    assert np.bincount(labels).min() > 0.1 * len(labels)
    overlapping = sum(_overlaps(scene.boxes) for scene in scenes)
    assert overlapping > 10


def test_a_box_is_the_extent_of_its_shape() -> None:
    """In scenes of one shape: what differs from the rows and columns beside it is in the box."""
    alone = [scene for scene in map(draw_scene, range(80)) if len(scene.labels) == 1]
    assert len(alone) > 5
    for scene in alone:
        x1, y1, x2, y2 = scene.boxes[0]
        colour = scene.image[int((y1 + y2) / 2), int((x1 + x2) / 2)].astype(int)
        near = np.abs(scene.image.astype(int) - colour).max(2) < 40
        rows, columns = np.nonzero(near)
        assert np.abs(np.array([columns.min(), rows.min()]) - [x1, y1]).max() < 3
        assert np.abs(np.array([columns.max(), rows.max()]) + 1 - [x2, y2]).max() < 3


def test_the_network_gets_fractions_in_its_layout() -> None:
    scene = draw_scene(0)
    made = network_input(scene.image)
    assert made.shape == (1, 3, SIZE, SIZE)
    assert made.dtype == np.float32
    assert made[0, 1, 7, 9] == np.float32(scene.image[7, 9, 1]) / np.float32(255)


def _overlaps(boxes: NDArray[np.float32]) -> int:
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    return int(np.triu((high - low).min(2) > 0, 1).sum())
