"""Every graph of a model, and how messages name what stands in them."""

import math
from collections.abc import Iterator

import onnx
from onnx import helper

_LARGE = 1024
"""Elements; what shapes, axes and limits need is smaller by far."""


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The main graph, every function, and every graph in an attribute of their nodes."""
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            pending.extend(subgraphs(node))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies a node owns: branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def operator(node: onnx.NodeProto) -> str:
    """The operator as messages spell it: `TopK`, `TRT::EfficientNMS_TRT`."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def place(node: onnx.NodeProto) -> str:
    """Where a node is, for messages; unnamed nodes go by what they write."""
    return node.name or f"that writes {next(filter(None, node.output), '(nothing)')}"


def _is_large(tensor: onnx.TensorProto) -> bool:
    """By its shape: to tell its size in bytes, a message serialises itself."""
    size: int = math.prod(tensor.dims)
    return size > _LARGE


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose large initializers of the main graph are inputs of their type instead.

    For whoever looks at structure only (checks, inference, inlining): onnx serialises a model for
    each of these, weights and all.
    """
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = model.graph
    light.graph.name = graph.name
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, part).extend(getattr(graph, part))
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if not _is_large(tensor):
            light.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.graph.input.append(value)
    return light


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The skeleton with types as inference finds them, on stored ones nobody relies.

    Stored shapes may be stale or wrong; they are forgotten first, but for those of the inputs. A
    model that inference cannot take has no types.
    """
    light = skeleton(model)
    for graph in graphs(light):
        if isinstance(graph, onnx.GraphProto):
            del graph.value_info[:]
            for value in graph.output:
                value.type.tensor_type.ClearField("shape")
    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return light


def with_weights(light: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """A full model of the graph of an edited skeleton, and all else from the original."""
    full = onnx.ModelProto()
    full.CopyFrom(light)
    inputs = {value.name for value in model.graph.input}
    added = [value for value in full.graph.input if value.name not in inputs]
    for value in added:
        full.graph.input.remove(value)
    large = [tensor for tensor in model.graph.initializer if _is_large(tensor)]
    full.graph.initializer.extend(large)
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if model.HasField(field):
            setattr(full, field, getattr(model, field))
    full.metadata_props.extend(model.metadata_props)
    if model.graph.HasField("doc_string"):
        full.graph.doc_string = model.graph.doc_string
    full.graph.metadata_props.extend(model.graph.metadata_props)
    full.graph.quantization_annotation.extend(model.graph.quantization_annotation)
    return full
