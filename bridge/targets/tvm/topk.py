"""TopK in TIR for float32: a heap of the best k, everything else looked at once.

Relay's own (`tvm.contrib.sort.topk`) sorts the whole axis, on one thread, and where there is a NaN
the order depends on the sort. ONNX gives NaN no place; here it is behind every number.
"""

from dataclasses import dataclass
from typing import Any

from tvm import te

from bridge.targets.tvm import heap as order
from bridge.targets.tvm.heap import cell, int32
from bridge.targets.tvm.tir import builder, tir

_WORTH_A_THREAD = 16384
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Data `float32[outer, N, inner]`, results `[outer, k, inner]`, heaps `int64[rows, k]`."""

    data: Any
    values: Any
    indices: Any
    heaps: Any


def top_k(data: Any, k: int, *, largest: bool) -> list[Any]:
    """The k best along the middle axis, best first; of equal numbers that with the lower index.

    Args:
        data: te.Tensor float32[outer, N, inner].
        k: how many, from 1 to N.
        largest: whether the greatest are the best.

    Returns:
        Values float32[outer, k, inner] and indices int64[outer, k, inner].
    """
    outer, length, inner = (int(dim) for dim in data.shape)
    rows = outer * inner

    def body(ins: Any, outs: Any) -> Any:
        ib = builder()
        at = _Buffers(*(ib.buffer_ptr(buffer) for buffer in (*ins, *outs)))
        parallel = rows > 1 and rows * length > _WORTH_A_THREAD
        with ib.for_range(0, rows, name="row", kind="parallel" if parallel else "serial") as row:
            _choose(ib, at, (row // inner, row % inner, row), (length, k), largest=largest)
        return ib.get()

    outputs = te.extern(
        [(outer, k, inner), (outer, k, inner), (rows, k)],
        [data],
        body,
        dtype=["float32", "int64", "int64"],
        name="bridge_topk",
        tag="bridge_topk",
    )
    return list(outputs[:2])


def _choose(
    ib: Any, at: _Buffers, column: tuple[Any, Any, Any], sizes: tuple[int, int], *, largest: bool
) -> None:
    """The best k of one row. The heap holds complements, so that the worst kept one is on top."""
    outer, inner, row = column
    length, k = sizes

    def goodness(index: Any) -> Any:
        return _goodness(ib, at.data[outer, index, inner], largest=largest)

    size = cell(ib, "int32", "size", int32(k))
    with ib.for_range(0, k, name="i") as i:
        at.heaps[row, i] = ~order.pack(goodness(i)[0], i)
    worst = order.heap(ib, at.heaps, row, size)
    worst.heapify()
    if length > k:
        _improve(ib, goodness, worst, (k, length))
    place = cell(ib, "int32", "place")
    found = cell(ib, "int32", "found")
    with ib.while_loop(size[0] > 0):
        place[0] = size[0] - 1
        found[0] = order.index_of(~worst.top)
        at.values[outer, place[0], inner] = at.data[outer, found[0], inner]
        at.indices[outer, place[0], inner] = tir.Cast("int64", found[0])
        worst.drop_top()


def _improve(ib: Any, goodness: Any, worst: order.Heap, ends: tuple[int, int]) -> None:
    """Let every later element that is better than the worst kept one take its place."""
    first, end = ends
    blocks = -(-(end - first) // _BLOCK)
    better = cell(ib, "int32", "better")
    bar = cell(ib, "int32", "bar")
    start = cell(ib, "int32", "start")
    length = cell(ib, "int32", "length")
    packed = cell(ib, "int64", "packed")
    with ib.for_range(0, blocks, name="block") as block:
        start[0] = int32(first) + block * _BLOCK
        length[0] = tir.min(int32(_BLOCK), int32(end) - start[0])
        # A later index never replaces an equal one: only a strictly better rank needs the heap.
        bar[0] = tir.Cast("int32", tir.shift_right(~worst.top, tir.const(32, "int64")))
        better[0] = int32(0)
        with ib.for_range(0, length[0], name="i") as i:
            better[0] = better[0] | tir.Cast("int32", goodness(start[0] + i)[0] > bar[0])
        with ib.if_scope(better[0] != 0), ib.for_range(0, length[0], name="i") as i:
            packed[0] = ~order.pack(goodness(start[0] + i)[0], start[0] + i)
            with ib.if_scope(packed[0] < worst.top):
                worst.replace_top(packed[0])


def _goodness(ib: Any, value: Any, *, largest: bool) -> Any:
    """A cell with a rank that is greater for what comes first; NaN last."""
    ranked = order.rank(ib, value)
    order.join_zero(ranked)
    directed = ranked[0] if largest else ~ranked[0]
    is_number = tir.NE(order.is_number(ranked), int32(0))
    return cell(ib, "int32", "goodness", tir.Select(is_number, directed, int32(-(2**31))))
