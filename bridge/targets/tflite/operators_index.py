"""ONNX operators that read or write by position, rank or search: Gather, Scatter, TopK, ArgMax."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.node import Node
from bridge.targets.tflite.operators_layout import ANY, take, transpose
from bridge.targets.tflite.operators_math import NUMBER, SMALL, binary, select

# TFLite reads positions as int32; a tensor of more elements has no place in a detection tail.
POSITION: Final = "int32"


def positions(node: Node, position: int, size: int | Sequence[int]) -> Tensor:
    """Indices as GATHER takes them: int32, and never negative.

    ONNX counts negative ones from the end; FLOOR_MOD by the size does just that, and is left out
    where no index can be negative.

    Args:
        node: the node that reads them.
        position: which of its inputs they are.
        size: length of the axis they point into, or one length per column of their last axis.
    """
    builder, indices = node.builder, node.input(position)
    value = builder.value(indices)
    if value is not None:
        wrapped = np.where(value < 0, value + np.asarray(size), value)
        if ((wrapped < 0) | (wrapped >= np.asarray(size))).any():
            raise node.unsupported(f"an index beyond {size} rows", "correct the model")
        return builder.constant(wrapped, POSITION)
    interval = node.interval(position)
    if interval.low >= 0:
        return builder.cast(indices, POSITION)
    if interval.fits_int32:
        indices = builder.cast(indices, POSITION)
    limit = builder.constant(size, indices.dtype)
    return builder.cast(binary(builder, "FLOOR_MOD", indices, limit), POSITION)


# Reading


def _gather(node: Node) -> Tensor:
    builder, x = node.builder, node.require(0, ANY)
    axis = node.axis(x.rank)
    indices = positions(node, 1, x.shape[axis])
    value = builder.value(indices)
    if value is not None and value.size:
        taken = take(builder, x, [int(i) for i in value.reshape(-1)], axis)
        return builder.reshape(taken, node.shape)
    return builder.gather(x, indices, axis)


def _flat_positions(builder: Builder, indices: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Where in the flat data an element of GatherElements or ScatterElements lies.

    Its coordinates are its own in `indices`, but for `axis`, where the index says it.
    """
    strides = [int(np.prod(shape[a + 1 :])) for a in range(len(shape))]
    grid = np.indices(indices.shape)
    rest = sum((grid[a] * strides[a] for a in range(len(shape)) if a != axis), start=np.zeros(()))
    scaled = builder.binary("MUL", indices, builder.constant(strides[axis], POSITION))
    base = builder.constant(np.broadcast_to(rest, indices.shape), POSITION)
    return builder.binary("ADD", scaled, base)


def _gather_elements(node: Node) -> Tensor:
    builder, x = node.builder, node.require(0, ANY)
    axis = node.axis(x.rank)
    flat = _flat_positions(builder, positions(node, 1, x.shape[axis]), x.shape, axis)
    return builder.gather(builder.reshape(x, (x.size,)), flat)


def _gather_nd(node: Node) -> Tensor:
    """GATHER_ND; batch axes become leading columns of the indices."""
    builder, x = node.builder, node.require(0, ANY)
    batch = int(node.attribute("batch_dims", 0))
    columns = node.input(1).shape[-1]
    indices = positions(node, 1, x.shape[batch : batch + columns])
    if batch:
        lead = indices.shape[:-1]
        grid = np.moveaxis(np.indices(lead)[:batch], 0, -1)
        indices = builder.concat([builder.constant(grid, POSITION), indices], len(lead))
    return builder.gather_nd(x, indices)


# Writing


