"""What int8 costs a layer alone, measured, and the listing of it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bridge.errors import UsageError
from bridge.targets.tflite import quantise_ranges
from bridge.targets.tflite.layers import Layer
from bridge.targets.tflite.network import Network
from bridge.targets.tflite.quantise_ranges import Feeds, Floats

PROBED: Final = 4
"""On so many sets the layers are tried one by one."""
_EXACT: Final = 200.0
"""Decibels, for no noise at all: JSON has no infinity."""

Count = Callable[[Floats], int]
"""How many detections the tail makes of a network's output."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What comes of the network when one layer alone computes in int8.

    Attributes:
        decibels: signal to noise of each border tensor, over all sets.
        detections: on all sets together; None where nobody counts them.
    """

    decibels: Mapping[str, float]
    detections: int | None

    @property
    def left(self) -> float:
        """Signal to noise of the border tensor that suffers most."""
        return min(self.decibels.values())


def costs(
    network: Network,
    places: Sequence[int],
    variants: Callable[[Sequence[Sequence[Layer]]], Iterable[bytes]],
    sets: Sequence[Feeds],
    count: Count | None,
) -> tuple[int | None, dict[int, Cost]]:
    """The detections of the float network, and the cost of layers, by their place.

    Args:
        network: in float32.
        places: of the layers.
        variants: makes the network once for each choice of layers that compute in int8.
        sets: a few of these are fed.
        count: counts detections.
    """
    probes = [sets[i * len(sets) // PROBED] for i in range(PROBED)][: len(sets)]
    exact = list(quantise_ranges.run(network.content, probes))
    sizes = dict(zip(network.border, network.sizes, strict=True))
    made = {}
    for place, content in zip(places, variants([[network.layers[i]] for i in places]), strict=True):
        found = list(quantise_ranges.run(content, probes))
        made[place] = Cost(noise(exact, found, sizes), _counted(found, count))
    return _counted(exact, count), made


def _counted(outputs: Iterable[Floats], count: Count | None) -> int | None:
    return None if count is None else sum(map(count, outputs))


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
    return {name: _decibels(signals[name], errors[name]) for name in sizes}


def _decibels(signal: float, error: float) -> float:
    if error == 0:
        return _EXACT
    return float(10 * np.log10(signal / error)) if signal > 0 else -_EXACT


def write(
    path: Path,
    layers: Sequence[Layer],
    measured: Mapping[int, Cost],
    stay: Mapping[int, str],
    about: Mapping[str, object],
) -> None:
    """The listing as JSON, most costly layer first.

    Raises:
        UsageError: the file cannot be written.
    """
    listing = [
        {
            "node": layers[place].name,
            "operator": layers[place].kind,
            "border_decibels": {name: round(db, 1) for name, db in cost.decibels.items()},
            **({} if cost.detections is None else {"detections": cost.detections}),
            "stays_float32": stay.get(place),
        }
        for place, cost in sorted(measured.items(), key=lambda item: item[1].left)
    ]
    text = json.dumps({**about, "layers": listing}, indent=2, ensure_ascii=False)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(f"--quantize-report {path}: {error.strerror}") from error
