"""Which operators of a network stay float32 when the others become int8.

Whatever stands behind the last weights: there boxes and scores are joined, and one scale for both
leaves nothing of the scores. The last weights themselves: what they make is as large as the objects
that calibration saw, and a score beyond it would be clipped. And the layers that int8 alone spoils.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from bridge.targets.tflite.layers import INPUT, Layer
from bridge.targets.tflite.qdq import Grid

OUTPUT: Final = -2
_REARRANGE: Final = frozenset(
    {
        *("GATHER", "MAX_POOL_2D", "PAD", "RESHAPE", "RESIZE_NEAREST_NEIGHBOR", "SLICE", "SPLIT"),
        *("SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"),
    }
)
BUDGET: Final = 18.0
"""Decibels: signal to noise that the layers in int8 may leave of the border, all together.

Measured on crops of photos, calibrated on other pictures: without any such layer in float a
yolox-nano finds 80 of the 142 objects that it finds in float32 (its first convolution makes one
channel that spans 170 and others that span 2), at 12 and at 18 dB 141; an rtmdet-nano 34 of 67,
at 15 dB 64, at 18 dB 66. A step costs 5 % of time. Other networks have no layer in it.
"""
_SILU_LEAST: Final = -8.0
"""x times sigmoid(x) is -0.003 here, and rises to 0 below."""


def spoilt(left: Mapping[int, float]) -> list[int]:
    """The layers to leave in float32, most costly first, so that the rest keeps to the budget.

    Args:
        left: by place, what of the border a layer alone leaves in int8, in decibels. The noise of
            several layers adds up.
    """
    shares = {place: 10 ** (-decibels / 10) for place, decibels in left.items()}
    chosen = []
    rest = sum(shares.values())
    for place in sorted(shares, key=lambda one: (-shares[one], one)):
        if rest <= 10 ** (-BUDGET / 10):
            break
        chosen.append(place)
        rest -= shares[place]
    return chosen


def without_silu_tails(layers: Sequence[Layer], ranges: Mapping[str, Grid]) -> dict[str, Grid]:
    """Ranges in which what only a SiLU reads ends where nothing comes of it any more.

    Args:
        layers: of the network; SiLU is MUL of x and LOGISTIC of x.
        ranges: of their tensors.
    """
    readers: dict[str, list[Layer]] = {}
    for layer in layers:
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)
    found = dict(ranges)
    for sigmoid in (layer for layer in layers if layer.kind == "LOGISTIC"):
        (x,), (gate,) = sigmoid.inputs, sigmoid.outputs
        product = next((one for one in readers[x] if one.kind == "MUL"), None)
        alone = [one for one in readers[x] if one not in (sigmoid, product)] == []
        if product is not None and alone and set(product.inputs) == {x, gate} and x in found:
            low, high = found[x]
            found[x] = (max(low, min(_SILU_LEAST, high)), high)
    return found


def last_weights(layers: Sequence[Layer]) -> frozenset[int]:
    """The weighted operators that no other weighted operator follows on some way to the end."""
    behind = _weights_behind(layers)
    return frozenset(i for i, one in enumerate(layers) if one.weighted and OUTPUT in behind[i])


def first_weights(layers: Sequence[Layer]) -> frozenset[int]:
    """The weighted operators that no other weighted operator precedes on some way from an input.

    A picture has three channels: int8 kernels take them in fours and more, and to quantise it
    takes longer than they save.
    """
    before = _weights_before(layers)
    return frozenset(i for i, one in enumerate(layers) if one.weighted and INPUT in before[i])


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


def spread(layers: Sequence[Layer], grids: Mapping[str, Grid]) -> dict[str, Grid]:
    """The grids of a quantised model, and those of the tensors that only rearrange such."""
    found = dict(grids)
    for layer in layers:
        if layer.kind in _REARRANGE and len(layer.inputs) == 1 and layer.inputs[0] in found:
            for name in layer.outputs:
                found.setdefault(name, found[layer.inputs[0]])
    return found


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
