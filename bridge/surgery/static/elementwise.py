"""Rules for operators that compute each element from the elements at its place."""

from bridge.surgery.static.call import Call, copy
from bridge.surgery.static.exactness import UNEVEN, assume_even
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import Dim, NoRuleError, Tensor, tagged
from bridge.surgery.static.rows import data, unify


def elementwise(g: Graph, call: Call) -> Tensor:
    """Positions are data; the operands' rows are unified per broadcast axis.

    Given    a float32[G, 4], b float32[4]
    Result   the node itself, float32[G, 4]
    """
    xs = [data(g, x) if x else None for x in call.inputs]
    if call.op_type in UNEVEN and any(x.groups for x in xs if x):
        assume_even(g, call)
    rank = max(x.rank for x in xs if x)
    dims: list[Dim] = []
    for axis in range(rank):
        at = [k for k, x in enumerate(xs) if x and axis - rank + x.rank >= 0]
        met = [(xs[k], axis - rank) for k in at]
        unified, dim = unify(g, *((x, k + x.rank) for x, k in met if x))
        for k, x in zip(at, unified, strict=True):
            xs[k] = x
        dims.append(dim)
    return tagged(copy(g, call.with_inputs(*xs)), dims)


def per_axis_quantised(g: Graph, call: Call) -> Tensor:
    """QuantizeLinear, DequantizeLinear: scale and zero point run along `axis`, fixed here."""
    x = data(g, call.input(0))
    scale = call.input(1)
    if (
        scale.rank
        and scale.shape != (1,)
        and any(axis == call.axis(x.rank, 1) for axis, _ in x.groups)
    ):
        raise NoRuleError("has one scale per row of a data-dependent number")
    return tagged(copy(g, call.with_inputs(x, *call.inputs[1:])), x.dims)
