"""How the boxes of a detector follow from what its network says, found by running the decode.

Every exporter writes a decode in its own way. So it is not read off the nodes but run, on numbers
that tell the columns apart, and held to the formula of TFLite_Detection_PostProcess.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bridge.targets.tflite.postprocess_geometry import SWAPPED
from bridge.targets.tflite.postprocess_plan import Plan

SAME: Final = 1e-4
"""How near a decode must come to the formula, relative to the largest coordinate: float32 noise."""

_STEP: Final = 0.5
"""How far an encoding is moved to see what moves with it."""

_DIGITS: Final = 5
"""A scale is a constant that somebody wrote down; float32 adds digits to it."""

_MOST_COLUMNS: Final = 512

Floats = NDArray[np.float64]
Decode = Callable[[Floats], Floats]
"""Encodings [N, K] to boxes [N, 4]: centre y, centre x, height, width."""


@dataclass(frozen=True, slots=True)
class Formula:
    """Boxes as the operator makes them.

    The centre is `encoding / scale * (anchor height, width) + (anchor y, x)`, the size
    `exp(encoding / scale) * (anchor height, width)`.

    Attributes:
        tensor: the encodings, N rows of K columns.
        columns: of them, that are y, x, height and width.
        scales: what each of those is divided by.
        anchors: float64[N, 4], centre y, centre x, height, width, in the model's units.
    """

    tensor: str
    columns: tuple[int, ...]
    scales: tuple[float, ...]
    anchors: Floats

    def boxes(self, encodings: Floats) -> Floats:
        """Encodings [N, K] to boxes [N, 4]: centre y, centre x, height, width."""
        steps = encodings[:, list(self.columns)] / np.array(self.scales)
        places, sizes = self.anchors[:, :2], self.anchors[:, 2:]
        return np.concatenate([steps[:, :2] * sizes + places, np.exp(steps[:, 2:]) * sizes], 1)


def formula(found: Plan, boxes: str) -> tuple[Formula, Decode] | None:
    """The formula of a detector's boxes, with the decode itself; None where it has another.

    Args:
        found: the detector.
        boxes: its tensor of N corners, in front of the suppression.
    """
    for tensor in _candidates(found, boxes):
        decode = _decode(found, tensor, boxes)
        width = prod(found.types[tensor].shape) // found.boxes
        fitted = _fit(tensor, decode, (found.boxes, width))
        if fitted is not None and holds(fitted, decode, (-_STEP, _STEP), width):
            return fitted, decode
    return None


def holds(fitted: Formula, decode: Decode, between: tuple[float, float], width: int) -> bool:
    """Whether a decode follows a formula for encodings between two numbers."""
    chance = np.random.default_rng(0)
    encodings = chance.uniform(*between, (len(fitted.anchors), width))
    # The ends are where a decode that cuts off does so.
    encodings[: len(encodings) // 4] = between[0]
    encodings[-len(encodings) // 4 :] = between[1]
    expected, made = fitted.boxes(encodings), decode(encodings)
    return bool(np.abs(made - expected).max() <= SAME * np.abs(expected).max())


def _candidates(found: Plan, boxes: str) -> Iterator[str]:
    """Tensors of N rows on which, beside constants, the boxes depend alone; the first one first."""
    makers = found.copies.makers
    reached, pending = {boxes}, [boxes]
    while pending:
        node = makers.get(pending.pop())
        new = [] if node is None else [name for name in node.input if name not in reached]
        reached.update(new)
        pending += new
    given = {value.name for value in found.model.graph.input}
    made = [name for node in found.model.graph.node for name in node.output]
    for name in (*given, *made):
        if name not in reached or name == boxes or not _has_rows(found, name):
            continue
        if not given & _read_without(found, boxes, name):
            yield name


def _has_rows(found: Plan, name: str) -> bool:
    type_ = found.types.get(name)
    if type_ is None or type_.dtype != "float32" or len(type_.shape) < 2:
        return False
    *others, rows, columns = type_.shape
    return prod(others) == 1 and rows == found.boxes and 4 <= columns <= _MOST_COLUMNS


def _read_without(found: Plan, boxes: str, tensor: str) -> set[str]:
    """All that the boxes depend on where a tensor is given."""
    seen, pending = {tensor}, [boxes]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = found.copies.makers.get(name)
        pending += [] if node is None else list(node.input)
    return seen - {tensor}


def _decode(found: Plan, tensor: str, boxes: str) -> Decode:
    """What makes the boxes of a tensor, to be run."""
    graph, needed = found.model.graph, _read_without(found, boxes, tensor)
    types = found.types
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, types[name].shape)
        for name in (tensor, boxes)
    ]
    model = helper.make_model(
        helper.make_graph(
            [node for node in graph.node if needed.intersection(node.output)],
            "decode",
            ends[:1],
            ends[1:],
            [constant for constant in graph.initializer if constant.name in needed],
        ),
        opset_imports=list(found.model.opset_import),
        functions=list(found.model.functions),
        ir_version=found.model.ir_version,
    )
    session = open_session(model)

    def run(encodings: Floats) -> Floats:
        fed = encodings.astype(np.float32).reshape(types[tensor].shape)
        table = np.asarray(session.run([boxes], {tensor: fed})[0], np.float64).reshape(-1, 4)
        ordered = table[:, SWAPPED] if found.geometry.x_first else table
        low, high = ordered[:, :2], ordered[:, 2:]
        return np.concatenate([(low + high) / 2, high - low], 1)

    return run


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A model in onnxruntime, which keeps what it thinks of it to itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _fit(tensor: str, decode: Decode, shape: tuple[int, int]) -> Formula | None:
    """The formula that a decode seems to follow, seen from zero and one step from it."""
    anchors = decode(np.zeros(shape))
    if not np.isfinite(anchors).all() or not (anchors[:, 2:] > 0).all():
        return None
    columns: list[int | None] = [None] * 4
    scales = [1.0] * 4
    for column in range(shape[1]):
        encodings = np.zeros(shape)
        encodings[:, column] = _STEP
        steps = _steps(decode(encodings), anchors)
        moved = [part for part in range(4) if abs(steps[part]) > SAME]
        if not moved:
            continue
        if len(moved) > 1 or columns[moved[0]] is not None or steps[moved[0]] < 0:
            return None
        columns[moved[0]] = column
        scales[moved[0]] = _rounded(_STEP / steps[moved[0]])
    chosen = tuple(column for column in columns if column is not None)
    return Formula(tensor, chosen, tuple(scales), anchors) if len(chosen) == len(columns) else None


def _steps(boxes: Floats, anchors: Floats) -> Sequence[float]:
    """By how much centres moved in sizes of their anchor, and sizes grew, as a logarithm."""
    with np.errstate(all="ignore"):
        centers = (boxes[:, :2] - anchors[:, :2]) / anchors[:, 2:]
        sizes = np.log(boxes[:, 2:] / anchors[:, 2:])
    return [float(step) for step in np.median(np.concatenate([centers, sizes], 1), 0)]


def _rounded(scale: float) -> float:
    return float(f"{scale:.{_DIGITS}g}") if np.isfinite(scale) else scale
