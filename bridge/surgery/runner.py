"""What a pass is, and all that every pass is held to.

The runner, not the author of a pass, checks that models stay valid and static, that inputs and
outputs keep their names, and whether anything changed; and it names the pass that broke something.

Passes over the static model are surgery on one graphsurgeon graph: imported once, exported once.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from bridge import static_nms
from bridge.errors import BridgeError, PassError, UnsupportedModelError
from bridge.model import declared_shape, skeleton, spelt
from bridge.options import Options
from bridge.static_model import Finding, StaticModel, tensor_types
from bridge.surgery import static
from bridge.surgery.edit import drop_dead, sort
from bridge.surgery.normalise import normalise

_LARGE = 1024
"""Bytes from which a constant is worth not copying."""

_OUR_FAULT = "this is a fault of bridge, please report the model"
_LOG = logging.getLogger(__name__)

type Dump = Callable[[str, onnx.ModelProto], None]
"""Takes the model as it is after the pass of that name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass did to the graph it was given.

    Attributes:
        assumptions: sentences for the manifest: under which condition the result is still equal.
    """

    findings: tuple[Finding, ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """A step of the surgery on a static model.

    Attributes:
        apply: edits the graph in place. New nodes need names, new tensors type and static shape;
            the order of nodes does not matter. Values of constants are never changed in place.
    """

    name: str
    apply: Callable[[gs.Graph, Options], Outcome]


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did, as the manifest prints it; `changed` is measured, not claimed."""

    name: str
    changed: bool
    findings: tuple[Finding, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SurgeryResult:
    """The static model and how it came about."""

    static: StaticModel
    reports: tuple[PassReport, ...]


def run(
    source: onnx.ModelProto, options: Options, passes: Sequence[Pass], *, dump: Dump | None = None
) -> SurgeryResult:
    """Normalise, make static, then run the passes in order; `source` is left alone.

    Raises:
        UsageError, UnsupportedModelError: as the steps say.
        PassError: a pass could not run, or broke its promise; it is named.
    """
    start = time.perf_counter()
    normal, findings = _normal(source, options)
    reports = [PassReport("normalise", bool(findings), findings, _since(start))]
    if dump:
        dump("normalise", normal)

    start = time.perf_counter()
    made = _static(normal, options)
    # A model less in memory, and the walk's graph, which refers to itself.
    del normal
    gc.collect()
    reports.extend(_static_reports(made, _since(start)))
    if dump:
        dump("static-max-output", made.model)

    model, edits, assumptions = edit(made.model, options, passes, dump=dump)
    final = replace(made, model=model, assumptions=(*made.assumptions, *assumptions))
    del made
    complaint = _complaint(final, source, options)
    if complaint is not None:
        raise _broken(source, options, passes, complaint)
    return SurgeryResult(final, (*reports, *edits))


def _normal(
    source: onnx.ModelProto, options: Options
) -> tuple[onnx.ModelProto, tuple[Finding, ...]]:
    with _blame("normalise"):
        normal, findings = normalise(
            source, input_shapes=options.input_shapes, freeze=options.freeze
        )
        onnx.checker.check_model(skeleton(normal))
    return normal, findings


def _static(normal: onnx.ModelProto, options: Options) -> StaticModel:
    with _blame("static-max-output", normal):
        made = static.make_static(normal, max_detections=options.max_detections)
    _check_suppressions(made)
    return made


def _check_suppressions(made: StaticModel) -> None:
    """Hold suppressions to the shapes of their operator; neither ONNX's checker nor inference does.

    Raises:
        UnsupportedModelError: onnxruntime would refuse the model at its first run.
    """
    types = tensor_types(made.model)
    for call in static_nms.calls(made.model):
        boxes, scores = types[call.boxes], types[call.scores]
        fits = (
            len(boxes.shape) == len(scores.shape) == 3
            and boxes.shape == (scores.shape[0], scores.shape[2], 4)
            and boxes.dtype == scores.dtype == "float32"
        )
        if not fits:
            spelt_boxes, spelt_scores = (f"{t.dtype}{spelt(t.shape)}" for t in (boxes, scores))
            raise UnsupportedModelError(_misfit(call.name, spelt_boxes, spelt_scores))


def _misfit(node: str, boxes: str, scores: str) -> str:
    return (
        f"NonMaxSuppression {node!r} reads boxes {boxes} and scores {scores}, where it takes boxes "
        "float32[images, N, 4] and scores float32[images, classes, N]: are they swapped, or of "
        "different lengths?"
    )


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 4)


