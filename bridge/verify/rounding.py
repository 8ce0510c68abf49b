"""Rounding errors: how large they are, and numbers that are one away from others."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bridge.targets.base import Array

Floats = NDArray[np.float64]

EPSILON = float(np.finfo(np.float32).eps)
"""One unit in the last place of a float32, relative to the number."""


def usual(magnitudes: Floats) -> float:
    """The median of what is not zero: neither a few huge numbers nor many zeros move it."""
    some = magnitudes[magnitudes > 0]
    return float(np.median(some)) if len(some) else 0.0


def relative(expected: Floats, found: Floats, scales: Floats) -> Floats:
    """Deviations: distances in units of `scales`.

    NaN is equal to NaN, an infinity to itself; what is not finite is infinitely far from the rest.
    """
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = np.abs(expected - found) / scales
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))


def perturbed(
    arrays: Mapping[str, Array], noise: float, rng: np.random.Generator
) -> dict[str, Array]:
    """Arrays whose floats moved by up to `noise`, relative to their size.

    The size of a number is its own magnitude, yet no less than what is usual in its array.
    """
    moved = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            moved[name] = array
            continue
        numbers = array.astype(np.float64)
        magnitudes = finite_magnitudes(numbers)
        # Zeros alone (a black image) have no size; they move as if it were one.
        step = noise * np.maximum(magnitudes, usual(magnitudes) or 1.0)
        moved[name] = (numbers + step * rng.uniform(-1, 1, numbers.shape)).astype(array.dtype)
    return moved


def finite_magnitudes(numbers: Floats) -> Floats:
    """Magnitudes, zero for what is not finite."""
    magnitudes: Floats = np.where(np.isfinite(numbers), np.abs(numbers), 0)
    return magnitudes
