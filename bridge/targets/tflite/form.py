"""What an artifact returns: the static model's own outputs, or what a custom operator makes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import onnx

from bridge import detection, static_nms
from bridge.detection import RecoveredClasses, Role
from bridge.options import BoxLayout, Options
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import LoweredNms, Port, ports
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.suppression_narrow import narrow

Finish = Callable[[Builder, Mapping[str, Tensor]], Mapping[str, Tensor]]


X_FIRST: Final = (0, 1, 2, 3)
Y_FIRST: Final = (1, 0, 3, 2)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the outputs hold, as far as it is known.

    Attributes:
        roles: by output.
        corners: which columns of a box are left, top, right and bottom.
        classes: one more than the largest number in the output of the classes.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    corners: tuple[int, int, int, int] | None = None
    classes: int | None = None


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
        meaning: for the metadata.
        reference, rounding, rounded_reference, assumptions, warnings: as in `Lowered`.
    """

    model: onnx.ModelProto
    outputs: tuple[Port, ...]
    finish: Finish
    best_first: frozenset[str] = frozenset()
    nms: tuple[LoweredNms, ...] = ()
    meaning: Meaning = field(default_factory=Meaning)
    reference: onnx.ModelProto | None = None
    rounding: Mapping[str, int] = field(default_factory=dict)
    rounded_reference: bool = False
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def own_outputs(static: StaticModel, options: Options) -> Form:
    """The model's outputs, names and types, without the rows that nobody reads."""
    narrowed = narrow(static.model)
    outputs = ports(static)[1]
    # What outputs mean is read off the whole graph: only for who wants it written down.
    meaning = Meaning() if options.labels is None else _meaning(static, options)
    return Form(
        model=narrowed.model,
        outputs=outputs,
        finish=_as_they_are,
        best_first=narrowed.best_first,
        meaning=meaning,
    )


def _meaning(static: StaticModel, options: Options) -> Meaning:
    spec = detection.inspect(static.source or static.model)
    roles = {value.name: value.role for value in spec.outputs if value.role is not None}
    corners = {BoxLayout.XYXY: X_FIRST, BoxLayout.YXYX: Y_FIRST}
    return Meaning(
        roles={**roles, **dict.fromkeys(static.counts, Role.COUNT)},
        corners=None if options.box_layout is None else corners.get(options.box_layout),
        classes=max(class_counts(static), default=None),
    )


def class_counts(static: StaticModel) -> Iterator[int]:
    """How many classes each suppression tells apart, or hides in moved boxes."""
    types = tensor_types(static.model)
    for call in static_nms.calls(static.model):
        found = detection.recover(static.model, call)
        hidden = found.first + found.count if isinstance(found, RecoveredClasses) else 0
        yield max(hidden, types[call.scores].shape[1])


def _as_they_are(builder: Builder, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    del builder
    return tensors
