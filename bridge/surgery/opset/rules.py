"""One rule per operator whose form or meaning moved between opset 7 and now, towards opset 17.

A rule takes a node of an older or newer form and gives the nodes that compute the same at 17. It
may change the node, which is the caller's copy.
"""

from collections.abc import Callable, Mapping

import numpy as np
from onnx import NodeProto, TensorProto, helper

from bridge.surgery.opset.scope import (
    Scope,
    attribute_of,
    constant_ints,
    drop,
    input_of,
    put,
    rank_of,
    refusal,
    take,
)

type Rule = Callable[[NodeProto, Scope], list[NodeProto]]


# Up from older opsets: attributes that became inputs.


def _axes_to_input(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Squeeze, Unsqueeze, ReduceSum below 13: attribute axes is an input at 13."""
    axes = take(node, "axes")
    if axes is not None:
        node.input.append(scope.ints("axes", axes))
    return [node]


def _split_to_input(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Split below 13: attribute split is an input at 13."""
    sizes = take(node, "split")
    if sizes is not None:
        node.input.append(scope.ints("split", sizes))
    return [node]


def _slice_to_inputs(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Slice-1: attributes starts, ends, axes are inputs at 10."""
    starts, ends, axes = (take(node, name) for name in ("starts", "ends", "axes"))
    node.input.append(scope.ints("starts", starts or []))
    node.input.append(scope.ints("ends", ends or []))
    if axes is not None:
        node.input.append(scope.ints("axes", axes))
    return [node]


def _clip_to_inputs(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Clip-6: attributes min and max are inputs at 11; absent ones mean the same in both."""
    limits = []
    dtype = np.dtype(np.float32)
    found = scope.types.get(node.input[0])
    if found is not None and found.elem_type:
        dtype = helper.tensor_dtype_to_np_dtype(found.elem_type)
    for name in ("min", "max"):
        value = attribute_of(node, name, None)
        limits.append(
            "" if value is None else scope.names.constant(np.array(value, dtype), f"clip_{name}")
        )
    del node.attribute[:]
    node.input.extend(limits)
    return [node]


def _pad_to_inputs(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Pad-2: attributes pads and value are inputs at 11."""
    pads = take(node, "pads")
    node.input.append(scope.ints("pads", pads or []))
    value = attribute_of(node, "value", 0.0)
    found = scope.types.get(node.input[0])
    if value and found is not None:
        dtype = helper.tensor_dtype_to_np_dtype(found.elem_type)
        node.input.append(scope.names.constant(np.array(value, dtype), "pad_value"))
    elif value:
        raise refusal(node, scope, f"the element type of its input {node.input[0]} is not known")
    drop(node, "value")
    return [node]


def _topk_to_input(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """TopK-1: attribute k is an input at 10."""
    node.input.append(scope.ints("k", take(node, "k") or [0]))
    return [node]


# Up from older opsets: meanings that moved.


def _softmax_of_rows(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Softmax, LogSoftmax, Hardmax below 13 work on all axes from `axis` on as on one.

    Given:   Softmax-11(x float32[2, 3, 4], axis=1)
    Result:  Reshape(Softmax-13(Flatten(x, axis=1), axis=-1), Shape(x))
    """
    axis = attribute_of(node, "axis", 1)
    dims = scope.dims(node.input[0])
    if axis == -1 or (dims is not None and axis == len(dims) - 1):
        put(node, "axis", -1)
        return [node]
    (x,), (y,) = node.input, node.output
    rows, soft, shape = (scope.names.fresh(f"{y}/{name}") for name in ("rows", "soft", "shape"))
    return [
        helper.make_node("Flatten", [x], [rows], name=f"{node.name}/Flatten", axis=axis),
        helper.make_node(node.op_type, [rows], [soft], name=node.name, axis=-1),
        helper.make_node("Shape", [x], [shape], name=f"{node.name}/Shape"),
        helper.make_node("Reshape", [soft, shape], [y], name=f"{node.name}/Reshape"),
    ]


def _upsample(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Upsample only enlarges; it reads the pixel at or below the asymmetric position."""
    mode = attribute_of(node, "mode", b"nearest")
    scales = attribute_of(node, "scales", None)
    name = (
        node.input[1]
        if scales is None
        else scope.names.constant(np.array(scales, np.float32), "scales")
    )
    return [_resize(node, name, mode, b"floor")]


def _resize_10(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Resize-10: as Upsample, but where it makes smaller, nearest is the pixel at or above."""
    mode = attribute_of(node, "mode", b"nearest")
    scales = scope.value(node.input[1])
    if mode != b"nearest":
        return [_resize(node, node.input[1], mode, b"floor")]
    if scales is None:
        raise refusal(node, scope, f"its scales ({node.input[1]}) are computed, not constant")
    factors = scales.astype(np.float32)
    larger, smaller = bool((factors > 1).any()), bool((factors < 1).any())
    if larger and smaller:
        raise refusal(node, scope, "it makes one axis larger and another smaller")
    return [_resize(node, node.input[1], mode, b"ceil" if smaller else b"floor")]


def _resize(node: NodeProto, scales: str, mode: bytes, nearest: bytes) -> NodeProto:
    return helper.make_node(
        "Resize",
        [node.input[0], "", scales],
        list(node.output),
        name=node.name,
        mode=mode,
        nearest_mode=nearest,
        coordinate_transformation_mode=b"asymmetric",
    )


def _roi_align_10(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """RoiAlign-10 is what 16 calls output_half_pixel, which is not the default there."""
    del scope
    put(node, "coordinate_transformation_mode", "output_half_pixel")
    return [node]


def _dropout(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Dropout below 12 has no training mode: it passes its input on."""
    if len(node.output) > 1 and node.output[1]:
        raise refusal(node, scope, f"its mask ({node.output[1]}) is used")
    return [helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)]


def _batch_normalization(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """BatchNormalization below 14: further outputs mean training, spatial=0 another operator."""
    if any(node.output[1:]):
        raise refusal(node, scope, "it has the outputs of training")
    if take(node, "spatial") == [0]:
        raise refusal(node, scope, "it normalises every position on its own (spatial=0)")
    del node.output[1:]
    return [node]


def _scatter(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Scatter-9 is ScatterElements."""
    del scope
    node.op_type = "ScatterElements"
    return [node]


# Down from newer opsets.


def _axes_to_attribute(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Reductions at 18: input axes is an attribute below; none, or all, when it is empty."""
    axes = constant_ints(node, 1, scope, "axes")
    noop = take(node, "noop_with_empty_axes") == [1]
    del node.input[1:]
    if axes:
        put(node, "axes", axes)
    elif noop:
        if node.op_type not in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"):
            raise refusal(node, scope, "noop_with_empty_axes=1 without axes")
        return [helper.make_node("Identity", list(node.input), list(node.output), name=node.name)]
    return _reduce_bool(node, scope)


def _reduce_bool(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """ReduceMax and ReduceMin of truth values came with 20: they are those of 0 and 1."""
    found = scope.types.get(node.input[0])
    if found is None or found.elem_type != TensorProto.BOOL:
        return [node]
    y = node.output[0]
    numbers, reduced = scope.names.fresh(f"{y}/uint8"), scope.names.fresh(f"{y}/reduced")
    before = helper.make_node(
        "Cast", [node.input[0]], [numbers], name=f"{node.name}/uint8", to=TensorProto.UINT8
    )
    after = helper.make_node("Cast", [reduced], [y], name=f"{node.name}/bool", to=TensorProto.BOOL)
    node.input[0], node.output[0] = numbers, reduced
    return [before, node, after]


def _split_into(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Split-18: num_outputs parts of equal size, the last one smaller where it must be."""
    parts = take(node, "num_outputs")
    if parts is None or input_of(node, 1):
        return [node]
    count, axis = parts[0], attribute_of(node, "axis", 0)
    dims = scope.dims(node.input[0])
    size = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
    if size is not None:
        part = -(-size // count)
        sizes = [part] * (count - 1) + [size - part * (count - 1)]
        node.input[:] = [node.input[0], scope.ints("split", sizes)]
        return [node]
    raise refusal(node, scope, f"the size of axis {axis} of {node.input[0]} is not known")


def _pad_axes(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Pad-18: pads for some axes only; every axis has its pads at 13."""
    if attribute_of(node, "mode", b"constant") == b"wrap":
        raise refusal(node, scope, "mode is wrap")
    axes = constant_ints(node, 3, scope, "axes")
    del node.input[3:]
    if axes is None:
        return [node]
    rank = rank_of(node, scope)
    where = [axis % rank for axis in axes]
    where += [axis + rank for axis in where]
    pads = scope.value(node.input[1])
    if pads is not None:
        full = np.zeros(2 * rank, np.int64)
        full[where] = pads.reshape(-1)
        node.input[1] = scope.ints("pads", full.tolist())
        return [node]
    full_name = scope.names.fresh(f"{node.output[0]}/pads")
    scatter = helper.make_node(
        "ScatterElements",
        [scope.ints("no_pads", [0] * 2 * rank), scope.ints("pad_axes", where), node.input[1]],
        [full_name],
        name=f"{node.name}/pads",
    )
    node.input[1] = full_name
    return [scatter, node]


def _resize_axes(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Resize-18: scales or sizes for some axes only; the others keep their size at 13."""
    if attribute_of(node, "coordinate_transformation_mode", b"") == b"half_pixel_symmetric":
        raise refusal(node, scope, "coordinate_transformation_mode is half_pixel_symmetric")
    axes = take(node, "axes")
    if axes is None:
        return [node]
    if input_of(node, 1):
        raise refusal(node, scope, "it has both axes and a region of interest")
    rank = rank_of(node, scope)
    where = scope.ints("resize_axes", [axis % rank for axis in axes])
    y = node.output[0]
    before = []
    if input_of(node, 2):
        base = scope.names.constant(np.ones(rank, np.float32), "scale_one")
        position = 2
    else:
        base = scope.names.fresh(f"{y}/shape")
        before = [helper.make_node("Shape", [node.input[0]], [base], name=f"{node.name}/Shape")]
        position = 3
    full = scope.names.fresh(f"{y}/full")
    before.append(
        helper.make_node(
            "ScatterElements",
            [base, where, node.input[position]],
            [full],
            name=f"{node.name}/ScatterElements",
        )
    )
    node.input[position] = full
    return [*before, node]


def _undilated(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """LpPool got dilations at 18, AveragePool at 19."""
    dilations = take(node, "dilations")
    if dilations is not None and set(dilations) != {1}:
        raise refusal(node, scope, f"dilations are {dilations}")
    return [node]


def _average_pool_19(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """AveragePool-19 counts cells beyond the padding differently where both settings are on."""
    if attribute_of(node, "ceil_mode", 0) and attribute_of(node, "count_include_pad", 0):
        raise refusal(node, scope, "ceil_mode and count_include_pad are both set")
    scope.rounds(node, "onnxruntime adds the cells of a window in another order")
    return _undilated(node, scope)


def _grid_sample_20(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """GridSample-20 calls the modes linear and cubic, and also takes volumes."""
    dims = scope.dims(node.input[0])
    if dims is not None and len(dims) != 4:
        raise refusal(node, scope, f"its input has rank {len(dims)}, not 4")
    mode = attribute_of(node, "mode", b"linear")
    put(node, "mode", {b"linear": b"bilinear", b"cubic": b"bicubic"}.get(mode, mode))
    return [node]


def _scatter_18(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """ScatterElements and ScatterND got the reductions max and min at 18."""
    reduction = attribute_of(node, "reduction", b"none")
    if reduction in (b"max", b"min"):
        raise refusal(node, scope, f"reduction is {reduction.decode()}")
    return [node]


def _cast_19(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Cast and CastLike at 19: saturate and round_mode only say something about float8."""
    del scope
    if attribute_of(node, "to", 0) < TensorProto.FLOAT8E4M3FN:
        drop(node, "saturate", "round_mode")
    return [node]


def _quantize_19(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """QuantizeLinear at 19: saturate is for float8, and a zero point says the output type."""
    del scope
    drop(node, "saturate")
    if input_of(node, 2) or attribute_of(node, "output_dtype", 0) == TensorProto.UINT8:
        drop(node, "output_dtype")
    return [node]


def _gelu(node: NodeProto, scope: Scope) -> list[NodeProto]:
    """Gelu-20 step by step as onnxruntime's kernel takes them: 0.5 x (erf(x sqrt(1/2)) + 1).

    The approximation is 0.5 x (tanh(x (0.0356774 x x + 0.797885)) + 1).
    """
    found = scope.types.get(node.input[0])
    if found is None or found.elem_type != TensorProto.FLOAT:
        raise refusal(node, scope, "its input is not known to be float32")
    (x,), (y,) = node.input, node.output

    def step(op_type: str, name: str, *inputs: str | float) -> NodeProto:
        operands = [
            value
            if isinstance(value, str)
            else scope.names.constant(np.array(value, np.float32), "gelu")
            for value in inputs
        ]
        output = scope.names.fresh(f"{y}/{name}")
        return helper.make_node(op_type, operands, [output], name=f"{node.name}/{name}")

    if attribute_of(node, "approximate", b"none") == b"none":
        steps = [step("Mul", "scaled", x, float(np.sqrt(0.5)))]
        steps.append(step("Erf", "erf", steps[-1].output[0]))
    else:
        scope.rounds(node, "onnxruntime fuses steps of the approximation")
        root = float(np.sqrt(2 / np.pi))
        steps = [step("Mul", "squared", x, x)]
        steps.append(step("Mul", "cubic", steps[-1].output[0], 0.044715 * root))
        steps.append(step("Add", "factor", steps[-1].output[0], root))
        steps.append(step("Mul", "scaled", steps[-1].output[0], x))
        steps.append(step("Tanh", "tanh", steps[-1].output[0]))
    steps.append(step("Add", "shifted", steps[-1].output[0], 1.0))
    steps.append(step("Mul", "half", x, 0.5))
    half, shifted = steps[-1].output[0], steps[-2].output[0]
    return [*steps, helper.make_node("Mul", [half, shifted], [y], name=node.name)]


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSumSquare",
)  # fmt: skip

_NEWEST = 1000

RULES: Mapping[str, tuple[tuple[int, int, Rule], ...]] = {
    # (oldest, newest): the versions of the operator that the rule reads.
    "AveragePool": ((19, _NEWEST, _average_pool_19),),
    "BatchNormalization": ((1, 13, _batch_normalization),),
    "Cast": ((19, _NEWEST, _cast_19),),
    "Clip": ((6, 10, _clip_to_inputs),),
    "Dropout": ((1, 11, _dropout),),
    "Gelu": ((20, _NEWEST, _gelu),),
    "GridSample": ((20, _NEWEST, _grid_sample_20),),
    "Hardmax": ((1, 12, _softmax_of_rows),),
    "LogSoftmax": ((1, 12, _softmax_of_rows),),
    "LpPool": ((18, _NEWEST, _undilated),),
    "Pad": ((2, 10, _pad_to_inputs), (18, _NEWEST, _pad_axes)),
    "QuantizeLinear": ((19, _NEWEST, _quantize_19),),
    "ReduceSum": ((1, 12, _axes_to_input),),
    "Resize": ((10, 10, _resize_10), (18, _NEWEST, _resize_axes)),
    "RoiAlign": ((10, 15, _roi_align_10),),
    "Scatter": ((9, 11, _scatter),),
    "ScatterElements": ((18, _NEWEST, _scatter_18),),
    "ScatterND": ((18, _NEWEST, _scatter_18),),
    "Slice": ((1, 9, _slice_to_inputs),),
    "Softmax": ((1, 12, _softmax_of_rows),),
    "Split": ((2, 12, _split_to_input), (18, _NEWEST, _split_into)),
    "Squeeze": ((1, 12, _axes_to_input),),
    "TopK": ((1, 9, _topk_to_input),),
    "Unsqueeze": ((1, 12, _axes_to_input),),
    "Upsample": ((7, 9, _upsample),),
    **dict.fromkeys(_REDUCTIONS, ((18, _NEWEST, _axes_to_attribute),)),
}
