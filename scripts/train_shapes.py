"""Train the detector of drawn shapes: seeded, minutes on two cores."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional

from bridge.command import single_command
from examples.shapes.model import WEIGHTS, ShapeDetector, ShapeNetwork
from examples.shapes.scenes import SIZE, Scene, draw_scene
from scripts.average_precision import AveragePrecision, Detections, average_precision

FIRST_TRAINING_SEED = 1_000_000
BATCH = 32
CANDIDATES_PER_SHAPE = 10
MOST_SHAPES = 9


def train(
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="where the weights go")] = WEIGHTS,
    scenes: Annotated[int, typer.Option(help="pictures drawn for training")] = 5000,
    epochs: Annotated[int, typer.Option(help="times each picture is shown")] = 30,
    seed: Annotated[int, typer.Option(help="of weights, order and mirroring")] = 0,
    threads: Annotated[int, typer.Option(help="of torch")] = 2,
    evaluation: Annotated[int, typer.Option(help="other scenes to report the accuracy on")] = 200,
) -> None:
    """Train, report the accuracy on scenes never seen in training, write the weights (float16)."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    started = time.monotonic()
    data = TrainingScenes([draw_scene(FIRST_TRAINING_SEED + i) for i in range(scenes)])
    typer.echo(f"drew {scenes} scenes in {time.monotonic() - started:.0f} s")
    detector = ShapeDetector()
    average = copy.deepcopy(detector).eval()
    steps = epochs * (scenes // BATCH)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=4e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    step = 0
    for epoch in range(epochs):
        total = 0.0
        for images, boxes, labels in data.batches(BATCH):
            loss = detection_loss(detector.network, images, boxes, labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            step += 1
            follow(average, detector, momentum=min(0.998, step / (step + 9)))
            total += loss.item()
        mean = total / (scenes // BATCH)
        typer.echo(f"epoch {epoch + 1}: loss {mean:.3f}, {time.monotonic() - started:.0f} s")
    weights = {name: _half(value) for name, value in average.state_dict().items()}
    average.load_state_dict(weights)
    result = evaluate(average, evaluation)
    typer.echo(f"AP50 {result.at_50:.3f}, AP50:95 {result.mean:.3f} on {evaluation} scenes")
    torch.save(weights, output)


class TrainingScenes:
    """Drawn scenes as tensors, and batches of them, shuffled, mirrored and turned."""

    def __init__(self, scenes: list[Scene]) -> None:
        self.images = torch.from_numpy(np.stack([scene.image for scene in scenes]))
        self.boxes = torch.zeros(len(scenes), MOST_SHAPES, 4)
        self.labels = torch.full((len(scenes), MOST_SHAPES), -1)
        for i, scene in enumerate(scenes):
            self.boxes[i, : len(scene.boxes)] = torch.from_numpy(scene.boxes)
            self.labels[i, : len(scene.labels)] = torch.from_numpy(scene.labels)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images float32[B, 3, H, W], boxes [B, M, 4], labels int64[B, M] (-1: no shape)."""
        order = torch.randperm(len(self.images))
        for chosen in torch.split(order, size):
            if len(chosen) < size:
                return
            images = self.images[chosen].permute(0, 3, 1, 2).float() / 255
            boxes = self.boxes[chosen]
            flip_x, flip_y, swap, invert = (torch.rand(4) < 0.5).tolist()
            if flip_x:
                images, boxes = images.flip(3), _mirrored(boxes, 0)
            if flip_y:
                images, boxes = images.flip(2), _mirrored(boxes, 1)
            if swap:
                images, boxes = images.transpose(2, 3), boxes[..., [1, 0, 3, 2]]
            if invert:
                images = 1 - images
            images = images[:, torch.randperm(3)]
            yield images.contiguous(), boxes, self.labels[chosen]


def detection_loss(network: ShapeNetwork, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the class scores, 1 - GIoU of the boxes, both against assigned targets."""
    predicted, logits = network(images)
    with torch.no_grad():
        shape_of, quality = assign(network.points, predicted, logits.sigmoid(), boxes, labels)
    positive = quality > 0
    targets = torch.zeros_like(logits)
    image, point = positive.nonzero(as_tuple=True)
    shape = shape_of[positive]
    targets[image, point, labels[image, shape]] = quality[positive]
    scale = quality.sum().clamp(min=1.0)
    scores = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    overlap = giou(predicted[positive], boxes[image, shape])
    return (scores + 2.5 * ((1 - overlap) * quality[positive]).sum()) / scale


def assign(
    points: Tensor, predicted: Tensor, scores: Tensor, boxes: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Task-aligned assignment: each shape takes the points that already fit it best.

    Returns:
        The shape that each point stands for, int64[B, N], and how well it must score,
        float32[B, N]: 0 where it stands for none.
    """
    real = labels >= 0
    inside = (
        torch.cat([points - boxes[..., None, :2], boxes[..., None, 2:] - points], 3).amin(3).gt(0)
        & real[..., None]
    )
    overlap = giou(predicted[:, None], boxes[:, :, None]).clamp(min=0)
    index = labels.clamp(min=0)[..., None].expand(-1, -1, scores.shape[1])
    score = scores.transpose(1, 2).gather(1, index)
    fit = score.sqrt() * overlap**4 * inside
    best = fit.topk(CANDIDATES_PER_SHAPE, dim=2)
    taken = torch.zeros_like(fit).scatter(2, best.indices, 1.0) * inside
    taken = taken * functional.one_hot((overlap * taken).argmax(1), fit.shape[1]).transpose(1, 2)
    fit, overlap = fit * taken, overlap * taken
    quality = fit / fit.amax(2, keepdim=True).clamp(min=1e-9) * overlap.amax(2, keepdim=True)
    return quality.argmax(1), quality.amax(1)


def giou(first: Tensor, second: Tensor) -> Tensor:
    """Generalised intersection over union of boxes x1, y1, x2, y2, broadcast."""
    shared = _area(
        torch.maximum(first[..., :2], second[..., :2]),
        torch.minimum(first[..., 2:], second[..., 2:]),
    )
    union = _area(first[..., :2], first[..., 2:]) + _area(second[..., :2], second[..., 2:]) - shared
    hull = _area(
        torch.minimum(first[..., :2], second[..., :2]),
        torch.maximum(first[..., 2:], second[..., 2:]),
    )
    return shared / union.clamp(min=1e-6) - (hull - union) / hull.clamp(min=1e-6)


def follow(average: ShapeDetector, detector: ShapeDetector, *, momentum: float) -> None:
    """Move the averaged weights towards the present ones."""
    with torch.no_grad():
        pairs = zip(average.state_dict().values(), detector.state_dict().values(), strict=True)
        for slow, fast in pairs:
            if slow.is_floating_point():
                slow.lerp_(fast, 1 - momentum)
            else:
                slow.copy_(fast)


def evaluate(detector: ShapeDetector, count: int) -> AveragePrecision:
    """Accuracy on scenes that are never trained on, those of `scripts.measure_ap`."""
    scenes = [draw_scene(seed) for seed in range(count)]
    found = []
    with torch.no_grad():
        for scene in scenes:
            image = torch.from_numpy(scene.image).permute(2, 0, 1)[None].float() / 255
            boxes, scores, labels = detector(image)
            found.append(Detections(boxes.numpy(), scores.numpy(), labels.numpy()))
    return average_precision(scenes, found)


def _half(value: Tensor) -> Tensor:
    return value.half() if value.is_floating_point() else value


def _area(low: Tensor, high: Tensor) -> Tensor:
    return (high - low).clamp(min=0).prod(-1)


def _mirrored(boxes: Tensor, axis: int) -> Tensor:
    mirrored = boxes.clone()
    mirrored[..., axis] = SIZE - boxes[..., axis + 2]
    mirrored[..., axis + 2] = SIZE - boxes[..., axis]
    return mirrored


if __name__ == "__main__":
    single_command(train)()
