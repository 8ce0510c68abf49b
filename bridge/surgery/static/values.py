"""The second track: small integer and bool tensors whose elements are followed one by one.

The graph goes on computing such tensors at run time (that is what data readers see, and it is exact
by construction). Beside it each element is an `integers.Element`: what shape operands, slice
limits, k of a TopK and conditions are read from.
"""

from collections.abc import Callable
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from bridge.surgery.static.call import Call, constants
from bridge.surgery.static.counts import maximum, minimum
from bridge.surgery.static.graph import VALUES_LIMIT, Graph
from bridge.surgery.static.integers import (
    INT64_MAX,
    Condition,
    Element,
    Int,
    Linear,
    Truth,
    Unknown,
    divide,
    equal,
    hi,
    is_zero,
    less,
    lo,
    negate,
    negative_form,
    of,
    product,
)
from bridge.surgery.static.lattice import Tensor, Values, listed
from bridge.surgery.static.slices import python_slice

type _Evaluator = Callable[[Graph, Call, Tensor], Values | None]


def evaluate(g: Graph, call: Call, result: Tensor) -> Values | None:
    """The elements of a call's first result, None where they cannot be followed.

    Args:
        g: the graph.
        call: the source node.
        result: its first output at run time; unknowns that arise are elements of it.
    """
    evaluator = _EVALUATORS.get(call.op_type)
    followed = result.dtype.kind in "iub" and not result.groups and result.space is None
    if evaluator is None or not followed or prod(result.shape) > VALUES_LIMIT:
        return None
    values = evaluator(g, call, result)
    if values is None or values.shape != result.shape:
        return None
    return values if result.dtype == np.bool_ or _fits(values, result.dtype) else None


def _fits(values: Values, dtype: np.dtype[Any]) -> bool:
    """Whether no element can leave its type: run time would wrap around."""
    limits = np.iinfo(dtype.type)
    numbers = [e for e in listed(values) if isinstance(e, int | Linear)]
    return all(limits.min <= lo(e) and hi(e) <= limits.max for e in numbers)


def are_plain(values: Values) -> bool:
    """Whether every element is the same in every run."""
    return all(isinstance(e, int) for e in listed(values))


# Moving elements


def _moving(move: Callable[[Call, Values, Tensor], Values | None]) -> _Evaluator:
    def evaluate_move(g: Graph, call: Call, result: Tensor) -> Values | None:
        del g
        values = call.input(0).values
        return None if values is None else move(call, values, result)

    return evaluate_move


def _reshaped(call: Call, values: Values, result: Tensor) -> Values | None:
    del call
    return values.reshape(result.shape) if values.size == prod(result.shape) else None


def _expanded(call: Call, values: Values, result: Tensor) -> Values | None:
    del call
    return np.broadcast_to(values, result.shape)


def _transposed(call: Call, values: Values, result: Tensor) -> Values | None:
    del result
    return values.transpose(call.integers("perm"))


def _gathered(call: Call, values: Values, result: Tensor) -> Values | None:
    index, axis = call.input(1).values, call.integer("axis", 0)
    if index is None or not are_plain(index):
        return None
    places = index.astype(np.int64)
    rows = values.shape[axis]
    if ((places < -rows) | (places >= rows)).any():
        return None
    return _array(np.take(values, places, axis=axis), result)


def _sliced(call: Call, values: Values, result: Tensor) -> Values | None:
    del result
    starts, ends = (constants(call.input(k), "the limits") for k in (1, 2))
    over = constants(call.optional(3), "axes") if call.optional(3) else range(len(starts))
    steps = constants(call.optional(4), "steps") if call.optional(4) else [1] * len(starts)
    cut = [slice(None)] * values.ndim
    for start, end, axis, step in zip(starts, ends, over, steps, strict=True):
        cut[axis] = python_slice(start, end, step)
    return values[tuple(cut)]


def _cast(g: Graph, call: Call, result: Tensor) -> Values | None:
    values = call.input(0).values
    if values is None:
        return None
    if result.dtype == np.bool_:
        return _each(lambda _, e: e if _is_truth(e) else negate(is_zero(e)), values)
    return _each(lambda k, e: _as_int(g, result, k, e), values)


def _as_int(g: Graph, result: Tensor, index: int, element: Element) -> Int:
    if isinstance(element, bool):
        return int(element)
    if element is None or isinstance(element, Condition):
        holder = g.element(result, index)
        return of(Unknown(holder.id, 0, 1, truth=element))
    return element


def _array(values: object, result: Tensor) -> Values:
    made = np.empty(result.shape, object)
    made[...] = values
    return made


def _concat(g: Graph, call: Call, result: Tensor) -> Values | None:
    del g, result
    parts = [x.values for x in call.inputs if x]
    known = [part for part in parts if part is not None]
    return np.concatenate(known, call.integer("axis", 0)) if len(known) == len(parts) else None


