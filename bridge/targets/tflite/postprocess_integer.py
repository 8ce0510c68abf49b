"""`--integer-postprocess`: TFLite_Detection_PostProcess gets uint8 encodings, anchors and scores.

That is how TensorFlow's object detection API writes a quantised SSD: the operator itself decodes
what the network says of each anchor. The rounding to 8 bits becomes part of the plan's model, so
that onnxruntime rounds as well; the operator is held to it bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, shape_inference

from bridge.errors import UnsupportedModelError
from bridge.model.nodes import Nodes
from bridge.options import BoxLayout, Options
from bridge.targets.tflite.flatbuffer import Builder, Grid, Tensor
from bridge.targets.tflite.postprocess_decode import Floats, Formula, formula, holds, open_session
from bridge.targets.tflite.postprocess_geometry import SWAPPED
from bridge.targets.tflite.postprocess_kernel import Encoded
from bridge.targets.tflite.postprocess_plan import Plan, UnfitError, look
from bridge.targets.tflite.quantise_ranges import stored_sets

LEVELS: Final = 255
UNIT_SCORES: Final = Grid(1 / 256, 0)
"""Of scores from 0 to 1: the grid of the integer kernels of LOGISTIC and SOFTMAX."""

_PREFIX: Final = "integer_postprocess"
_EXACT: Final = 1e-4
"""How near to a whole number of steps an anchor counts as one."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Integer:
    """What the operator is given in 8 bits.

    Attributes:
        plan: of the model whose boxes and scores are what 8 bits leave of them.
        scores: the tensor before the rounding, float32[1, C, N].
        anchors: uint8[N, 4], in steps of `anchor_grid`.
    """

    plan: Plan
    formula: Formula
    scores: str
    anchors: Bytes
    encoding_grid: Grid
    anchor_grid: Grid
    score_grid: Grid

    @property
    def read(self) -> tuple[str, str]:
        """The tensors that the operator needs."""
        return self.formula.tensor, self.scores

    def boxes(self, builder: Builder, tensors: Mapping[str, Tensor]) -> Encoded:
        """Emit the encodings, rounded."""
        given, rows = tensors[self.formula.tensor], self.plan.boxes
        table = builder.reshape(given, [1, rows, given.size // rows])
        columns = builder.gather(table, builder.constant(self.formula.columns, "int32"), axis=2)
        y, x, height, width = self.formula.scales
        return Encoded(
            builder.quantize(columns, self.encoding_grid),
            builder.constant(self.anchors, grid=self.anchor_grid),
            (y, x, height, width),
        )

    @property
    def assumption(self) -> str:
        """What 8 bits cost, in a sentence."""
        off = np.abs(_values(self.anchors, self.anchor_grid) - self.formula.anchors).max()
        return (
            f"NonMaxSuppression '{self.plan.call.name}' decides on 8 bits: encodings "
            f"'{self.formula.tensor}' in steps of {self.encoding_grid.scale:.3g}, scores in steps "
            f"of {self.score_grid.scale:.3g}, anchors up to {off:.2g} off in the boxes' units"
        )


def integer(found: Plan, options: Options) -> Integer:
    """What becomes of a detector whose boxes the operator can decode.

    Args:
        found: its plan in float32.
        options: with calibration data: encodings and scores get the range that they have there.

    Raises:
        UnsupportedModelError: its boxes are not encodings relative to constant anchors, or it keeps
            scores below zero.
    """
    if found.call.score_threshold < 0:
        _refuse(found, f"it keeps scores above {found.call.score_threshold:g}, below zero")
    boxes = found.call.boxes if found.recovered is None else found.recovered.boxes
    if not {boxes, found.call.scores} <= found.copies.makers.keys():
        _refuse(found, "no network makes its boxes and scores")
    fitted = formula(found, boxes)
    if fitted is None:
        _refuse(
            found,
            "its boxes are not centre + xy * size and size * exp(wh) of constant anchors, xy and "
            "wh columns of one tensor of the network, N rows (where candidates are chosen in front "
            "of the suppression, --pre-nms-top-k 0 or an export without that leaves them whole)",
        )
    known, decode = fitted
    encodings, scores = _seen(found, (known.tensor, found.call.scores), options)
    values = encodings.reshape(-1, encodings.shape[-1])[:, list(known.columns)]
    between = min(0.0, float(values.min())), max(0.0, float(values.max()))
    if not holds(known, decode, between, encodings.shape[-1]):
        _refuse(
            found,
            f"its decode of '{known.tensor}' is the operator's near zero, but not for all of "
            f"{between[0]:g} .. {between[1]:g}, which the calibration data reach",
        )
    anchors, anchor_grid = _anchors(known.anchors)
    made = Integer(
        plan=found,
        formula=known,
        scores=f"{found.call.scores}/{_PREFIX}",
        anchors=anchors,
        encoding_grid=_grid(*between),
        anchor_grid=anchor_grid,
        score_grid=_score_grid(float(scores.max())),
    )
    declared = BoxLayout.XYXY if found.geometry.x_first else BoxLayout.YXYX
    try:
        model = _rounded(made, boxes)
        return replace(made, plan=look(model, found.call, replace(options, box_layout=declared)))
    except UnfitError as error:
        _refuse(found, str(error))


def _refuse(found: Plan, why: str) -> NoReturn:
    raise UnsupportedModelError(
        f"--integer-postprocess: NonMaxSuppression '{found.call.name}' cannot decide on 8 bits: "
        f"{why}; leave --integer-postprocess out"
    )


# Grids


def _grid(low: float, high: float) -> Grid:
    """The finest that holds two numbers and zero."""
    scale = float(np.float32(max(high - low, float(np.finfo(np.float32).tiny)) / LEVELS))
    return Grid(scale, round(-low / scale))


def _score_grid(high: float) -> Grid:
    return UNIT_SCORES if high <= 1 else _grid(0.0, high)


def _anchors(anchors: Floats) -> tuple[Bytes, Grid]:
    """Anchors in 8 bits: all exact where they are whole multiples of a step, else to the nearest.

    Priors lie on a regular lattice and have sizes that somebody wrote down.
    """
    low, high = min(0.0, float(anchors.min())), float(anchors.max())
    grid = _grid(low, high)
    if low == 0:
        for steps in range(1, LEVELS + 1):
            whole = anchors * (steps / high)
            if np.abs(whole - whole.round()).max() <= _EXACT:
                grid = Grid(float(np.float32(high / steps)), 0)
                break
    whole = (anchors / grid.scale).round() + grid.zero
    return whole.clip(0, LEVELS).astype(np.uint8), grid


def _values(whole: Bytes, grid: Grid) -> NDArray[np.float32]:
    """What the kernel makes of 8 bits (`DequantizeBoxEncodings`)."""
    values: NDArray[np.float32] = np.float32(grid.scale) * (
        whole.astype(np.float32) - np.float32(grid.zero)
    )
    return values


def _seen(found: Plan, names: tuple[str, str], options: Options) -> list[NDArray[Any]]:
    """What tensors hold on all the calibration data, sets along axis 0."""
    assert options.quantization.calibrate is not None  # int8 has no other way to get here
    session = open_session(found.front(names))
    inputs = [value.name for value in session.get_inputs()]
    made = [
        session.run(list(names), feeds)
        for feeds in stored_sets(options.quantization.calibrate, inputs)
    ]
    return [np.stack(values) for values in zip(*made, strict=True)]


# The model


def _rounded(made: Integer, boxes: str) -> onnx.ModelProto:
    """The model with the operator's own decode of 8 bits in place of its boxes and scores.

    Given    encodings -> decode -> boxes; scores
    Result   encodings -> QuantizeLinear -> DequantizeLinear -> decode in float64 -> boxes;
             scores' -> QuantizeLinear -> DequantizeLinear -> scores
    """
    model = onnx.ModelProto()
    model.CopyFrom(made.plan.model)
    graph, scores = model.graph, made.plan.call.scores
    decode, rounding = Nodes(f"{_PREFIX}/decode"), Nodes(f"{_PREFIX}/scores")
    _write_decode(decode, made, boxes)
    _write_rounded(rounding, made.scores, made.score_grid, scores)
    written = {boxes: decode, scores: rounding}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for position, name in enumerate(node.output):
            if name in written:
                node.output[position] = made.scores if name == scores else f"{_PREFIX}/{name}"
                nodes += written[name].nodes
    del graph.node[:]
    graph.node.extend(nodes)
    for one in written.values():
        graph.initializer.extend(one.constants)
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def _write_rounded(nodes: Nodes, tensor: str, grid: Grid, output: str | None = None) -> str:
    """A tensor to the grid and back: what is between two steps goes to the even one."""
    limits = [nodes.constant(grid.scale, "float32"), nodes.constant(grid.zero, "uint8")]
    whole = nodes.add("QuantizeLinear", [tensor, *limits])
    return nodes.add("DequantizeLinear", [whole, *limits], output=output)


def _write_decode(nodes: Nodes, made: Integer, boxes: str) -> None:
    """`DecodeCenterSizeBoxes` of the kernel: float64 inside, centre and half size float32."""
    known, found = made.formula, made.plan
    anchors = _values(made.anchors, made.anchor_grid).astype(np.float64)
    places, sizes = nodes.constant(anchors[:, :2]), nodes.constant(anchors[:, 2:])
    table = _write_rounded(nodes, known.tensor, made.encoding_grid)

    def steps(part: slice) -> str:
        chosen = nodes.constant(known.columns[part], "int64")
        columns = nodes.add("Gather", [table, chosen], axis=-1)
        double = nodes.add("Cast", [columns], to=TensorProto.DOUBLE)
        return nodes.add("Div", [double, nodes.constant(known.scales[part], "float64")])

    center = nodes.add("Add", [nodes.add("Mul", [steps(slice(0, 2)), sizes]), places])
    grown = nodes.add("Mul", [nodes.constant(0.5), nodes.add("Exp", [steps(slice(2, 4))])])
    half = nodes.add("Mul", [grown, sizes])
    center, half = (nodes.add("Cast", [x], to=TensorProto.FLOAT) for x in (center, half))
    ends = [nodes.add(operator, [center, half]) for operator in ("Sub", "Add")]
    corners = nodes.add("Concat", ends, axis=-1)
    if found.geometry.x_first:
        corners = nodes.add("Gather", [corners, nodes.integers(*SWAPPED)], axis=-1)
    nodes.add("Reshape", [corners, nodes.integers(*found.types[boxes].shape)], output=boxes)
