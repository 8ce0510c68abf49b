"""The numbers a head knows before it sees an image: cells of each stride, and priors in them."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge.errors import UsageError
from bridge.heads import table
from bridge.heads.describe import Corners, Head, PriorClip, Priors, Spacing, Units
from bridge.heads.table import Table

Float32 = NDArray[np.float32]
Boxes = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """The cells of one stride and how many rows stand in each."""

    stride: float
    width: int
    height: int
    anchors: int

    @property
    def rows(self) -> int:
        """Rows of this stride."""
        return self.width * self.height * self.anchors


def levels(head: Head, strides: Sequence[float], image: tuple[int, int]) -> tuple[Level, ...]:
    """The cells that a head has on an input of `image` (width, height) pixels.

    Raises:
        UsageError: as many strides as maps or prior lists are needed.
    """
    priors = head.priors.boxes if head.priors is not None else ()
    for what, items in (("maps", head.maps), ("priors per stride", priors)):
        if items and len(items) != len(strides):
            raise UsageError(f"head {head.name}: {len(strides)} strides, but {len(items)} {what}")
    sizes = head.maps or tuple(
        (math.ceil(image[0] / stride), math.ceil(image[1] / stride)) for stride in strides
    )
    counts = [len(boxes) for boxes in priors] or [1] * len(strides)
    return tuple(
        Level(stride, *size, anchors)
        for stride, size, anchors in zip(strides, sizes, counts, strict=True)
    )


def grid(head: Head, found: Sequence[Level], image: tuple[int, int]) -> dict[str, Float32]:
    """What formulas read of the cells, one row per row of the outputs.

    Result: `cell` [N, 2] column and row, `stride` [N, 1], `map` [N, 2] size of the row's map, and
    with priors `prior_center` and `prior_size` [N, 2] in pixels.
    """
    result: dict[str, list[Float32]] = {"cell": [], "stride": [], "map": []}
    boxes: list[Float32] = []
    for number, level in enumerate(found):
        columns = _by_row(level, head.row_order, np.arange(level.width), "W")
        rows = _by_row(level, head.row_order, np.arange(level.height), "H")
        size = np.asarray([level.width, level.height], np.float32)
        result["cell"].append(np.stack([columns, rows], 1).astype(np.float32))
        result["stride"].append(np.full((level.rows, 1), level.stride, np.float32))
        result["map"].append(np.tile(size, (level.rows, 1)))
        if head.priors is not None and head.priors.boxes:
            anchor = _by_row(level, head.row_order, np.arange(level.anchors), "A")
            boxes.append(np.asarray(head.priors.boxes[number])[anchor])
    arrays = {name: np.concatenate(parts) for name, parts in result.items() if parts}
    if head.priors is not None:
        arrays |= _priors(head.priors, arrays, boxes, image)
    return arrays


def _by_row(
    level: Level, order: Sequence[str], values: NDArray[np.int64], letter: str
) -> NDArray[np.int64]:
    """The value of one axis (`values` along H, W or A) for each row of the level."""
    sizes = {"H": level.height, "W": level.width, "A": level.anchors}
    shape = [len(values) if axis == letter else 1 for axis in order]
    return np.broadcast_to(values.reshape(shape), [sizes[axis] for axis in order]).reshape(-1)


def _priors(
    priors: Priors, cells: dict[str, Float32], boxes: list[Float32], image: tuple[int, int]
) -> dict[str, Float32]:
    size = np.asarray(image, np.float64)
    if priors.file is not None:
        center, extent = _from_file(priors, size)
    else:
        center = (cells["cell"] + priors.offset) * _step(priors.spacing, cells, size)
        extent = np.concatenate(boxes).astype(np.float64)
    if priors.clip is not PriorClip.NONE:
        extent = np.clip(extent, 0, size)
    if priors.clip is PriorClip.ALL:
        center = np.clip(center, 0, size)
    return {
        "prior_center": center.astype(np.float32),
        "prior_size": extent.astype(np.float32),
    }


def _step(
    spacing: Spacing, cells: dict[str, Float32], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    match spacing:
        case Spacing.STRIDE:
            return cells["stride"].astype(np.float64)
        case Spacing.MAP:
            return size / cells["map"]
        case Spacing.FLOOR:
            return np.floor(size / cells["map"])


def _from_file(
    priors: Priors, size: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    path = priors.file
    try:
        loaded = np.load(str(path), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the priors {path}: {error}") from error
    if not isinstance(loaded, np.ndarray) or loaded.ndim != 2 or loaded.shape[1] != 4:
        raise UsageError(f"the priors {path} must be one .npy array of shape [N, 4]")
    first, second = loaded[:, :2].astype(np.float64), loaded[:, 2:].astype(np.float64)
    if priors.layout in (Corners.YXYX, Corners.CYCXHW):
        first, second = first[:, ::-1], second[:, ::-1]
    if priors.layout in (Corners.XYXY, Corners.YXYX):
        first, second = (first + second) / 2, second - first
    elif priors.layout is Corners.XYWH:
        first = first + second / 2
    scale = size if priors.units is Units.FRACTIONS else 1.0
    return first * scale, second * scale


def read(section: Table, folder: Path) -> Priors:
    """The table [priors] of a head file in `folder`.

    Raises:
        UsageError: it is not as docs/heads.md says.
    """
    forms = [key for key in ("boxes", "sizes", "file") if key in section.values]
    if len(forms) != 1:
        raise UsageError(f"{section.where}: give either boxes, or sizes, or file")
    file = section.get("file", table.text, None)
    return Priors(
        boxes=_boxes(section),
        file=None if file is None else folder / file,
        layout=section.get("layout", table.choice(Corners), Corners.CXCYWH),
        units=section.get("units", table.choice(Units), Units.PIXELS),
        offset=section.get("offset", table.number, 0.5),
        spacing=section.get("spacing", table.choice(Spacing), Spacing.STRIDE),
        clip=section.get("clip", table.choice(PriorClip), PriorClip.NONE),
    )


def _boxes(section: Table) -> tuple[Boxes, ...]:
    if "boxes" in section.values:
        per_cell = table.each(_pair, "a list of [width, height]")
        boxes = section.need("boxes", table.each(per_cell, "a list of priors per stride"))
    elif "sizes" in section.values:
        boxes = _from_sizes(section)
    else:
        return ()
    if section.get("round", table.flag, False):
        # torchvision's AnchorGenerator rounds the corners of the prior around the origin.
        return tuple(
            tuple((2.0 * round(w / 2), 2.0 * round(h / 2)) for w, h in of_stride)
            for of_stride in boxes
        )
    return boxes


def _from_sizes(section: Table) -> tuple[Boxes, ...]:
    numbers = table.one_or_more(table.positive)
    sizes = section.need("sizes", table.each(numbers, "a list of sizes per stride"))
    ratios = section.get("aspect_ratios", _per_stride(len(sizes)), ((),) * len(sizes))
    if "max_sizes" not in section.values:
        return tuple(
            tuple(
                (size / math.sqrt(ratio), size * math.sqrt(ratio))
                for ratio, size in itertools.product(ratio_list or (1.0,), size_list)
            )
            for size_list, ratio_list in zip(sizes, ratios, strict=True)
        )
    largest = section.need("max_sizes", table.each(numbers, "a list of sizes per stride"))
    if [len(a) for a in largest] != [len(b) for b in sizes]:
        raise UsageError(f"{section.where}: max_sizes must be as many as sizes, stride by stride")
    return tuple(
        tuple(itertools.chain.from_iterable(map(_ssd_boxes, low, high, [ratio_list] * len(low))))
        for low, high, ratio_list in zip(sizes, largest, ratios, strict=True)
    )


def _ssd_boxes(low: float, high: float, ratios: Sequence[float]) -> Boxes:
    """SSD's priors of one size: the square, one towards the next size, then each ratio twice."""
    middle = math.sqrt(low * high)
    pairs = [(low * math.sqrt(r), low / math.sqrt(r)) for r in ratios]
    turned = [(box, (box[1], box[0])) for box in pairs]
    return ((low, low), (middle, middle), *itertools.chain.from_iterable(turned))


def _per_stride(count: int) -> table.Convert[tuple[tuple[float, ...], ...]]:
    def convert(value: Any, where: str) -> tuple[tuple[float, ...], ...]:
        if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
            if len(value) != count:
                raise UsageError(f"{where}: {len(value)} lists of ratios for {count} strides")
            return tuple(
                tuple(table.positive(number, where) for number in numbers) for numbers in value
            )
        return (table.one_or_more(table.positive)(value, where),) * count

    return convert


def _pair(value: Any, where: str) -> tuple[float, float]:
    pair = table.each(table.positive, "[width, height]", length=2)(value, where)
    return pair[0], pair[1]