@contextmanager
def _blame(name: str, given: onnx.ModelProto | None = None) -> Iterator[None]:
    """Name the pass in whose course something unforeseen was raised, or the fault in its input."""
    try:
        yield
    except BridgeError:
        raise
    except Exception as error:
        invalid = None if given is None else _contradiction(given)
        if invalid is not None:
            raise UnsupportedModelError(f"the model is not valid ONNX: {invalid}") from error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise PassError(f"pass {name} could not run: {reason}; {_OUR_FAULT}") from error


def _contradiction(model: onnx.ModelProto) -> str | None:
    """What inference finds wrong with a model, which no checker of forms can see."""
    try:
        typed = onnx.shape_inference.infer_shapes(
            skeleton(model), check_type=True, strict_mode=True, data_prop=True
        )
    except onnx.shape_inference.InferenceError as error:
        return " ".join(str(error).split())
    values = (*typed.graph.input, *typed.graph.value_info)
    shapes = {value.name: declared_shape(value) for value in values}
    for node in typed.graph.node:
        if node.op_type == "NonMaxSuppression":
            boxes, scores = (shapes.get(name) for name in node.input[:2])
            if any(shape is not None and len(shape) != 3 for shape in (boxes, scores)):
                return _misfit(node.name, spelt(boxes), spelt(scores))
    return None


def _static_reports(result: StaticModel, seconds: float) -> Iterator[PassReport]:
    """One walk does what users know as two passes; a finding begins with the name of its pass."""
    prefix = "remove-empty-if: "
    guards = tuple(
        replace(finding, what=finding.what.removeprefix(prefix))
        for finding in result.findings
        if finding.what.startswith(prefix)
    )
    others = tuple(
        replace(finding, what=finding.what.removeprefix("static-max-output: "))
        for finding in result.findings
        if not finding.what.startswith(prefix)
    )
    yield PassReport("remove-empty-if", any(f.changed for f in guards), guards, 0.0)
    yield PassReport("static-max-output", any(f.changed for f in others), others, seconds)


def edit(
    model: onnx.ModelProto, options: Options, passes: Sequence[Pass], *, dump: Dump | None = None
) -> tuple[onnx.ModelProto, tuple[PassReport, ...], tuple[str, ...]]:
    """Run passes over one graph; gives the model, what each pass did, and their assumptions.

    The very same model comes back where no pass changed anything.
    """
    if not passes:
        return model, (), ()
    graph = _import(model)
    # What the model came with, dead or unsorted, is no pass's doing.
    drop_dead(graph)
    sort(graph)
    before = _fingerprint(graph)
    reports: list[PassReport] = []
    assumptions: list[str] = []
    for step in passes:
        start = time.perf_counter()
        with _blame(step.name):
            outcome = step.apply(graph, options)
            drop_dead(graph)
            sort(graph)
        after = _fingerprint(graph)
        changed = after != before
        if changed != any(finding.changed for finding in outcome.findings):
            raise PassError(
                f"pass {step.name} says it changed {'nothing' if changed else 'something'}, "
                f"and it is not so; {_OUR_FAULT}"
            )
        before = after
        reports.append(PassReport(step.name, changed, outcome.findings, _since(start)))
        assumptions.extend(outcome.assumptions)
        if dump and changed:
            dump(step.name, _export(graph, model))
        _LOG.debug("%s: %d findings", step.name, len(outcome.findings))
    changed = any(report.changed for report in reports)
    return _export(graph, model) if changed else model, tuple(reports), tuple(assumptions)


def _import(model: onnx.ModelProto) -> gs.Graph:
    """The graph without function definitions, which graphsurgeon need not know."""
    graph = gs.import_onnx(model)
    graph.functions = []
    return graph


