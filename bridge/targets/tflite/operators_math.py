"""Elementwise ONNX operators as TFLite operators, bit for bit as onnxruntime computes them.

Where a stock kernel differs, the difference and the way round it stand at the function.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Final

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.node import Node

FLOAT: Final = ("float32",)
NUMBER: Final = ("float32", "int32", "int64")
SMALL: Final = ("int8", "uint8", "int16", "uint16")

# Kernels broadcast at least this many axes; some of them (comparisons, POW, FLOOR_MOD) no more.
BROADCAST_RANK: Final = 4
# A comparison that broadcasts a scalar takes 2.4 ns an element, FILL and a plain one 0.5 ns.
FILL_FROM: Final = 1024


# Broadcasting


def aligned(builder: Builder, tensors: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ...]]:
    """Operands that broadcast over at most four axes, and the full result shape.

    Neighbouring axes along which every operand broadcasts alike are merged; what still has more
    than four is spread out with BROADCAST_TO, whose kernel takes eight.
    """
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    if len(shape) <= BROADCAST_RANK or all(t.shape == shape for t in tensors):
        return list(tensors), shape
    full = [(1,) * (len(shape) - t.rank) + t.shape for t in tensors]
    merged: list[list[int]] = [[] for _ in tensors]
    previous: tuple[bool, ...] | None = None
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        pattern = tuple(dims[axis] == 1 for dims in full)
        for dims, target in zip(full, merged, strict=True):
            if pattern == previous:
                target[-1] *= dims[axis]
            else:
                target.append(dims[axis])
        previous = pattern
    if max(map(len, merged)) > BROADCAST_RANK:
        return [builder.broadcast_to(t, shape) for t in tensors], shape
    reshaped = [builder.reshape(t, dims) for t, dims in zip(tensors, merged, strict=True)]
    return reshaped, shape


def binary(builder: Builder, kind: str, a: Tensor, b: Tensor) -> Tensor:
    """An arithmetic operator on operands of any rank."""
    (a, b), shape = aligned(builder, [a, b])
    return builder.reshape(builder.binary(kind, a, b), shape)


def compare(builder: Builder, kind: str, a: Tensor, b: Tensor) -> Tensor:
    """A comparison, or a logical operator of two operands, of any rank."""
    (a, b), shape = aligned(builder, [a, b])
    if max(a.size, b.size) >= FILL_FROM and 1 in (a.size, b.size):
        a, b = (_filled(builder, t, max(a, b, key=lambda x: x.size)) for t in (a, b))
    return builder.reshape(builder.compare(kind, a, b), shape)


def _filled(builder: Builder, scalar: Tensor, like: Tensor) -> Tensor:
    if scalar.size != 1 or like.size == 1:
        return scalar
    dims = builder.constant(like.shape, "int32")
    value = builder.reshape(scalar, ())
    return builder.op("FILL", [dims, value], like.shape, scalar.dtype)


def select(builder: Builder, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """SELECT_V2 on operands of any rank."""
    (condition, yes, no), shape = aligned(builder, [condition, yes, no])
    return builder.reshape(builder.select(condition, yes, no), shape)


def outside_delegates(builder: Builder, kind: str, x: Tensor) -> Tensor:
    """A unary float operator computed by TFLite's own kernel, not by the XNNPACK delegate.

    XNNPACK's SQRT is off by an ulp and gives NaN for infinity; its EXP is off by up to 29 ulp and
    gives 0 for NaN; its LOGISTIC gives NaN for 1e30. It refuses tensors of more than six axes
    (`XNN_MAX_TENSOR_DIMS`), TFLite's kernels do not mind.
    """
    raised = builder.reshape(x, (1,) * 6 + (x.size,))
    return builder.reshape(builder.unary(kind, raised), x.shape)


def is_nan(builder: Builder, x: Tensor) -> Tensor:
    """True where a float is NaN."""
    return builder.compare("NOT_EQUAL", x, x)


# Arithmetic


def _arithmetic(kind: str, node: Node) -> Tensor:
    """ADD, SUB, MUL: float32, int32 and int64 are exact, integers wrap as in ONNX Runtime."""
    node.require(0, NUMBER)
    return binary(node.builder, kind, node.input(0), node.input(1))


def _divide(node: Node) -> Tensor:
    """DIV truncates integers as ONNX does; it has no int64 kernel and fails only when it runs."""
    a, b = node.require(0, NUMBER), node.input(1)
    if a.dtype != "int64":
        return binary(node.builder, "DIV", a, b)
    if not (node.interval(0).fits_int32 and node.interval(1).fits_int32):
        return _divided_int64(node.builder, a, b)
    a, b = (node.builder.cast(t, "int32") for t in (a, b))
    return node.builder.cast(binary(node.builder, "DIV", a, b), "int64")


def _divided_int64(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    """The quotient of any int64 numbers, by steps of float32 division.

    What FLOOR_MOD leaves is a multiple of b. Each step takes off what float32 sees of the quotient
    and is 2^22 times closer to it; three steps cover 63 bits. Where an int64 overflows on the way
    it wraps, and wraps back.
    """
    remainder = binary(builder, "FLOOR_MOD", a, b)
    rest = binary(builder, "SUB", a, remainder)
    divisor = builder.cast(b, "float32")
    quotient = None
    for _ in range(4):
        seen = binary(builder, "DIV", builder.cast(rest, "float32"), divisor)
        step = builder.cast(builder.unary("ROUND", seen), "int64")
        quotient = step if quotient is None else builder.binary("ADD", quotient, step)
        rest = builder.binary("SUB", rest, binary(builder, "MUL", step, b))
    assert quotient is not None
    # So far it is rounded down; ONNX rounds towards zero, which differs for a negative one.
    zero = builder.constant(0, "int64")
    negative = compare(
        builder, "NOT_EQUAL", compare(builder, "LESS", a, zero), compare(builder, "LESS", b, zero)
    )
    inexact = compare(builder, "NOT_EQUAL", remainder, zero)
    up = builder.cast(builder.compare("LOGICAL_AND", inexact, negative), "int64")
    return builder.binary("ADD", quotient, up)


def _modulo(node: Node) -> Tensor:
    """FLOOR_MOD takes the divisor's sign as ONNX Mod; with `fmod` it is the dividend's.

    Source: ONNX Mod-13, attribute fmod; `floor_mod.cc`.
    """
    builder, a, b = node.builder, node.require(0, NUMBER), node.input(1)
    if not node.attribute("fmod", 0):
        if a.dtype == "float32":
            raise node.unsupported("fmod=0 on floats", "set fmod=1")
        return binary(builder, "FLOOR_MOD", a, b)
    rest = binary(builder, "FLOOR_MOD", absolute(builder, a), absolute(builder, b))
    negative = compare(builder, "LESS", a, builder.constant(0, a.dtype))
    return select(builder, negative, builder.unary("NEG", rest), rest)


def absolute(builder: Builder, x: Tensor) -> Tensor:
    """ABS; it has no int64 kernel, where MAXIMUM of x and -x is the same."""
    if x.dtype == "int64":
        return builder.binary("MAXIMUM", x, builder.unary("NEG", x))
    return builder.unary("ABS", x)


def _absolute(node: Node) -> Tensor:
    return absolute(node.builder, node.require(0, NUMBER))


def _negate(node: Node) -> Tensor:
    return node.builder.unary("NEG", node.require(0, NUMBER))


def _sign(node: Node) -> Tensor:
    """Not SIGN, which gives 0 for NaN and has no int64 kernel: (x > 0) - (x < 0), NaN kept."""
    builder, x = node.builder, node.require(0, NUMBER)
    zero = builder.constant(0, x.dtype)
    above, below = (
        builder.cast(compare(builder, kind, x, zero), x.dtype) for kind in ("GREATER", "LESS")
    )
    sign = builder.binary("SUB", above, below)
    return builder.select(is_nan(builder, x), x, sign) if x.dtype == "float32" else sign


def _reciprocal(node: Node) -> Tensor:
    x = node.require(0, FLOAT)
    return binary(node.builder, "DIV", node.builder.constant(1, x.dtype), x)


def _power(node: Node) -> Tensor:
    """POW; onnxruntime multiplies for the constant exponents 2 and 3, so do we."""
    builder, x, exponent = node.builder, node.require(0, NUMBER), node.input(1)
    value = builder.value(exponent)
    if value is not None and value.size == 1 and float(value.reshape(-1)[0]) in (2.0, 3.0):
        spread = np.broadcast_shapes(x.shape, exponent.shape)
        square = builder.reshape(builder.binary("MUL", x, x), spread)
        if float(value.reshape(-1)[0]) == 2.0:
            return square
        return builder.binary("MUL", square, builder.reshape(x, spread))
    node.require(0, FLOAT)
    return binary(builder, "POW", x, builder.cast(exponent, "float32"))


# Extremes


def extreme(builder: Builder, kind: str, a: Tensor, b: Tensor) -> Tensor:
    """MAXIMUM or MINIMUM that gives NaN where either is NaN, as onnxruntime does.

    The kernels give the second operand where one is NaN, whichever it is.
    """
    found = binary(builder, kind, a, b)
    for operand in (a, b) if a.dtype == "float32" else ():
        value = builder.value(operand)
        if value is None:
            found = select(builder, is_nan(builder, operand), operand, found)
        elif np.isnan(value).any():
            mask = builder.constant(np.isnan(value))
            found = select(builder, mask, operand, found)
    return found


def widened(
    builder: Builder, operate: Callable[..., Tensor], *operands: Tensor, keep: bool = True
) -> Tensor:
    """An operator on 8- and 16-bit integers by way of int32: their kernels mean quantised ones."""
    if operands[0].dtype not in SMALL:
        return operate(*operands)
    result = operate(*(builder.cast(t, "int32") for t in operands))
    return builder.cast(result, operands[0].dtype) if keep else result


def _extreme(kind: str, node: Node) -> Tensor:
    node.require(0, NUMBER + SMALL)
    operate = partial(extreme, node.builder, kind)
    return reduce(partial(widened, node.builder, operate), node.operands)


def _clip(node: Node) -> Tensor:
    """Clip; onnxruntime takes the type's own limits for an absent bound: infinity becomes 3.4e38.

    Source: ONNX Clip-13; with min above max the result is max.
    """
    builder, x = node.builder, node.require(0, NUMBER + SMALL)
    limits = np.finfo("float32") if x.dtype == "float32" else np.iinfo(x.dtype)
    for position, kind in ((1, "MAXIMUM"), (2, "MINIMUM")):
        if node.has(position):
            bound = node.input(position)
        elif x.dtype == "float32":
            bound = builder.constant(limits.min if position == 1 else limits.max, x.dtype)
        else:
            continue
        x = widened(builder, partial(extreme, builder, kind), x, bound)
    return x


def _sum(node: Node) -> Tensor:
    node.require(0, NUMBER)
    return reduce(partial(binary, node.builder, "ADD"), node.operands)


def _mean(node: Node) -> Tensor:
    node.require(0, FLOAT)
    count = node.builder.constant(len(node.operands), "float32")
    return binary(node.builder, "DIV", _sum(node), count)


# Functions of one float


def _unary(kind: str, node: Node) -> Tensor:
    return node.builder.unary(kind, node.require(0, FLOAT))


def _own_kernel(kind: str, node: Node) -> Tensor:
    return outside_delegates(node.builder, kind, node.require(0, FLOAT))


def _relu(node: Node) -> Tensor:
    x = node.require(0, NUMBER)
    return extreme(node.builder, "MAXIMUM", x, node.builder.constant(0, x.dtype))


def _leaky_relu(node: Node) -> Tensor:
    builder, x = node.builder, node.require(0, FLOAT)
    zero = builder.constant(0, "float32")
    scaled = builder.binary("MUL", x, builder.constant(node.attribute("alpha", 0.01), "float32"))
    return select(builder, compare(builder, "LESS", x, zero), scaled, x)


def _hard_sigmoid(node: Node) -> Tensor:
    builder, x = node.builder, node.require(0, FLOAT)
    scaled = builder.binary("MUL", x, builder.constant(node.attribute("alpha", 0.2), "float32"))
    y = builder.binary("ADD", scaled, builder.constant(node.attribute("beta", 0.5), "float32"))
    for kind, bound in (("MAXIMUM", 0), ("MINIMUM", 1)):
        y = extreme(builder, kind, y, builder.constant(bound, "float32"))
    return y


def _softplus(node: Node) -> Tensor:
    """log(1 + exp(x)), written so that nothing overflows: max(x, 0) + log1p(exp(-|x|))."""
    builder, x = node.builder, node.require(0, FLOAT)
    small = outside_delegates(builder, "EXP", builder.unary("NEG", builder.unary("ABS", x)))
    one = builder.constant(1, "float32")
    # log1p by the logarithm of the rounded sum, put right by the ratio that rounding changed.
    total = builder.binary("ADD", small, one)
    ratio = builder.binary("DIV", small, builder.binary("SUB", total, one))
    log = builder.binary("MUL", builder.unary("LOG", total), ratio)
    log = builder.select(compare(builder, "EQUAL", total, one), small, log)
    return builder.binary("ADD", extreme(builder, "MAXIMUM", x, builder.constant(0, x.dtype)), log)


# Comparisons and logic


def _compare(kind: str, node: Node) -> Tensor:
    node.require(0, (*NUMBER, *SMALL, "bool") if kind == "EQUAL" else NUMBER + SMALL)
    operate = partial(compare, node.builder, kind)
    return widened(node.builder, operate, node.input(0), node.input(1), keep=False)


def _logical(kind: str, node: Node) -> Tensor:
    node.require(0, ("bool",))
    return compare(node.builder, kind, node.input(0), node.input(1))


def _not(node: Node) -> Tensor:
    return node.builder.unary("LOGICAL_NOT", node.require(0, ("bool",)))


def _where(node: Node) -> Tensor:
    condition, yes, no = (node.input(position) for position in range(3))
    node.require(1, (*NUMBER, "bool", "int8", "uint8", "int16"))
    return select(node.builder, condition, yes, no)


def _is_nan(node: Node) -> Tensor:
    return is_nan(node.builder, node.require(0, FLOAT))


def _is_inf(node: Node) -> Tensor:
    builder, x = node.builder, node.require(0, FLOAT)
    signs = [
        s for s, key in ((1, "positive"), (-1, "negative")) if node.attribute(f"detect_{key}", 1)
    ]
    found = [compare(builder, "EQUAL", x, builder.constant(s * np.inf, "float32")) for s in signs]
    if not found:
        return builder.constant(np.zeros(x.shape, bool))
    return reduce(partial(compare, builder, "LOGICAL_OR"), found)


OPERATORS: Final[Mapping[str, Callable[[Node], Tensor]]] = {
    "Abs": _absolute,
    "Add": partial(_arithmetic, "ADD"),
    "And": partial(_logical, "LOGICAL_AND"),
    "Ceil": partial(_unary, "CEIL"),
    "Clip": _clip,
    "Cos": partial(_own_kernel, "COS"),
    "Div": _divide,
    "Equal": partial(_compare, "EQUAL"),
    "Exp": partial(_own_kernel, "EXP"),
    "Floor": partial(_unary, "FLOOR"),
    "Greater": partial(_compare, "GREATER"),
    "GreaterOrEqual": partial(_compare, "GREATER_EQUAL"),
    "HardSigmoid": _hard_sigmoid,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "LeakyRelu": _leaky_relu,
    "Less": partial(_compare, "LESS"),
    "LessOrEqual": partial(_compare, "LESS_EQUAL"),
    "Log": partial(_unary, "LOG"),
    "Max": partial(_extreme, "MAXIMUM"),
    "Mean": _mean,
    "Min": partial(_extreme, "MINIMUM"),
    "Mod": _modulo,
    "Mul": partial(_arithmetic, "MUL"),
    "Neg": _negate,
    "Not": _not,
    "Or": partial(_logical, "LOGICAL_OR"),
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Relu": _relu,
    "Round": partial(_unary, "ROUND"),
    "Sigmoid": partial(_own_kernel, "LOGISTIC"),
    "Sign": _sign,
    "Sin": partial(_own_kernel, "SIN"),
    "Softplus": _softplus,
    "Sqrt": partial(_own_kernel, "SQRT"),
    "Sub": partial(_arithmetic, "SUB"),
    "Sum": _sum,
    "Tanh": partial(_own_kernel, "TANH"),
    "Where": _where,
    "Xor": partial(_logical, "NOT_EQUAL"),
}
