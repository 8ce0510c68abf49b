"""Boxes in the form in which NON_MAX_SUPPRESSION_V4 decides about them as onnxruntime does."""

from typing import Final

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor

# Private box r is [2^126 + r 2^104, 2^43, + 2^103, + 2^20]: neighbouring floats apart in the first
# axis, of area 2^123.
_PRIVATE_STEP: Final = np.array([2.0**104, 0, 2.0**104, 0], np.float32)
_PRIVATE_BASE: Final = np.array(
    [2.0**126, 2.0**43, 2.0**126 + 2.0**103, 2.0**43 + 2.0**20], np.float32
)

_MOST_STORED: Final = 4096

_SIDES: Final = np.array([[-1, 0, 1, 0], [0, -1, 0, 1]], np.float32)


def corners(builder: Builder, boxes: Tensor, *, center_point_box: bool) -> Tensor:
    """Corners float32[..., 4] of boxes float32[..., 4], in onnxruntime's arithmetic.

    A box of negative size comes out with its corners reversed.
    """
    if not center_point_box:
        return boxes
    first, half = [0] * boxes.rank, (*boxes.shape[:-1], 2)
    center = builder.slice(boxes, first, half)
    size = builder.slice(boxes, [*first[:-1], 2], half)
    reach = builder.binary("MUL", size, builder.constant(np.float32(0.5)))
    low, high = (builder.binary(kind, center, reach) for kind in ("SUB", "ADD"))
    return builder.concat([low, high], -1)


def keep_apart(builder: Builder, corners: Tensor, *, sorted_corners: bool) -> Tensor:
    """Replace every box that overlaps nothing, not even itself, by one far from all others.

    These are boxes without an area (zero, NaN or infinite; too large to be added to another), which
    neither suppress nor are suppressed. The kernel would select them until its output is full.

    Args:
        builder: takes the operators.
        corners: float32[..., N, 4].
        sorted_corners: reversed corners make a box without an area, as in the centre form of
            NonMaxSuppression; else they are the same box as sorted ones.
    """
    *leading, count, _ = corners.shape
    # Zeros in the product are harmless: what they would spoil, an infinite box, has no area either.
    sides = builder.op(
        "FULLY_CONNECTED",
        [
            builder.reshape(corners, [corners.size // 4, 4]),
            builder.constant(_SIDES),
            builder.constant(np.zeros(2, np.float32)),
        ],
        [corners.size // 4, 2],
        fusedActivationFunction=0,
    )
    if sorted_corners:
        sides = builder.unary("RELU", sides)
    area = builder.reduce("REDUCE_PROD", sides, [1], keep=True)
    # Zero, NaN and infinity divided by themselves are NaN.
    twice = builder.binary("ADD", area, area)
    itself = builder.binary("DIV", twice, twice)
    proper = builder.compare("EQUAL", itself, builder.constant(np.float32(1)))
    private = _private(builder, count)
    return builder.select(builder.reshape(proper, [*leading, count, 1]), corners, private)


def _private(builder: Builder, count: int) -> Tensor:
    """Boxes float32[count, 4] that touch nothing; a long table is computed, not stored."""
    ranks = np.arange(count, 0, -1, dtype=np.float32)[:, None]
    if count <= _MOST_STORED:
        return builder.constant(ranks * _PRIVATE_STEP + _PRIVATE_BASE)
    steps = builder.binary("MUL", builder.constant(ranks), builder.constant(_PRIVATE_STEP))
    return builder.binary("ADD", steps, builder.constant(_PRIVATE_BASE))
