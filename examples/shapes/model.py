"""The network that finds shapes: small, anchor-free, its suppression inside.

Needs the extra `torch`.
"""

from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

from examples.shapes.scenes import CLASSES, SIZE

STRIDES = (8, 16)
SCORE_THRESHOLD = 0.05
IOU_THRESHOLD = 0.5
MAX_DETECTIONS = 100
WEIGHTS = Path(__file__).with_name("weights.pt")


class ConvBlock(nn.Sequential):
    """Convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class Residual(nn.Module):
    """`x + block(x)`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = ConvBlock(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """float32[1, C, H, W] to the same shape."""
        return torch.add(x, self.block(x))


class ShapeNetwork(nn.Module):
    """Pictures to one prediction per point of two grids (strides 8 and 16)."""

    points: Tensor
    strides: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            ConvBlock(3, 12, stride=2),
            ConvBlock(12, 16, stride=2),
            ConvBlock(16, 32, stride=2),
            Residual(32),
            Residual(32),
        )
        self.coarse = nn.Sequential(ConvBlock(32, 32, stride=2), Residual(32))
        self.lateral = nn.Conv2d(32, 32, 1)
        self.merge = ConvBlock(32, 32)
        self.squeeze = nn.Conv2d(32, 32, 1)
        self.class_tower = ConvBlock(32, 32)
        self.box_tower = ConvBlock(32, 32)
        self.logits = nn.Conv2d(32, len(CLASSES), 1)
        self.distances = nn.Conv2d(32, 4, 1)
        points, strides = _grid_points()
        self.register_buffer("points", points, persistent=False)
        self.register_buffer("strides", strides, persistent=False)
        for layer, start in ((self.logits, -4.0), (self.distances, 0.5)):
            if layer.bias is not None:
                nn.init.constant_(layer.bias, start)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes float32[B, N, 4] (x1, y1, x2, y2) and logits [B, N, C].

        Args:
            images: float32[B, 3, SIZE, SIZE], RGB, 0..1.
        """
        fine = self.fine(images)
        coarse = self.coarse(fine)
        fine = fine + nn.functional.interpolate(self.lateral(coarse), scale_factor=2.0)
        levels = (self.merge(fine), self.squeeze(coarse))
        logits = torch.cat([_rows(self.logits(self.class_tower(level))) for level in levels], 1)
        raw = torch.cat([_rows(self.distances(self.box_tower(level))) for level in levels], 1)
        distances = raw.exp() * self.strides
        boxes = torch.cat([self.points - distances[..., :2], self.points + distances[..., 2:]], 2)
        return boxes, logits


class ShapeDetector(nn.Module):
    """The network and what turns its predictions into detections, as one usually writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = ShapeNetwork()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """float32[1, 3, SIZE, SIZE], RGB 0..1, to boxes [n, 4], scores [n], labels int64[n]."""
        boxes, logits = self.network(images)
        scores, labels = logits[0].sigmoid().max(1)
        candidates = scores > SCORE_THRESHOLD
        boxes, scores, labels = boxes[0][candidates], scores[candidates], labels[candidates]
        keep = torchvision.ops.batched_nms(boxes, scores, labels, IOU_THRESHOLD)
        keep = keep[:MAX_DETECTIONS]
        return boxes[keep], scores[keep], labels[keep]


def detector() -> ShapeDetector:
    """The detector without its weights, for `bridge export examples.shapes.model:detector`."""
    return ShapeDetector().eval()


def _rows(grid: Tensor) -> Tensor:
    """[B, C, H, W] to [B, H*W, C]."""
    return grid.flatten(2).transpose(1, 2)


def _grid_points() -> tuple[Tensor, Tensor]:
    points, strides = [], []
    for stride in STRIDES:
        centres = (torch.arange(SIZE // stride, dtype=torch.float32) + 0.5) * stride
        rows, columns = torch.meshgrid(centres, centres, indexing="ij")
        points.append(torch.stack([columns, rows], 2).reshape(-1, 2))
        strides.append(torch.full((len(points[-1]), 1), float(stride)))
    return torch.cat(points), torch.cat(strides)
