"""What an operator implies for its result whatever the rows: bounds of integers, finite floats.

`range` proves that an index needs no clamp, `magnitude` that a score is not infinite. Both are
upper bounds only: an operator that is not listed implies nothing.
"""

from dataclasses import replace
from math import prod

import numpy as np

from bridge.surgery.static.call import Call
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import Tensor

# Operators whose result holds elements of the inputs listed, and nothing else.
_FIRST = frozenset(
    {
        "Identity", "Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Expand", "Tile",
        "Slice", "Split", "Compress", "Gather", "GatherElements", "GatherND", "ReduceMax",
        "ReduceMin",
    }
)  # fmt: skip
_ALL = frozenset({"Concat", "Max", "Min"})
_BOUNDED_BY_ONE = frozenset({"Sigmoid", "Softmax", "Tanh", "HardSigmoid", "Erf", "Sin", "Cos"})
_NOT_GROWING = frozenset({"Relu", "Abs", "Neg", "TopK", "ReduceMean", "MaxPool", "AveragePool"})


def with_facts(g: Graph, call: Call, result: Tensor) -> Tensor:
    """The first result of a call with `range` and `magnitude`, where its rule left them open."""
    known = result.range is not None or result.magnitude is not None
    if known or g.is_constant(result) or not call.inputs:
        return result
    if result.dtype.kind in "iu":
        return replace(result, range=_range(call, result))
    if result.dtype.kind == "f":
        return replace(result, magnitude=_magnitude(g, call, result))
    return result


def _read(call: Call) -> list[Tensor] | None:
    """The inputs whose elements make up the result of a mover, None for any other operator."""
    if call.op_type in _FIRST:
        return [call.input(0)]
    if call.op_type == "Where":
        return [call.input(1), call.input(2)]
    return [x for x in call.inputs if x] if call.op_type in _ALL else None


def _range(call: Call, result: Tensor) -> tuple[int, int] | None:
    found = _unlimited_range(call)
    limits = np.iinfo(result.dtype.type)
    fits = found is not None and limits.min < found[0] <= found[1] < limits.max
    return found if fits else None


def _unlimited_range(call: Call) -> tuple[int, int] | None:
    if call.op_type == "Cast" and call.input(0).dtype.kind == "b":
        return (0, 1)
    if (read := _read(call)) is not None:
        ranges = [x.range for x in read if x.range]
        if len(ranges) < len(read):
            return None
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    a, x = call.input(0).range, call.optional(1)
    if call.op_type == "Cast" or x is None or x.range is None:
        return a if call.op_type == "Cast" else None
    if call.op_type == "Mod" and x.range[0] > 0 and not call.integer("fmod", 0):
        return 0, x.range[1] - 1
    return None if a is None else _computed_range(call, a, x.range)


def _computed_range(call: Call, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int] | None:
    match call.op_type:
        case "Add":
            return a[0] + b[0], a[1] + b[1]
        case "Sub":
            return a[0] - b[1], a[1] - b[0]
        case "Mul":
            corners = [p * q for p in a for q in b]
            return min(corners), max(corners)
        case "Div" if a[0] >= 0 and b[0] > 0:
            return a[0] // b[1], a[1] // b[0]
        case "Mod" if b[0] > 0 and a[0] >= 0:
            return 0, b[1] - 1
        case _:
            return None


def _magnitude(g: Graph, call: Call, result: Tensor) -> float | None:
    found = _unlimited_magnitude(g, call)
    limit = float(np.finfo(result.dtype.type).max) / 8  # so that no rounding reaches infinity
    return None if found is None or found >= limit else found


def _unlimited_magnitude(g: Graph, call: Call) -> float | None:
    first = call.input(0)
    if call.op_type in _BOUNDED_BY_ONE:
        return 1.0
    if call.op_type == "Cast" and first.dtype.kind in "iub":
        return float(max(map(abs, first.range))) if first.range else 2.0**64
    if call.op_type == "Clip" and (limit := _clipped_to(g, call)) is not None:
        return limit
    if call.op_type in _NOT_GROWING or call.op_type in ("Clip", "Cast"):
        return first.magnitude
    if call.op_type == "Sqrt" and first.magnitude is not None:
        return max(1.0, first.magnitude)
    if call.op_type == "ReduceSum" and first.magnitude is not None:
        return first.magnitude * prod(first.shape)
    read = _read(call) or [x for x in call.inputs if x]
    known = [x.magnitude for x in read if x.magnitude is not None]
    if len(known) < len(read):
        return None
    if _read(call) is not None:
        return max(known)
    if call.op_type in ("Add", "Sub", "Sum"):
        return sum(known)
    return prod(known) if call.op_type == "Mul" else None


def _clipped_to(g: Graph, call: Call) -> float | None:
    limits = [g.array(x) if x else None for x in (call.optional(1), call.optional(2))]
    known = [float(np.abs(limit).max()) for limit in limits if limit is not None]
    return max(known) if len(known) == 2 and np.isfinite(known).all() else None
