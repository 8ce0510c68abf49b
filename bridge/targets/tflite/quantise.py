"""`--quantize`: what of a converted network becomes narrow, before the tail is linked to it."""

import difflib
import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bridge.errors import LoweringError, TargetMissingError, UsageError
from bridge.options import Quantization, Quantize
from bridge.targets.tflite import quantise_ranges
from bridge.targets.tflite.layers import Layer, activation_types, weights_types
from bridge.targets.tflite.network import Network
from bridge.targets.tflite.qdq import Grid
from bridge.targets.tflite.quantise_choice import (
    closed,
    first_weights,
    last_weights,
    spoilt,
    spread,
    without_silu_tails,
)
from bridge.targets.tflite.quantise_codes import with_codes
from bridge.targets.tflite.quantise_process import Quantizer, Ranges, interpreter, missing
from bridge.targets.tflite.quantise_ranges import Feeds
from bridge.targets.tflite.quantise_report import PROBED, Count, costs, write
from bridge.targets.tflite.quantise_weights import FLOAT16, INT8, Storage, narrow_weights

_STORED: Final[Mapping[Quantize, Storage]] = {
    Quantize.WEIGHTS: INT8,
    Quantize.FP16: FLOAT16,
}
COMPUTED: Final = frozenset({Quantize.DYNAMIC, Quantize.INT8})
"""The forms that compute in int8."""

ASKED: Final = "--keep-float"
FIRST: Final = "it reads the input, where int8 takes longer than float32"
LAST: Final = "its output reaches the border"
NO_GRID: Final = "what it reads or makes is float32 in the model"
WILD: Final = "what it reads or makes is not finite, or no float32"
SKIPPED: Final = "ai-edge-quantizer has no int8 for it"


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


def quantise(
    network: Network,
    asked: Quantization,
    sets: Sequence[Feeds],
    count: Count | None = None,
) -> Quantised:
    """A network in the form that is asked for; its inputs and its output stay float32.

    Args:
        network: by onnx2tf, in float32.
        asked: the form.
        sets: what it is calibrated on, for a form that computes in int8; noise for dynamic, where
            there are no data.
        count: counts detections, for the report.

    Raises:
        UsageError: a pattern of `keep_float` fits no node.
        LoweringError: ai-edge-quantizer refuses the network.
    """
    if network.grids is not None:
        return _on_own_grids(network, network.grids, asked)
    if asked.form is Quantize.NONE:
        return Quantised(network)
    kept = dict.fromkeys(kept_float(network, asked.keep_float), ASKED)
    if asked.form in _STORED:
        content, stay = _stored(network, _STORED[asked.form], kept)
        more: Mapping[str, object] = {}
    else:
        content, stay, more = _computed(network, asked, kept, sets, count)
    return _told(network, asked.form.value, content, stay, more)


def _on_own_grids(network: Network, known: Mapping[str, Grid], asked: Quantization) -> Quantised:
    """Kernels in int8 where the model has 8-bit tensors, with the codes that it has.

    Raises:
        UsageError: it is to be quantised once more.
        TargetMissingError: ai-edge-quantizer is not here.
        LoweringError: no layer lies between 8-bit tensors as onnx2tf wrote the network.
    """
    if asked.form is not Quantize.NONE:
        raise UsageError(
            f"--quantize {asked.form}: the model is quantised already (QuantizeLinear), and keeps "
            "that; leave the option out, or give --qdq float to quantise its float32 arithmetic"
        )
    if told := missing(asked.python):
        raise TargetMissingError(
            f"the model is quantised (QuantizeLinear), and integer kernels for it need a second "
            f"environment: {told}; or give --qdq float for the same values in float32 arithmetic"
        )
    grids = spread(network.layers, known)
    stay = dict.fromkeys(closed(network.layers, ()).union(_without(network.layers, grids)), NO_GRID)
    narrow = [layer for place, layer in enumerate(network.layers) if place not in stay]
    if not any(layer.weighted for layer in narrow):
        raise LoweringError(
            "the model is quantised (QuantizeLinear), and onnx2tf left no layer of it between "
            "8-bit tensors; give --qdq float for the same values in float32 arithmetic"
        )
    quantizer = Quantizer(network.content, grids, interpreter(asked.python))
    content, again = with_codes(next(iter(quantizer.variants([narrow]))), network.content)
    weighted = [layer.name for layer in network.layers if layer.weighted]
    rounded = {"weights_rounded_again": [weighted[i] for i in again]}
    return _told(network, "qdq", content, stay, rounded)


