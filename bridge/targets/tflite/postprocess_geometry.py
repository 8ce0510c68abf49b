"""Where the boxes of a suppression come from, and which of their axes comes first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bridge.options import BoxLayout
from bridge.targets.tflite.suppression_copies import Addresses, Copies

SWAPPED: Final = (1, 0, 3, 2)
"""Columns of a box with its axes exchanged."""

_X_FIRST: Final = (BoxLayout.XYXY, BoxLayout.CXCYWH)
_ASSUMED: Final = (
    "the corners of a box are x1, y1, x2, y2, as torchvision has them: no graph tells which axis "
    "comes first; --box-layout says otherwise"
)
_WRAPPING: Final = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The boxes of a suppression.

    Attributes:
        tensors: corners, N rows of 4 numbers; or, where corners are made of them, centre and size,
            each N rows of 2.
        x_first: x before y in them, and in what the suppression reads.
        fetched: int64[N, 4 or 8], addresses of the corners, then of centre and size.
        assumptions: what was not to be found in the graph.
    """

    tensors: tuple[str, ...]
    x_first: bool
    fetched: Addresses
    assumptions: tuple[str, ...] = ()

    @property
    def center(self) -> bool:
        """Whether the boxes come as centre and size."""
        return len(self.tensors) == 2

    @classmethod
    def of(cls, copies: Copies, boxes: str, declared: BoxLayout | None) -> "Geometry":
        """N boxes of one image; `declared` is believed where the graph is silent."""
        corners = copies.addresses(boxes).reshape(-1, 4)
        found = _center_and_size(copies, boxes, len(corners))
        fetched = [corners]
        if found is not None:
            center, size = found[0], _before_maximum(copies, found[1])
            fetched += [copies.addresses(x).reshape(len(corners), 2) for x in (center, size)]
        tensors = (boxes,) if found is None else found
        addresses = np.concatenate(fetched, 1)
        if found is not None and _exchanged(copies, found):
            return cls(tensors, False, addresses)
        if declared is None:
            return cls(tensors, True, addresses, (_ASSUMED,))
        return cls(tensors, declared in _X_FIRST, addresses)


def _unwrapped(copies: Copies, name: str) -> str:
    """The tensor before it was given other axes of one element."""
    node = copies.makers.get(name)
    while node is not None and node.op_type in _WRAPPING:
        if copies.types[node.input[0]].shape[-1:] != copies.types[name].shape[-1:]:
            break
        name = node.input[0]
        node = copies.makers.get(name)
    return name


def _center_and_size(copies: Copies, boxes: str, rows: int) -> tuple[str, str] | None:
    """Centre and size, where the corners are Concat(centre - size / 2, centre + size / 2)."""
    joined = copies.makers.get(_unwrapped(copies, boxes))
    if joined is None or joined.op_type != "Concat" or len(joined.input) != 2:
        return None
    low, high = (copies.makers.get(name) for name in joined.input)
    if low is None or high is None or (low.op_type, high.op_type) != ("Sub", "Add"):
        return None
    if list(low.input) != list(high.input):
        return None
    center, reach = low.input
    half = copies.makers.get(reach)
    if half is None or half.op_type not in ("Div", "Mul") or len(half.input) != 2:
        return None
    factor = copies.constant(half.input[1])
    if factor is None or factor.size != 1 or factor != {"Div": 2, "Mul": 0.5}[half.op_type]:
        return None
    size = half.input[0]
    return (center, size) if _is_pair(copies, (center, size), rows) else None


def _is_pair(copies: Copies, names: Sequence[str], rows: int) -> bool:
    """Whether both have N rows of 2 columns, the latter as their last axis."""
    shapes = [copies.types[name].shape for name in names]
    return all(shape[-2:] == (rows, 2) and np.prod(shape) == 2 * rows for shape in shapes)


def _exchanged(copies: Copies, names: tuple[str, str]) -> bool:
    """Whether columns of x, y, width, height were taken as y, x and height, width.

    That is how the surgery turns the centre form of NonMaxSuppression, which is x first, into
    corners.
    """
    center, size = (_taken(copies, _before_maximum(copies, name)) for name in names)
    return center == [1, 0] and size == [3, 2]


def _before_maximum(copies: Copies, name: str) -> str:
    """A size before negative ones were made 0."""
    node = copies.makers.get(name)
    return node.input[0] if node is not None and node.op_type == "Max" else name


def _taken(copies: Copies, name: str) -> list[int] | None:
    """Which columns a tensor takes of another."""
    node = copies.makers.get(name)
    if node is None or node.op_type != "Gather":
        return None
    columns = copies.constant(node.input[1])
    return None if columns is None else [int(column) for column in columns.reshape(-1)]
