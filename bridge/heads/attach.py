"""A network that ends in raw outputs becomes a detector: decode and suppression are attached.

Given:  a model whose outputs are raw head maps
Result: the same network at opset 17, and outputs `boxes` float32[n, 4] (x1, y1, x2, y2 in pixels of
        the network input), `scores` float32[n], `classes` int64[n] from 0, `extras` float32[n, E]
        where the head has more columns, and `num_detections` int64[1]. n depends on the image.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper, shape_inference

from bridge.errors import PassError, UsageError
from bridge.heads import build, read, suppress
from bridge.heads.bind import Binding, bind
from bridge.heads.describe import Head, Suppression
from bridge.model import graphs, place, subgraphs
from bridge.model.nodes import Nodes
from bridge.surgery.normalise import normalise


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """What a user may change about a head; None keeps what the head file says.

    Attributes:
        pre_nms_top_k: candidates that meet the suppression; 0 is all.
        extras: whether further columns of the head become an output.
        overrides: `KEY=VALUE` each, a key of the head file and its new value.
        input_shapes: input name to full shape, fixing symbolic dimensions.
    """

    score_threshold: float | None = None
    iou_threshold: float | None = None
    max_detections: int | None = None
    class_agnostic: bool | None = None
    pre_nms_top_k: int | None = None
    extras: bool = True
    overrides: tuple[str, ...] = ()
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def complete(
    model: onnx.ModelProto, head: str | Path, options: HeadOptions | None = None
) -> onnx.ModelProto:
    """Attach a head, by name or by the path of its file; the argument is left alone.

    Raises:
        UsageError: no such head, it does not fit the outputs, or an option is out of range.
        UnsupportedModelError: the model cannot be brought to opset 17.
    """
    options = options or HeadOptions()
    described = read.load(head, options.overrides)
    if not options.extras:
        described = replace(described, extras=None)
    return attach(model, described, options)


def attach(model: onnx.ModelProto, head: Head, options: HeadOptions) -> onnx.ModelProto:
    """Attach a head that is already read; otherwise like `complete`."""
    refuse_suppression(model)
    rule = _rule(head.suppression, options)
    result, _ = normalise(model, input_shapes=options.input_shapes, freeze={})
    result = shape_inference.infer_shapes(result, data_prop=True)
    nodes = Nodes(_free_prefix(result))
    binding = _plain(bind(head, result), result, nodes)
    decoded = build.decode(head, binding, nodes)
    outputs = suppress.suppress(decoded, rule, nodes)
    _finish(result, nodes, decoded, outputs)
    return result


def refuse_suppression(model: onnx.ModelProto) -> None:
    """A model that suppresses already needs no head.

    Raises:
        UsageError: it holds a NonMaxSuppression, in a branch or a function perhaps.
    """
    for graph in graphs(model):
        for node in graph.node:
            if node.op_type == "NonMaxSuppression":
                where = (
                    f" of function {graph.name}" if isinstance(graph, onnx.FunctionProto) else ""
                )
                raise UsageError(
                    f"the model has a suppression of its own (NonMaxSuppression, node "
                    f"{place(node)}{where}), so it needs no head: convert it without one"
                )


def _rule(default: Suppression, options: HeadOptions) -> Suppression:
    given = {
        name: getattr(options, name)
        for name in Suppression.__dataclass_fields__
        if getattr(options, name) is not None
    }
    rule = replace(default, **given)
    if not math.isfinite(rule.score_threshold):
        raise UsageError(f"--score-threshold {rule.score_threshold}: give a number")
    if not 0 <= rule.iou_threshold <= 1:
        raise UsageError(f"--iou-threshold {rule.iou_threshold}: give a number from 0 to 1")
    if rule.max_detections < 1:
        raise UsageError(f"--max-detections {rule.max_detections}: give at least 1")
    if rule.pre_nms_top_k < 0:
        raise UsageError(f"--pre-nms-top-k {rule.pre_nms_top_k}: give a number, or 0 for all")
    return rule


def _plain(binding: Binding, model: onnx.ModelProto, nodes: Nodes) -> Binding:
    """The same binding after its tensors are float32 and the names of our outputs are free."""
    halves = {
        value.name
        for value in model.graph.output
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16
    }
    names = _free_output_names(model, nodes.prefix)
    for bound in binding.outputs:
        for tensor in bound.tensors:
            if tensor.name in halves:
                source = names.get(tensor.name, tensor.name)
                names[tensor.name] = nodes.add("Cast", [source], to=TensorProto.FLOAT)
    outputs = tuple(
        replace(
            bound, tensors=tuple(replace(t, name=names.get(t.name, t.name)) for t in bound.tensors)
        )
        for bound in binding.outputs
    )
    return replace(binding, outputs=outputs)


def _free_output_names(model: onnx.ModelProto, prefix: str) -> dict[str, str]:
    """Rename values of the network that bear the name of one of our outputs."""
    for value in model.graph.input:
        if value.name in suppress.OUTPUTS:
            raise UsageError(
                f"the model's input {value.name!r} has the name of a detector's output; rename it"
            )
    names = {name: f"{prefix}/raw_{name}" for name in suppress.OUTPUTS}
    renamed: dict[str, str] = {}
    for graph in graphs(model):
        for node in graph.node:
            for values in (node.input, node.output):
                for place_, name in enumerate(values):
                    if name in names:
                        values[place_] = renamed[name] = names[name]
        if isinstance(graph, onnx.GraphProto):
            for value in (*graph.initializer, *graph.value_info, *graph.output):
                if value.name in names:
                    value.name = renamed[value.name] = names[value.name]
    return renamed


def _free_prefix(model: onnx.ModelProto) -> str:
    """A prefix that no value or node of the model starts with."""
    taken = {
        name
        for graph in graphs(model)
        for node in graph.node
        for name in (node.name, *node.input, *node.output)
    }
    prefix = "head"
    while any(name.startswith(f"{prefix}/") for name in taken):
        prefix += "_"
    return prefix


def _finish(
    model: onnx.ModelProto, nodes: Nodes, decoded: build.Decoded, outputs: Sequence[str]
) -> None:
    """Write the new nodes and outputs, and drop what no output reads any more."""
    graph = model.graph
    graph.node.extend(nodes.nodes)
    graph.initializer.extend(nodes.constants)
    del graph.output[:]
    rows = "detections"
    types: dict[str, tuple[int, list[str | int]]] = {
        suppress.BOXES: (TensorProto.FLOAT, [rows, 4]),
        suppress.SCORES: (TensorProto.FLOAT, [rows]),
        suppress.CLASSES: (TensorProto.INT64, [rows]),
        suppress.EXTRAS: (TensorProto.FLOAT, [rows, decoded.extra_columns]),
        suppress.NUM_DETECTIONS: (TensorProto.INT64, [1]),
    }
    for name in outputs:
        graph.output.append(helper.make_tensor_value_info(name, *types[name]))
    _prune(graph)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        raise PassError(f"attaching the head made an invalid model: {error}") from error


def _prune(graph: onnx.GraphProto) -> None:
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            needed.update(_captured(node))
    kept.reverse()
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    for values in (graph.initializer, graph.value_info):
        for value in [v for v in values if v.name not in needed]:
            values.remove(value)


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    """What the bodies of a node read, perhaps from outside."""
    for body in subgraphs(node):
        for inner in body.node:
            yield from inner.input
            yield from _captured(inner)
        yield from (value.name for value in body.output)
