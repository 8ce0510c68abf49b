"""Convolutions, pools, products and normalisations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relay

from bridge.targets.tvm.converters.node import Converter, constant, scalar
from bridge.targets.tvm.node import Node

_LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}
_CONVOLUTIONS = {1: relay.nn.conv1d, 2: relay.nn.conv2d, 3: relay.nn.conv3d}
_TRANSPOSED = {
    1: (relay.nn.conv1d_transpose, "IOW"),
    2: (relay.nn.conv2d_transpose, "IOHW"),
    3: (relay.nn.conv3d_transpose, "IODHW"),
}
_MAX_POOLS = {1: relay.nn.max_pool1d, 2: relay.nn.max_pool2d, 3: relay.nn.max_pool3d}
_AVERAGE_POOLS = {1: relay.nn.avg_pool1d, 2: relay.nn.avg_pool2d, 3: relay.nn.avg_pool3d}


def _numbers(node: Node, attribute: str, rank: int, default: int) -> tuple[int, ...]:
    return tuple(int(n) for n in node.attributes.get(attribute, (default,) * rank))


def _spatial_rank(node: Node) -> int:
    rank = len(node.type().shape) - 2
    if rank not in _LAYOUTS:
        raise node.refusal(f"{rank} spatial axes")
    return rank


def _pads(node: Node, kernel: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Pads before all axes, then after them; `auto_pad` is worked out here."""
    rank = len(kernel)
    mode = node.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return _numbers(node, "pads", 2 * rank, 0)
    if mode == "VALID":
        return (0,) * (2 * rank)
    dilations = _numbers(node, "dilations", rank, 1)
    before, after = [], []
    for size, k, stride, dilation in zip(
        node.type().shape[2:], kernel, strides, dilations, strict=True
    ):
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        before.append(less if mode == "SAME_UPPER" else more)
        after.append(more if mode == "SAME_UPPER" else less)
    return (*before, *after)


def _conv(node: Node) -> Any:
    rank = _spatial_rank(node)
    weight = node.type(1).shape
    strides = _numbers(node, "strides", rank, 1)
    layout, kernel_layout = _LAYOUTS[rank]
    result = _CONVOLUTIONS[rank](
        node.expr(0),
        node.expr(1),
        strides=strides,
        padding=_pads(node, weight[2:], strides),
        dilation=_numbers(node, "dilations", rank, 1),
        groups=int(node.attributes.get("group", 1)),
        channels=weight[0],
        kernel_size=weight[2:],
        data_layout=layout,
        kernel_layout=kernel_layout,
    )
    return _with_bias(node, result)


def _with_bias(node: Node, result: Any) -> Any:
    """The bias in the rank of the result: relay would make it so with three constants to fold."""
    if not node.has(2):
        return result
    shape = (1, -1, *[1] * _spatial_rank(node))
    bias = node.operand(2)
    if bias.value is None:
        return relay.add(result, relay.reshape(bias.expr, shape))
    return relay.add(result, constant(bias.value.reshape(shape)))


