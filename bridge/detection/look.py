"""What is in a detection model: its suppressions, guards and outputs, read off the graph."""

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

from bridge.detection.flat import Flat, Step, flatten
from bridge.detection.spec import (
    Cause,
    DetectionSpec,
    Guard,
    Layout,
    NmsSite,
    Provenance,
    Role,
    Shape,
    Value,
)
from bridge.options import BoxLayout

_STANDARD = ("", "ai.onnx")
_DATA_DEPENDENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
_MOVES = frozenset(
    {
        "Cast", "Concat", "Expand", "Gather", "GatherElements", "GatherND", "Identity", "Reshape",
        "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip
_MOST_CAUSES = 4


def inspect(model: onnx.ModelProto, *, box_layout: BoxLayout | None = None) -> DetectionSpec:
    """Describe a valid model; `box_layout` is what the user declares of it."""
    flat = flatten(model)
    sites = [step for step in flat.steps if _is(step, "NonMaxSuppression")]
    functions = {(f.domain, f.name) for f in model.functions}
    return DetectionSpec(
        inputs=tuple(_value(flat, number) for number in flat.inputs),
        outputs=tuple(_output(flat, number) for number in flat.outputs),
        sites=tuple(_site(flat, step, box_layout) for step in sites),
        guards=tuple(_guards(flat, sites)),
        functions=tuple(f"{domain}::{name}" for domain, name in sorted(functions)),
        foreign=tuple(
            _cause(step)
            for step in flat.steps
            if step.node.domain not in _STANDARD
            and (step.node.domain, step.node.op_type) not in functions
        ),
    )


def _is(step: Step | None, *op_types: str) -> bool:
    return step is not None and step.node.domain in _STANDARD and step.node.op_type in op_types


def _attribute(step: Step, name: str, default: int) -> int:
    for attribute in step.node.attribute:
        if attribute.name == name:
            return int(helper.get_attribute_value(attribute))
    return default


def _cause(step: Step) -> Cause:
    return Cause(step.operator, step.name, step.scope)


def _value(flat: Flat, number: int) -> Value:
    kind = flat.types.get(number, 0)
    dtype = helper.tensor_dtype_to_np_dtype(kind).name if kind else "unknown"
    return Value(flat.names[number], dtype, flat.shapes.get(number))


# Suppressions.


def _site(flat: Flat, step: Step, declared: BoxLayout | None) -> NmsSite:
    boxes, scores, *limits = (*step.inputs, 0, 0, 0)[:5]
    images, classes, candidates = _sizes(flat.shapes.get(scores), 3)
    _, rows, _ = _sizes(flat.shapes.get(boxes), 3)
    most = flat.constants.get(limits[0]) if limits[0] else np.zeros(1, np.int64)
    return NmsSite(
        node=step.name,
        scope=step.scope,
        boxes_tensor=flat.names[boxes],
        scores_tensor=flat.names[scores],
        layout=_layout(flat, step, declared),
        max_output_boxes_per_class=None if most is None else int(most.reshape(-1)[0]),
        iou_threshold=_limit(flat, limits[1], 0.0),
        score_threshold=_limit(flat, limits[2], -math.inf),
        images=images,
        boxes=rows if rows is not None else candidates,
        classes=classes,
    )


def _sizes(shape: Shape | None, rank: int) -> tuple[int | None, ...]:
    if shape is None or len(shape) != rank:
        return (None,) * rank
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


def _limit(flat: Flat, value: int, absent: float) -> float | None:
    if not value:
        return absent
    known = flat.constants.get(value)
    return None if known is None or known.size != 1 else float(known.reshape(-1)[0])


def _layout(flat: Flat, step: Step, declared: BoxLayout | None) -> Layout:
    centred = _attribute(step, "center_point_box", 0) == 1
    if declared is not None:
        return Layout(declared, Provenance.DECLARED, "--box-layout")
    if centred:
        return Layout(BoxLayout.CXCYWH, Provenance.ATTRIBUTE, "center_point_box=1")
    pooled = _pooled(flat, step)
    if pooled is not None:
        why = f"RoiAlign {pooled.name} reads the same boxes, and its are x first"
        return Layout(BoxLayout.XYXY, Provenance.INFERRED, why)
    return Layout(None, Provenance.UNKNOWN, "center_point_box=0: corners, x or y first")


def _pooled(flat: Flat, step: Step) -> Step | None:
    """A RoiAlign whose regions are chosen from the boxes that the suppression reads."""
    if not step.inputs or not step.inputs[0]:
        return None
    boxes = set(moved_from(flat, step.inputs[0]))
    for other in flat.steps:
        if _is(other, "RoiAlign") and boxes & set(moved_from(flat, other.inputs[1])):
            return other
    return None


def moved_from(flat: Flat, value: int) -> Iterator[int]:
    """The value and what it was picked from: only its data inputs, only operators that move."""
    pending, seen = [value], {value}
    for current in pending:
        if current in flat.constants:
            continue
        yield current
        step = flat.origin.get(current)
        sources = list(flat.passed.get(current, ()))
        if _is(step, *_MOVES) and step is not None:
            sources += step.inputs if _is(step, "Concat", "Where") else step.inputs[:1]
        elif _is(step, "Add") and step is not None:
            # Boxes moved apart by class are the same boxes; their offset is no box.
            sources += step.inputs[:1]
        for source in sources:
            if source and source not in seen:
                seen.add(source)
                pending.append(source)


def _guards(flat: Flat, sites: list[Step]) -> Iterator[Guard]:
    around = {name for site in sites for name in site.scope}
    selected = {site.outputs[0] for site in sites}
    for step in flat.steps:
        if _is(step, "If") and (
            step.name in around or not selected.isdisjoint(flat.ancestors(step.inputs[0]))
        ):
            yield Guard(step.name, step.scope, _spell(flat, step.inputs[0], 5))


def _spell(flat: Flat, value: int, depth: int) -> str:
    """A value as an expression, `Equal(Size(boxes), 0)`, cut where it grows too deep."""
    known = flat.constants.get(value)
    if known is not None and known.size == 1:
        return str(known.reshape(-1)[0])
    step = flat.origin.get(value)
    if step is None or not depth or value in flat.passed:
        return flat.names[value] or "?"
    if _is(step, "Cast", "Identity"):
        return _spell(flat, step.inputs[0], depth)
    operands = ", ".join(_spell(flat, source, depth - 1) for source in step.inputs if source)
    return f"{step.operator}({operands})"


# Outputs.


def _output(flat: Flat, number: int) -> Value:
    value = _value(flat, number)
    causes: tuple[Cause, ...] = ()
    if value.shape is None or any(not isinstance(dim, int) for dim in value.shape):
        causes = tuple(_causes(flat, number))
    return Value(value.name, value.dtype, value.shape, _role(flat, number, value), causes)


def _causes(flat: Flat, number: int) -> Iterator[Cause]:
    """The nearest steps behind a value whose number of rows depends on data."""
    found = 0
    free = {n for n in flat.inputs if any(not isinstance(d, int) for d in flat.shapes.get(n) or ())}
    for value in flat.ancestors(number):
        step = flat.origin.get(value)
        if value in free:
            yield Cause("input", flat.names[value], ())
        elif step is not None and _depends_on_data(flat, step) and value == step.outputs[0]:
            yield _cause(step)
        else:
            continue
        found += 1
        if found == _MOST_CAUSES:
            return


def _depends_on_data(flat: Flat, step: Step) -> bool:
    if _is(step, *_DATA_DEPENDENT, "Loop", "Scan"):
        return True
    if not _is(step, "TopK"):
        return False
    return len(step.inputs) > 1 and step.inputs[1] not in flat.constants


def _role(flat: Flat, number: int, value: Value) -> Role | None:
    """Told by type and by what the output is picked from; None where no suppression is behind."""
    near = [flat.origin[n] for n in flat.ancestors(number) if n in flat.origin]
    sites = [step for step in near if _is(step, "NonMaxSuppression")]
    if not sites:
        return None
    kind = np.dtype(value.dtype).kind if value.dtype != "unknown" else ""
    rank = None if value.shape is None else len(value.shape)
    last = value.shape[-1] if value.shape else None
    if kind == "f" and isinstance(last, int) and rank in (2, 3) and last >= 4:
        return Role.BOXES if last == 4 else Role.DETECTIONS
    origins = [flat.origin.get(n) for n in moved_from(flat, number)]
    if kind in "iu" and any(_is(step, "Shape", "Size", "ReduceSum") for step in origins):
        return Role.COUNT
    if any(_is(step, "NonMaxSuppression") for step in origins):
        return Role.CLASSES if _column(flat, number) == 1 else Role.INDICES
    if kind == "f":
        return Role.SCORES if rank in (None, 1, 2) else None
    return Role.CLASSES if kind in "iu" else None


def _column(flat: Flat, number: int) -> int | None:
    """The column of the suppression's result that a value was picked from by one constant."""
    for value in moved_from(flat, number):
        step = flat.origin.get(value)
        if not _is(step, "Gather", "Slice") or step is None:
            continue
        if _is(flat.origin.get(step.inputs[0]), "NonMaxSuppression"):
            index = flat.constants.get(step.inputs[1])
            return None if index is None or index.size != 1 else int(index.reshape(-1)[0])
    return None
