"""Where the network ends: which nodes onnx2tf converts, and which the emitter takes.

onnx2tf gets pure float32 work only: it drops, retypes or transposes integer tensors, masks, TopK
and suppressions without failing. So everything behind the first of those is ours, and so is cheap
arithmetic in front of it (box decode), as long as nobody else reads it: what we emit is bit-equal
to onnxruntime, and converts in no time.

    head      ours: integer work before the network (a uint8 image and its Cast)
    network   float32, up to the border
    tail      ours: from the border to the outputs
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx

from bridge import static_nms
from bridge.errors import UnsupportedModelError
from bridge.static_model import TensorType, tensor_types
from bridge.targets.tflite.operators import covers

FLOAT: Final = "float32"

# fmt: off
ARITHMETIC: Final = frozenset({
    "Abs", "Add", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mul", "Neg", "Reciprocal",
    "Round", "Sub", "Sum",
})
"""Decode is made of these; Exp, Sigmoid and Softmax are not: onnxruntime's own last bits differ."""

PARTS: Final = frozenset({"Gather", "ReduceMax", "ReduceMin", "Slice", "Split"})
"""They read less than there is: better one border tensor whole than several parts of it."""

MOVERS: Final = frozenset({
    "Concat", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
})
"""Ours between arithmetic; at the border onnx2tf merges them into the layout of the network."""

UNSAFE: Final = frozenset({
    "Constant", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Where",
})
"""onnx2tf turns these into arithmetic, or loses a tensor; where the network needs none, ours."""
# fmt: on

# Axes that a layout may be guessed for.
ABSORBED_RANK: Final = 3
IMAGE_RANK: Final = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """A static graph in three parts; nodes keep their order.

    Attributes:
        tail: holds again what it reads of the head.
        network_inputs: what the network reads: graph inputs, or tensors of the head.
        border: what the tail reads and does not make: tensors of the network, then graph inputs.
    """

    head: tuple[onnx.NodeProto, ...]
    network: tuple[onnx.NodeProto, ...]
    tail: tuple[onnx.NodeProto, ...]
    network_inputs: tuple[str, ...]
    border: tuple[str, ...]


def cut(model: onnx.ModelProto) -> Cut:
    """Cut a static model.

    Raises:
        UnsupportedModelError: an operator that only the network can hold stands behind the border,
            or takes something else than float32; or the network holds a scatter.
    """
    graph = _Graph.of(model)
    tail = graph.behind_border()
    head = graph.before_network(tail)
    network = [i for i in range(len(graph.nodes)) if i not in tail and i not in head]
    if any(graph.only_network(i) for i in network):
        tail |= graph.absorbed(set(network), tail)
    else:
        tail |= set(network)
    tail |= graph.needed_again(tail, head)
    network = [i for i in network if i not in tail]
    graph.refuse_scatter(network)
    return graph.assemble(head, network, tail)


