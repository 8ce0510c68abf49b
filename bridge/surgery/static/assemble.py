"""The static graph as an ONNX model: dead nodes dropped, names given, types written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from bridge import static_nms
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import Tensor
from bridge.surgery.static.walk import Walk


def assemble(
    source: ModelProto, w: Walk, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> ModelProto:
    """The model that computes `outputs`, with the source's inputs and metadata.

    Tensors and nodes keep their source's name where they have one and it is not taken; the others
    are named after the source node they were emitted for.

    Args:
        source: the model the walk began with; left alone.
        w: the finished walk.
        inputs: graph input name to tensor.
        outputs: output name to tensor, in order.
    """
    g = w.graph
    results = _apart(g, inputs, outputs)
    nodes = _alive(g.nodes, {x.id for x in results.values()})
    names = _tensor_names(w, nodes, inputs, results)
    model = _described(source, {node.domain for node in nodes})
    graph = model.graph
    _add_nodes(graph, w, nodes, names)
    _add_initializers(graph, g, nodes, names)
    graph.value_info.extend(
        _value_info(names[id_], g.tensor(id_))
        for node in nodes
        for id_ in node.output
        if names[id_] not in results
    )
    graph.output.extend(_outputs(source, results))
    if any(map(static_nms.is_call, graph.node)):
        static_nms.attach(model)
    return model


def _apart(
    g: Graph, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Each output as a tensor of its own that a node makes, through an Identity where need be.

    An input may be returned under its own name.
    """
    used = {x.id for x in inputs.values()}
    results = {}
    for name, x in outputs.items():
        if name in inputs and x.id == inputs[name].id:
            results[name] = x
            continue
        result = g.emit("Identity", [x]) if g.is_constant(x) else x
        while result.id in used:
            result = g.emit("Identity", [result])
        used.add(result.id)
        results[name] = result
    return results


def _alive(nodes: list[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """The nodes that something wanted is computed from."""
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]


@dataclass(slots=True)
class _Names:
    """Gives every name once."""

    given: set[str] = field(default_factory=set)
    _next: dict[str, int] = field(default_factory=dict)

    def take(self, wanted: str) -> str:
        """The name, with a number behind it where it is taken."""
        name = wanted
        while name in self.given:
            self._next[wanted] = self._next.get(wanted, 1) + 1
            name = f"{wanted}_{self._next[wanted]}"
        self.given.add(name)
        return name


def _tensor_names(
    w: Walk, nodes: list[NodeProto], inputs: Mapping[str, Tensor], results: Mapping[str, Tensor]
) -> dict[str, str]:
    """Id to name, for everything the nodes read or make."""
    named = {x.id: name for name, x in (*inputs.items(), *results.items())}
    free = _Names({"", *named.values()})
    named[""] = ""
    for node in nodes:
        for id_ in (*node.input, *node.output):
            if id_ not in named:
                made_for = f"{w.made_for.get(id_, 'constant')}/{node.op_type}"
                constant = "constant" if w.graph.proto(id_) is not None else made_for
                named[id_] = free.take(w.name_of(id_) or constant)
    return named


def _add_nodes(
    graph: GraphProto, w: Walk, nodes: list[NodeProto], names: Mapping[str, str]
) -> None:
    free = _Names({""})
    for node in nodes:
        origin = w.origin_of(node)
        made = graph.node.add(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        made.input.extend(names[id_] for id_ in node.input)
        made.output.extend(names[id_] for id_ in node.output)
        made.name = free.take(origin.name if origin and origin.name else made.output[0])
        if origin:
            made.doc_string = origin.doc_string
            made.metadata_props.extend(origin.metadata_props)


def _add_initializers(
    graph: GraphProto, g: Graph, nodes: list[NodeProto], names: Mapping[str, str]
) -> None:
    """The constants that are read, each copied once: they are most of a model's bytes."""
    for id_ in dict.fromkeys(id_ for node in nodes for id_ in node.input):
        held = g.proto(id_)
        if isinstance(held, TensorProto):
            graph.initializer.add().CopyFrom(held)
            graph.initializer[-1].name = names[id_]
        elif held is not None:
            graph.initializer.append(numpy_helper.from_array(held, names[id_]))


def _value_info(name: str, x: Tensor) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)


def _outputs(source: ModelProto, results: Mapping[str, Tensor]) -> list[ValueInfoProto]:
    values = []
    documented = {value.name: value for value in source.graph.output}
    for name, x in results.items():
        value = _value_info(name, x)
        if name in documented:
            value.doc_string = documented[name].doc_string
            value.metadata_props.extend(documented[name].metadata_props)
        values.append(value)
    return values


def _described(source: ModelProto, domains: set[str]) -> ModelProto:
    """A model without nodes that says of itself what the source says."""
    model = ModelProto(
        ir_version=max(static_nms.IR_VERSION, source.ir_version),
        producer_name=source.producer_name,
        producer_version=source.producer_version,
        domain=source.domain,
        model_version=source.model_version,
        doc_string=source.doc_string,
        metadata_props=source.metadata_props,
        opset_import=[o for o in source.opset_import if o.domain in domains | {""}],
    )
    model.graph.name = source.graph.name
    model.graph.doc_string = source.graph.doc_string
    model.graph.metadata_props.extend(source.graph.metadata_props)
    model.graph.input.extend(source.graph.input)
    return model
