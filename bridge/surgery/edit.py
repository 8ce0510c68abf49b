"""The few edits of a graphsurgeon graph that passes share.

graphsurgeon compares nodes deeply and tensors by name, so nothing here, nor in a pass, may use
`in`, `index` or `remove` on its lists; identity is asked with `is` and `id`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike, NDArray

from bridge import static_nms
from bridge.static_nms import StaticNms

Array = NDArray[np.generic]

type Tensor = gs.Variable | gs.Constant
"""What graphsurgeon's nodes read and write."""


@dataclass(slots=True)
class Builder:
    """Adds typed nodes to a graph, under names nothing has.

    Attributes:
        used: every name of a tensor or node in the graph.
        added: what was made so far; `done` hands it to the graph.
    """

    graph: gs.Graph
    used: set[str]
    added: list[gs.Node] = field(default_factory=list)

    @classmethod
    def of(cls, graph: gs.Graph) -> "Builder":
        """A builder for the graph as it is now."""
        names = {node.name for node in graph.nodes} | graph.tensors().keys()
        return cls(graph, names)

    def name(self, wish: str) -> str:
        """The wish, or the wish and a number."""
        name, number = wish, 0
        while name in self.used:
            number += 1
            name = f"{wish}_{number}"
        self.used.add(name)
        return name

    def constant(self, wish: str, array: Array) -> gs.Constant:
        """A constant of these values."""
        return gs.Constant(self.name(wish), np.array(array, order="C"))

    def ints(self, wish: str, values: Sequence[int]) -> gs.Constant:
        """A constant int64[len(values)]."""
        return self.constant(wish, np.array(values, np.int64))

    def node(
        self,
        op_type: str,
        wish: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        dtype: DTypeLike | None = None,
        **attributes: object,
    ) -> gs.Variable:
        """The output of a new node; its type is that of the first input unless given."""
        output = gs.Variable(
            self.name(wish), np.dtype(dtype or inputs[0].dtype), [int(size) for size in shape]
        )
        self.add(op_type, wish, inputs, [output], attributes)
        return output

    def add(
        self,
        op_type: str,
        wish: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        attributes: Mapping[str, object],
        *,
        domain: str = "",
    ) -> gs.Node:
        """A new node with outputs of its own making."""
        node = gs.Node(
            op=op_type,
            name=self.name(f"{wish}/{op_type}"),
            attrs=dict(attributes),
            inputs=list(inputs),
            outputs=list(outputs),
            domain=domain,
        )
        self.added.append(node)
        return node

    def done(self) -> None:
        """Put the new nodes into the graph; the runner sorts them into place."""
        self.graph.nodes.extend(self.added)
        self.added = []


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The static shape of a tensor of a static model."""
    return tuple(int(size) for size in tensor.shape)


def value_of(tensor: Tensor) -> Array | None:
    """The values of a constant, whichever way it is written; None for any other tensor."""
    if isinstance(tensor, gs.Constant):
        return np.asarray(tensor.values)
    if tensor.inputs and tensor.inputs[0].op == "Constant":
        value = tensor.inputs[0].attrs.get("value")
        return None if value is None else np.asarray(value.values)
    return None


def input_of(node: gs.Node, index: int) -> Tensor | None:
    """An input, or None where it is absent."""
    if index >= len(node.inputs) or node.inputs[index].is_empty():
        return None
    tensor: Tensor = node.inputs[index]
    return tensor


def producer_of(tensor: Tensor) -> gs.Node | None:
    """The node that writes a tensor; None for constants and graph inputs."""
    return tensor.inputs[0] if tensor.inputs else None


def rewire(node: gs.Node, inputs: Sequence[Tensor]) -> None:
    """Let a node read other tensors; unlike assigning `inputs`, without comparing any node."""
    for tensor in node.inputs:
        position = next(i for i, reader in enumerate(tensor.outputs) if reader is node)
        list.__delitem__(tensor.outputs, position)
    list.clear(node.inputs)
    node.inputs.extend(inputs)


def rewrite(node: gs.Node, outputs: Sequence[Tensor]) -> None:
    """Let a node write other tensors."""
    node.outputs.clear()
    node.outputs.extend(outputs)


def replace_uses(old: Tensor, new: Tensor) -> None:
    """Let every reader of one tensor read another; a graph output keeps its name and maker."""
    for reader in list(old.outputs):
        rewire(reader, [new if tensor is old else tensor for tensor in reader.inputs])


def is_output(graph: gs.Graph, tensor: Tensor) -> bool:
    """Whether a tensor is an output of the graph."""
    return any(output is tensor for output in graph.outputs)


def nms_calls(graph: gs.Graph) -> Iterator[tuple[gs.Node, StaticNms]]:
    """Every StaticNMS node and the call it stands for."""
    for node in graph.nodes:
        if node.op == static_nms.OP_TYPE and node.domain == static_nms.DOMAIN:
            attributes = {**node.attrs, "center_point_box": bool(node.attrs["center_point_box"])}
            yield (
                node,
                StaticNms(
                    name=node.name,
                    boxes=node.inputs[0].name,
                    scores=node.inputs[1].name,
                    selected=node.outputs[0].name,
                    count=node.outputs[1].name,
                    **attributes,
                ),
            )


def drop_dead(graph: gs.Graph) -> None:
    """Forget nodes that no output needs, in time linear in the graph."""
    live: set[int] = set()
    pending = [tensor.inputs[0] for tensor in graph.outputs if tensor.inputs]
    while pending:
        node = pending.pop()
        if id(node) not in live:
            live.add(id(node))
            pending.extend(_producers(node))
    for tensor in {id(t): t for node in graph.nodes for t in node.inputs}.values():
        readers = [reader for reader in tensor.outputs if id(reader) in live]
        # Past the list's own bookkeeping, which would look every reader up by deep comparison.
        list.__setitem__(tensor.outputs, slice(None), readers)
    graph.nodes = [node for node in graph.nodes if id(node) in live]


def sort(graph: gs.Graph) -> None:
    """Producers before readers, otherwise in the order they are in.

    graphsurgeon's own sort recurs as deep as the graph is, and parts what stood together.
    """
    placed: set[int] = set()
    ordered: list[gs.Node] = []
    for root in graph.nodes:
        pending = [(root, iter(_producers(root)))]
        while pending:
            node, producers = pending[-1]
            waiting = next((p for p in producers if id(p) not in placed), None)
            if waiting is not None:
                pending.append((waiting, iter(_producers(waiting))))
                continue
            pending.pop()
            if id(node) not in placed:
                placed.add(id(node))
                ordered.append(node)
    graph.nodes = ordered


def _producers(node: gs.Node) -> Iterable[gs.Node]:
    return (tensor.inputs[0] for tensor in node.inputs if tensor.inputs)
