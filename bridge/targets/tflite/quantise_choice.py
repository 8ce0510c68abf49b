"""Which operators of a network stay float32 when the others become int8.

Whatever stands behind the last weights: there boxes and scores are joined, and one scale for both
leaves nothing of the scores. The last weights themselves: what they make is as large as the objects
that calibration saw, and a score beyond it would be clipped. And the layers that int8 alone spoils.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from bridge.targets.tflite.layers import INPUT, Layer
from bridge.targets.tflite.quantise_ranges import Floats

OUTPUT: Final = -2
SPOILT: Final = 25.0
"""Decibels: what a layer in int8 leaves of the border, where all else is float32, must be more.

Measured: of a yolox-nano the five first convolutions are below (9 to 21), all others above 26. With
three of them float it finds 132 of 142 objects on photos, with five 136, with none 90.
"""


def last_weights(layers: Sequence[Layer]) -> frozenset[int]:
    """The weighted operators that no other weighted operator follows on some way to the end."""
    behind = _weights_behind(layers)
    return frozenset(i for i, one in enumerate(layers) if one.weighted and OUTPUT in behind[i])


def closed(layers: Sequence[Layer], weighted: Collection[int]) -> frozenset[int]:
    """Operators with weights that stay float, and those without that stay float with them.

    Such are those that stand between two of them, or between one and an end: going to int8 and back
    for them costs time and gains nothing.
    """
    before, behind = _weights_before(layers), _weights_behind(layers)
    stay = {*weighted, OUTPUT}
    return frozenset(
        place
        for place, layer in enumerate(layers)
        if place in stay
        or (not layer.weighted and before[place] and before[place] <= stay)
        or (not layer.weighted and behind[place] <= stay)
    )


def _weights_before(layers: Sequence[Layer]) -> list[set[int]]:
    """For each operator the nearest weighted ones that it depends on, and INPUT."""
    found: list[set[int]] = []
    for layer in layers:
        own: set[int] = set()
        for source in layer.sources:
            passed = source == INPUT or layers[source].weighted
            own |= {source} if passed else found[source]
        found.append(own)
    return found


def _weights_behind(layers: Sequence[Layer]) -> list[set[int]]:
    """For each operator the nearest weighted ones that depend on it; OUTPUT where there are none.

    An operator that nobody reads makes the network's output.
    """
    readers: list[list[int]] = [[] for _ in layers]
    for place, layer in enumerate(layers):
        for source in layer.sources:
            if source != INPUT:
                readers[source].append(place)
    found: list[set[int]] = [set() for _ in layers]
    for place in reversed(range(len(layers))):
        if not readers[place]:
            found[place] = {OUTPUT}
        for reader in readers[place]:
            found[place] |= {reader} if layers[reader].weighted else found[reader]
    return found


def noise(
    exact: Iterable[Floats], narrow: Iterable[Floats], sizes: Mapping[str, int]
) -> dict[str, float]:
    """Signal to noise in decibels of each border tensor, over all sets.

    Args:
        exact: flat outputs of the float32 network.
        narrow: those of another one, on the same sets.
        sizes: elements of each border tensor, in the order in which they lie in an output.
    """
    signals, errors = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0.0)
    for right, found in zip(exact, narrow, strict=True):
        at = 0
        for name, size in sizes.items():
            part = right[at : at + size].astype(np.float64)
            signals[name] += float((part**2).sum())
            errors[name] += float(((found[at : at + size] - part) ** 2).sum())
            at += size
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            name: float(10 * np.log10(np.float64(signals[name]) / errors[name]))
            if errors[name]
            else np.inf
            for name in sizes
        }