def images(
    nodes: Sequence[onnx.NodeProto], names: Collection[str], types: Mapping[str, TensorType]
) -> frozenset[str]:
    """Those of the named tensors that are images in NCHW.

    A kernel over the last two axes reads them, straight or past operators that leave the axes
    where they are.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def is_image(name: str) -> bool:
        seen, pending = {name}, [name]
        while pending:
            for node in readers.get(pending.pop(), ()):
                if not covers(node):
                    return True
                made = node.output[0]
                moves = node.op_type in ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
                if not moves and made not in seen and len(types[made].shape) == IMAGE_RANK:
                    seen.add(made)
                    pending.append(made)
        return False

    return frozenset(x for x in names if len(types[x].shape) == IMAGE_RANK and is_image(x))


def _closure(start: Collection[int], edges: Sequence[tuple[int, ...]]) -> set[int]:
    """All that is reached from some nodes along edges, and those."""
    found, pending = set(start), list(start)
    while pending:
        for other in edges[pending.pop()]:
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


@dataclass(frozen=True, slots=True)
class _Graph:
    """The graph with nodes by position, and who makes and reads what.

    Attributes:
        sources: for each node the positions of the nodes it reads from.
        readers: for each node the positions of the nodes that read it.
    """

    nodes: Sequence[onnx.NodeProto]
    types: Mapping[str, TensorType]
    constants: Collection[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    maker: Mapping[str, int]
    sources: Sequence[tuple[int, ...]]
    readers: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "_Graph":
        nodes = list(model.graph.node)
        maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
        sources = [tuple(dict.fromkeys(maker[x] for x in n.input if x in maker)) for n in nodes]
        readers: list[list[int]] = [[] for _ in nodes]
        for i, read in enumerate(sources):
            for source in read:
                readers[source].append(i)
        return cls(
            nodes=nodes,
            types=tensor_types(model),
            constants={tensor.name for tensor in model.graph.initializer},
            inputs=tuple(value.name for value in model.graph.input),
            outputs=tuple(value.name for value in model.graph.output),
            maker=maker,
            sources=sources,
            readers=[tuple(read) for read in readers],
        )

    # What a node is

    def only_network(self, i: int) -> bool:
        """Whether only onnx2tf can lower the node."""
        return not covers(self.nodes[i])

    def data(self, i: int) -> list[TensorType]:
        """Types of all that a node reads and makes, constants left out."""
        node = self.nodes[i]
        read = [name for name in node.input if name and name not in self.constants]
        return [self.types[name] for name in (*read, *node.output) if name]

    def is_float(self, i: int) -> bool:
        """Whether nothing about the node is an index, a mask or a choice."""
        node = self.nodes[i]
        if static_nms.is_call(node) or node.op_type == "TopK":
            return False
        return all(type_.dtype == FLOAT for type_ in self.data(i)) or self.is_quantisation(i)

    def is_mask(self, i: int) -> bool:
        """Whether a node works on floats and masks of them: an activation written out."""
        return (
            self.nodes[i].op_type != "TopK"
            and not static_nms.is_call(self.nodes[i])
            and all(type_.dtype in (FLOAT, "bool") for type_ in self.data(i))
        )

    def is_quantisation(self, i: int) -> bool:
        """A QuantizeLinear read by DequantizeLinear only, or such a reader, or of a constant.

        The pair is float32 arithmetic (`fake_quantisation.as_float`).
        """
        node = self.nodes[i]
        parameters = all(name in self.constants for name in node.input[1:] if name)
        if node.op_type == "DequantizeLinear" and parameters:
            return node.input[0] in self.constants or any(
                self.nodes[source].op_type == "QuantizeLinear" for source in self.sources[i]
            )
        return (
            node.op_type == "QuantizeLinear"
            and parameters
            and node.output[0] not in self.outputs
            and all(self.nodes[r].op_type == "DequantizeLinear" for r in self.readers[i])
        )

    # The parts

    def behind_border(self) -> set[int]:
        """What depends on an index, a mask or a choice that depends on the network.

        Raises:
            UnsupportedModelError: an operator that only onnx2tf can lower is among it.
        """
        kernels = {i for i in range(len(self.nodes)) if self.only_network(i)}
        before, behind = (_closure(kernels, e) for e in (self.sources, self.readers))
        ends = {i for i in range(len(self.nodes)) if self._ends_network(i, before, behind)}
        tail = _closure(ends, self.readers)
        if stray := sorted(tail & kernels):
            raise self._refused(stray[0], _closure([stray[0]], self.sources) & ends)
        return tail

    def _ends_network(self, i: int, before: Collection[int], behind: Collection[int]) -> bool:
        """Whether the tail begins at a node, if not earlier.

        Args:
            i: the node.
            before: the nodes that an operator of the network depends on, and those.
            behind: the nodes that depend on an operator of the network, and those.
        """
        if i not in before:
            # A pair of quantisation that no operator of the network follows is ours, too.
            return not self.is_float(i) or self.is_quantisation(i)
        return i in behind and not self.is_float(i) and not self.is_mask(i)

    def _refused(self, i: int, ends: Collection[int]) -> UnsupportedModelError:
        node = self.nodes[i]
        where = f"{node.op_type} (domain {node.domain or 'ai.onnx'}, node '{node.name}')"
        if before := sorted(set(ends) - {i}):
            first = self.nodes[before[0]]
            return UnsupportedModelError(
                f"{where} stands behind {first.op_type} '{first.name}': a network that continues "
                "behind the first TopK, integer or suppression (as in a two-stage detector) has no "
                "TFLite lowering; convert to onnx or tvm, or export the model up to that node"
            )
        types = sorted({type_.dtype for type_ in self.data(i) if type_.dtype != FLOAT})
        return UnsupportedModelError(
            f"{where} works on {', '.join(types)}: a network is converted to TFLite in float32 "
            "only; export the model in float32 (quantised models with QuantizeLinear and "
            "DequantizeLinear around float operators)"
        )

    def refuse_scatter(self, network: Collection[int]) -> None:
        """A scatter between operators of the network would be left to onnx2tf.

        What it makes of one gave other numbers in LiteRT from the second run of a session on.

        Raises:
            UnsupportedModelError: the network holds one.
        """
        for i in sorted(network):
            node = self.nodes[i]
            if node.op_type.startswith("Scatter"):
                where = f"{node.op_type} (domain {node.domain or 'ai.onnx'}, node '{node.name}')"
                raise UnsupportedModelError(
                    f"{where} stands between operators of the network, where it has no exact "
                    "TFLite lowering; write that assignment as Concat or Where, or convert to "
                    "onnx or tvm"
                )

    def before_network(self, tail: Collection[int]) -> set[int]:
        """Integer work in front of the network, and all that it depends on."""
        kernels = {i for i in range(len(self.nodes)) if self.only_network(i)}
        inside = _closure(kernels, self.readers) | set(tail)
        ends = {i for i in range(len(self.nodes)) if i not in inside and not self.is_float(i)}
        return _closure(ends, self.sources)

    def absorbed(self, network: set[int], tail: set[int]) -> set[int]:
        """Nodes of the network that move to the tail: cheap, exact, and read by the tail alone."""
        taken: set[int] = set()
        for i in sorted(network, reverse=True):
            ours = all(reader in tail or reader in taken for reader in self.readers[i])
            if ours and self._absorbable(i):
                taken.add(i)
        for i in sorted(taken):
            if self._belongs_to_layout(i, network - taken):
                taken.remove(i)
        return taken

    def _belongs_to_layout(self, i: int, network: Collection[int]) -> bool:
        """Whether a node only moves what the network makes, and makes for nobody else."""
        node, read = self.nodes[i], self.sources[i]
        if node.op_type not in MOVERS or not read or any(x in self.inputs for x in node.input):
            return False
        return all(
            source in network
            and all(reader == i or reader in network for reader in self.readers[source])
            and not self.outputs_of(source)
            for source in read
        )

    def outputs_of(self, i: int) -> list[str]:
        """The graph outputs that a node makes."""
        return [name for name in self.nodes[i].output if name in self.outputs]

    def _absorbable(self, i: int) -> bool:
        node, types = self.nodes[i], self.data(i)
        exact = node.op_type in ARITHMETIC | PARTS | MOVERS | UNSAFE
        flat = node.op_type in UNSAFE or all(len(t.shape) <= ABSORBED_RANK for t in types)
        return exact and flat and not self.only_network(i)

    def needed_again(self, tail: Collection[int], head: Collection[int]) -> set[int]:
        """The nodes of the head that the tail reads, or that make outputs."""
        read = {source for i in tail for source in self.sources[i]}
        read |= {self.maker[name] for name in self.outputs if name in self.maker}
        return _closure(read & set(head), self.sources)

    def assemble(self, head: set[int], network: Sequence[int], tail: set[int]) -> Cut:
        """The parts and what crosses between them."""
        made = {name for i in network for name in self.nodes[i].output}
        in_tail = [self.nodes[i] for i in sorted(tail)]
        own = {name for node in in_tail for name in node.output}
        read = [name for node in in_tail for name in node.input] + list(self.outputs)
        crossing = dict.fromkeys(x for x in read if x and x not in own and x not in self.constants)
        wanted = [name for i in network for name in self.nodes[i].input]
        return Cut(
            head=tuple(self.nodes[i] for i in sorted(head)) if network else (),
            network=tuple(self.nodes[i] for i in network),
            tail=tuple(in_tail),
            network_inputs=tuple(
                dict.fromkeys(x for x in wanted if x and x not in made and x not in self.constants)
            ),
            border=(
                *(name for name in crossing if name in made),
                *(name for name in crossing if name not in made),
            ),
        )
