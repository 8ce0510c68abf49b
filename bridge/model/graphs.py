"""Every graph of a model, and how messages name what stands in them."""

from collections.abc import Iterator

import onnx


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