def _told(
    network: Network,
    form: str,
    content: bytes,
    stay: Mapping[int, str],
    more: Mapping[str, object],
) -> Quantised:
    """A quantised network, and what the manifest says of it: what is in the file, not in a plan."""
    weighted = [i for i, layer in enumerate(network.layers) if layer.weighted]
    narrow = dict(zip(weighted, weights_types(content), strict=True))
    left = {i: stay.get(i, SKIPPED) for i, dtype in narrow.items() if dtype == "float32"}
    details: dict[str, object] = {
        "form": form,
        "network_bytes": {"float32": len(network.content), "quantised": len(content)},
        "layers": {
            "quantised": len(weighted) - len(left),
            "float32": {network.layers[i].name: why for i, why in left.items()},
        },
        "activations": dict(sorted(Counter(activation_types(content)).items())),
        **more,
    }
    return Quantised(replace(network, content=content), {"quantization": details})


def _stored(
    network: Network, storage: Storage, kept: Mapping[int, str]
) -> tuple[bytes, dict[int, str]]:
    """Narrow weights, arithmetic in float32; and what stays float32, with the reason."""
    places = [i for i, layer in enumerate(network.layers) if layer.weighted and i not in kept]
    content, unfit = narrow_weights(network.content, places, storage)
    return content, {**kept, **unfit}


def _computed(
    network: Network,
    asked: Quantization,
    kept: Mapping[int, str],
    sets: Sequence[Feeds],
    count: Count | None,
) -> tuple[bytes, dict[int, str], dict[str, object]]:
    """Arithmetic in int8."""
    ranges = None
    if asked.form is Quantize.INT8:
        made = {name for layer in network.layers for name in layer.outputs}
        names = {*network.inputs.values(), *made}
        measured = quantise_ranges.ranges(network.content, names, sets)
        ranges = without_silu_tails(network.layers, measured)
    quantizer = Quantizer(network.content, ranges, interpreter(asked.python))
    wild = {} if ranges is None else dict.fromkeys(_without(network.layers, ranges), WILD)
    first = first_weights(network.layers) if asked.form is Quantize.INT8 else ()
    stay = {
        **dict.fromkeys(first, FIRST),
        **dict.fromkeys(last_weights(network.layers), LAST),
        **wild,
        **kept,
    }
    places = [i for i, layer in enumerate(network.layers) if layer.weighted and i not in wild]
    found, cost = costs(network, places, quantizer.variants, sets, count)
    free = {place: one.left for place, one in cost.items() if place not in stay}
    stay |= {
        place: f"int8 here alone leaves {free[place]:.0f} dB of the border"
        for place in spoilt(free)
    }
    chosen = closed(network.layers, stay) | wild.keys()
    narrow = [layer for i, layer in enumerate(network.layers) if i not in chosen]
    content = next(iter(quantizer.variants([narrow])))
    data = "calibration" if asked.calibrate is not None else "noise"
    about = {"sets": len(sets), "data": data}
    if asked.report is not None:
        told = {} if found is None else {"float32_detections": found}
        head = {"form": asked.form.value, **about, "probed": min(PROBED, len(sets)), **told}
        write(asked.report, network.layers, cost, stay, head)
    return content, stay, about


def _without(layers: Sequence[Layer], ranges: Ranges) -> list[int]:
    """Places of the operators that read or make a tensor without a range."""
    return [
        place
        for place, layer in enumerate(layers)
        if not all(name in ranges for name in (*layer.inputs, *layer.outputs))
    ]


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