def _scatter(node: Node, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Write `updates` into `data`; positions are rows of `indices`.

    Known positions are one GATHER out of data and updates laid end to end. Others go by two
    SCATTER_ND, which starts from zero and adds: the updates, and where there are any.
    Positions that occur twice are undefined in ONNX.
    """
    builder = node.builder
    reduction = node.attribute("reduction", b"none").decode()
    if reduction != "none":
        raise node.unsupported(f"reduction {reduction}", "use none")
    value = builder.value(indices)
    if value is not None:
        source = np.arange(data.size).reshape(data.shape)
        source[tuple(np.moveaxis(value, -1, 0))] = data.size + np.arange(updates.size).reshape(
            updates.shape
        )
        flat = [builder.reshape(t, (t.size,)) for t in (data, updates)]
        taken = builder.gather(
            builder.concat(flat, 0), builder.constant(source.reshape(-1), POSITION)
        )
        return builder.reshape(taken, data.shape)
    shape = builder.constant(data.shape, POSITION)

    def scattered(values: Tensor) -> Tensor:
        return builder.op("SCATTER_ND", [indices, values, shape], data.shape, values.dtype)

    rows = builder.constant(np.ones(updates.shape, np.int32))
    written = builder.cast(scattered(rows), "bool")
    return select(builder, written, scattered(updates), data)


def _scatter_nd(node: Node) -> Tensor:
    data = node.require(0, (*NUMBER, "bool", "uint8", "int8"))
    columns = node.input(1).shape[-1]
    return _scatter(node, data, positions(node, 1, data.shape[:columns]), node.input(2))


def _scatter_elements(node: Node) -> Tensor:
    builder, data = node.builder, node.require(0, (*NUMBER, "bool", "uint8", "int8"))
    axis = node.axis(data.rank)
    indices, updates = positions(node, 1, data.shape[axis]), node.input(2)
    value = builder.value(indices)
    if value is not None:
        grid = np.indices(value.shape)
        grid[axis] = value
        known = builder.constant(np.ravel_multi_index(tuple(grid), data.shape), POSITION)
    flat = known if value is not None else _flat_positions(builder, indices, data.shape, axis)
    result = _scatter(
        node,
        builder.reshape(data, (data.size,)),
        builder.reshape(flat, (flat.size, 1)),
        builder.reshape(updates, (updates.size,)),
    )
    return builder.reshape(result, data.shape)


def _one_hot(node: Node) -> Tensor:
    """OneHot as a comparison with the positions: outside [-depth, depth) is off everywhere.

    Source: ONNX OneHot-11.
    """
    builder, values = node.builder, node.input(2)
    depth = node.integers(1)[0]
    indices = builder.cast(node.require(0, NUMBER), "int64")
    axis = int(node.attribute("axis", -1)) % (indices.rank + 1)
    inner = (1,) * (indices.rank - axis)
    expanded = builder.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    negative = binary(builder, "ADD", expanded, builder.constant(depth, "int64"))
    zero = builder.constant(0, "int64")
    wrapped = builder.select(builder.compare("LESS", expanded, zero), negative, expanded)
    places = builder.constant(np.arange(depth).reshape(depth, *inner), "int64")
    hot = builder.compare("EQUAL", wrapped, places)
    off, on = (builder.reshape(builder.slice(values, [k], [1]), ()) for k in (0, 1))
    return select(builder, hot, on, off)


# Ranking


def _last(node: Node, x: Tensor, axis: int) -> tuple[Tensor, list[int]]:
    """`x` with an axis moved to the end, and the permutation, which is its own inverse."""
    permutation = list(range(x.rank))
    permutation[axis], permutation[-1] = permutation[-1], permutation[axis]
    return transpose(node.builder, x, permutation), permutation


def reversed_order(builder: Builder, x: Tensor) -> Tensor:
    """Values in the opposite order, exactly: -x, or -1 - x of integers, which cannot overflow."""
    if x.dtype == "float32":
        return builder.unary("NEG", x)
    return builder.binary("SUB", builder.constant(-1, x.dtype), x)


def _topk(node: Node) -> tuple[Tensor, ...]:
    """TOPK_V2, whose equal values come out by lower index first, as onnxruntime's do."""
    builder, x = node.builder, node.require(0, NUMBER + SMALL)
    axis, k, largest = node.axis(x.rank, -1), node.integers(1)[0], node.attribute("largest", 1)
    narrow = x.dtype in SMALL
    keys, permutation = _last(node, builder.cast(x, "int32") if narrow else x, axis)
    values, indices = builder.topk(keys if largest else reversed_order(builder, keys), k)
    values = builder.cast(values if largest else reversed_order(builder, values), x.dtype)
    indices = builder.cast(indices, "int64")
    return tuple(transpose(builder, t, permutation) for t in (values, indices))


def _arg(kind: str, node: Node) -> Tensor:
    """ARG_MAX or ARG_MIN: the lowest of equal positions, or the highest if asked."""
    builder, x = node.builder, node.require(0, NUMBER + SMALL)
    axis = node.axis(x.rank)
    last = node.attribute("select_last_index", 0)
    if last:
        x = take(builder, x, range(x.shape[axis])[::-1], axis)
    if x.dtype == "int64" and not node.interval(0).fits_int32:
        found = _arg_int64(kind, node, x, axis)
    else:
        x = x if x.dtype == "float32" else builder.cast(x, "int32")
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        # 2 is INT32 in schema.fbs.
        found = builder.op(kind, [x, builder.constant(axis, "int32")], shape, "int32", outputType=2)
    found = builder.reshape(found, node.shape)
    if last:
        found = binary(builder, "SUB", builder.constant(x.shape[axis] - 1, "int32"), found)
    return builder.cast(found, "int64")


def _arg_int64(kind: str, node: Node, x: Tensor, axis: int) -> Tensor:
    """TOPK_V2, which has the int64 kernel that ARG_MAX and ARG_MIN lack."""
    keys, permutation = _last(node, x, axis)
    keys = keys if kind == "ARG_MAX" else reversed_order(node.builder, keys)
    return transpose(node.builder, node.builder.topk(keys, 1)[1], permutation)


def _cumsum(node: Node) -> Tensor:
    x = node.require(0, NUMBER)
    return node.builder.op(
        "CUMSUM",
        [x, node.builder.constant(node.integers(1)[0] % x.rank, "int32")],
        x.shape,
        exclusive=bool(node.attribute("exclusive", 0)),
        reverse=bool(node.attribute("reverse", 0)),
    )


OPERATORS: Final[Mapping[str, Callable[[Node], Tensor | tuple[Tensor, ...]]]] = {
    "ArgMax": partial(_arg, "ARG_MAX"),
    "ArgMin": partial(_arg, "ARG_MIN"),
    "CumSum": _cumsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _topk,
}
