"""`--quantize`: what of a converted network becomes narrow, before the tail is linked to it."""

import difflib
import fnmatch
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bridge.errors import UsageError
from bridge.options import Quantization, Quantize
from bridge.targets.tflite.network import Network
from bridge.targets.tflite.quantise_weights import FLOAT16, INT8, Storage, narrow_weights

_STORED: Final[Mapping[Quantize, Storage]] = {
    Quantize.WEIGHTS: INT8,
    Quantize.FP16: FLOAT16,
}
_ASKED: Final = "--keep-float"


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised network.

    Attributes:
        network: its content is narrow, all else as it was.
        details: what the manifest shows.
    """

    network: Network
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def narrow(self) -> bool:
        """Whether it differs from the float32 network."""
        return bool(self.details)


def quantise(network: Network, asked: Quantization) -> Quantised:
    """A network in the form that is asked for; its inputs and its output stay float32.

    Raises:
        UsageError: a pattern of `keep_float` fits no node.
    """
    if asked.form is Quantize.NONE:
        return Quantised(network)
    if asked.form not in _STORED:
        raise UsageError(f"--quantize {asked.form} is not there yet; give weights or fp16")
    kept = dict.fromkeys(kept_float(network, asked.keep_float), _ASKED)
    weighted = [i for i, layer in enumerate(network.layers) if layer.weighted]
    places = [i for i in weighted if i not in kept]
    content, unfit = narrow_weights(network.content, places, _STORED[asked.form])
    stay = {i: kept.get(i) or unfit[i] for i in weighted if i in kept or i in unfit}
    return Quantised(
        replace(network, content=content),
        {
            "quantization": {
                "form": asked.form.value,
                "network_bytes": {"float32": len(network.content), "quantised": len(content)},
                "layers": {
                    "quantised": len(weighted) - len(stay),
                    "float32": {network.layers[i].name: why for i, why in stay.items()},
                },
            }
        },
    )


def kept_float(network: Network, patterns: Collection[str]) -> list[int]:
    """The operators that compute a node whose name fits one of the patterns.

    Raises:
        UsageError: a pattern fits no node of the network.
    """
    found: set[int] = set()
    for pattern in patterns:
        fitting = {
            place
            for place, layer in enumerate(network.layers)
            if any(fnmatch.fnmatchcase(node, pattern) for node in layer.nodes)
        }
        if not fitting:
            raise _no_node(network, pattern)
        found |= fitting
    return sorted(found)


def _no_node(network: Network, pattern: str) -> UsageError:
    names = list(dict.fromkeys(node for layer in network.layers for node in layer.nodes if node))
    close = difflib.get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.3) or names[:3]
    return UsageError(
        f"--keep-float {pattern}: no node of the network is called so; close to it are "
        f"{', '.join(map(repr, close))}"
    )
