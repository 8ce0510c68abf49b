"""Small PyTorch detectors that the tests export; named as `tests.pytorch.models:NAME`."""

from collections import namedtuple
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torchvision.ops import batched_nms

from bridge.pytorch.random_weights import make_detect
from bridge.pytorch.source import Wrapped

Pair = namedtuple("Pair", ["first", "second"])


class TwoConvolutions(nn.Module):
    """A report from the field: two convolutions, all they write taken for boxes, one NMS.

    Reported with 64 channels on 1x3x200x200; its boxes have their corners in no order.
    """

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        boxes = self.conv2(self.conv1(x)).reshape(-1, 4)
        kept: Tensor = torchvision.ops.nms(boxes, boxes[:, 0], 0.5)
        return kept


class Yolo(nn.Module):
    """A report from the field: YOLOv5's way from a raw map to rows x1, y1, x2, y2, score, class.

    The function itself is imported (`from torchvision.ops import batched_nms`), as users do.
    """

    def __init__(self, size: int = 64, classes: int = 4, confidence: float = 0.25) -> None:
        super().__init__()
        self.classes, self.confidence = classes, confidence
        self.backbone = nn.Sequential(
            *(self._block(i, o) for i, o in ((3, 8), (8, 8), (8, 8))),
            nn.Conv2d(8, 3 * (5 + classes), 1),
        )
        cells = size // 8
        rows, columns = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
        grid = torch.stack([columns, rows], 2).view(1, 1, cells, cells, 2).float()
        self.register_buffer("grid", grid - 0.5)
        anchors = torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]])
        self.register_buffer("anchors", anchors.view(1, 3, 1, 1, 2))

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        raw = self.backbone(x)
        cells = raw.shape[-1]
        y = raw.view(1, 3, 5 + self.classes, cells, cells).permute(0, 1, 3, 4, 2).sigmoid()
        centre = (y[..., :2] * 2 + self.grid) * 8
        extent = (y[..., 2:4] * 2) ** 2 * self.anchors
        prediction = torch.cat([centre, extent, y[..., 4:]], 4).view(-1, 5 + self.classes)
        prediction = prediction[prediction[:, 4] > self.confidence]
        scores = prediction[:, 5:] * prediction[:, 4:5]
        low, high = (
            prediction[:, :2] - prediction[:, 2:4] / 2,
            prediction[:, :2] + prediction[:, 2:4] / 2,
        )
        best, label = scores.max(1, keepdim=True)
        rows = torch.cat([low, high, best, label.float()], 1)[best.view(-1) > self.confidence]
        rows = rows[rows[:, 4].argsort(descending=True)[:1000]]
        kept = batched_nms(rows[:, :4], rows[:, 4], rows[:, 5], 0.45)
        return rows[kept[:100]]


class FarNegative(nn.Module):
    """More than 1000 boxes far below zero, where shifting by class is not class by class.

    The shift is the largest coordinate + 1, here about 1: classes overlap after it.
    """

    def forward(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        labels = torch.arange(len(scores)) % 3
        shifted = boxes - boxes.max()
        kept = torchvision.ops.batched_nms(shifted, scores, labels, 0.5)
        return shifted[kept], scores[kept]


class Returns(nn.Module):
    """Returns a nest of tensors that `shape` builds from the input."""

    def __init__(self, shape: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> object:
        return self.shape(x)


def two_convolutions() -> nn.Module:
    return TwoConvolutions()


def yolo(confidence: float = 0.25) -> nn.Module:
    """With weights that let a third of the anchors pass `confidence` 0.25."""
    model = Yolo(confidence=confidence)
    head = model.backbone[-1]
    assert isinstance(head, nn.Conv2d)
    assert head.bias is not None
    with torch.no_grad():
        head.weight.mul_(8)
        head.bias.view(3, -1)[:, 4:] += 0.5
    return model


def blind() -> nn.Module:
    """Never sure enough to detect anything."""
    return yolo(confidence=1.0)


def far_negative() -> nn.Module:
    return FarNegative()


def nothing() -> str:
    return "not a module"


class Levels(nn.Module):
    """Two feature levels for torchvision's detectors, strides 8 and 16."""

    out_channels: int | list[int]

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, 4, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2, 1)
        )
        self.deep = nn.Conv2d(channels, channels, 3, 2, 1)
        self.out_channels = channels

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.stem(x)
        return {"0": first, "1": self.deep(first.relu())}


def tiny(kind: str, size: int = 64, classes: int = 3) -> nn.Module:
    """torchvision's detectors over `Levels`: ssd, retinanet, fcos or fasterrcnn."""
    detection = torchvision.models.detection
    anchors = detection.anchor_utils.AnchorGenerator
    limits = {"min_size": size, "max_size": size}
    made: nn.Module
    if kind == "ssd":
        boxes = detection.anchor_utils.DefaultBoxGenerator([[2], [2]], min_ratio=20, max_ratio=60)
        backbone = Levels(16)
        backbone.out_channels = [16, 16]
        made = detection.ssd.SSD(backbone, boxes, (size, size), classes, topk_candidates=20)
    elif kind == "retinanet":
        generator = anchors(((16,), (32,)), ((0.5, 1.0, 2.0),) * 2)
        made = detection.RetinaNet(Levels(32), classes, anchor_generator=generator, **limits)
    elif kind == "fcos":
        generator = anchors(((8,), (16,)), ((1.0,),) * 2)
        made = detection.FCOS(Levels(32), classes, anchor_generator=generator, **limits)
    else:
        generator = anchors(((16,), (32,)), ((0.5, 1.0, 2.0),) * 2)
        pool = torchvision.ops.MultiScaleRoIAlign(["0", "1"], 3, 2)
        made = detection.FasterRCNN(
            Levels(16),
            rpn_anchor_generator=generator,
            box_roi_pool=pool,
            box_head=detection.faster_rcnn.TwoMLPHead(16 * 9, 32),
            box_predictor=detection.faster_rcnn.FastRCNNPredictor(32, classes),
            rpn_post_nms_top_n_test=50,
            **limits,
        )
    return made


def random_ssd() -> nn.Module:
    return _detecting("ssd")


def random_retinanet() -> nn.Module:
    return _detecting("retinanet")


def random_fcos() -> nn.Module:
    return _detecting("fcos")


def _detecting(kind: str) -> nn.Module:
    """A tiny detector of torchvision with weights that detect something."""
    model = Wrapped(tiny(kind)).eval()
    make_detect(model, (1, 3, 64, 64))
    detector: nn.Module = model.model
    return detector
