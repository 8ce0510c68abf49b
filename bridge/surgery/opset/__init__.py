"""Every node as opset 17 spells it, in every graph of the model, meaning the same bit for bit.

An operator whose form did not change between the model's opset and 17 is left alone. One whose
form changed has a rule here; attributes that only exist in a newer form may go when they hold
their default. Whatever else there is has no exact spelling at 17 and is refused by name.

Operators newer than 17 that the standard itself defines by older ones (GroupNormalization, Mish,
...) are expanded by that definition first.

Source: the version histories of the operators in the ONNX standard; what onnxruntime computes where
those leave something open (Upsample, Resize-10, Gelu).
"""

from collections import ChainMap

import onnx
from onnx import AttributeProto, NodeProto, defs, helper, inliner

from bridge.errors import UnsupportedModelError
from bridge.model import graphs, inferred, subgraphs, with_weights
from bridge.static_model import Finding
from bridge.surgery.opset.rules import RULES
from bridge.surgery.opset.scope import OPSET, Names, Scope, refusal

OLDEST = 7


def convert(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Finding, ...]]:
    """The model at opset 17, and where it is equal but for rounding; it has no functions.

    The argument may be changed.

    Raises:
        UnsupportedModelError: a node has no exact spelling at opset 17.
    """
    (version,) = (entry.version for entry in model.opset_import if not entry.domain)
    if version == OPSET:
        return model, ()
    if not OLDEST <= version <= defs.onnx_opset_version():
        raise UnsupportedModelError(
            f"the model is at opset {version}; bridge reads {OLDEST} to "
            f"{defs.onnx_opset_version()}: export it at opset {OPSET}"
        )
    model = _expand_definitions(model, version)
    typed = inferred(model)
    names = Names(_all_names(model))
    outside = Scope(version, names, ChainMap(), ChainMap())
    _convert_graph(model.graph, typed.graph, outside)
    model.graph.initializer.extend(names.made.values())
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = OPSET
    return model, tuple(names.roundings)


def same_meaning(nodes: list[NodeProto], version: int, other: int) -> bool:
    """Whether the nodes of a function mean the same at two opsets of the default domain."""
    return all(
        _since(node.op_type, version) == _since(node.op_type, other)
        and all(same_meaning(list(body.node), version, other) for body in subgraphs(node))
        for node in nodes
        if not node.domain
    )


def _since(op_type: str, version: int) -> int | None:
    try:
        since: int = defs.get_schema(op_type, version, "").since_version
    except defs.SchemaError:
        return None
    return since


def _expand_definitions(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    newer = {
        node.op_type
        for graph in graphs(model)
        for node in graph.node
        if _since(node.op_type, OPSET) is None and node.op_type not in RULES
    }
    defined = [
        ("", op_type)
        for op_type in sorted(newer)
        if _is_defined(defs.get_schema(op_type, version, ""))
    ]
    if not defined:
        return model
    for graph in graphs(model):
        for node in graph.node:
            if ("", node.op_type) in defined:
                _write_defaults(node, version)
    typed = inferred(model)
    light = inliner.inline_selected_functions(typed, defined, inline_schema_functions=True)
    del light.graph.output[:]
    light.graph.output.extend(model.graph.output)
    return with_weights(light, model)


def _write_defaults(node: NodeProto, version: int) -> None:
    """Definitions refer to attributes; the inliner leaves out what the node leaves out."""
    present = {attribute.name for attribute in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, version, "").attributes.items():
        default = attribute.default_value
        if name not in present and isinstance(default, AttributeProto) and default.name:
            node.attribute.append(default)


def _is_defined(schema: defs.OpSchema) -> bool:
    """Whether the standard defines the operator by others."""
    # The stubs of onnx.defs lack both.
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _all_names(model: onnx.ModelProto) -> set[str]:
    names: set[str] = set()
    for graph in graphs(model):
        if isinstance(graph, onnx.GraphProto):
            names.update(value.name for value in graph.input)
            names.update(tensor.name for tensor in graph.initializer)
        for node in graph.node:
            names.update(node.output)
    return names


def _convert_graph(graph: onnx.GraphProto, typed: onnx.GraphProto, outside: Scope) -> None:
    scope = outside.inner(typed)
    nodes: list[NodeProto] = []
    for node, twin in zip(graph.node, typed.node, strict=True):
        for body, typed_body in zip(subgraphs(node), subgraphs(twin), strict=True):
            _convert_graph(body, typed_body, scope)
        nodes.extend(_convert_node(node, scope))
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _convert_node(node: NodeProto, scope: Scope) -> list[NodeProto]:
    since = _since(node.op_type, scope.version)
    if since is None:
        raise refusal(node, scope, "the standard does not know it")
    # A node that a rule adds is spelt at 17 already; only the node it keeps is held to the form.
    for oldest, newest, rule in RULES.get(node.op_type, ()):
        if oldest <= since <= newest:
            nodes = rule(node, scope)
            break
    else:
        nodes = [node]
    for each in nodes:
        _fit(each, scope)
    return nodes


def _fit(node: NodeProto, scope: Scope) -> None:
    """Hold a node to the operator's form at 17; attributes it lacks there go if they say nothing.

    Raises:
        UnsupportedModelError: it does not fit.
    """
    if _since(node.op_type, OPSET) is None:
        raise refusal(node, scope, f"opset {OPSET} does not have it")
    form = defs.get_schema(node.op_type, OPSET, "")
    if form.deprecated:
        raise refusal(node, scope, f"opset {OPSET} does not have it")
    for attribute in list(node.attribute):
        if attribute.name in form.attributes:
            continue
        native = defs.get_schema(node.op_type, scope.version, "").attributes.get(attribute.name)
        if native is None or not _is_default(attribute, native):
            raise refusal(node, scope, f"opset {OPSET} has no attribute {_spelt(attribute)} for it")
        node.attribute.remove(attribute)
    while node.input and not node.input[-1]:
        node.input.pop()
    if not form.min_input <= len(node.input) <= form.max_input:
        raise refusal(node, scope, f"it has {len(node.input)} inputs, too many at opset {OPSET}")
    while node.output and not node.output[-1]:
        node.output.pop()
    if not form.min_output <= len(node.output) <= form.max_output:
        raise refusal(node, scope, f"it has {len(node.output)} outputs, too many at opset {OPSET}")


def _is_default(attribute: AttributeProto, native: defs.OpSchema.Attribute) -> bool:
    default = native.default_value
    if not isinstance(default, AttributeProto) or not default.name:
        return False
    return bool(helper.get_attribute_value(attribute) == helper.get_attribute_value(default))


def _spelt(attribute: AttributeProto) -> str:
    return f"{attribute.name}={helper.get_attribute_value(attribute)!r}"
