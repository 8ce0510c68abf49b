"""ONNX operators that move elements and compute none: shapes, slices, joins, constants."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.node import Node

# What TRANSPOSE, SLICE, GATHER and CONCATENATION all take.
ANY: Final = ("float32", "int64", "int32", "bool", "uint8", "int8", "int16")
PAD_RANK: Final = 5
TRANSPOSE_RANK: Final = 6
# Up to here a constant of one value is stored, from here on it is spread at run time.
STORED: Final = 1024


def _reshape(node: Node) -> Tensor:
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity: the declared shape says it all."""
    return node.builder.reshape(node.input(0), node.shape)


def transpose(builder: Builder, x: Tensor, permutation: Sequence[int]) -> Tensor:
    """TRANSPOSE of any rank: axes of one element go, axes that stay neighbours are one.

    The kernel takes six axes, and is several times faster for two or three.
    """
    shape = [x.shape[axis] for axis in permutation]
    runs: list[list[int]] = []
    for axis in (axis for axis in permutation if x.shape[axis] != 1):
        between = x.shape[runs[-1][-1] + 1 : axis] if runs and runs[-1][-1] < axis else (0,)
        if all(size == 1 for size in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    sizes = {run[0]: int(np.prod([x.shape[axis] for axis in run])) for run in runs}
    order = sorted(sizes)
    merged = builder.reshape(x, [sizes[axis] for axis in order])
    moved = builder.transpose(merged, [order.index(run[0]) for run in runs])
    return builder.reshape(moved, shape)


def _transpose(node: Node) -> Tensor:
    x = node.require(0, ANY)
    if sum(size != 1 for size in x.shape) > TRANSPOSE_RANK:
        raise node.unsupported(f"{x.rank} axes", f"move at most {TRANSPOSE_RANK} axes")
    return transpose(node.builder, x, node.attribute("perm", range(x.rank)[::-1]))


def _concat(node: Node) -> Tensor:
    node.require(0, ANY)
    # A part without elements is nothing to a join, and kernels differ on it.
    parts = [part for part in node.operands if part.size]
    return node.builder.concat(parts or node.operands[:1], node.axis(len(node.shape)))


def take(builder: Builder, x: Tensor, indices: Sequence[int], axis: int) -> Tensor:
    """The given positions of an axis, known at conversion time: SLICE where they are a run."""
    if len(indices) and all(b - a == 1 for a, b in pairwise(indices)):
        return builder.slice_axis(x, axis, indices[0], len(indices))
    return builder.gather(x, builder.constant(list(indices), "int32"), axis)


def _slice(node: Node) -> Tensor:
    x = node.require(0, ANY)
    starts, ends = node.integers(1), node.integers(2)
    axes = node.integers(3) if node.has(3) else list(range(len(starts)))
    steps = node.integers(4) if node.has(4) else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = take(node.builder, x, _sliced(start, end, step, x.shape[axis]), axis % x.rank)
    return x


def _sliced(start: int, end: int, step: int, size: int) -> range:
    """The positions that a slice of an axis takes. Source: ONNX Slice-13."""
    start, end = (limit + size if limit < 0 else limit for limit in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _split(node: Node) -> tuple[Tensor, ...]:
    x = node.require(0, ANY)
    axis = node.axis(x.rank)
    parts, at = [], 0
    for output in node.outputs:
        size = output.shape[axis]
        parts.append(node.builder.slice_axis(x, axis, at, size))
        at += size
    return tuple(parts)


def spread(builder: Builder, x: Tensor, shape: Sequence[int]) -> Tensor:
    """BROADCAST_TO, done at conversion time where that costs no space."""
    value = builder.value(x)
    if value is not None and np.prod(shape) <= STORED:
        return builder.constant(np.broadcast_to(value, shape))
    return builder.broadcast_to(x, shape)


def _expand(node: Node) -> Tensor:
    return spread(node.builder, node.require(0, ANY), node.shape)


def _tile(node: Node) -> Tensor:
    x, repeats = node.require(0, ANY), node.integers(1)
    for axis, count in enumerate(repeats):
        if count != 1:
            x = _repeat(node.builder, x, axis, count)
    return x


def _repeat(builder: Builder, x: Tensor, axis: int, count: int) -> Tensor:
    """`x` side by side with itself: a broadcast over a new axis, which any type and rank allows."""
    front, rear = x.shape[: axis + 1], x.shape[axis + 1 :]
    blocks = builder.reshape(x, (int(np.prod(front[:-1])), 1, int(np.prod(front[-1:] + rear))))
    spread = builder.broadcast_to(blocks, (blocks.shape[0], count, blocks.shape[2]))
    return builder.reshape(spread, (*front[:-1], front[-1] * count, *rear))


def _pad(node: Node) -> Tensor:
    """PADV2 for a constant, positions along each axis for the other modes.

    Source: ONNX Pad-13: negative amounts cut; modes constant, reflect, edge.
    """
    builder, x, amounts = node.builder, node.require(0, ANY), node.integers(1)
    mode = node.attribute("mode", b"constant").decode()
    for axis in range(x.rank):
        before, after = amounts[axis], amounts[axis + x.rank]
        x = take(builder, x, range(max(0, -before), x.shape[axis] - max(0, -after)), axis)
    borders = np.maximum(np.reshape(amounts, (2, -1)).T, 0)
    if mode == "constant":
        fill = builder.reshape(node.input(2), ()) if node.has(2) else builder.constant(0, x.dtype)
        if not borders.any():
            return x
        if x.rank > PAD_RANK:
            raise node.unsupported(f"{x.rank} axes", f"pad at most {PAD_RANK}")
        return builder.op("PADV2", [x, builder.constant(borders, "int32"), fill], node.shape)
    if mode not in ("reflect", "edge"):
        raise node.unsupported(f"mode {mode}", "use constant, reflect or edge")
    for axis, (before, after) in enumerate(borders):
        inner = np.arange(-before, x.shape[axis] + after)
        last = x.shape[axis] - 1
        reflected = last - np.abs(last - np.abs(inner))
        positions = np.clip(inner, 0, last) if mode == "edge" else reflected
        x = take(builder, x, positions.tolist(), axis)
    return x


def _constant(node: Node) -> Tensor:
    """Constant in every form but sparse and string."""
    for key, dtype in (
        ("value", None),
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
    ):
        if (value := node.attribute(key)) is not None:
            return node.builder.constant(value, dtype)
    raise node.unsupported("a value of this form", "use the attribute value")


def _constant_of_shape(node: Node) -> Tensor:
    value = node.attribute("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return spread(node.builder, node.builder.constant(fill.reshape(())), node.shape)


def _shape(node: Node) -> Tensor:
    x = node.input(0)
    start, end = node.attribute("start", 0), node.attribute("end", x.rank)
    return node.builder.constant(x.shape[start:end], "int64")


def _size(node: Node) -> Tensor:
    return node.builder.constant(node.input(0).size, "int64")


def _range(node: Node) -> Tensor:
    start, _, step = (node.constant(position).reshape(()) for position in range(3))
    # onnxruntime adds the step again and again in the type of the inputs.
    terms = np.full(node.shape, step, node.dtype)
    terms[:1] = start
    return node.builder.constant(np.add.accumulate(terms), node.dtype)


def _trilu(node: Node) -> Tensor:
    """Trilu as a select by a constant mask over the last two axes."""
    builder, x = node.builder, node.require(0, ANY)
    diagonal = node.integers(1)[0] if node.has(1) else 0
    keep = np.triu if node.attribute("upper", 1) else np.tril
    mask = keep(np.ones(x.shape[-2:], bool), diagonal)
    flat = builder.reshape(x, (x.size // mask.size, *mask.shape))
    zero = builder.constant(np.zeros((), x.dtype))
    return builder.reshape(builder.select(builder.constant(mask), flat, zero), x.shape)


OPERATORS: Final[Mapping[str, Callable[[Node], Tensor | tuple[Tensor, ...]]]] = {
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _reshape,
    "Identity": _reshape,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _reshape,
}
