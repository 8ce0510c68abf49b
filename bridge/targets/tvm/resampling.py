"""Resize as tables: for every output position, which inputs count and how much.

TVM's `resize2d` takes the scale from the sizes; ONNX takes the scale that is given, and the two
differ wherever it does not divide. Sizes are static, so coordinates need no computing at run time.
Source: ONNX operator Resize-13 and onnxruntime `upsample.cc`, whose float32 arithmetic this
follows: the nearest pixel hangs on it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge.targets.tvm.node import Node

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Resampling:
    """What becomes of one axis: the sum of a few gathers along it.

    Attributes:
        taps: indices and weights, one pair per input that counts; no weight where there is but one.
        outside: positions that get `filling` instead; None where there are none.
    """

    axis: int
    taps: tuple[tuple[Integers, Floats | None], ...]
    outside: NDArray[np.bool_] | None
    filling: float


def resamplings(node: Node) -> list[Resampling]:
    """Every axis that a Resize node changes, in order.

    Raises:
        UnsupportedModelError: a mode that is not known.
    """
    mode = node.text("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise node.refusal(f"mode {mode}")
    if node.type().dtype != "float32" and mode != "nearest":
        raise node.refusal(f"{mode} interpolation of {node.type().dtype}")
    cropping = _transformation(node) == "tf_crop_and_resize"
    filling = float(node.attributes.get("extrapolation_value", 0.0))
    found = []
    for axis, (before, after) in enumerate(
        zip(node.type().shape, node.outputs[0].shape, strict=True)
    ):
        scale = _scale(node, axis)
        if before == after and scale == 1 and not cropping:
            continue
        at = _coordinates(node, axis, scale)
        outside = (at < 0) | (at > before - 1) if cropping else np.zeros(len(at), np.bool_)
        taps = tuple(_taps(node, mode, at, before))
        found.append(Resampling(axis, taps, outside if outside.any() else None, filling))
    return found


def _scale(node: Node, axis: int) -> np.float32:
    if node.has(2) and node.constant(2).size:
        return np.float32(node.constant(2).reshape(-1)[axis])
    return np.float32(node.outputs[0].shape[axis]) / np.float32(node.type().shape[axis])


def _transformation(node: Node) -> str:
    return node.text("coordinate_transformation_mode", "half_pixel")


def _coordinates(node: Node, axis: int, scale: np.float32) -> Floats:
    """Where in the input every output position lies."""
    before, after = node.type().shape[axis], node.outputs[0].shape[axis]
    x = np.arange(after, dtype=np.float32)
    half, one = np.float32(0.5), np.float32(1)
    mode = _transformation(node)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and after > 1):
        return np.asarray((x + half) / scale - half, np.float32)
    if mode == "pytorch_half_pixel":
        return np.zeros_like(x)
    if mode == "asymmetric":
        return np.asarray(x / scale, np.float32)
    if mode == "tf_half_pixel_for_nn":
        return ((x + half) / scale).astype(np.float32)
    if mode == "align_corners":
        if after == 1:
            return np.zeros_like(x)
        return (x * np.float32(before - 1) / np.float32(after - 1)).astype(np.float32)
    if mode == "tf_crop_and_resize":
        roi = node.constant(1).astype(np.float32).reshape(2, -1)
        start, end = roi[:, axis]
        size = np.float32(before) - one
        if after == 1:
            return np.asarray(half * (start + end) * size + x, np.float32)
        # In onnxruntime's order: a step taken first moves every coordinate by its rounding.
        return np.asarray(
            start * size + x * (end - start) * size / np.float32(after - 1), np.float32
        )
    raise node.refusal(f"coordinate_transformation_mode {mode}")


def _taps(node: Node, mode: str, at: Floats, size: int) -> list[tuple[Integers, Floats | None]]:
    """Indices and weights, one pair per input that counts; no weight where there is but one."""
    last = size - 1
    if mode == "nearest":
        return [(np.clip(_nearest(node, at), 0, last), None)]
    if mode == "linear":
        at = np.clip(at, 0, last)
        low = np.minimum(at.astype(np.int64), last)
        high = np.minimum(low + 1, last)
        share = np.where(low == high, np.float32(0.5), at - low.astype(np.float32))
        return [(low, (np.float32(1) - share).astype(np.float32)), (high, share)]
    low = np.floor(at).astype(np.int64)
    weights = _cubic_weights(at - low, float(node.attributes.get("cubic_coeff_a", -0.75)))
    indices = [low + shift for shift in (-1, 0, 1, 2)]
    if node.attributes.get("exclude_outside", 0):
        inside = [(index >= 0) & (index <= last) for index in indices]
        weights = [np.where(here, w, 0) for here, w in zip(inside, weights, strict=True)]
        total = np.sum(weights, axis=0)
        weights = [w / total for w in weights]
    return [
        (np.clip(index, 0, last), weight.astype(np.float32))
        for index, weight in zip(indices, weights, strict=True)
    ]


def _nearest(node: Node, at: Floats) -> Integers:
    mode = node.text("nearest_mode", "round_prefer_floor")
    half = np.float32(0.5)
    if mode == "round_prefer_floor":
        return np.asarray(np.ceil(at - half), np.int64)
    if mode == "round_prefer_ceil":
        return np.asarray(np.floor(at + half), np.int64)
    if mode == "floor":
        return np.floor(at).astype(np.int64)
    if mode == "ceil":
        return np.ceil(at).astype(np.int64)
    raise node.refusal(f"nearest_mode {mode}")


def _cubic_weights(share: Floats, a: float) -> list[NDArray[np.floating[Any]]]:
    """Keys' kernel at distances 1 + s, s, 1 - s, 2 - s."""
    s = share.astype(np.float32)
    coefficient = np.float32(a)
    one, two, three, four, five, eight = (np.float32(n) for n in (1, 2, 3, 4, 5, 8))

    def near(x: Any) -> Any:
        return ((coefficient + two) * x - (coefficient + three)) * x * x + one

    def far(x: Any) -> Any:
        return (
            (coefficient * x - five * coefficient) * x + eight * coefficient
        ) * x - four * coefficient

    return [far(s + one), near(s), near(one - s), far(one - s + one)]
