"""Operators that compute every element for itself.

A product is rounded before anything is added to it (`operators.rounded`): LLVM would fuse the two,
and the decisions of a detection tail hang on such bits.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relay

from bridge.static_model import TensorType
from bridge.targets.tvm.converters.node import Converter, constant, is_float, scalar
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.operators import is_nan, rint, rounded


def _unary(make: Callable[[Any], Any]) -> Converter:
    return lambda node: make(node.expr())


def _binary(make: Callable[[Any, Any], Any]) -> Converter:
    return lambda node: make(node.expr(0), node.expr(1))


def _fold(make: Callable[[Any, Any], Any]) -> Converter:
    """An operator of any number of inputs, taken two at a time from the left."""

    def convert(node: Node) -> Any:
        result = node.expr(0)
        for index in range(1, len(node.operands)):
            result = make(result, node.expr(index))
        return result

    return convert


def product(left: Any, right: Any, dtype: str) -> Any:
    """The product of two expressions of one type, rounded."""
    made = relay.multiply(left, right)
    return rounded(made) if is_float(dtype) else made


def quotient(left: Any, right: Any, dtype: str) -> Any:
    """The quotient of two expressions of one type.

    A constant divisor is kept from TIR's simplifier, which multiplies by its reciprocal instead
    (src/arith/rewrite_simplify.cc).
    """
    return relay.divide(left, rounded(right) if is_float(dtype) else right)


def _div(node: Node) -> Any:
    return quotient(node.expr(0), node.expr(1), node.type().dtype)


def _mul(node: Node) -> Any:
    return product(node.expr(0), node.expr(1), node.type().dtype)


def _mean(node: Node) -> Any:
    total = _fold(relay.add)(node)
    return quotient(total, scalar(len(node.operands), node.type().dtype), node.type().dtype)


def _clip(node: Node) -> Any:
    """Relay's own drops a bound that stands alone."""
    result = node.expr(0)
    if node.has(1):
        result = relay.maximum(result, node.expr(1))
    if node.has(2):
        result = relay.minimum(result, node.expr(2))
    return result


def _mod(node: Node) -> Any:
    """Relay's `floor_mod` lowers to a variable whose debug record LLVM 22 refuses."""
    x, divisor, dtype = node.expr(0), node.expr(1), node.type().dtype
    if is_float(dtype) or node.attributes.get("fmod", 0):
        if not node.attributes.get("fmod", 0):
            raise node.refusal("ONNX gives Mod of floats no meaning without fmod=1")
        return relay.mod(x, divisor)
    rest = relay.subtract(x, relay.multiply(relay.divide(x, divisor), divisor))
    if dtype.startswith("u"):
        return rest
    zero = scalar(0, dtype)
    signs_differ = relay.not_equal(relay.less(rest, zero), relay.less(divisor, zero))
    wrong = relay.logical_and(relay.not_equal(rest, zero), signs_differ)
    return relay.where(wrong, relay.add(rest, divisor), rest)


def _pow(node: Node) -> Any:
    """Squares and cubes as products, as onnxruntime computes them."""
    x, dtype = node.expr(0), node.type().dtype
    exponent = node.operand(1).value
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(())) in (2.0, 3.0):
        square = product(x, x, dtype)
        power = square if float(exponent.reshape(())) == 2.0 else product(square, x, dtype)
        return relay.reshape(power, node.outputs[0].shape)
    if not is_float(dtype):
        raise node.refusal("a power of whole numbers other than 2 and 3")
    return relay.power(x, relay.cast(node.expr(1), dtype))


def _cast(node: Node) -> Any:
    if node.type().dtype == node.outputs[0].dtype:
        return node.expr()
    if "str" in node.outputs[0].dtype or "object" in node.outputs[0].dtype:
        raise node.refusal("strings")
    return relay.cast(node.expr(), node.outputs[0].dtype)


