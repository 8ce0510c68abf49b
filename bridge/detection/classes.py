"""Classes behind a suppression that knows none: the coordinate trick, read backwards.

torchvision's batched_nms and YOLO's wrappers move the boxes of every class to a place of their own
and suppress once:

    offset = class id * (max(boxes) + 1)        torchvision; the boxes' own maximum
    offset = class id * 7680                    YOLO; a constant
    StaticNMS(boxes + offset, scores)

This finds the plain boxes, the class ids and how many classes there can be. Read in a static model.
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from bridge.detection.bounds import bounds_of
from bridge.detection.producers import Producers
from bridge.static_nms import StaticNms


@dataclass(frozen=True, slots=True)
class RecoveredClasses:
    """What the coordinate trick hid.

    Attributes:
        boxes: float32 tensor of N x 4 elements, the boxes where they really are.
        ids: tensor of N elements, whole numbers of any type.
        first, count: every id is at least `first` and less than `first + count`.
        offset: what one class is moved by; None where that is the boxes' own maximum and one.
    """

    boxes: str
    ids: str
    first: int
    count: int
    offset: float | None


@dataclass(frozen=True, slots=True)
class NoClasses:
    """Why there is nothing to recover."""

    because: str


def recover(model: onnx.ModelProto, call: StaticNms) -> RecoveredClasses | NoClasses:
    """The classes behind a call of StaticNMS in a static model, or why there are none."""
    known = Producers.of(model)
    images, classes, rows = known.shape(call.scores)
    if (images, classes) != (1, 1):
        return NoClasses(f"it suppresses {images} images and {classes} classes already")
    moved = known.made_by(_unshaped(known, call.boxes), "Add")
    if moved is None:
        return NoClasses("nothing is added to its boxes")
    for boxes, offset in (moved.input, list(moved.input)[::-1]):
        found = _offset(known, offset, rows)
        if found is None or math.prod(known.shape(boxes)) != 4 * rows:
            continue
        ids, scale = found
        step = _scale(known, scale, boxes)
        if step is None:
            continue
        bounds = bounds_of(known, ids)
        if bounds is None:
            return NoClasses(f"nothing limits the class ids ({ids})")
        first, last = math.floor(bounds.low), math.ceil(bounds.high)
        offset_of_one = None if step == math.inf else step
        return RecoveredClasses(boxes, ids, first, last - first + 1, offset_of_one)
    return NoClasses("what is added to its boxes is not a class id times an offset")


def _unshaped(known: Producers, name: str) -> str:
    """The tensor before operators that only arrange its elements anew, in the same order."""
    while (
        node := known.made_by(name, "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
    ) is not None:
        name = str(node.input[0])
    return name


def _offset(known: Producers, name: str, rows: int) -> tuple[str, str] | None:
    """The class ids and the scale of `ids * scale`, the same number for a whole box."""
    product = known.made_by(_unshaped(known, name), "Mul")
    if product is None or (known.shape(name)[-1] != 1 and math.prod(known.shape(name)) == rows):
        return None
    for factor, scale in (product.input, list(product.input)[::-1]):
        ids = _ids(known, factor, rows)
        if math.prod(known.shape(scale)) == 1 and math.prod(known.shape(ids)) == rows:
            return ids, scale
    return None


def _ids(known: Producers, name: str, rows: int) -> str:
    """Whole numbers before they became floats, and before each was written four times."""
    while True:
        name = _unshaped(known, name)
        node = known.made_by(name, "Cast", "Expand")
        if node is None:
            return name
        source = node.input[0]
        if node.op_type == "Cast" and np.dtype(known.types[source].dtype).kind not in "iu":
            return name
        each = known.shape(source)[-1:] == (1,) and math.prod(known.shape(source)) == rows
        if node.op_type == "Expand" and not each:
            return name
        name = source


def _scale(known: Producers, name: str, boxes: str) -> float | None:
    """What a class is moved by: a constant, or infinity for the boxes' own maximum and one."""
    if name in known.constants:
        value = float(known.constants[name].reshape(-1)[0])
        return value if 0 < value < math.inf else None
    total = known.made_by(_unshaped(known, name), "Add")
    if total is None:
        return None
    for largest, one in (total.input, list(total.input)[::-1]):
        constant = known.constants.get(one)
        if constant is not None and constant.size == 1 and float(constant.reshape(-1)[0]) >= 1:
            return math.inf if _is_maximum(known, largest, boxes) else None
    return None


def _is_maximum(known: Producers, name: str, boxes: str) -> bool:
    """Whether a tensor is the largest coordinate of the boxes that count."""
    reduced = known.made_by(_unshaped(known, name), "ReduceMax")
    if reduced is None or math.prod(known.shape(reduced.output[0])) != 1:
        return False
    source = _unshaped(known, reduced.input[0])
    masked = known.made_by(source, "Where")
    if masked is not None:
        fill = known.constants.get(masked.input[2])
        if fill is None or fill.size != 1 or float(fill.reshape(-1)[0]) > np.finfo(np.float32).min:
            return False
        source = _unshaped(known, masked.input[1])
    return source == _unshaped(known, boxes)
