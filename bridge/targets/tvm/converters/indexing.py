"""Operators that move, choose, order and count elements.

Index operators follow ONNX for negative indices. An index outside the tensor, for which onnxruntime
fails, is clamped here: it reads or writes a wrong element, never foreign memory.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relay

from bridge.targets.tvm.converters.node import Converter, constant, is_float, scalar
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.operators import rounded, topk


def _reshape(node: Node) -> Any:
    """Reshape, Flatten, Squeeze, Unsqueeze: the elements stay in their order."""
    return relay.reshape(node.expr(), node.outputs[0].shape)


def _transpose(node: Node) -> Any:
    rank = len(node.type().shape)
    axes = node.attributes.get("perm", tuple(reversed(range(rank))))
    return relay.transpose(node.expr(), [int(axis) for axis in axes])


def _concat(node: Node) -> Any:
    parts = [node.expr(index) for index in range(len(node.operands))]
    return parts[0] if len(parts) == 1 else relay.concatenate(parts, node.axis(0))


def _split(node: Node) -> Any:
    axis = node.axis(0)
    if len(node.outputs) == 1:
        return node.expr()
    ends = np.cumsum([output.shape[axis] for output in node.outputs])[:-1]
    made = relay.split(node.expr(), [int(end) for end in ends], axis)
    return tuple(made[index] for index in range(len(node.outputs)))


def _slice(node: Node) -> Any:
    shape = node.type().shape
    starts, ends = node.integers(1), node.integers(2)
    axes = [axis % len(shape) for axis in (node.integers(3) if node.has(3) else range(len(starts)))]
    steps = node.integers(4) if node.has(4) else [1] * len(starts)
    result, sizes = node.expr(), list(shape)
    forward: dict[int, range] = {}
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        positions = range(*slice(start, stop, step).indices(shape[axis]))
        if not positions:
            raise node.refusal("it takes nothing: a tensor without elements")
        if step < 0:
            result = relay.take(result, constant(list(positions), "int64"), axis=axis, mode="clip")
            sizes[axis] = len(positions)
        elif positions != range(shape[axis]):
            forward[axis] = positions
    if not forward:
        return result
    whole = [forward.get(axis, range(size)) for axis, size in enumerate(sizes)]
    return relay.strided_slice(
        result, [r.start for r in whole], [r[-1] + 1 for r in whole], [r.step for r in whole]
    )


def _expand(node: Node) -> Any:
    return relay.broadcast_to(node.expr(), node.outputs[0].shape)


def _tile(node: Node) -> Any:
    return relay.tile(node.expr(), node.integers(1))


def _pad(node: Node) -> Any:
    mode = node.text("mode", "constant")
    pads, rank, dtype = node.integers(1), len(node.type().shape), node.type().dtype
    before, after = pads[:rank], pads[rank:]
    result = node.expr()
    if min(pads) < 0:
        begin = [max(-pad, 0) for pad in before]
        end = [size - max(-pad, 0) for size, pad in zip(node.type().shape, after, strict=True)]
        result = relay.strided_slice(result, begin, end)
    widths = [(max(first, 0), max(last, 0)) for first, last in zip(before, after, strict=True)]
    if not any(map(any, widths)):
        return result
    if mode not in ("constant", "edge", "reflect"):
        raise node.refusal(f"mode {mode}")
    filling = relay.reshape(node.expr(2), ()) if node.has(2) else scalar(0, dtype)
    return relay.nn.pad(result, widths, filling, pad_mode=mode)


def _gather(node: Node) -> Any:
    axis = node.axis(0)
    index = _counted_from_front(node, 1, node.type().shape[axis])
    if isinstance(index, relay.Constant) and not node.type(1).shape:
        # A scalar constant would be built into the kernel: one kernel more per index.
        index = constant(index.data.numpy().reshape(1), node.type(1).dtype)
        taken = relay.take(node.expr(), index, axis=axis, mode="clip")
        return relay.reshape(taken, node.outputs[0].shape)
    return relay.take(node.expr(), index, axis=axis, mode="clip")


def _gather_elements(node: Node) -> Any:
    axis = node.axis(0)
    return relay.gather(node.expr(), axis, _within(node, 1, node.type().shape[axis]))


def _gather_nd(node: Node) -> Any:
    """As one Gather: relay's `gather_nd` cannot be fused with whatever stands before it."""
    shape, index = node.type().shape, node.type(1)
    batch, depth = int(node.attributes.get("batch_dims", 0)), index.shape[-1]
    sizes = shape[batch : batch + depth]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(depth)]
    within = _within(node, 1, sizes)
    flat = relay.sum(relay.multiply(within, constant(strides, index.dtype)), axis=-1)
    if batch:
        # Where each entry of the batch begins, in the shape of what it is added to.
        starts = np.arange(math.prod(shape[:batch])) * math.prod(sizes)
        rest = [1] * (len(index.shape) - 1 - batch)
        flat = relay.add(flat, constant(starts.reshape(*shape[:batch], *rest), index.dtype))
    rows = relay.reshape(node.expr(), (-1, *shape[batch + depth :]))
    return relay.take(rows, flat, axis=0, mode="clip")