def _constant_of_shape(g: Graph, call: Call, result: Tensor) -> Values | None:
    del g
    value = call.tensor("value")
    return None if value is None else _array(value.reshape(-1)[0].item(), result)


# Computing elements


def _each(f: Callable[..., Element], *operands: Values) -> Values:
    """`f(row-major index, elements ..)` over broadcast operands."""
    broadcast = np.broadcast_arrays(*operands)
    made = np.empty(broadcast[0].shape, object)
    for k, elements in enumerate(zip(*map(listed, broadcast), strict=True)):
        made.flat[k] = f(k, *elements)
    return made


def _is_truth(element: Element) -> bool:
    return element is None or isinstance(element, bool | Condition)


def _computing(f: Callable[[Graph, Call, Tensor, int, list[Int]], Element]) -> _Evaluator:
    """Over integer operands, all of them followed."""

    def evaluate_computed(g: Graph, call: Call, result: Tensor) -> Values | None:
        operands = [x.values for x in call.inputs if x]
        known = [v for v in operands if v is not None and not any(map(_is_truth, listed(v)))]
        if len(known) != len(operands):
            return None
        return _each(lambda k, *elements: f(g, call, result, k, list(elements)), *known)

    return evaluate_computed


def _unknown(g: Graph, result: Tensor, index: int, low: int, high: int) -> Int:
    holder = g.element(result, index)
    return of(Unknown(holder.id, max(low, -INT64_MAX - 1), min(high, INT64_MAX)))


