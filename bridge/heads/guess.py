"""Which built-in head fits a model, and why: from shapes, names and what its last operators are.

A guess is never acted on; `bridge inspect` shows it and the user decides.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import shape_inference

from bridge.errors import UsageError
from bridge.heads import read
from bridge.heads.bind import Binding, bind, float_outputs
from bridge.heads.describe import CLASSES, Background, FourColumns, Head, Units
from bridge.heads.ending import Ending, ending
from bridge.heads.formula import names
from bridge.model import graphs

_SHAPES_FIT = 0.4
"""The confidence in a head of which nothing but the shapes is known to fit."""

_WORTH_NAMING = 0.2

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
class _Clue:
    """Something seen, and what it does to the confidence."""

    what: str
    adds: float = 0.0
    times: float = 1.0


def guess(model: onnx.ModelProto) -> tuple[Guess, ...]:
    """The built-in heads that fit the outputs of a model, best first; none if it suppresses.

    Those that fit by their shapes alone, with more against than for them, are left out.
    """
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
    worth = [one for one in found if one.confidence >= _WORTH_NAMING]
    return tuple(sorted(worth, key=lambda one: (-one.confidence, one.head)))


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    if all(tensor.shape and None not in tensor.shape for tensor in float_outputs(model)):
        return model
    try:
        return shape_inference.infer_shapes(model)
    except (shape_inference.InferenceError, ValueError):
        return model


def _judge(model: onnx.ModelProto, head: Head, binding: Binding) -> Guess:
    boxes = ending(model, _holder(binding, _box_roles(head)), binding.rows)
    clues = [
        _Clue(_shapes(binding), _SHAPES_FIT),
        _decoding(head, boxes),
        *_numbers(binding),
        *_outputs(binding, len(float_outputs(model))),
    ]
    confidence = sum(clue.adds for clue in clues) * math.prod(clue.times for clue in clues)
    options = tuple(_options(model, head, binding, boxes))
    why = "; ".join(clue.what for clue in clues)
    return Guess(head.name, options, why, round(confidence, 2))


def _shapes(binding: Binding) -> str:
    shown = ", ".join(
        f"{bound.tensors[0].name} {list(bound.tensors[0].shape)} is {bound.output.label} "
        f"({bound.layout.text})"
        for bound in binding.outputs
    )
    return f"{shown}, {binding.classes} classes" if binding.classes else shown


def _decoding(head: Head, boxes: Ending) -> _Clue:
    """A head that reads cells or priors wants raw boxes, any other one decoded ones."""
    given = {*read.GRID_NAMES, *read.PRIOR_NAMES}
    wants_raw = any(given & set(names(tree)) for tree in read.box_formulas(head))
    is_raw = boxes.grid is None
    if wants_raw == is_raw:
        return _Clue("boxes are still raw" if is_raw else "boxes are decoded in the model", 0.3)
    return _Clue(
        "but boxes seem to be raw still"
        if is_raw
        else "but boxes are decoded in the model already",
        -0.3,
    )


def _numbers(binding: Binding) -> Iterator[_Clue]:
    if binding.levels:
        strides = ", ".join(f"{level.stride:g}" for level in binding.levels)
        yield _Clue(f"{binding.rows} rows are the cells of strides {strides}", 0.1)
    if binding.classes in _USUAL_CLASSES:
        yield _Clue("a usual number of classes", 0.1)
    if any(binding.rows < sum(n for _, n in bound.columns) for bound in binding.outputs):
        yield _Clue("but there would be more columns than rows", times=0.2)


def _outputs(binding: Binding, total: int) -> Iterator[_Clue]:
    named = [b.tensors[0].name for b in binding.outputs if b.output.label in b.tensors[0].name]
    if named:
        share = len(named) / len(binding.outputs)
        yield _Clue(f"outputs named {', '.join(named)}", 0.1 * share)
    used = sum(len(bound.tensors) for bound in binding.outputs)
    if used < total:
        unused = f"but {total - used} of {total} outputs would be unused"
        yield _Clue(unused, times=used / total)


def _box_roles(head: Head) -> set[str]:
    return {name for tree in read.box_formulas(head) for name in names(tree)}


def _holder(binding: Binding, roles: set[str]) -> str:
    """The tensor that holds one of the roles, the first of its levels."""
    holders = [b for b in binding.outputs if roles & {role for role, _ in b.columns}]
    return (holders or list(binding.outputs))[0].tensors[0].name


def _options(model: onnx.ModelProto, head: Head, binding: Binding, boxes: Ending) -> Iterator[str]:
    """Where the model seems to differ from what the head file says."""
    decoded = isinstance(head.box.form, FourColumns) and head.box.units is Units.PIXELS
    if decoded and boxes.grid is not None and boxes.grid < _FRACTIONS_BELOW:
        yield "box.units=fractions"
    if head.score.background is not Background.NONE:
        return
    for bound in binding.outputs:
        only_classes = [count for _, count in bound.output.columns] == [CLASSES]
        scores = bound.tensors[0].name
        # Classes that share a softmax exclude each other, so one of them is none.
        if only_classes and ending(model, scores, binding.rows).last == "Softmax":
            yield "score.background=first"