def _scatter_elements(node: Node) -> Any:
    axis = node.axis(0)
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add", "mul"):
        raise node.refusal(f"reduction {reduction}")
    index = _within(node, 1, node.type().shape[axis])
    how = "update" if reduction == "none" else reduction
    return relay.scatter_elements(node.expr(0), index, node.expr(2), axis, how)


def _scatter_nd(node: Node) -> Any:
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add", "mul"):
        raise node.refusal(f"reduction {reduction}")
    how = "update" if reduction == "none" else reduction
    return relay.scatter_nd(node.expr(0), _coordinates(node, node.type().shape), node.expr(2), how)


def _coordinates(node: Node, shape: Sequence[int]) -> Any:
    """Indices `[..., depth]` of GatherND and ScatterND as relay wants them: depth first."""
    rank = len(node.type(1).shape)
    sizes = shape[: node.type(1).shape[-1]]
    return relay.transpose(_within(node, 1, sizes), [rank - 1, *range(rank - 1)])


def _counted_from_front(node: Node, index: int, sizes: int | Sequence[int]) -> Any:
    """An index tensor without negative entries; `sizes` broadcasts to it."""
    operand = node.operand(index)
    dtype = operand.type.dtype
    size = np.asarray(sizes, dtype)
    if operand.value is not None:
        known = operand.value.astype(np.int64)
        return constant(np.where(known < 0, known + size, known), dtype)
    negative = relay.less(operand.expr, scalar(0, dtype))
    return relay.where(negative, relay.add(operand.expr, constant(size)), operand.expr)


def _within(node: Node, index: int, sizes: int | Sequence[int]) -> Any:
    """As `_counted_from_front`, and no entry outside the tensor."""
    dtype = node.type(index).dtype
    last = constant(np.asarray(sizes, dtype) - 1, dtype)
    counted = _counted_from_front(node, index, sizes)
    return relay.maximum(relay.minimum(counted, last), scalar(0, dtype))


def _topk(node: Node) -> Any:
    shape = node.type().shape
    axis = node.axis(-1)
    (k,) = node.integers(1)
    if k < 1:
        raise node.refusal("k is 0: a tensor without elements")
    largest = bool(node.attributes.get("largest", 1))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = (*shape[:axis], k, *shape[axis + 1 :])
    if node.type().dtype == "float32":
        folded = relay.reshape(node.expr(), (outer, shape[axis], inner))
        both = relay.TupleWrapper(topk(folded, k, largest=largest), 2)
        return tuple(relay.reshape(both[index], result) for index in range(2))
    if is_float(node.type().dtype):
        raise node.refusal(f"TopK of {node.type().dtype}, whose NaN relay orders otherwise")
    both = relay.topk(node.expr(), k, axis, "both", not largest, "int64")
    return both[0], both[1]


def _arg_reduce(make: Callable[..., Any]) -> Converter:
    def convert(node: Node) -> Any:
        found = make(
            node.expr(),
            axis=node.axis(0),
            keepdims=bool(node.attributes.get("keepdims", 1)),
            select_last_index=bool(node.attributes.get("select_last_index", 0)),
        )
        return relay.cast(found, "int64")

    return convert


