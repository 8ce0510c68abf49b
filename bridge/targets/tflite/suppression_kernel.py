"""The one call of NON_MAX_SUPPRESSION_V4."""

import numpy as np

from bridge.static_model import TensorType
from bridge.targets.tflite.flatbuffer import Builder, Tensor


def suppress(
    builder: Builder, boxes: Tensor, rank: Tensor, limit: int, iou_threshold: float
) -> tuple[Tensor, Tensor]:
    """NON_MAX_SUPPRESSION_V4 with ONNX's limit.

    Args:
        builder: takes the operators.
        boxes: float32[N, 4], none of them without an area.
        rank: float32[N], different where above 0; what is not above 0 is not selected.
        limit: how many are selected at most.
        iou_threshold: below 1: an IoU above it suppresses.

    Returns:
        Places int32[limit], zeros behind the real ones, and their number int32[].
    """
    above = np.nextafter(np.float32(iou_threshold), np.float32(np.inf))
    limits = [np.int32(limit), above, np.float32(0)]
    places, count = builder.emit(
        "NON_MAX_SUPPRESSION_V4",
        [boxes, rank, *map(builder.constant, limits)],
        [TensorType("int32", (limit,)), TensorType("int32", ())],
    )
    return places, count
