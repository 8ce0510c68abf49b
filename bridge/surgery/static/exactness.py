"""Where onnxruntime's bits depend on how many rows there are, and what is done about it.

Measured on onnxruntime 1.26, CPU, float32 (`tests/surgery/static/test_exactness.py`):

- ReduceSum and ReduceMean over a trailing axis add up in packets, by the row's place in memory.
- Over an axis with others behind it they add up row by row, unless the axes before it are all of
  length 1: then another kernel runs. MatMul and Gemm on a single row run another kernel, too.
- Log, Softplus, Sin, Cos and Atan treat the last elements of a tensor by another routine than the
  packets before them.

All else gives a row's bits wherever the row is.
"""

from collections.abc import Callable

from bridge.surgery.static.call import Call
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import hi, lo
from bridge.surgery.static.lattice import Group, Tensor
from bridge.surgery.static.rows import compact

UNEVEN = frozenset({"Atan", "Cos", "Log", "Sin", "Softplus", "Tan"})
"""Operators that may give equal elements other last bits at the end of a tensor."""


def assume_even(g: Graph, call: Call) -> None:
    """Note that an element's last bit may depend on its place."""
    g.assume(
        f"{call.op_type} '{call.node.name}' gives a row the same last bit wherever the row is; "
        "onnxruntime's vectorised kernel treats the last few elements of a tensor apart"
    )


def single_row(
    g: Graph, x: Tensor, axis: int, result: Tensor, compute: Callable[[Tensor], Tensor]
) -> Tensor:
    """`result`, but where exactly one row is meant, what `compute` gives for that row alone.

    Args:
        g: the graph.
        x: the operand with rows on `axis`.
        axis: of rows; a group.
        result: what `compute` gives for all of `x`; a length of 1 on its rows broadcasts to it.
        compute: the operator.
    """
    dim = x.dims[axis]
    if not isinstance(dim, Group) or lo(dim.count) > 1 or hi(dim.count) == 1:
        return result
    if dim.is_prefix:
        one = g.emit("Slice", [x, g.int64(0), g.int64(1), g.int64(axis)])
    else:
        one = compact(g, x, axis, 1)
    alone = compute(one)
    is_one = g.emit("Equal", [g.count(dim.count), g.int64(1)])
    return g.emit("Where", [is_one, alone, result])


def adds_in_packets(shape: tuple[int, ...], over: list[int]) -> bool:
    """Whether a sum runs over the last axis that is longer than 1."""
    return max((k for k, n in enumerate(shape) if n > 1), default=-1) in over