def _is_nan(node: Node) -> Any:
    if node.type().dtype != "float32":
        raise node.refusal(f"it is known for float32 only, not for {node.type().dtype}")
    return is_nan(node.expr())


def _is_inf(node: Node) -> Any:
    x, dtype = node.expr(), node.type().dtype
    found = []
    if node.attributes.get("detect_positive", 1):
        found.append(relay.equal(x, scalar(np.inf, dtype)))
    if node.attributes.get("detect_negative", 1):
        found.append(relay.equal(x, scalar(-np.inf, dtype)))
    return relay.logical_or(*found) if len(found) == 2 else found[0]


def _sign(node: Node) -> Any:
    return relay.sign(node.expr())


def _reciprocal(node: Node) -> Any:
    return relay.divide(scalar(1, node.type().dtype), node.expr())


def _hard_sigmoid(node: Node) -> Any:
    alpha = float(node.attributes.get("alpha", 0.2))
    beta = float(node.attributes.get("beta", 0.5))
    return _hard_gate(node.expr(), node.type(), alpha, beta)


def _hard_swish(node: Node) -> Any:
    gate = _hard_gate(node.expr(), node.type(), 1 / 6, 0.5)
    return product(node.expr(), gate, node.type().dtype)


def _hard_gate(x: Any, type_: TensorType, alpha: float, beta: float) -> Any:
    scaled = product(x, scalar(alpha, type_.dtype), type_.dtype)
    return relay.clip(relay.add(scaled, scalar(beta, type_.dtype)), 0.0, 1.0)


def _leaky_relu(node: Node) -> Any:
    return relay.nn.leaky_relu(node.expr(), float(node.attributes.get("alpha", 0.01)))


def _prelu(node: Node) -> Any:
    x, dtype = node.expr(0), node.type().dtype
    return relay.where(relay.less(x, scalar(0, dtype)), product(x, node.expr(1), dtype), x)


def _exponential_below_zero(default_alpha: float, default_gamma: float) -> Converter:
    """Elu and Selu: gamma * x, below zero gamma * alpha * (exp(x) - 1)."""

    def convert(node: Node) -> Any:
        x, dtype = node.expr(), node.type().dtype
        alpha = float(node.attributes.get("alpha", default_alpha))
        gamma = float(node.attributes.get("gamma", default_gamma))
        below = relay.multiply(scalar(alpha, dtype), relay.subtract(relay.exp(x), scalar(1, dtype)))
        chosen = relay.where(relay.less(x, scalar(0, dtype)), below, x)
        return chosen if gamma == 1.0 else relay.multiply(scalar(gamma, dtype), chosen)

    return convert


def _celu(node: Node) -> Any:
    x, dtype = node.expr(), node.type().dtype
    alpha, zero = scalar(float(node.attributes.get("alpha", 1.0)), dtype), scalar(0, dtype)
    below = relay.multiply(
        alpha, relay.subtract(relay.exp(quotient(x, alpha, dtype)), scalar(1, dtype))
    )
    return relay.add(relay.maximum(x, zero), relay.minimum(below, zero))


def _softplus(node: Node) -> Any:
    """log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|))."""
    x, dtype = node.expr(), node.type().dtype
    small = relay.exp(relay.negative(relay.abs(x)))
    return relay.add(
        relay.maximum(x, scalar(0, dtype)), relay.log(relay.add(scalar(1, dtype), small))
    )


def _softsign(node: Node) -> Any:
    x, dtype = node.expr(), node.type().dtype
    return relay.divide(x, relay.add(scalar(1, dtype), relay.abs(x)))


def _thresholded_relu(node: Node) -> Any:
    x, dtype = node.expr(), node.type().dtype
    alpha = scalar(float(node.attributes.get("alpha", 1.0)), dtype)
    return relay.where(relay.greater(x, alpha), x, scalar(0, dtype))


