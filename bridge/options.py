"""What a user may ask for, as one frozen record that is passed down and never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class BoxLayout(StrEnum):
    """The order of the four numbers of a box on its last axis."""

    XYXY = "xyxy"
    YXYX = "yxyx"
    CXCYWH = "cxcywh"
    CYCXHW = "cycxhw"


class NmsForm(StrEnum):
    """How a TFLite file suppresses: `v4` NON_MAX_SUPPRESSION_V4, `postprocess` the custom op."""

    AUTO = "auto"
    V4 = "v4"
    POSTPROCESS = "postprocess"


class Quantize(StrEnum):
    """What of a TFLite network becomes narrow; the tail stays float32 in all forms.

    `weights`: int8 weights, float32 arithmetic. `dynamic`: int8 weights, activations quantised as
    they come. `int8`: weights and activations int8, ranges from calibration. `fp16`: float16
    weights, float32 arithmetic.
    """

    NONE = "none"
    WEIGHTS = "weights"
    DYNAMIC = "dynamic"
    INT8 = "int8"
    FP16 = "fp16"


class Outputs(StrEnum):
    """What a TFLite file returns: the model's `own` outputs, or the four that apps for SSDs read.

    `detections`: float32 boxes [1, K, 4] (y1, x1, y2, x2), classes [1, K], scores [1, K] and their
    number [1], best first, as TFLite_Detection_PostProcess returns them.
    """

    OWN = "own"
    DETECTIONS = "detections"


class Qdq(StrEnum):
    """What becomes of the layers of a model that is quantised in ONNX.

    `integer`: kernels in int8 on the model's own grids. `float`: the same rounding in float32
    arithmetic, equal to onnxruntime's.
    """

    INTEGER = "integer"
    FLOAT = "float"


class BoxUnits(StrEnum):
    """What the coordinates of the boxes that come out count."""

    PIXELS = "pixels"
    FRACTIONS = "fractions"


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the network of a TFLite file is quantised.

    Attributes:
        calibrate: a folder of photos, or an `.npz` file of arrays by input name; int8 needs it.
        keep_float: names of source nodes, `*` for any characters, whose layers stay float32.
        integer_postprocess: with int8 and `NmsForm.POSTPROCESS`, the operator decodes and decides
            on uint8, as in the quantised SSDs of TensorFlow's object detection API.
        report: a file that gets, as JSON, what quantising each layer alone costs.
        python: the interpreter that has ai-edge-quantizer; None looks for the environment that
            `make setup-quantize` makes.
    """

    form: Quantize = Quantize.NONE
    calibrate: Path | None = None
    keep_float: tuple[str, ...] = ()
    integer_postprocess: bool = False
    report: Path | None = None
    python: Path | None = None


@dataclass(frozen=True, slots=True)
class Normalization:
    """What the application does to RGB 0..255 before it feeds: `(x - mean) / std` per channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one conversion; names and meaning as in `bridge.run --help`.

    Attributes:
        max_detections: cap on the rows of every padded output; None takes the graph's own bound.
        input_shapes: input name to full shape, fixing symbolic dimensions.
        freeze: graph input name to the constant that replaces it.
        box_layout: declared corner order; None means: only what the graph itself tells.
        class_aware: turn the coordinate trick of `batched_nms` into one class-aware suppression.
        outputs: TFLite only; None: the model's own, or what `nms` says.
        keep_nchw: TFLite only; 4-D image inputs stay NCHW.
        quantization: TFLite only.
        qdq: TFLite only.
        labels: TFLite only; a text file with the name of a class on each line, for the metadata.
        normalization: what stays outside the graph: photos are fed so, and the metadata of a
            TFLite file says so. None: nothing is known.
        box_units: TFLite only; what the boxes that come out count, for the metadata. None: nothing
            is known.
        tvm_target: an LLVM target string; None means this machine's CPU.
    """

    max_detections: int | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    freeze: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    box_layout: BoxLayout | None = None
    class_aware: bool = False
    nms: NmsForm = NmsForm.AUTO
    outputs: Outputs | None = None
    keep_nchw: bool = False
    quantization: Quantization = field(default_factory=Quantization)
    qdq: Qdq = Qdq.INTEGER
    labels: Path | None = None
    normalization: Normalization | None = None
    box_units: BoxUnits | None = None
    tvm_target: str | None = None
    tvm_opt_level: int = 3
    tvm_disabled_passes: tuple[str, ...] = ()
    tvm_executor: str = "graph"
    tvm_python: Path | None = None
    tvm_cc: str | None = None

    @property
    def gives_detections(self) -> bool:
        """Whether the file returns four outputs of detections in place of the model's own."""
        return self.outputs is Outputs.DETECTIONS or self.nms is NmsForm.POSTPROCESS