def _export(graph: gs.Graph, original: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with everything of the original that graphsurgeon does not keep."""
    with _weights_aside(graph) as weights:
        model = gs.export_onnx(graph, do_type_check=False)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(weights[tensor.name])
    for lost in ("doc_string", "domain", "model_version"):
        if original.HasField(lost):
            setattr(model, lost, getattr(original, lost))
    model.metadata_props.extend(original.metadata_props)
    model.graph.metadata_props.extend(original.graph.metadata_props)
    model.graph.quantization_annotation.extend(original.graph.quantization_annotation)
    for kept in ("input", "output"):
        model.graph.ClearField(kept)
        getattr(model.graph, kept).extend(getattr(original.graph, kept))
    known = {node.name: node for node in original.graph.node}
    for node in model.graph.node:
        if node.name in known:
            node.doc_string = known[node.name].doc_string
            node.metadata_props.extend(known[node.name].metadata_props)
    if any(static_nms.is_call(node) for node in model.graph.node):
        static_nms.attach(model)
    return model


@contextmanager
def _weights_aside(graph: gs.Graph) -> Iterator[dict[str, onnx.TensorProto]]:
    """Large constants that no pass looked at, by name; inside, the graph holds them without data.

    graphsurgeon copies whatever it exports twice, and both copies are there at one time.
    """
    aside: dict[str, tuple[Any, LazyValues]] = {}
    tensors: Iterable[Any] = graph.tensors().values()
    for tensor in tensors:
        held = getattr(tensor, "_values", None)
        if isinstance(held, LazyValues) and held.nbytes > _LARGE:
            aside[tensor.name] = tensor, held
            bare = onnx.TensorProto(data_type=held.tensor.data_type, dims=held.tensor.dims)
            tensor._values = LazyValues(bare)
    for name, (_, held) in aside.items():
        held.tensor.name = name
    try:
        yield {name: held.tensor for name, (_, held) in aside.items()}
    finally:
        for tensor, held in aside.values():
            tensor._values = held


def _fingerprint(graph: gs.Graph) -> tuple[object, ...]:
    """Equal for two states of one graph exactly if nothing was edited in between."""
    nodes = tuple(
        (
            node.op,
            node.domain,
            node.name,
            tuple(tensor.name for tensor in node.inputs),
            tuple(tensor.name for tensor in node.outputs),
            tuple((name, _stamp(value)) for name, value in node.attrs.items()),
        )
        for node in graph.nodes
    )
    return (nodes, *((tensor.name, tensor.shape) for tensor in (*graph.inputs, *graph.outputs)))


def _stamp(value: object) -> object:
    """Attributes that are plain values, or for arrays their identity: a pass never edits those."""
    if isinstance(value, list):
        return tuple(_stamp(item) for item in value)
    return id(value) if isinstance(value, gs.Tensor | gs.Graph | np.ndarray) else value


def _broken(
    source: onnx.ModelProto, options: Options, passes: Sequence[Pass], complaint: str
) -> PassError:
    """The error that names who broke the model, found by doing all of it again step by step."""
    made = _static(_normal(source, options)[0], options)
    culprit, found = "static-max-output", _complaint(made, source, options)
    for number, step in enumerate(passes):
        if found is not None:
            break
        culprit = step.name
        model, _, _ = edit(made.model, options, passes[: number + 1])
        found = _complaint(replace(made, model=model), source, options)
    return PassError(f"pass {culprit} broke the model: {found or complaint}; {_OUR_FAULT}")


def _complaint(static: StaticModel, source: onnx.ModelProto, options: Options) -> str | None:
    """What is wrong with a static model, if anything is."""
    model = static.model
    try:
        onnx.checker.check_model(skeleton(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())
    initializers = {tensor.name for tensor in source.graph.initializer}
    inputs = [
        value.name
        for value in source.graph.input
        if value.name not in initializers and value.name not in options.freeze
    ]
    if [value.name for value in model.graph.input] != inputs:
        return f"its inputs are {[value.name for value in model.graph.input]}, not {inputs}"
    outputs = [*(value.name for value in source.graph.output), *static.counts]
    if [value.name for value in model.graph.output] != outputs:
        return f"its outputs are {[value.name for value in model.graph.output]}, not {outputs}"
    return next(_not_static(model), None)


def _not_static(model: onnx.ModelProto) -> Iterator[str]:
    graph = model.graph
    values = {
        value.name: value.type.tensor_type
        for values in (graph.input, graph.value_info, graph.output)
        for value in values
    }
    for name, kind in values.items():
        fixed = all(dim.HasField("dim_value") for dim in kind.shape.dim)
        if not kind.elem_type or not kind.HasField("shape") or not fixed:
            yield f"tensor {name} has no static shape"
    known = values.keys() | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if any(True for attribute in node.attribute if attribute.HasField("g")):
            yield f"node {node.name} ({node.op_type}) is control flow"
        for name in node.output:
            if name and name not in known:
                yield f"tensor {name} has no static shape"
