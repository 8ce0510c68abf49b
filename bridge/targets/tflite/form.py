"""What an artifact returns: the static model's own outputs, or what a custom operator makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx

from bridge.static_model import StaticModel
from bridge.targets.base import LoweredNms, Port, ports
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.suppression_narrow import narrow

Finish = Callable[[Builder, Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Form:
    """How the tail ends.

    Attributes:
        model: the static model, cut down to what `finish` reads: its outputs.
        outputs: of the artifact, in order.
        finish: emits what stands behind the model's outputs: their tensors by name to the
            artifact's outputs by name. Called once for each file that holds a tail.
        best_first: names of the StaticNMS calls whose rows come by falling score
            (`suppression_narrow`).
        nms: of the suppressions that `finish` emits; those in `model` come on top.
        reference, rounding, assumptions, warnings: as in `Lowered`.
    """

    model: onnx.ModelProto
    outputs: tuple[Port, ...]
    finish: Finish
    best_first: frozenset[str] = frozenset()
    nms: tuple[LoweredNms, ...] = ()
    reference: onnx.ModelProto | None = None
    rounding: Mapping[str, int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def own_outputs(static: StaticModel) -> Form:
    """The model's outputs, names and types, without the rows that nobody reads."""
    narrowed = narrow(static.model)
    outputs = ports(static)[1]
    return Form(narrowed.model, outputs, _as_they_are, best_first=narrowed.best_first)


def _as_they_are(builder: Builder, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    del builder
    return tensors
