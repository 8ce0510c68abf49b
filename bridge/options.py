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


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one conversion; names and meaning as in `bridge.run --help`.

    Attributes:
        max_detections: cap on the rows of every padded output; None takes the graph's own bound.
        input_shapes: input name to full shape, fixing symbolic dimensions.
        freeze: graph input name to the constant that replaces it.
        box_layout: declared corner order; None means: only what the graph itself tells.
        class_aware: turn the coordinate trick of `batched_nms` into one class-aware suppression.
        keep_nchw: TFLite only; 4-D image inputs stay NCHW.
        tvm_target: an LLVM target string; None means this machine's CPU.
    """

    max_detections: int | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    freeze: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    box_layout: BoxLayout | None = None
    class_aware: bool = False
    nms: NmsForm = NmsForm.AUTO
    keep_nchw: bool = False
    tvm_target: str | None = None
    tvm_opt_level: int = 3
    tvm_disabled_passes: tuple[str, ...] = ()
    tvm_executor: str = "graph"
    tvm_python: Path | None = None
    tvm_cc: str | None = None