def _conv_transpose(node: Node) -> Any:
    rank = _spatial_rank(node)
    weight, groups = node.type(1).shape, int(node.attributes.get("group", 1))
    strides = _numbers(node, "strides", rank, 1)
    dilations = _numbers(node, "dilations", rank, 1)
    if any(dilation != 1 for dilation in dilations):
        raise node.refusal("dilations")
    extra = _numbers(node, "output_padding", rank, 0)
    # What the output has must be what is left: so pads come from the declared output shape.
    declared, shape = node.outputs[0].shape[2:], node.type().shape[2:]
    sizes = zip(shape, strides, extra, weight[2:], declared, strict=True)
    totals = [(n - 1) * stride + more + k - out for n, stride, more, k, out in sizes]
    if node.text("auto_pad", "NOTSET") == "NOTSET" and "output_shape" not in node.attributes:
        pads = _numbers(node, "pads", 2 * rank, 0)
    else:
        less = [total // 2 for total in totals]
        more = [total - total // 2 for total in totals]
        upper = node.text("auto_pad", "NOTSET") == "SAME_UPPER"
        pads = (*less, *more) if upper else (*more, *less)
    if min(pads) < 0:
        raise node.refusal("negative pads")
    make, kernel_layout = _TRANSPOSED[rank]
    result = make(
        node.expr(0),
        node.expr(1),
        strides=strides,
        padding=pads,
        channels=weight[1] * groups,
        kernel_size=weight[2:],
        groups=groups,
        data_layout=_LAYOUTS[rank][0],
        kernel_layout=kernel_layout,
        output_padding=extra,
    )
    return _with_bias(node, result)


def _pool_window(node: Node) -> dict[str, Any]:
    """What both pools are given. A window that `ceil_mode` adds is added as pads behind."""
    rank = _spatial_rank(node)
    kernel = tuple(int(k) for k in node.attributes["kernel_shape"])
    strides = _numbers(node, "strides", rank, 1)
    pads = _pads(node, kernel, strides)
    return {
        "pool_size": kernel,
        "strides": strides,
        "dilation": _numbers(node, "dilations", rank, 1),
        "padding": pads,
        "layout": _LAYOUTS[rank][0],
        "ceil_mode": bool(node.attributes.get("ceil_mode", 0)),
    }


def _max_pool(node: Node) -> Any:
    if len(node.outputs) > 1:
        raise node.refusal("its second output, the indices")
    return _MAX_POOLS[_spatial_rank(node)](node.expr(), **_pool_window(node))


def _average_pool(node: Node) -> Any:
    include = bool(node.attributes.get("count_include_pad", 0))
    window = _pool_window(node)
    if include and window["ceil_mode"]:
        raise node.refusal("ceil_mode together with count_include_pad")
    return _AVERAGE_POOLS[_spatial_rank(node)](node.expr(), count_include_pad=include, **window)


def _global_pool(make: Callable[[Any, list[int], bool], Any]) -> Converter:
    return lambda node: make(node.expr(), list(range(2, len(node.type().shape))), True)


def _mat_mul(node: Node) -> Any:
    left, right = node.type(0).shape, node.type(1).shape
    a, b = node.expr(0), node.expr(1)
    if len(left) == 1:
        left, a = (1, *left), relay.expand_dims(a, 0)
    if len(right) == 1:
        right, b = (*right, 1), relay.expand_dims(b, 1)
    if len(right) == 2:
        folded = relay.reshape(a, (-1, left[-1]))
        result = relay.nn.dense(folded, relay.transpose(b, (1, 0)))
    else:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        a, b = (
            relay.reshape(relay.broadcast_to(x, (*batch, *shape[-2:])), (-1, *shape[-2:]))
            for x, shape in ((a, left), (b, right))
        )
        result = relay.nn.batch_matmul(a, relay.transpose(b, (0, 2, 1)))
    return relay.reshape(result, node.outputs[0].shape)


def _gemm(node: Node) -> Any:
    a, b, dtype = node.expr(0), node.expr(1), node.type().dtype
    if node.attributes.get("transA", 0):
        a = relay.transpose(a, (1, 0))
    if not node.attributes.get("transB", 0):
        b = relay.transpose(b, (1, 0))
    result = relay.nn.dense(a, b)
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if alpha != 1.0:
        result = relay.multiply(result, scalar(alpha, dtype))
    if not node.has(2) or beta == 0.0:
        return result
    bias = node.expr(2)
    return relay.add(result, bias if beta == 1.0 else relay.multiply(bias, scalar(beta, dtype)))


def _batch_normalization(node: Node) -> Any:
    if node.attributes.get("training_mode", 0) or len(node.outputs) > 1:
        raise node.refusal("training")
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    if any(node.operand(index).value is None for index in range(1, 5)):
        inputs = [node.expr(index) for index in range(5)]
        return relay.nn.batch_norm(*inputs, epsilon=epsilon)[0]
    gamma, beta, mean, variance = (node.constant(i).astype(np.float64) for i in range(1, 5))
    scale = gamma / np.sqrt(variance + epsilon)
    shape, dtype = (1, -1, *[1] * (len(node.type().shape) - 2)), node.type().dtype
    scaled = relay.multiply(node.expr(0), constant(scale.reshape(shape), dtype))
    return relay.add(scaled, constant((beta - mean * scale).reshape(shape), dtype))


def _instance_normalization(node: Node) -> Any:
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return relay.nn.instance_norm(node.expr(0), node.expr(1), node.expr(2), epsilon=epsilon)


def _layer_normalization(node: Node) -> Any:
    if len(node.outputs) > 1:
        raise node.refusal("its outputs Mean and InvStdDev")
    shape, axis, dtype = node.type().shape, node.axis(-1), node.type().dtype
    axes = list(range(axis, len(shape)))
    centred = relay.subtract(node.expr(), relay.mean(node.expr(), axes, True))
    variance = relay.mean(relay.multiply(centred, centred), axes, True)
    epsilon = scalar(float(node.attributes.get("epsilon", 1e-5)), dtype)
    result = relay.divide(centred, relay.sqrt(relay.add(variance, epsilon)))
    result = relay.multiply(result, node.expr(1))
    return relay.add(result, node.expr(2)) if node.has(2) else result


def _lrn(node: Node) -> Any:
    given = node.attributes
    return relay.nn.lrn(
        node.expr(),
        size=int(given["size"]),
        axis=1,
        bias=float(given.get("bias", 1.0)),
        alpha=float(given.get("alpha", 1e-4)),
        beta=float(given.get("beta", 0.75)),
    )


def _softmax(make: Callable[..., Any]) -> Converter:
    return lambda node: make(node.expr(), axis=node.axis(-1))


def _hardmax(node: Node) -> Any:
    shape, axis, dtype = node.type().shape, node.axis(-1), node.type().dtype
    best = relay.argmax(node.expr(), axis=axis, keepdims=True)
    ranks = [-1 if i == axis else 1 for i in range(len(shape))]
    positions = constant(np.arange(shape[axis]).reshape(ranks), "int64")
    return relay.cast(relay.equal(relay.cast(best, "int64"), positions), dtype)


def _lp_normalization(node: Node) -> Any:
    axis, x = [node.axis(-1)], node.expr()
    if int(node.attributes.get("p", 2)) == 1:
        return relay.divide(x, relay.sum(relay.abs(x), axis, True))
    return relay.divide(x, relay.sqrt(relay.sum(relay.multiply(x, x), axis, True)))


def _einsum(node: Node) -> Any:
    operands = [node.expr(index) for index in range(len(node.operands))]
    return relay.einsum(operands, node.text("equation", "").replace(" ", ""))


def _grid_sample(node: Node) -> Any:
    mode = node.text("mode", "bilinear")
    padding = node.text("padding_mode", "zeros")
    if len(node.type().shape) != 4 or mode not in ("bilinear", "nearest"):
        raise node.refusal(f"mode {mode} of a tensor of rank {len(node.type().shape)}")
    return relay.image.grid_sample(
        node.expr(0),
        relay.transpose(node.expr(1), (0, 3, 1, 2)),
        method=mode,
        layout="NCHW",
        padding_mode=padding,
        align_corners=bool(node.attributes.get("align_corners", 0)),
    )


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool(relay.mean),
    "GlobalMaxPool": _global_pool(relay.max),
    "GridSample": _grid_sample,
    "Hardmax": _hardmax,
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _softmax(relay.nn.log_softmax),
    "LpNormalization": _lp_normalization,
    "MatMul": _mat_mul,
    "MaxPool": _max_pool,
    "Softmax": _softmax(relay.nn.softmax),
}
