"""Random weights with which torchvision's detectors detect something.

Fresh from its constructor such a detector finds nothing (its class scores start below the score
threshold) or the same everywhere (signals fade over a hundred layers), and nothing would be shown
by comparing that.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from bridge.pytorch.source import SEED, Wrapped

_CANDIDATES = 300
"""Class scores above the score threshold, in one of the pictures the weights are made for."""

_PICTURES = 3

_NORMS = (nn.BatchNorm2d, torchvision.ops.misc.FrozenBatchNorm2d)


@dataclass(frozen=True, slots=True)
class _Head:
    """The last layers of a detector.

    Attributes:
        logits: layers that write class logits, `classes` per anchor; softmax with the background
            first, or sigmoid.
        deltas: layers that write box regressions.
        centre: what the regressions get as their mean.
        threshold: that a class probability must exceed.
    """

    logits: tuple[nn.Module, ...]
    deltas: tuple[nn.Module, ...]
    classes: int
    threshold: float
    softmax: bool
    centre: float = 0.0


def make_detect(model: Wrapped, shape: Sequence[int]) -> None:
    """Give every layer's output the deviation 1, and the head some hundred candidates.

    The same weights for the same model and shape, on the same kind of machine. A detector of an
    unknown kind stays as it is.

    Args:
        model: a detector, changed in place.
        shape: of the input, [1, 3, H, W].
    """
    head = _head(model.model)
    if head is None:
        return
    with torch.no_grad(), _one_thread():
        pictures = _pictures(shape)
        _standardise(model, pictures)
        for layer in head.deltas:
            _scale(layer, 0.5)
            bias: Any = layer.bias
            bias.add_(head.centre)
        for layer in head.logits:
            _scale(layer, 2.0)
        _let_pass(head, _written(model, pictures, head.logits))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in an order that does not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _head(model: nn.Module) -> _Head | None:
    """The last layers of the detectors that `torchvision.models.detection` builds."""
    detection = torchvision.models.detection
    if isinstance(model, detection.ssd.SSD):
        head: Any = model.head
        logits = tuple(map(_last, head.classification_head.module_list))
        deltas = tuple(map(_last, head.regression_head.module_list))
        classes = head.classification_head.num_columns
        return _Head(logits, deltas, classes, model.score_thresh, softmax=True)
    if isinstance(model, detection.generalized_rcnn.GeneralizedRCNN):
        roi: Any = model.roi_heads
        logits = (roi.box_predictor.cls_score,)
        deltas = (model.rpn.head.bbox_pred, roi.box_predictor.bbox_pred)
        classes = roi.box_predictor.cls_score.out_features
        return _Head(logits, deltas, classes, roi.score_thresh, softmax=True)
    if isinstance(model, detection.retinanet.RetinaNet):
        logits = (model.head.classification_head.cls_logits,)
        deltas = (model.head.regression_head.bbox_reg,)
        return _Head(logits, deltas, 1, model.score_thresh, softmax=False)
    if isinstance(model, detection.fcos.FCOS):
        logits = (model.head.classification_head.cls_logits,)
        deltas = (model.head.regression_head.bbox_reg,)
        # The score is sqrt(class * centre-ness), and no centre-ness exceeds 1. Regressions are
        # distances to the four sides: below zero there is no box.
        return _Head(logits, deltas, 1, model.score_thresh**2, softmax=False, centre=1.5)
    return None


def _last(module: nn.Module) -> nn.Module:
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)][-1]


def _pictures(shape: Sequence[int]) -> Tensor:
    """Three pictures: even noise, strong noise, and blobs of every size.

    What is made for one kind alone fades or explodes on another.
    """
    generator = torch.Generator().manual_seed(SEED)
    channels, height, width = shape[1:]
    blobs = torch.zeros(1, channels, height, width)
    size = 2
    while size <= min(height, width):
        corners = torch.rand(1, channels, size, size, generator=generator)
        blobs += nn.functional.interpolate(corners, (height, width), mode="bilinear")
        size *= 2
    low, high = blobs.aminmax()
    even = torch.rand(blobs.shape, generator=generator)
    strong = torch.randn(blobs.shape, generator=generator)
    return torch.cat([even, strong, (blobs - low) / (high - low)])


def _standardise(model: Wrapped, pictures: Tensor) -> None:
    """One run in which each layer is scaled by what it writes, in the order the layers run.

    A layer that runs on several levels is scaled by the first.
    """
    done: set[nn.Module] = set()

    def norm(layer: Any, inputs: tuple[Tensor, ...]) -> None:
        if layer not in done:
            done.add(layer)
            variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
            layer.running_mean.copy_(_coarse(mean))
            # A channel that hardly varies would be blown up with its rounding errors.
            layer.running_var.copy_(_coarse(variance.clamp(min=0.1 * float(variance.mean()))))

    def linear(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        del inputs
        if layer in done or output.numel() < 2:
            return None
        done.add(layer)
        if layer.bias is not None:
            # Numbers far from zero that hardly differ would lose their digits in the next layer.
            mean = _coarse(output.mean([axis for axis in range(output.dim()) if axis != 1]))
            layer.bias.sub_(mean)
            output = output - mean.view(-1, *[1] * (output.dim() - 2))
        scale = float(_coarse(1 / output.std().clamp(min=1e-12)))
        _scale(layer, scale)
        return output * scale

    hooks = []
    for layer in model.modules():
        if isinstance(layer, _NORMS):
            hooks.append(layer.register_forward_pre_hook(norm))
        elif isinstance(layer, (nn.Conv2d, nn.Linear)):
            hooks.append(layer.register_forward_hook(linear))
    model(pictures)
    for hook in hooks:
        hook.remove()


def _scale(layer: Any, factor: float) -> None:
    layer.weight.mul_(factor)
    if layer.bias is not None:
        layer.bias.mul_(factor)


def _coarse(value: Tensor) -> Tensor:
    """Eight significant bits: what the order of a sum changes does not reach the weights."""
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp((mantissa * 256).round() / 256, exponent)


def _written(model: Wrapped, pictures: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """What the layers write in one run, every time that they run."""
    written: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output: written.append(output))
        for layer in layers
    ]
    model(pictures)
    for hook in hooks:
        hook.remove()
    return written


def _let_pass(head: _Head, written: Sequence[Tensor]) -> None:
    """Shift the biases so that about `_CANDIDATES` class probabilities exceed the threshold.

    That many in the picture of the three that is in the middle. The rows of a linear layer do not
    tell which picture they are from: of them, that many for each.
    """
    pictures = list(zip(*(_anchors(output, head.classes) for output in written), strict=True))
    passing = _CANDIDATES if len(pictures) > 1 else _CANDIDATES * _PICTURES
    shifts = [_in_a_gap(_limits(head, torch.cat(rows)), head, passing) for rows in pictures]
    shift = torch.stack(shifts).median()
    for layer in head.logits:
        bias: Any = layer.bias
        bias.view(-1, head.classes)[:, 0].add_(shift.to(bias))


def _limits(head: _Head, logits: Tensor) -> Tensor:
    """For each class of each row the shift at which it passes the threshold."""
    logits = logits.double()
    if not head.softmax:
        return math.log(head.threshold / (1 - head.threshold)) - logits.flatten()
    # exp(l) / (exp(b + x) + S) = t, where S sums all classes but the background b, solved for x.
    others = logits[:, 1:].exp()
    rest = others / head.threshold - others.sum(1, keepdim=True)
    return rest[rest > 0].log() - logits[:, :1].expand_as(rest)[rest > 0]


def _anchors(output: Tensor, classes: int) -> list[Tensor]:
    """Logits [B, anchors * classes, h, w] or [rows, classes] as rows [n, classes], by picture."""
    if output.dim() == 2:
        return [output]
    return [
        one.view(-1, classes, one[0].numel()).transpose(1, 2).reshape(-1, classes) for one in output
    ]


def _in_a_gap(limits: Tensor, head: _Head, passing: int) -> Tensor:
    """A shift with which about so many pass, none of them barely; 12 binary places.

    Softmax shifts the background, so that more pass the lower it is.
    """
    ordered = limits.sort(descending=head.softmax).values
    last = min(passing, len(ordered) - 2)
    around = ordered[last * 9 // 10 : last * 11 // 10 + 2]
    widest = int(around.diff().abs().argmax())
    return ((around[widest] + around[widest + 1]) * 2048).round() / 4096
