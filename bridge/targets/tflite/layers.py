"""Which nodes of the model each operator of a converted network stands for.

onnx2tf names what it makes after the copy that it is given (`network._Copy`): `t12` is the copy's
tensor, in whatever layout, `n7_input_nhwc` is what node n7 reads, `n7_output_nhwc` what it makes,
`n7_conv_filter` its weights.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from bridge.targets.tflite import schema

INPUT: Final = -1
CHANNEL_AXIS: Final[Mapping[str, int]] = {
    "CONV_2D": 0,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 0,
    "TRANSPOSE_CONV": 0,
}
"""The operators that have weights, and the axis of these that counts output channels."""

_WEIGHTS_AT: Final = 1
_BIAS_AT: Final = {"TRANSPOSE_CONV": 3}
"""Where it is not the third input."""

_TENSOR: Final = re.compile(r"(t\d+|input_\d+)(_nhwc|_onnx_ncx_internal)?")
_END_OF_NODE: Final = re.compile(r"n(\d+)_(input|output)_nhwc(_padded)?")
_OF_NODE: Final = re.compile(r"n(\d+)_(input)?")
_OF_TENSOR: Final = re.compile(r"t\d+|network(_part_\d+)?")


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator of a network.

    Attributes:
        kind: `CONV_2D`, ...
        nodes: names of the nodes it computes, in order; an operator that prepares (PAD before
            CONV_2D) has those of the operator that reads it.
        inputs: what the flatbuffer calls what it reads, constants left out.
        outputs: what the flatbuffer calls what it makes.
        sources: the places of the operators it reads from; -1 for an input of the network.
    """

    kind: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[int, ...]

    @property
    def name(self) -> str:
        """What a person calls it: its first node."""
        return self.nodes[0] if self.nodes else self.outputs[0]

    @property
    def weighted(self) -> bool:
        """Whether it has weights, so that it is worth making narrow."""
        return self.kind in CHANNEL_AXIS


def layers(
    content: bytes, copy: Sequence[onnx.NodeProto], originals: Sequence[onnx.NodeProto]
) -> tuple[Layer, ...]:
    """The operators of a network, in order.

    Args:
        content: the flatbuffer.
        copy: the nodes `n0`, `n1`, ... that onnx2tf was given.
        originals: the node of the model that each comes from; the last may come from none.
    """
    model = schema.unpack(content)
    graph = model.subgraphs[0]
    names = [schema.text(tensor.name) for tensor in graph.tensors]
    kinds = [schema.kind(model, operator) for operator in graph.operators]
    owners = _Owners.of(copy)
    # First the nodes that weights tell: nobody else may take them for what leads up to it.
    of_weights = [
        owners.weighted(names[weights_of(operator)]) if kind in CHANNEL_AXIS else []
        for kind, operator in zip(kinds, graph.operators, strict=True)
    ]
    owned = [
        sorted({*own, *owners.take([names[i] for i in operator.outputs])})
        for own, operator in zip(of_weights, graph.operators, strict=True)
    ]
    _lend(graph, owned)
    maker = {int(i): place for place, o in enumerate(graph.operators) for i in o.outputs}
    maker.update((int(i), INPUT) for i in graph.inputs)
    return tuple(
        Layer(
            kind,
            tuple(originals[i].name for i in nodes if i < len(originals)),
            tuple(names[i] for i in operator.inputs if i in maker),
            tuple(names[i] for i in operator.outputs),
            tuple(dict.fromkeys(maker[i] for i in map(int, operator.inputs) if i in maker)),
        )
        for kind, operator, nodes in zip(kinds, graph.operators, owned, strict=True)
    )


def weights_types(content: bytes) -> list[str]:
    """The type in which each operator that has weights gets them stored, in order."""
    model = schema.unpack(content)
    graph = model.subgraphs[0]
    stored = {
        int(operator.outputs[0]): int(operator.inputs[0])
        for operator in graph.operators
        if schema.kind(model, operator) == "DEQUANTIZE"
    }
    weights = (
        weights_of(operator)
        for operator in graph.operators
        if schema.kind(model, operator) in CHANNEL_AXIS
    )
    return [schema.type_name(graph.tensors[stored.get(i, i)]) for i in weights]


