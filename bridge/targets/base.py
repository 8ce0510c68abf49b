"""What a target is: it lowers a static model and can run what it wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import onnx
from numpy.typing import NDArray

from bridge.options import Options
from bridge.static_model import Rows, StaticModel, tensor_types

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of an artifact.

    Attributes:
        shape: static, in the artifact's own layout.
        source_shape: in the source model; None marks a data-dependent dimension.
        transpose: `x_artifact = x_source.transpose(transpose)`; None where both are equal.
        rows: the padded axes and the output that counts their real rows.
        key: what the artifact calls it, where that cannot be the ONNX name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source_shape: tuple[int | None, ...]
    transpose: tuple[int, ...] | None = None
    rows: tuple[Rows, ...] = ()
    key: str | None = None


@dataclass(frozen=True, slots=True)
class LoweredNms:
    """How one StaticNMS was lowered, and why that is (or is not) exactly onnxruntime's decision.

    Attributes:
        candidates: how many of the best (class, box) pairs are compared; None: all of them. What
            comes out is then the beginning of what onnxruntime gives, and shorter where so many
            pairs are above the threshold and leave too few survivors.
    """

    node: str
    lowered_to: str
    boxes: int
    classes: int
    max_output: int
    iou_threshold: float
    score_threshold: float
    exact: bool
    because: str
    candidates: int | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """An artifact in the work folder, not yet published, and all that is known about it.

    Attributes:
        border: tensors of the static model at which the tail begins (network before, tail behind).
        tail: an artifact of the tail alone: inputs named and shaped as `border`, the same outputs.
            None where the whole artifact is the tail (nothing stands before the border).
        network: an artifact of what stands before the border: the same inputs, outputs named and
            shaped as `border`. None where the target cannot give it; the float noise of the
            network is then measured on the outputs.
        reference: the artifact in standard ONNX, where its outputs are not the static model's
            (`--nms postprocess`): the same inputs, `border` tensors of the same names, outputs
            named, typed, shaped and padded as the artifact's. None: the static model itself.
        rounding: outputs that a kernel of the target itself rounds (TFLite_Detection_PostProcess
            makes corners of centres): by at most how many units in the last place of the largest
            number in the row. All others are held to onnxruntime's bits where the tail is.
        rounded_reference: the reference rounds to 8 bits what its suppression reads, so that its
            detections are not those of the source.
        quantised: the network holds narrow numbers, so that its detections are judged, not its
            tensors; what stands behind the border stays exact.
        details: what the manifest shows under the target's own name.
    """

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nms: tuple[LoweredNms, ...]
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    border: tuple[str, ...] = ()
    tail: Path | None = None
    network: Path | None = None
    reference: onnx.ModelProto | None = None
    rounding: Mapping[str, int] = field(default_factory=dict)
    rounded_reference: bool = False
    quantised: bool = False
    details: Mapping[str, object] = field(default_factory=dict)


class Closing(Protocol):
    """What holds something until it is closed, or until the `with` block around it ends."""

    def close(self) -> None:
        """Free what is held (a process, a mapped file)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Session(Closing, Protocol):
    """A loaded artifact. Feeds and results use the artifact's names, layouts and padding."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name for one set of inputs."""


class Target(Protocol):
    """A place a static model can be lowered to. Its package is imported only when it is used."""

    @property
    def name(self) -> str:
        """The value of `--to`."""

    @property
    def suffix(self) -> str:
        """The artifact's file name suffix, with its dot."""

    def missing(self, options: Options) -> str | None:
        """What to install so that this target works here; None when it does."""

    def lower(self, static: StaticModel, options: Options, workdir: Path) -> Lowered:
        """Write the artifact below `workdir`.

        Raises:
            UnsupportedModelError: an operator this target has no exact lowering for, by name.
            LoweringError: the backend refused the model.
        """

    def open(self, path: Path, *, threads: int = 1) -> Session:
        """Load an artifact to run it on `threads` threads."""


def ports(static: StaticModel) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs of an artifact that keeps the static model's names, types and layouts."""
    types = tensor_types(static.model)
    rows = {output.name: output.rows for output in static.padded}
    inputs = [
        Port(value.name, types[value.name].dtype, types[value.name].shape, types[value.name].shape)
        for value in static.model.graph.input
    ]
    outputs = [
        Port(
            value.name,
            types[value.name].dtype,
            types[value.name].shape,
            static.source_shapes.get(value.name, types[value.name].shape),
            rows=rows.get(value.name, ()),
        )
        for value in static.model.graph.output
    ]
    return tuple(inputs), tuple(outputs)
