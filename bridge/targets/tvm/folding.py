"""Constants computed at once: what relay's FoldConstant does, without a compilation for each.

relay compiles and runs a small program per constant expression, and laying out the weights of a
network makes two or three such expressions per convolution: half of the time of a build.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relay

from bridge.targets.base import Array


def fold_constants(module: Any) -> Any:
    """The module with every known operator on constants replaced by its result.

    Args:
        module: of one function, with types (`InferType`).
    """
    function = module["main"]
    new: dict[Any, Any] = {}

    def visit(expr: Any) -> None:
        new[expr] = _rebuilt(expr, new)

    relay.analysis.post_order_visit(function.body, visit)
    module = tvm.IRModule.from_expr(relay.Function(function.params, new[function.body]))
    return relay.transform.InferType()(module)


def _rebuilt(expr: Any, new: Mapping[Any, Any]) -> Any:
    if isinstance(expr, relay.Call):
        arguments = [new[argument] for argument in expr.args]
        constant = _constant(expr, arguments)
        if constant is not None:
            return constant
        if all(old.same_as(made) for old, made in zip(expr.args, arguments, strict=True)):
            return expr
        return relay.Call(expr.op, arguments, expr.attrs, expr.type_args)
    if isinstance(expr, relay.Tuple):
        return relay.Tuple([new[part] for part in expr.fields])
    if isinstance(expr, relay.TupleGetItem):
        return relay.TupleGetItem(new[expr.tuple_value], expr.index)
    return expr


def _constant(call: Any, arguments: list[Any]) -> Any:
    """The call's result as a constant; None where it is not known."""
    compute = _OPERATORS.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
    if compute is None or not all(isinstance(a, relay.Constant) for a in arguments):
        return None
    shape = tuple(int(dim) for dim in call.checked_type.shape)
    made = compute([argument.data.numpy() for argument in arguments], call.attrs, shape)
    return relay.Constant(tvm.nd.array(np.array(made, call.checked_type.dtype, order="C")))


def _relaid(array: Array, source: str, target: str) -> Array:
    """From one layout to another, as in `OIHW` to `OIHW4i8o`.

    A lower case letter is the inner part of an axis, of the size that stands before it.
    """
    old, wanted = _axes(source), _axes(target)
    primal = [axis for axis in old if axis.isupper()]
    parts = [[part for part in (axis, axis.lower()) if part in old] for axis in primal]
    positions = [[list(old).index(part) for part in own] for own in parts]
    sizes = [math.prod(array.shape[position] for position in own) for own in positions]
    whole = array.transpose([position for own in positions for position in own]).reshape(sizes)
    letters: list[str] = []
    shape: list[int] = []
    for axis, size in zip(primal, sizes, strict=True):
        inner = wanted.get(axis.lower())
        letters += [axis] if inner is None else [axis, axis.lower()]
        shape += [size] if inner is None else [size // inner, inner]
    return whole.reshape(shape).transpose([letters.index(axis) for axis in wanted])


def _axes(layout: str) -> dict[str, int]:
    """Letter of every axis to the size before it, in order."""
    found = re.findall(r"(\d*)([A-Za-z])", layout)
    return {letter: int(size or 0) for size, letter in found}


_Compute = Callable[[list[Array], Any, tuple[int, ...]], Any]

_OPERATORS: Mapping[str, _Compute] = {
    "add": lambda given, _, __: np.add(*given),
    "cast": lambda given, _, __: given[0],
    "divide": lambda given, _, __: np.divide(*given),
    "expand_dims": lambda given, _, shape: given[0].reshape(shape),
    "layout_transform": lambda given, attributes, _: _relaid(
        given[0], attributes.src_layout, attributes.dst_layout
    ),
    "multiply": lambda given, _, __: np.multiply(*given),
    "negative": lambda given, _, __: np.negative(given[0]),
    "repeat": lambda given, attributes, _: np.repeat(
        given[0], int(attributes.repeats), int(attributes.axis)
    ),
    "reshape": lambda given, _, shape: given[0].reshape(shape),
    "squeeze": lambda given, _, shape: given[0].reshape(shape),
    "subtract": lambda given, _, __: np.subtract(*given),
    "transpose": lambda given, attributes, _: given[0].transpose(
        [int(axis) for axis in attributes.axes] if attributes.axes is not None else None
    ),
}
"""Operators that passes make of constants. Whole numbers are divided elsewhere, not by these."""
