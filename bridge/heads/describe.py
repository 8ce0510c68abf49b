"""What a head is: the frozen record that a head file (docs/heads.md) describes.

The file is read in `read.py`; here are only the words and what each of them means.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bridge.heads.formula import Formula

CLASSES = "classes"
"""A count of columns: one per class, and one more where there is a background."""

REST = "rest"
"""A count of columns: all that the other roles leave."""


class Corners(StrEnum):
    """What four columns of a box say, in order."""

    XYXY = "xyxy"
    YXYX = "yxyx"
    CXCYWH = "cxcywh"
    CYCXHW = "cycxhw"
    XYWH = "xywh"


class Units(StrEnum):
    """Of coordinates: pixels of the network input, or fractions of its width and height."""

    PIXELS = "pixels"
    FRACTIONS = "fractions"


class Activation(StrEnum):
    """What is still to be applied to the columns of a role."""

    NONE = "none"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


class Background(StrEnum):
    """Which column of the classes stands for no object."""

    NONE = "none"
    FIRST = "first"
    LAST = "last"


class Spacing(StrEnum):
    """How far two cells are apart: the stride, or the input's size over the map's, or its floor."""

    STRIDE = "stride"
    MAP = "map"
    FLOOR = "floor"


class PriorClip(StrEnum):
    """What of a prior is cut at 0 and at the input's width and height."""

    NONE = "none"
    SIZE = "size"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes of an output: letters among 1 N C H W A, several where an axis holds a product."""

    axes: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """As the head file spells it: `1 (A C) H W`."""
        return " ".join(a[0] if len(a) == 1 else f"({' '.join(a)})" for a in self.axes)

    @property
    def letters(self) -> tuple[str, ...]:
        """Every letter in order, products opened."""
        return tuple(letter for axis in self.axes for letter in axis)


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the network, or one per stride.

    Attributes:
        label: what the head file calls it.
        names: patterns of tensor names in order of preference; `{stride}` and `*` are filled in.
        layouts: the axes it may have, in order of preference.
        columns: role and count of the columns, in order; a count may be `classes` or `rest`.
    """

    label: str
    names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    columns: tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class FourColumns:
    """A box as four columns."""

    value: Formula
    layout: Corners


@dataclass(frozen=True, slots=True)
class CenterSize:
    """A box as its centre (x, y) and its size (width, height)."""

    center: Formula
    size: Formula


@dataclass(frozen=True, slots=True)
class Distances:
    """A box as a point (x, y) and how far its left, top, right and bottom sides are away."""

    point: Formula
    distances: Formula


@dataclass(frozen=True, slots=True)
class Box:
    """How the boxes are decoded.

    Attributes:
        clip: cut the boxes at the edges of the network input.
    """

    form: FourColumns | CenterSize | Distances
    units: Units
    clip: bool


@dataclass(frozen=True, slots=True)
class Score:
    """One column per class, or one for all."""

    value: Formula
    background: Background


@dataclass(frozen=True, slots=True)
class Extras:
    """Further columns that follow a kept box; `units` other than pixels need x, y pairs."""

    value: Formula
    units: Units


@dataclass(frozen=True, slots=True)
class Priors:
    """Reference boxes per cell.

    Attributes:
        boxes: per stride, the (width, height) of each prior of a cell, in pixels.
        file: in place of `boxes`: an .npy file of all of them, float [N, 4].
        layout: of the file.
        units: of the file.
        offset: of a prior's centre in its cell, 0.5 is the middle.
        spacing: of the cells.
    """

    boxes: tuple[tuple[tuple[float, float], ...], ...]
    file: Path | None
    layout: Corners
    units: Units
    offset: float
    spacing: Spacing
    clip: PriorClip


@dataclass(frozen=True, slots=True)
class Suppression:
    """Which boxes are kept.

    Attributes:
        max_detections: rows of the result at most, the best ones.
        class_agnostic: boxes suppress each other whatever their class, one class per box.
        pre_nms_top_k: only so many candidates, best class first, meet the suppression; 0 is all.
    """

    score_threshold: float
    iou_threshold: float
    max_detections: int
    class_agnostic: bool
    pre_nms_top_k: int


@dataclass(frozen=True, slots=True)
class Head:
    """A head, as one file describes it.

    Attributes:
        strides: alternatives, tried in order; empty where the head needs no cells.
        maps: per stride, the (width, height) of its cells; empty: the input's size over the
            stride, rounded up.
        classes: None: what the outputs leave.
        input_size: (width, height) of the network input; None: what the model declares.
        row_order: H, W and A, outermost first: how the rows of one stride follow each other.
    """

    name: str
    about: str
    strides: tuple[tuple[float, ...], ...]
    maps: tuple[tuple[int, int], ...]
    classes: int | None
    input_size: tuple[int, int] | None
    row_order: tuple[str, ...]
    outputs: tuple[Output, ...]
    activations: Mapping[str, Activation]
    constants: Mapping[str, tuple[float, ...]]
    priors: Priors | None
    box: Box
    score: Score
    extras: Extras | None
    suppression: Suppression
