"""Where the network of a static model ends: its first mask, index, TopK or suppression.

What stands before is float work whose last bits nobody can promise; what stands behind decides, and
is held to onnxruntime's bits by itself. Masks and integers that a convolution still depends on (an
activation written out, a uint8 image and its Cast) belong to the network, unless they themselves
depend on one and choose: behind the first stage of a two-stage detector all is tail.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import onnx

from bridge import static_nms
from bridge.static_model import TensorType, tensor_types

# fmt: off
_KERNELS: Final = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "GridSample", "InstanceNormalization", "LRN", "LSTM",
    "LayerNormalization", "MatMul", "MaxPool", "RNN", "Resize", "RoiAlign",
})
"""Operators that a network is made of."""
# fmt: on


def border(model: onnx.ModelProto) -> tuple[str, ...]:
    """The tensors at which the tail begins: of the network first, then graph inputs it reads.

    Empty where nothing stands before them: the whole model is the tail.
    """
    nodes = list(model.graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    sources = [sorted({maker[name] for name in n.input if name in maker}) for n in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, before_it in enumerate(sources):
        for source in before_it:
            readers[source].append(i)
    kernels = {i for i, node in enumerate(nodes) if node.op_type in _KERNELS}
    before, behind = _closure(kernels, sources), _closure(kernels, readers)
    types = tensor_types(model)
    constants = {tensor.name for tensor in model.graph.initializer}

    def chooses(i: int) -> bool:
        if static_nms.is_call(nodes[i]) or nodes[i].op_type == "TopK":
            return True
        used: list[str] = [*nodes[i].input, *nodes[i].output]
        names = [name for name in used if name not in constants]
        dtypes = {types[name].dtype for name in names if name in types}
        # A mask of floats between kernels is an activation.
        harmless = {"bool"} if i in before else set[str]()
        return any(not dtype.startswith("float") for dtype in dtypes - harmless)

    ends = {i for i in range(len(nodes)) if (i in behind or i not in before) and chooses(i)}
    tail = _closure(ends, readers)
    made = {name for i in range(len(nodes)) if i not in tail for name in nodes[i].output if name}
    read = [name for i in sorted(tail) for name in nodes[i].input if name]
    read += [value.name for value in model.graph.output]
    inputs = {value.name for value in model.graph.input} - constants
    crossing = dict.fromkeys(read)
    network = [name for name in crossing if name in made]
    if not (kernels - tail) or not network:
        return ()
    return (*network, *(name for name in crossing if name in inputs))


def network_of(model: onnx.ModelProto, border: Sequence[str]) -> onnx.ModelProto:
    """What stands before the border: the model's inputs to those border tensors that nodes make."""
    given = [value.name for value in model.graph.input]
    return _between(model, given, [name for name in border if name not in given])


def tail_of(model: onnx.ModelProto, border: Sequence[str]) -> onnx.ModelProto:
    """What stands behind the border: the border tensors to the model's outputs."""
    return _between(model, border, [value.name for value in model.graph.output])


def _between(
    model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    """The nodes that make the outputs from the inputs, as a model with all types of the whole."""
    types = tensor_types(model)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    needed = set(outputs)
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output) - set(inputs):
            kept.append(node)
            needed |= set(node.input)
    del part.graph.node[:], part.graph.input[:], part.graph.output[:], part.graph.initializer[:]
    part.graph.node.extend(reversed(kept))
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in needed)
    part.graph.input.extend(_value(name, types[name]) for name in inputs)
    part.graph.output.extend(_value(name, types[name]) for name in outputs)
    described = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    inner = {v.name: v for v in described if v.name not in {*inputs, *outputs}}
    del part.graph.value_info[:]
    part.graph.value_info.extend(inner.values())
    return part


def _value(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(type_.dtype))
    return onnx.helper.make_tensor_value_info(name, kind, type_.shape)


def _closure(start: Collection[int], edges: Sequence[Sequence[int]]) -> set[int]:
    found, pending = set(start), list(start)
    while pending:
        for other in edges[pending.pop()]:
            if other not in found:
                found.add(other)
                pending.append(other)
    return found
