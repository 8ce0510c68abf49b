"""Take out what means nothing and write out what is meant, where targets stumble over it.

Given:   %a -> Concat(%a alone) -> Cast to its own type -> Gather(.., [-1])
Result:  %a -> Gather(.., [N - 1])

Exact on every input, NaN and infinities included. Never judged by shapes alone: a Slice that
reverses, a Transpose of a square or a Pad of -1 and 1 keep the shape and are not idle.

Source: single-input Concat, Identity, Cast and Reshape without effect derail onnx2tf; relay drops
a Clip with one bound, refuses auto_pad, and reads beside the tensor for negative indices.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from bridge.options import Options
from bridge.static_model import Finding
from bridge.surgery.edit import (
    Builder,
    Tensor,
    input_of,
    is_output,
    producer_of,
    replace_uses,
    rewire,
    rewrite,
    shape_of,
    value_of,
)
from bridge.surgery.runner import Outcome


def simplify(graph: gs.Graph, options: Options) -> Outcome:
    """Every idle node out of the way, every implied number written down."""
    del options
    builder = Builder.of(graph)
    done: Counter[str] = Counter()
    for node in graph.nodes:
        if node.domain:
            continue
        if _is_idle(node) and _bypass(graph, node):
            done[f"{node.op} without effect taken out"] += 1
            continue
        write_out = _WRITE_OUT.get(node.op)
        what = write_out(node, builder) if write_out else None
        if what:
            done[what] += 1
            if _is_idle(node):
                _bypass(graph, node)
    builder.done()
    return Outcome(
        tuple(Finding("", f"{times} x {what}", changed=True) for what, times in done.items())
    )


def _bypass(graph: gs.Graph, node: gs.Node) -> bool:
    """Let readers of an idle node read what it reads; False where a name must stay."""
    x, y = node.inputs[0], node.outputs[0]
    if not is_output(graph, y):
        replace_uses(y, x)
        return True
    maker = producer_of(x)
    if maker is None or is_output(graph, x):
        return False
    # The output's name stays: who made the input makes the output instead.
    rewrite(node, [])
    replace_uses(x, y)
    rewrite(maker, [y if output is x else output for output in maker.outputs])
    return True


def _is_idle(node: gs.Node) -> bool:
    test = _IDLE.get(node.op)
    return (
        test is not None
        and len([output for output in node.outputs if output.name]) == 1
        and shape_of(node.inputs[0]) == shape_of(node.outputs[0])
        and node.inputs[0].dtype == node.outputs[0].dtype
        and test(node)
    )


def _always(node: gs.Node) -> bool:
    """Idle whenever type and shape stay: the operator only renames, retypes or reshapes."""
    del node
    return True


def _one_input(node: gs.Node) -> bool:
    return len(node.inputs) == 1


def _keeps_order(node: gs.Node) -> bool:
    perm = node.attrs.get("perm", list(range(len(node.inputs[0].shape)))[::-1])
    return list(perm) == sorted(perm)


def _steps_of_one(node: gs.Node) -> bool:
    steps = input_of(node, 4)
    return steps is None or _all(steps, 1)


def _pads_nothing(node: gs.Node) -> bool:
    return _all(node.inputs[1], 0)


def _does_not_train(node: gs.Node) -> bool:
    training = input_of(node, 2)
    return training is None or _all(training, 0)


def _same_size(node: gs.Node) -> bool:
    """A Resize by 1 is a copy in onnxruntime, whatever the mode; a crop is another matter."""
    scales = input_of(node, 2)
    crops = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return not crops and (scales is None or _all(scales, 1))


def _all(tensor: Tensor, number: int) -> bool:
    value = value_of(tensor)
    return value is not None and bool((value == number).all())


_IDLE: Mapping[str, Callable[[gs.Node], bool]] = {
    "Cast": _always,
    "Concat": _one_input,
    "Dropout": _does_not_train,
    "Expand": _always,
    "Flatten": _always,
    "Identity": _always,
    "Max": _one_input,
    "Min": _one_input,
    "Pad": _pads_nothing,
    "Reshape": _always,
    "Resize": _same_size,
    "Slice": _steps_of_one,
    "Split": _always,
    "Squeeze": _always,
    "Sum": _one_input,
    "Tile": _always,
    "Transpose": _keeps_order,
    "Unsqueeze": _always,
}


def _clip(node: gs.Node, builder: Builder) -> str | None:
    """A missing bound of Clip is the extreme finite number of the type, which then is written.

    For integers a bound that cannot cut goes, and the other is a Min or Max: relay's clip holds its
    bounds as floats.
    """
    low, high = input_of(node, 1), input_of(node, 2)
    dtype = np.dtype(node.inputs[0].dtype)
    if dtype.kind == "f":
        if low is not None and high is not None:
            return None
        extremes = np.finfo(dtype)
        low = low if low is not None else builder.constant("lowest", np.array(extremes.min, dtype))
        high = (
            high if high is not None else builder.constant("highest", np.array(extremes.max, dtype))
        )
        rewire(node, [node.inputs[0], low, high])
        return "missing bound of Clip written"
    bound = low if high is None else high
    if dtype.kind not in "iu" or bound is None or (low is not None and high is not None):
        return None
    node.op = "Max" if high is None else "Min"
    rewire(node, [node.inputs[0], bound])
    return f"Clip with one bound written as {node.op}"


def _auto_pad(node: gs.Node, builder: Builder) -> str | None:
    """auto_pad as pads.

    Source: ONNX operators Conv, MaxPool, AveragePool, LpPool, attribute auto_pad: the output has
    ceil(size / stride) cells, and the odd cell of padding is behind for SAME_UPPER.
    """
    del builder
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return None
    sizes = shape_of(node.inputs[0])[2:]
    kernel = node.attrs.get("kernel_shape") or shape_of(node.inputs[1])[2:]
    ones = [1] * len(sizes)
    strides = node.attrs.get("strides", ones)
    if node.attrs.get("dilations", ones) != ones and mode != "VALID":
        return None  # onnxruntime refuses it too
    before, after = [], []
    for size, cell, stride in zip(sizes, kernel, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + cell - size, 0)
        if mode == "VALID":
            total = 0
        small = total // 2
        before.append(small if mode == "SAME_UPPER" else total - small)
        after.append(total - small if mode == "SAME_UPPER" else small)
    del node.attrs["auto_pad"]
    node.attrs["pads"] = before + after
    if mode != "VALID":
        node.attrs.pop("ceil_mode", None)
    return f"auto_pad of {node.op} written as pads"


type Sizes = NDArray[np.int64]


def _gather(node: gs.Node, builder: Builder) -> str | None:
    """Gather, GatherElements, ScatterElements: indices along one axis."""
    axis = node.attrs.get("axis", 0)
    return _count_from_start(node, builder, np.array(shape_of(node.inputs[0])[axis]))


def _gather_nd(node: gs.Node, builder: Builder) -> str | None:
    """GatherND, ScatterND: the last axis of the indices holds positions on consecutive axes."""
    first = node.attrs.get("batch_dims", 0)
    depth = shape_of(node.inputs[1])[-1]
    return _count_from_start(node, builder, np.array(shape_of(node.inputs[0])[first:][:depth]))


def _scatter(node: gs.Node, builder: Builder) -> str | None:
    """Scatter of updates onto every place, each once and in order: the updates themselves.

    torch's dynamo exporter puts the picture into its batch so, and onnx2tf writes index arithmetic
    over every pixel for it, of which LiteRT makes other numbers from one session to the next.
    """
    data, indices, updates = node.inputs
    known = value_of(indices)
    value = None if known is None else known.astype(np.int64)
    shape = shape_of(data)
    plain = node.attrs.get("reduction", "none") == "none" and shape_of(updates) == shape
    if value is not None and plain and math.prod(shape):
        places = np.indices(shape[: value.shape[-1]] if node.op == "ScatterND" else shape)
        if node.op == "ScatterND":
            everywhere, at = np.moveaxis(places, 0, -1), value
        else:
            axis = node.attrs.get("axis", 0)
            everywhere, at = places[axis], np.where(value < 0, value + shape[axis], value)
        if np.array_equal(everywhere, at):
            what = f"{node.op} onto every place taken out"
            node.op = "Identity"
            node.attrs.clear()
            rewire(node, [updates])
            return what
    return (_gather_nd if node.op == "ScatterND" else _gather)(node, builder)


def _count_from_start(node: gs.Node, builder: Builder, sizes: Sizes) -> str | None:
    value = value_of(node.inputs[1])
    if value is None:
        return None
    indices = value.astype(np.int64)
    if not (indices < 0).any():
        return None
    plain = np.where(indices < 0, indices + sizes, indices).astype(value.dtype)
    data, _, *others = node.inputs
    rewire(node, [data, builder.constant(f"{node.name}/from_start", plain), *others])
    return f"negative indices of {node.op} counted from the start"


def _slice(node: gs.Node, builder: Builder) -> str | None:
    """Limits of a forward Slice, within the axis and from its start."""
    values = [value_of(tensor) for tensor in node.inputs[1:] if tensor.name]
    known = [[int(v) for v in value.reshape(-1)] for value in values if value is not None]
    if len(known) != len(node.inputs) - 1:
        return None
    starts, ends, *rest = known
    shape = shape_of(node.inputs[0])
    axes = rest[0] if rest else list(range(len(starts)))
    if len(rest) > 1 and any(step < 0 for step in rest[1]):
        return None
    plain = [axis % len(shape) for axis in axes]
    sizes = [shape[axis] for axis in plain]
    starts_within, ends_within = _within(starts, sizes), _within(ends, sizes)
    if (starts_within, ends_within, plain) == (starts, ends, axes):
        return None
    written = [("starts", starts_within), ("ends", ends_within), ("axes", plain)]
    inputs = [builder.ints(f"{node.name}/{name}", limits) for name, limits in written]
    rewire(node, [node.inputs[0], *inputs, *node.inputs[4:]])
    return "limits of Slice counted from the start"


def _within(limits: list[int], sizes: list[int]) -> list[int]:
    ahead = (
        limit + size if limit < 0 else limit for limit, size in zip(limits, sizes, strict=True)
    )
    return [min(max(limit, 0), size) for limit, size in zip(ahead, sizes, strict=True)]


_WRITE_OUT: Mapping[str, Callable[[gs.Node, Builder], str | None]] = {
    "AveragePool": _auto_pad,
    "Clip": _clip,
    "Conv": _auto_pad,
    "Gather": _gather,
    "GatherElements": _gather,
    "GatherND": _gather_nd,
    "LpPool": _auto_pad,
    "MaxPool": _auto_pad,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Slice": _slice,
}