def _quantize(node: Node) -> Any:
    """Halves to even of x / scale, plus the zero point, saturated."""
    dtype = node.outputs[0].dtype
    if dtype not in ("int8", "uint8"):
        raise node.refusal(f"quantisation to {dtype}")
    scaled = rint(quotient(node.expr(0), _along(node, 1), "float32"))
    if node.has(2):
        scaled = relay.add(scaled, relay.cast(_along(node, 2), "float32"))
    limits = np.iinfo(dtype)
    return relay.cast(relay.clip(scaled, float(limits.min), float(limits.max)), dtype)


def _dequantize(node: Node) -> Any:
    x = relay.cast(node.expr(0), "int32")
    if node.has(2):
        x = relay.subtract(x, relay.cast(_along(node, 2), "int32"))
    return product(relay.cast(x, "float32"), _along(node, 1), "float32")


def _along(node: Node, index: int) -> Any:
    """A scale or zero point, shaped so that it broadcasts along the attribute `axis`."""
    shape, rank = node.type(index).shape, len(node.type().shape)
    if math.prod(shape) == 1:
        return relay.reshape(node.expr(index), ())
    axis = node.axis(1)
    return relay.reshape(node.expr(index), [-1 if i == axis else 1 for i in range(rank)])


def _where(node: Node) -> Any:
    return relay.where(node.expr(0), node.expr(1), node.expr(2))


def _bit_shift(node: Node) -> Any:
    left = node.text("direction", "") == "LEFT"
    return (relay.left_shift if left else relay.right_shift)(node.expr(0), node.expr(1))


def _identity(node: Node) -> Any:
    return node.expr()


def _dropout(node: Node) -> Any:
    """Outside training it does nothing; a mask that is asked for is all true."""
    mask = constant(np.ones(node.type().shape, np.bool_))
    return (node.expr(), mask)[: len(node.outputs)]


CONVERTERS: Mapping[str, Converter] = {
    "Abs": _unary(relay.abs),
    "Acos": _unary(relay.acos),
    "Acosh": _unary(relay.acosh),
    "Add": _binary(relay.add),
    "And": _binary(relay.logical_and),
    "Asin": _unary(relay.asin),
    "Asinh": _unary(relay.asinh),
    "Atan": _unary(relay.atan),
    "Atanh": _unary(relay.atanh),
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _unary(relay.ceil),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _unary(relay.cos),
    "Cosh": _unary(relay.cosh),
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _exponential_below_zero(1.0, 1.0),
    "Equal": _binary(relay.equal),
    "Erf": _unary(relay.erf),
    "Exp": _unary(relay.exp),
    "Floor": _unary(relay.floor),
    "Greater": _binary(relay.greater),
    "GreaterOrEqual": _binary(relay.greater_equal),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _identity,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "LeakyRelu": _leaky_relu,
    "Less": _binary(relay.less),
    "LessOrEqual": _binary(relay.less_equal),
    "Log": _unary(relay.log),
    "Max": _fold(relay.maximum),
    "Mean": _mean,
    "Min": _fold(relay.minimum),
    "Mod": _mod,
    "Mul": _mul,
    "Neg": _unary(relay.negative),
    "Not": _unary(relay.logical_not),
    "Or": _binary(relay.logical_or),
    "PRelu": _prelu,
    "Pow": _pow,
    "QuantizeLinear": _quantize,
    "Reciprocal": _reciprocal,
    "Relu": _unary(relay.nn.relu),
    "Round": _unary(rint),
    "Selu": _exponential_below_zero(1.6732632423543772, 1.0507009873554805),
    "Sigmoid": _unary(relay.sigmoid),
    "Sign": _sign,
    "Sin": _unary(relay.sin),
    "Sinh": _unary(relay.sinh),
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Sqrt": _unary(relay.sqrt),
    "Sub": _binary(relay.subtract),
    "Sum": _fold(relay.add),
    "Tan": _unary(relay.tan),
    "Tanh": _unary(relay.tanh),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
    "Xor": _binary(relay.logical_xor),
}
