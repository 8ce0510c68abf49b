"""Which operators of a network stay float32 when the others become int8.

Whatever stands behind the last weights: there boxes and scores are joined, and one scale for both
leaves nothing of the scores. The last weights themselves: what they make is as large as the objects
that calibration saw, and a score beyond it would be clipped. And the layers that int8 alone spoils.
"""

from collections.abc import Collection, Sequence
from typing import Final

from bridge.targets.tflite.layers import INPUT, Layer

OUTPUT: Final = -2
SPOILT: Final = 30.0
"""Decibels: what a layer in int8 leaves of the border, where all else is float32, must be more.

Measured on crops of photos, calibrated on other pictures: without any such layer in float a
yolox-nano finds 93 of the 142 objects that it finds in float32, with those below 10 dB (the first
two convolutions: one channel spans 170 and the others 2) 127, below 20 136, below 30 140; an
rtmdet-nano 33 of 67, then 51, 58, 64. Neither becomes slower by it.
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
