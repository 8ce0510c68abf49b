"""One operator over many lanes: a rule each for what a new first axis does to it.

A rule computes every lane by itself and with the same arithmetic, so that nothing but the number of
nodes changes. Where that is not so (the sum of floats, whose order may depend on the shape), there
is no rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from bridge.surgery.edit import Builder, Tensor, input_of, producer_of, shape_of, value_of

SMALLER = "smaller of two"


@dataclass(frozen=True, slots=True)
class Pack:
    """The lanes of one value.

    Attributes:
        tensor: [lanes, ...]; the value itself where all lanes share it.
        nodes: what computed the lanes so far, one each.
        sources: the packs it is computed from.
    """

    tensor: Tensor
    shared: bool
    nodes: tuple[gs.Node, ...] = ()
    sources: tuple["Pack", ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """What computes one lane: output number `output` of an operator on operands."""

    operator: str
    node: gs.Node
    output: int
    operands: tuple[Tensor, ...]

    def is_like(self, other: "Lane") -> bool:
        """Whether the two compute the same from their operands."""
        return (
            self.operator == other.operator
            and self.output == other.output
            and len(self.operands) == len(other.operands)
            and (self.operator == SMALLER or self.node.attrs == other.node.attrs)
        )


@dataclass(frozen=True, slots=True)
class Pick:
    """A tensor that is one position of an axis; `kept`: as an axis of size 1."""

    source: Tensor
    axis: int
    position: int
    kept: bool


type Rule = Callable[[Builder, Lane, int, Sequence[Pack]], tuple[Tensor, ...] | None]


def lane_of(tensor: Tensor) -> Lane | None:
    """How a tensor is computed; None for inputs and for operators without a rule."""
    node = producer_of(tensor)
    if node is None or node.domain or node.op not in _RULES:
        return None
    output = next(i for i, made in enumerate(node.outputs) if made is tensor)
    smaller = _smaller(node)
    if smaller is not None:
        return Lane(SMALLER, node, output, smaller)
    if any(not isinstance(value, int | float | str | list) for value in node.attrs.values()):
        return None
    return Lane(node.op, node, output, tuple(node.inputs))


def _smaller(node: gs.Node) -> tuple[Tensor, Tensor] | None:
    """The operands of Where(Less(a, b), a, b), a constant one last: both orders mean the same."""
    if node.op != "Where" or np.dtype(node.outputs[0].dtype).kind not in "iu":
        return None
    condition, a, b = node.inputs
    less = producer_of(condition)
    if less is None or less.op != "Less" or less.inputs[0] is not a or less.inputs[1] is not b:
        return None
    return (b, a) if value_of(a) is not None else (a, b)


def pick_of(tensor: Tensor) -> Pick | None:
    """Where a tensor stands in another one, if it is one position of one axis of it."""
    node = producer_of(tensor)
    if node is None or node.domain:
        return None
    if node.op == "Gather":
        index = value_of(node.inputs[1])
        if index is None or index.size != 1 or index.ndim > 1:
            return None
        axis = node.attrs.get("axis", 0) % len(node.inputs[0].shape)
        return _pick(node, axis, int(index.reshape(-1)[0]), kept=index.ndim == 1)
    if node.op == "Slice":
        limits = [value_of(limit) for limit in node.inputs[1:]]
        numbers = [[int(v) for v in limit.reshape(-1)] for limit in limits if limit is not None]
        if len(numbers) != len(limits) or len(numbers) < 3 or len(numbers[0]) != 1:
            return None
        (start,), _, (axis,), *_ = numbers
        size = shape_of(node.inputs[0])[axis]
        if shape_of(tensor)[axis] != 1 or not -size <= start < size:
            return None
        return _pick(node, axis % len(tensor.shape), start, kept=True)
    if node.op == "Split":
        axis = node.attrs.get("axis", 0) % len(tensor.shape)
        if any(shape_of(part)[axis] != 1 for part in node.outputs):
            return None
        position = next(i for i, part in enumerate(node.outputs) if part is tensor)
        return _pick(node, axis, position, kept=True)
    return None


def _pick(node: gs.Node, axis: int, position: int, *, kept: bool) -> Pick:
    return Pick(node.inputs[0], axis, position % shape_of(node.inputs[0])[axis], kept)


def emit(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    """The outputs of a lane's operator over all lanes, [lanes, ...] each; None without a rule."""
    return _RULES[lane.node.op](builder, lane, lanes, sources)


def _shape(lane: Lane, lanes: int, output: int = 0) -> list[int]:
    return [lanes, *shape_of(lane.node.outputs[output])]


def _name(lane: Lane) -> str:
    return f"{lane.node.outputs[0].name}/lanes"