def _multiply(g: Graph, call: Call, result: Tensor, index: int, xs: list[Int]) -> Element:
    del call
    a, b = xs
    if not isinstance(a, Linear):
        return b * a
    if not isinstance(b, Linear):
        return a * b
    corners = [p * q for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
    return _unknown(g, result, index, min(corners), max(corners))


def _quotient(a: int, b: int) -> int:
    """Integer division as ONNX runtimes do it: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _divide(g: Graph, call: Call, result: Tensor, index: int, xs: list[Int]) -> Element:
    del call
    a, b = xs
    if isinstance(b, Linear) or b == 0:
        return _unknown(g, result, index, -INT64_MAX, INT64_MAX)
    if not isinstance(a, Linear):
        return _quotient(a, b)
    exact = divide(a, b)
    if exact is not None:
        return exact
    ends = _quotient(a.lo, b), _quotient(a.hi, b)
    return _unknown(g, result, index, min(ends), max(ends))


def _modulo(g: Graph, call: Call, result: Tensor, index: int, xs: list[Int]) -> Element:
    a, b = xs
    if isinstance(b, Linear) or b == 0:
        return _unknown(g, result, index, -INT64_MAX, INT64_MAX)
    if not isinstance(a, Linear):
        return a - b * _quotient(a, b) if call.integer("fmod", 0) else a % b
    if a.lo >= 0 and a.hi < b:
        return a
    return _unknown(g, result, index, -abs(b) + 1 if a.lo < 0 or b < 0 else 0, abs(b) - 1)


def _folding(f: Callable[[Graph, Int, Int], Int]) -> _Evaluator:
    def fold(g: Graph, call: Call, result: Tensor, index: int, xs: list[Int]) -> Element:
        del call, result, index
        total = xs[0]
        for x in xs[1:]:
            total = f(g, total, x)
        return total

    return _computing(fold)


def _reducing(f: Callable[[Graph, Int, Int], Int], neutral: int) -> _Evaluator:
    """Reductions of all elements to one number."""

    def evaluate_reduced(g: Graph, call: Call, result: Tensor) -> Values | None:
        values = call.input(0).values
        if prod(result.shape) != 1 or values is None or any(map(_is_truth, listed(values))):
            return None
        total, *rest = map(_integer, listed(values)) if values.size else [neutral]
        for element in rest:
            total = f(g, total, element)
        return _array(total, result)

    return evaluate_reduced


def _true_in(g: Graph, call: Call) -> Int | None:
    """How many elements of a mask hold, where a call reduces a whole mask cast to integers.

    It is the very count of the rows that NonZero would select by that mask.
    """
    x = call.input(0)
    if x.values is not None or x.range != (0, 1) or x.rank != 1 or x.groups or x.dtype != np.int64:
        return None
    total = g.emit("ReduceSum", [x, g.int64(0)], keepdims=1)
    return of(Unknown(total.id, 0, x.shape[0]))


def _number_or(otherwise: _Evaluator) -> _Evaluator:
    def evaluate_number(g: Graph, call: Call, result: Tensor) -> Values | None:
        number = _true_in(g, call)
        return otherwise(g, call, result) if number is None else _array(number, result)

    return evaluate_number


def _any_or(otherwise: _Evaluator) -> _Evaluator:
    def evaluate_any(g: Graph, call: Call, result: Tensor) -> Values | None:
        number = _true_in(g, call)
        if number is None:
            return otherwise(g, call, result)
        return _array(_as_int(g, result, 0, negate(is_zero(number))), result)

    return evaluate_any


def _reduced_product(g: Graph, call: Call, result: Tensor) -> Values | None:
    values = call.input(0).values
    if values is None or prod(result.shape) != 1 or any(map(_is_truth, listed(values))):
        return None
    factors = list(map(_integer, listed(values)))
    total = product(factors)
    if total is None and all(lo(factor) >= 0 for factor in factors):
        total = _unknown(g, result, 0, prod(map(lo, factors)), prod(map(hi, factors)))
    return None if total is None else _array(total, result)


def _integer(element: Element) -> Int:
    assert isinstance(element, int | Linear)
    return element


def _comparing(compare: Callable[[Int, Int], Truth]) -> _Evaluator:
    return _computing(lambda g, call, result, index, xs: compare(xs[0], xs[1]))


def _logical(f: Callable[..., Element]) -> _Evaluator:
    def evaluate_logical(g: Graph, call: Call, result: Tensor) -> Values | None:
        del g, result
        operands = [x.values for x in call.inputs if x]
        known = [values for values in operands if values is not None]
        return _each(lambda _, *e: f(*e), *known) if len(known) == len(operands) else None

    return evaluate_logical


def _not(a: Truth | None) -> Element:
    return None if a is None else negate(a)


def _and(a: Truth | None, b: Truth | None) -> Element:
    if a is False or b is False:
        return False
    if a is True:
        return b
    return a if b is True or a == b else None


def _or(a: Truth | None, b: Truth | None) -> Element:
    if a is True or b is True:
        return True
    if a is False:
        return b
    return a if b is False or a == b else None


def _xor(a: Truth | None, b: Truth | None) -> Element:
    if isinstance(a, bool) and b is not None:
        return negate(b) if a else b
    return (negate(a) if b else a) if isinstance(b, bool) and a is not None else None


def _where(g: Graph, call: Call, result: Tensor) -> Values | None:
    operands = [x.values for x in call.inputs if x]
    known = [values for values in operands if values is not None]
    if len(known) != len(operands):
        return None
    return _each(lambda k, c, a, b: _choose(g, result, k, c, a, b), *known)


def _choose(g: Graph, result: Tensor, index: int, c: Element, a: Element, b: Element) -> Element:
    """A decided choice; a clamp written as a choice; else an unknown between both."""
    if isinstance(c, bool):
        return a if c else b
    if a is None or b is None or _is_truth(a):
        return a if a == b else None
    a, b = _integer(a), _integer(b)
    if a == b:
        return a
    asked = negative_form(c) if isinstance(c, Condition) else None
    if asked is not None:
        if a - b in (asked, asked + 1):
            return minimum(g, a, b)
        if b - a in (asked, asked + 1):
            return maximum(g, a, b)
    return _unknown(g, result, index, min(lo(a), lo(b)), max(hi(a), hi(b)))


_EVALUATORS: MappingProxyType[str, _Evaluator] = MappingProxyType(
    {
        "Cast": _cast,
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "Expand": _moving(_expanded),
        "Gather": _moving(_gathered),
        "Reshape": _moving(_reshaped),
        "Slice": _moving(_sliced),
        "Squeeze": _moving(_reshaped),
        "Transpose": _moving(_transposed),
        "Unsqueeze": _moving(_reshaped),
        "Add": _folding(lambda g, a, b: a + b),
        "Sub": _folding(lambda g, a, b: a - b),
        "Neg": _computing(lambda g, call, result, index, xs: -xs[0]),
        "Mul": _computing(_multiply),
        "Div": _computing(_divide),
        "Mod": _computing(_modulo),
        "Min": _folding(minimum),
        "Max": _folding(maximum),
        "ReduceMin": _reducing(minimum, 0),
        "ReduceMax": _any_or(_reducing(maximum, 0)),
        "ReduceSum": _number_or(_reducing(lambda g, a, b: a + b, 0)),
        "ReduceProd": _reduced_product,
        "Equal": _comparing(equal),
        "Less": _comparing(less),
        "Greater": _comparing(lambda a, b: less(b, a)),
        "LessOrEqual": _comparing(lambda a, b: negate(less(b, a))),
        "GreaterOrEqual": _comparing(lambda a, b: negate(less(a, b))),
        "Not": _logical(_not),
        "And": _logical(_and),
        "Or": _logical(_or),
        "Xor": _logical(_xor),
        "Where": _where,
    }
)
