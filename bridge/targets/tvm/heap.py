"""What the kernels that choose the best of many share: an order on scores, and a heap, in TIR.

Scores are compared as integers. LLVM is told by TVM that no float is ever NaN
(`target_options_.NoNaNsFPMath`, src/target/llvm/llvm_instance.cc) and may turn a comparison of
floats around; on integers every comparison means what it says.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.targets.tvm.tir import tir

# The ranks of the greatest and the least number; those beyond them are NaN.
RANK_OF_INFINITY = 0x7F800000
RANK_OF_MINUS_INFINITY = ~RANK_OF_INFINITY
_LOW_BITS = 0x7FFFFFFF


def int32(value: int) -> Any:
    """A constant."""
    return tir.const(value, "int32")


def int64(value: int) -> Any:
    """A constant."""
    return tir.const(value, "int64")


def cell(ib: Any, dtype: str, name: str, value: Any = None) -> Any:
    """A variable, read and written as `x[0]`; LLVM keeps it in a register."""
    made = ib.allocate(dtype, (1,), name=name, scope="local")
    if value is not None:
        made[0] = value
    return made


def rank_of(score: float) -> int:
    """The rank of a number known now. -0.0 ranks as 0.0."""
    bits = int(np.float32(score).view(np.int32))
    rank = bits if bits >= 0 else bits ^ _LOW_BITS
    return 0 if rank == -1 else rank


def rank(ib: Any, score: Any) -> Any:
    """A cell with a float32 as int32 in the same order, but that -0.0 ranks one below 0.0.

    A NaN ranks above infinity or below minus infinity, by its sign. Every step has its cell: TIR's
    simplifier walks expressions as trees, and what is used twice in each of four steps it sees
    sixteen times.
    """
    bits = cell(ib, "int32", "bits", tir.reinterpret("int32", score))
    sign = tir.shift_right(bits[0], int32(31)) & int32(_LOW_BITS)
    return cell(ib, "int32", "ranked", bits[0] ^ sign)


def join_zero(ranked: Any) -> None:
    """Make -0.0 rank as 0.0."""
    ranked[0] = ranked[0] + tir.Cast("int32", tir.EQ(ranked[0], int32(-1)))


def is_number(ranked: Any) -> Any:
    """Whether a rank is that of a number, as int32."""
    return tir.Cast("int32", ranked[0] <= int32(RANK_OF_INFINITY)) & tir.Cast(
        "int32", ranked[0] >= int32(RANK_OF_MINUS_INFINITY)
    )


def pack(ranked: Any, index: Any) -> Any:
    """Rank and index as one int64: greater is better, and of two equal ranks the lower index."""
    high = tir.shift_left(tir.Cast("int64", ranked), int64(32))
    return high | tir.Cast("int64", int32(_LOW_BITS) - index)


def index_of(packed: Any) -> Any:
    """The index inside a packed int64."""
    return int32(_LOW_BITS) - tir.Cast("int32", packed & int64(_LOW_BITS))


@dataclass(frozen=True, slots=True)
class Heap:
    """A binary heap in one row of a buffer of int64, its greatest element at `cells[row, 0]`.

    Attributes:
        ib: the builder that its operations are emitted into.
        cells: int64[rows, capacity].
        size: a cell: how many elements there are.
        moving, parent, child, falling: cells that sifting works in.
    """

    ib: Any
    cells: Any
    row: Any
    size: Any
    moving: Any
    parent: Any
    child: Any
    falling: Any

    @property
    def top(self) -> Any:
        """The greatest element."""
        return self.cells[self.row, 0]

    def heapify(self) -> None:
        """Make a heap of elements in any order."""
        start = cell(self.ib, "int32", "start", self.size[0] // 2 - 1)
        with self.ib.while_loop(start[0] >= 0):
            self.moving[0] = self.cells[self.row, start[0]]
            self._sift(start[0])
            start[0] = start[0] - 1

    def replace_top(self, value: Any) -> None:
        """Take the greatest element out and put another in."""
        self.moving[0] = value
        self._sift(int32(0))

    def drop_top(self) -> None:
        """Take the greatest element out of a heap that has one."""
        self.size[0] = self.size[0] - 1
        with self.ib.if_scope(self.size[0] > 0):
            self.replace_top(self.cells[self.row, self.size[0]])

    def _sift(self, start: Any) -> None:
        """Let `moving` fall from position `start` to where both children are less."""
        ib, cells, row, size = self.ib, self.cells, self.row, self.size
        moving, parent, child, falling = self.moving, self.parent, self.child, self.falling
        parent[0] = start
        falling[0] = int32(1)
        with ib.while_loop(falling[0] == 1):
            child[0] = parent[0] * 2 + 1
            falling[0] = int32(0)
            with ib.if_scope(child[0] < size[0]):
                with ib.if_scope(child[0] + 1 < size[0]):
                    right_is_greater = cells[row, child[0] + 1] > cells[row, child[0]]
                    child[0] = child[0] + tir.Cast("int32", right_is_greater)
                with ib.if_scope(cells[row, child[0]] > moving[0]):
                    cells[row, parent[0]] = cells[row, child[0]]
                    parent[0] = child[0]
                    falling[0] = int32(1)
        cells[row, parent[0]] = moving[0]


def heap(ib: Any, cells: Any, row: Any, size: Any) -> Heap:
    """A heap in `cells[row]` of as many elements as the cell `size` says; not yet in order."""
    return Heap(
        ib=ib,
        cells=cells,
        row=row,
        size=size,
        moving=cell(ib, "int64", "moving"),
        parent=cell(ib, "int32", "parent"),
        child=cell(ib, "int32", "child"),
        falling=cell(ib, "int32", "falling"),
    )
