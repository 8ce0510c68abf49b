"""Which built-in head fits a model, and why: from shapes, names and what its last operators are.

A guess is never acted on; `bridge inspect` shows it and the user decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

from bridge.errors import UsageError
from bridge.heads import read
from bridge.heads.bind import Binding, Bound, bind, float_outputs
from bridge.heads.describe import CLASSES, Background, FourColumns, Head, Units
from bridge.heads.formula import names
from bridge.model import graphs

_LAYERS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "QLinearConv"}
)
"""Where the network ends and its decode may begin, seen from the outputs."""

_USUAL_CLASSES = frozenset({1, 20, 80, 90, 91})
"""Faces or persons, VOC, COCO in its three countings."""

_FRACTIONS_BELOW = 2.0
"""Priors and cells in pixels hold far larger numbers, priors in fractions none."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A head that fits.

    Attributes:
        options: `KEY=VALUE` for --head-option, where the model seems to differ from the file.
        confidence: from 0 to 1, to sort by; not a probability.
    """

    head: str
    options: tuple[str, ...]
    why: str
    confidence: float


@dataclass(frozen=True, slots=True)
class _Ending:
    """What stands between the last layers and an output.

    Attributes:
        grid: the largest constant that has a row per candidate holds numbers up to this; None
            where there is no such constant, so nothing was decoded.
        softmax: the last operator that computes is a Softmax.
    """

    grid: float | None
    softmax: bool


def guess(model: onnx.ModelProto) -> tuple[Guess, ...]:
    """The built-in heads that fit the outputs of a model, best first; none if it suppresses."""
    if any(node.op_type == "NonMaxSuppression" for graph in graphs(model) for node in graph.node):
        return ()
    model = _with_shapes(model)
    found = []
    for name in read.builtin_names():
        if read.is_alias(name):
            continue
        head = read.load(name)
        try:
            found.append(_judge(model, head, bind(head, model)))
        except UsageError:
            continue
    return tuple(sorted(found, key=lambda one: (-one.confidence, one.head)))


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    if all(None not in tensor.shape and tensor.shape for tensor in float_outputs(model)):
        return model
    try:
        return shape_inference.infer_shapes(model)
    except (shape_inference.InferenceError, ValueError):
        return model


def _judge(model: onnx.ModelProto, head: Head, binding: Binding) -> Guess:
    boxes = _bound(head, binding, _box_roles(head))
    ending = _ending(model, boxes.tensors[0].name, binding.rows)
    reasons, confidence = [_shapes(binding)], 0.4
    decoded = ending.grid is not None
    if decoded != _reads_cells(head):
        reasons.append("boxes are decoded in the model" if decoded else "boxes are still raw")
        confidence += 0.3
    else:
        reasons.append(
            f"but boxes {'are decoded in the model already' if decoded else 'seem to be raw still'}"
        )
        confidence -= 0.3
    if binding.levels:
        strides = ", ".join(f"{level.stride:g}" for level in binding.levels)
        reasons.append(f"{binding.rows} rows are the cells of strides {strides}")
        confidence += 0.1
    named = [b for b in binding.outputs if b.output.label in b.tensors[0].name.lower()]
    if named:
        reasons.append(f"outputs named {', '.join(b.tensors[0].name for b in named)}")
        confidence += 0.1 * len(named) / len(binding.outputs)
    if binding.classes in _USUAL_CLASSES:
        reasons.append("a usual number of classes")
        confidence += 0.1
    if any(binding.rows < sum(n for _, n in bound.columns) for bound in binding.outputs):
        reasons.append("but there would be more columns than rows")
        confidence *= 0.2
    used = sum(len(bound.tensors) for bound in binding.outputs)
    total = len(float_outputs(model))
    if used < total:
        reasons.append(f"but {total - used} of {total} outputs would be unused")
        confidence *= used / total
    options = tuple(_options(model, head, binding, ending))
    return Guess(head.name, options, "; ".join(reasons), round(confidence, 2))


def _shapes(binding: Binding) -> str:
    shown = ", ".join(
        f"{bound.tensors[0].name} {list(bound.tensors[0].shape)} is {bound.output.label}"
        f" ({bound.layout.text})"
        for bound in binding.outputs
    )
    return f"{shown}, {binding.classes} classes" if binding.classes else shown


def _bound(head: Head, binding: Binding, roles: set[str]) -> Bound:
    """The output that holds one of the roles."""
    return next(
        (b for b in binding.outputs if roles & {role for role, _ in b.output.columns}),
        binding.outputs[0],
    )


def _box_roles(head: Head) -> set[str]:
    roles = {role for output in head.outputs for role, _ in output.columns}
    read_by_boxes = {
        name for place, tree in read.formulas(head) if "[box]" in place for name in names(tree)
    }
    return roles & read_by_boxes


def _reads_cells(head: Head) -> bool:
    given = {*read.GRID_NAMES, *read.PRIOR_NAMES}
    return any(given & set(names(tree)) for place, tree in read.formulas(head) if "[box]" in place)


def _ending(model: onnx.ModelProto, output: str, rows: int) -> _Ending:
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
    pending, seen, computing = [output], set(), []
    largest: float | None = None
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in constants:
            tensor = constants[name]
            spread = sum(dim > 1 for dim in tensor.dims) > 1
            if spread and np.prod(tensor.dims) >= max(rows / 4, 2):
                top = float(np.abs(numpy_helper.to_array(tensor)).max())
                largest = top if largest is None else max(largest, top)
        elif name in producers and producers[name].op_type not in _LAYERS:
            node = producers[name]
            pending.extend(node.input)
            if node.op_type not in ("Reshape", "Transpose", "Concat", "Identity", "Flatten"):
                computing.append(node.op_type)
            if node.op_type == "Range":
                largest = max(largest or 0.0, float(rows))
    return _Ending(largest, computing[:1] == ["Softmax"])


def _options(
    model: onnx.ModelProto, head: Head, binding: Binding, ending: _Ending
) -> Iterator[str]:
    """Where the model seems to differ from what the head file says."""
    decoded = isinstance(head.box.form, FourColumns) and head.box.units is Units.PIXELS
    if decoded and ending.grid is not None and ending.grid < _FRACTIONS_BELOW:
        yield "box.units=fractions"
    scores = [b for b in binding.outputs if [n for _, n in b.output.columns] == [CLASSES]]
    if scores and head.score.background is Background.NONE:
        last = _ending(model, scores[0].tensors[0].name, binding.rows)
        if last.softmax:
            yield "score.background=first"