def _reduce(make: Callable[[Any, list[int], bool, str], Any]) -> Converter:
    """A reduction over `axes`, an attribute or an input; none named means all."""

    def convert(node: Node) -> Any:
        rank = len(node.type().shape)
        axes = node.integers(1) if node.has(1) else node.attributes.get("axes", ())
        if not len(axes):
            if node.attributes.get("noop_with_empty_axes", 0):
                return node.expr()
            axes = range(rank)
        keep = bool(node.attributes.get("keepdims", 1))
        if not rank:
            return make(relay.reshape(node.expr(), (1,)), [0], False, node.type().dtype)
        return make(node.expr(), [int(axis) % rank for axis in axes], keep, node.type().dtype)

    return convert


def _sum_of_squares(x: Any, axes: list[int], keep: bool, dtype: str) -> Any:
    square = relay.multiply(x, x)
    return relay.sum(rounded(square) if is_float(dtype) else square, axes, keep)


def _log_sum_exp(x: Any, axes: list[int], keep: bool, dtype: str) -> Any:
    del dtype
    greatest = relay.max(x, axes, True)
    total = relay.log(relay.sum(relay.exp(relay.subtract(x, greatest)), axes, True))
    result = relay.add(total, greatest)
    return result if keep else relay.squeeze(result, axes)


def _cum_sum(node: Node) -> Any:
    axis = node.integers(1)[0] % len(node.type().shape)
    exclusive = bool(node.attributes.get("exclusive", 0))
    if node.attributes.get("reverse", 0):
        turned = relay.reverse(node.expr(), axis=axis)
        return relay.reverse(relay.cumsum(turned, axis=axis, exclusive=exclusive), axis=axis)
    return relay.cumsum(node.expr(), axis=axis, exclusive=exclusive)


def _one_hot(node: Node) -> Any:
    """An index out of range gives a row of `off`, a negative one counts from the end."""
    rank = len(node.outputs[0].shape)
    axis = node.axis(-1, rank)
    depth, dtype = node.outputs[0].shape[axis], node.type().dtype
    index = relay.expand_dims(node.expr(0), axis)
    if not is_float(dtype):
        negative = relay.less(index, scalar(0, dtype))
        index = relay.where(negative, relay.add(index, scalar(depth, dtype)), index)
    shape = [depth if i == axis else 1 for i in range(rank)]
    hot = relay.equal(index, constant(np.arange(depth).reshape(shape), dtype))
    off, on = (relay.take(node.expr(2), scalar(i, "int64"), axis=0) for i in range(2))
    return relay.where(hot, on, off)


def _trilu(node: Node) -> Any:
    rows, columns = node.type().shape[-2:]
    offset = node.integers(1)[0] if node.has(1) else 0
    ones = np.ones((rows, columns), np.bool_)
    kept = np.triu(ones, offset) if node.attributes.get("upper", 1) else np.tril(ones, offset)
    return relay.where(constant(kept), node.expr(), scalar(0, node.type().dtype))


def _depth_to_space(node: Node) -> Any:
    mode = node.text("mode", "DCR")
    return relay.nn.depth_to_space(node.expr(), int(node.attributes["blocksize"]), "NCHW", mode)


def _space_to_depth(node: Node) -> Any:
    return relay.nn.space_to_depth(node.expr(), int(node.attributes["blocksize"]), "NCHW")


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": _arg_reduce(relay.argmax),
    "ArgMin": _arg_reduce(relay.argmin),
    "Concat": _concat,
    "CumSum": _cum_sum,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Pad": _pad,
    "ReduceL1": _reduce(lambda x, axes, keep, _: relay.sum(relay.abs(x), axes, keep)),
    "ReduceL2": _reduce(lambda *given: relay.sqrt(_sum_of_squares(*given))),
    "ReduceLogSum": _reduce(lambda x, axes, keep, _: relay.log(relay.sum(x, axes, keep))),
    "ReduceLogSumExp": _reduce(_log_sum_exp),
    "ReduceMax": _reduce(lambda x, axes, keep, _: relay.max(x, axes, keep)),
    "ReduceMean": _reduce(lambda x, axes, keep, _: relay.mean(x, axes, keep)),
    "ReduceMin": _reduce(lambda x, axes, keep, _: relay.min(x, axes, keep)),
    "ReduceProd": _reduce(lambda x, axes, keep, _: relay.prod(x, axes, keep)),
    "ReduceSum": _reduce(lambda x, axes, keep, _: relay.sum(x, axes, keep)),
    "ReduceSumSquare": _reduce(_sum_of_squares),
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "TopK": _topk,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _reshape,
}