def activation_types(content: bytes) -> list[str]:
    """The type of all that an operator makes at run time; constants made float32 left out."""
    model = schema.unpack(content)
    graph = model.subgraphs[0]
    constant = {i for i, t in enumerate(graph.tensors) if model.buffers[t.buffer].content}
    return [
        schema.type_name(graph.tensors[index])
        for operator in graph.operators
        for index in operator.outputs
        if not all(int(i) in constant for i in operator.inputs)
    ]


def weights_of(operator: Any) -> int:
    """The tensor that holds the weights of an operator that has some."""
    return int(operator.inputs[_WEIGHTS_AT])


def bias_of(model: Any, operator: Any) -> int | None:
    """The tensor that holds the bias of an operator that has weights; None where it has none."""
    place = _BIAS_AT.get(schema.kind(model, operator), 2)
    index = int(operator.inputs[place]) if place < len(operator.inputs) else -1
    return index if index >= 0 else None


def tensors(content: bytes, copy: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """What the flatbuffer calls a tensor, to the tensor of the copy that has the same numbers."""
    found: dict[str, str] = {}
    for tensor in schema.unpack(content).subgraphs[0].tensors:
        name = schema.text(tensor.name)
        if of := _TENSOR.fullmatch(name):
            found[name] = of[1]
        elif (of := _END_OF_NODE.fullmatch(name)) and int(of[1]) < len(copy):
            node = copy[int(of[1])]
            found[name] = node.input[0] if of[2] == "input" else node.output[0]
    return found


def _lend(graph: Any, owned: list[list[int]]) -> None:
    """Give an operator without nodes those of the first that reads it."""
    reader: dict[int, int] = {}
    for place in reversed(range(len(owned))):
        operator = graph.operators[place]
        if not owned[place]:
            readers = [reader[i] for i in operator.outputs if i in reader]
            owned[place] = owned[min(readers)] if readers else []
        reader.update((int(i), place) for i in operator.inputs)


@dataclass(slots=True)
class _Owners:
    """The nodes of the copy that no operator has taken yet."""

    copy: Sequence[onnx.NodeProto]
    maker: Mapping[str, int]
    free: set[int]

    @classmethod
    def of(cls, copy: Sequence[onnx.NodeProto]) -> "_Owners":
        maker = {name: i for i, node in enumerate(copy) for name in node.output if name}
        return cls(copy, maker, set(range(len(copy))))

    def weighted(self, name: str) -> list[int]:
        """The node whose weights a tensor holds, and the normalisation that went into them."""
        for node in self._behind(name):
            made = self.copy[node].output[0]
            readers = [i for i, one in enumerate(self.copy) if made in one.input]
            fused = [self.copy[i].op_type for i in readers] == ["BatchNormalization"]
            taken = [node, *(readers if fused else ())]
            self.free -= set(taken)
            return taken
        return []

    def take(self, names: Sequence[str]) -> list[int]:
        """The free nodes that tensors of the flatbuffer depend on; they are free no more."""
        taken: list[int] = []
        pending = [node for name in names for node in self._behind(name)]
        while pending:
            node = pending.pop()
            if node in self.free:
                self.free.remove(node)
                taken.append(node)
                reads = self.copy[node].input
                pending += [self.maker[name] for name in reads if name in self.maker]
        return sorted(taken)

    def _behind(self, name: str) -> Iterator[int]:
        """The node that a tensor of the flatbuffer comes from, by its name."""
        if (found := _OF_NODE.match(name)) and int(found[1]) < len(self.copy):
            if not found[2]:
                yield int(found[1])
                return
            name = self.copy[int(found[1])].input[0]
        elif found := _OF_TENSOR.match(name):
            name = found[0]
        if name in self.maker:
            yield self.maker[name]