def _reshaped(builder: Builder, name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if list(shape_of(tensor)) == list(shape):
        return tensor
    target = builder.ints(f"{name}/shape", shape)
    return builder.node("Reshape", name, [tensor, target], shape)


def _aligned(builder: Builder, lane: Lane, source: Pack) -> Tensor:
    """An operand whose own axes are the last ones of the result, whatever its rank."""
    if source.shared:
        return source.tensor
    lanes, *own = shape_of(source.tensor)
    missing = len(shape_of(lane.node.outputs[0])) - len(own)
    return _reshaped(builder, _name(lane), source.tensor, [lanes, *[1] * missing, *own])


def _elementwise(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...]:
    operands = [_aligned(builder, lane, source) for source in sources]
    shape, dtype = _shape(lane, lanes), lane.node.outputs[0].dtype
    if lane.operator != SMALLER:
        attributes = dict(lane.node.attrs)
        node = builder.node(lane.node.op, _name(lane), operands, shape, dtype, **attributes)
        return (node,)
    less = builder.node("Less", _name(lane), operands, shape, np.bool_)
    return (builder.node("Where", _name(lane), [less, *operands], shape, dtype),)


def _by_shape(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the shape of a lane says it all."""
    data, *others = sources
    if data.shared or not all(other.shared for other in others):
        return None
    return (_reshaped(builder, _name(lane), data.tensor, _shape(lane, lanes)),)


def _expand(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    data, size = sources
    if data.shared or not size.shared:
        return None
    target = builder.ints(f"{_name(lane)}/shape", _shape(lane, lanes))
    operands = [_aligned(builder, lane, data), target]
    return (builder.node("Expand", _name(lane), operands, _shape(lane, lanes)),)


def _transpose(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    rank = len(shape_of(lane.node.outputs[0]))
    perm = [0, *(axis + 1 for axis in lane.node.attrs.get("perm", range(rank)[::-1]))]
    tensor, shape = sources[0].tensor, _shape(lane, lanes)
    return (builder.node("Transpose", _name(lane), [tensor], shape, perm=perm),)


def _reduce(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    """ReduceMax and ReduceMin are exact in any order, ReduceSum for integers."""
    data = sources[0]
    dtype = np.dtype(lane.node.outputs[0].dtype)
    if data.shared or (lane.node.op == "ReduceSum" and dtype.kind not in "iu"):
        return None
    rank = len(shape_of(data.tensor)) - 1
    given = input_of(lane.node, 1)
    axes = lane.node.attrs.get("axes") if given is None else value_of(given)
    if axes is None and (given is not None or lane.node.attrs.get("noop_with_empty_axes")):
        return None
    moved = [int(axis) % rank + 1 for axis in (range(rank) if axes is None else axes)]
    attributes: dict[str, object] = {"keepdims": lane.node.attrs.get("keepdims", 1)}
    operands = [data.tensor]
    if lane.node.op == "ReduceSum":
        operands.append(builder.ints(f"{_name(lane)}/axes", moved))
    else:
        attributes["axes"] = moved
    shape = _shape(lane, lanes)
    return (builder.node(lane.node.op, _name(lane), operands, shape, None, **attributes),)


def _arg(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    """ArgMax, ArgMin."""
    data = sources[0].tensor
    rank = len(shape_of(data)) - 1
    attributes = {**lane.node.attrs, "axis": lane.node.attrs.get("axis", 0) % rank + 1}
    shape = _shape(lane, lanes)
    return (builder.node(lane.node.op, _name(lane), [data], shape, np.int64, **attributes),)


def _topk(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    data, k = sources
    if data.shared or not k.shared:
        return None
    rank = len(shape_of(data.tensor)) - 1
    attributes = {**lane.node.attrs, "axis": lane.node.attrs.get("axis", -1) % rank + 1}
    outputs = [
        gs.Variable(
            builder.name(f"{made.name}/lanes"), np.dtype(made.dtype), _shape(lane, lanes, number)
        )
        for number, made in enumerate(lane.node.outputs)
    ]
    builder.add("TopK", _name(lane), [data.tensor, k.tensor], outputs, attributes)
    return tuple(outputs)


def _gather(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    data, index = sources
    axis = lane.node.attrs.get("axis", 0) % len(shape_of(lane.node.inputs[0]))
    shape, operands = _shape(lane, lanes), [data.tensor, index.tensor]
    if index.shared:
        return (builder.node("Gather", _name(lane), operands, shape, axis=axis + 1),)
    if data.shared:
        if axis:
            return None  # the lanes would stand behind the axes before it
        return (builder.node("Gather", _name(lane), operands, shape, axis=0),)
    if len(shape_of(data.tensor)) != 2 or len(shape_of(index.tensor)) != 2:
        return None
    return (builder.node("GatherElements", _name(lane), operands, shape, axis=1),)


def _gather_nd(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    data, index = sources
    if index.shared or lane.node.attrs.get("batch_dims", 0):
        return None
    shape, operands = _shape(lane, lanes), [data.tensor, index.tensor]
    batch_dims = 0 if data.shared else 1
    return (builder.node("GatherND", _name(lane), operands, shape, batch_dims=batch_dims),)


def _slice(
    builder: Builder, lane: Lane, lanes: int, sources: Sequence[Pack]
) -> tuple[Tensor, ...] | None:
    data, *limits = sources
    if data.shared or not all(limit.shared for limit in limits):
        return None
    rank = len(shape_of(data.tensor)) - 1
    axes = input_of(lane.node, 3)
    known = np.arange(shape_of(limits[0].tensor)[0]) if axes is None else value_of(axes)
    if known is None:
        return None
    moved = [int(axis) % rank + 1 for axis in known.reshape(-1)]
    operands = [data.tensor, limits[0].tensor, limits[1].tensor]
    operands.append(builder.ints(f"{_name(lane)}/axes", moved))
    operands.extend(limit.tensor for limit in limits[3:])
    return (builder.node("Slice", _name(lane), operands, _shape(lane, lanes)),)


_ELEMENTWISE = (
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not",
    "Or", "Sigmoid", "Sqrt", "Sub", "Where", "Xor",
)  # fmt: skip

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _by_shape),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum"), _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Slice": _slice,
    "TopK": _topk,
    "Transpose": _transpose,
}
