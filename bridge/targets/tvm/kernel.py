"""The suppression in TIR: what onnxruntime's NonMaxSuppression decides, bit for bit.

Per image and class, all in parallel: collect the boxes above the score threshold (most blocks of
scores hold none and are passed over at the speed of memory), make a heap of them, and take the best
until the maximum is reached; a box stays unless one that stayed before overlaps it by more than the
IoU threshold. Source: onnxruntime `non_max_suppression.cc` and `non_max_suppression_helper.h`.

Unlike in relay's own kernel (`topi.vision.all_class_non_max_suppression`), nothing is sorted that
is not asked for, an IoU equal to the limit stays, scores below zero compete, an IoU limit of zero
and a maximum of zero mean what ONNX says, and rows behind the count are zero, not old memory.
"""

from dataclasses import dataclass
from typing import Any

from tvm import te

from bridge.targets.tvm import heap as order
from bridge.targets.tvm.heap import cell, int32, int64
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.tir import builder, dtype_of, intrinsic, tir

# Scores looked at together: one of them above the threshold makes the whole block worth reading.
_BLOCK = 16
# Kept boxes compared at once: one vector of float32 on AVX2, two on NEON.
_LANES = 8
# Below this many scores a parallel region costs more than it saves.
_WORTH_A_THREAD = 16384


@dataclass(frozen=True, slots=True)
class Limits:
    """The attributes of a StaticNMS call that its kernel depends on."""

    max_output_boxes_per_class: int
    iou_threshold: float
    score_threshold: float
    center_point_box: bool
    rows: int


def limits_of(node: Node) -> Limits:
    """The attributes of a StaticNMS node."""
    given = node.attributes
    return Limits(
        max_output_boxes_per_class=int(given["max_output_boxes_per_class"]),
        iou_threshold=float(given["iou_threshold"]),
        score_threshold=float(given["score_threshold"]),
        center_point_box=bool(given["center_point_box"]),
        rows=int(given["rows"]),
    )


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Operands and work space of the kernel; K boxes are kept per class, in blocks of 8.

    Attributes:
        boxes: float32[B, N, 4].
        scores: float32[B, C, N].
        candidates: int64[B * C, N], rank and index packed.
        kept: float32[B * C, K / 8, 5, 8]: low corner, high corner, area.
        picked: int32[B * C, K]: indices of the boxes that stay.
        found: int32[B * C]: how many they are.
    """

    boxes: Any
    scores: Any
    selected: Any
    count: Any
    candidates: Any
    kept: Any
    picked: Any
    found: Any


def suppress(boxes: Any, scores: Any, limits: Limits) -> list[Any]:
    """StaticNMS as tensor expressions.

    Args:
        boxes: te.Tensor float32[B, N, 4].
        scores: te.Tensor float32[B, C, N].
        limits: the call's attributes.

    Returns:
        `selected` int64[rows, 3] and `count` int64[1].
    """
    images, classes, number = (int(dim) for dim in scores.shape)
    # More than `rows` of one class can never be asked for.
    most = max(min(limits.max_output_boxes_per_class, number, limits.rows), 0)
    columns = images * classes
    blocks = -(-max(most, 1) // _LANES)

    def body(ins: Any, outs: Any) -> Any:
        ib = builder()
        buffers = _Buffers(*(ib.buffer_ptr(buffer) for buffer in (*ins, *outs)))
        parallel = columns > 1 and columns * number > _WORTH_A_THREAD
        with ib.for_range(0, columns, name="row", kind="parallel" if parallel else "serial") as row:
            _suppress_class(ib, buffers, row, (classes, number, most), limits)
        _write_rows(ib, buffers, columns, classes, limits.rows)
        return ib.get()

    outputs = te.extern(
        [
            (limits.rows, 3),
            (1,),
            (columns, number),
            (columns, blocks, 5, _LANES),
            (columns, max(most, 1)),
            (columns,),
        ],
        [boxes, scores],
        body,
        dtype=["int64", "int64", "int64", "float32", "int32", "int32"],
        name="bridge_static_nms",
        tag="bridge_static_nms",
    )
    return list(outputs[:2])


def _suppress_class(
    ib: Any, at: _Buffers, row: Any, sizes: tuple[int, int, int], limits: Limits
) -> None:
    """Pick the boxes of one image and class: `picked[row]`, `found[row]`."""
    classes, number, most = sizes
    image = cell(ib, "int32", "image", row // classes)
    label = cell(ib, "int32", "label", row % classes)
    size = cell(ib, "int32", "size", int32(0))
    _collect(ib, at, (image[0], label[0], row), number, size, limits.score_threshold)
    queue = order.heap(ib, at.candidates, row, size)
    queue.heapify()
    box = ib.allocate("float32", (5,), name="box", scope="local")
    best = cell(ib, "int32", "best")
    number_kept = cell(ib, "int32", "number_kept", int32(0))
    with ib.while_loop(tir.all(size[0] > 0, number_kept[0] < most)):
        best[0] = order.index_of(queue.top)
        queue.drop_top()
        _read_box(at, box, (image[0], best[0]), center=limits.center_point_box)
        hit = _overlaps_a_kept_one(ib, at, row, box, number_kept, limits.iou_threshold)
        with ib.if_scope(hit[0] == 0):
            _keep(ib, at, row, box, number_kept[0])
            at.picked[row, number_kept[0]] = best[0]
            number_kept[0] = number_kept[0] + 1
    at.found[row] = number_kept[0]


def _collect(
    ib: Any, at: _Buffers, column: tuple[Any, Any, Any], number: int, size: Any, threshold: float
) -> None:
    """Put every box above the threshold into `candidates`; a NaN never is, nor is -inf."""
    image, label, row = column
    least = int32(order.rank_of(threshold))

    def above(ranked: Any) -> Any:
        return tir.Cast("int32", ranked[0] > least) & tir.Cast(
            "int32", ranked[0] <= int32(order.RANK_OF_INFINITY)
        )

    start = cell(ib, "int32", "start")
    length = cell(ib, "int32", "length")
    some = cell(ib, "int32", "some")
    with ib.for_range(0, -(-number // _BLOCK), name="block") as block:
        start[0] = block * _BLOCK
        length[0] = tir.min(int32(_BLOCK), int32(number) - start[0])
        some[0] = int32(0)
        with ib.for_range(0, length[0], name="i") as i:
            some[0] = some[0] | above(order.rank(ib, at.scores[image, label, start[0] + i]))
        with ib.if_scope(some[0] != 0), ib.for_range(0, length[0], name="i") as i:
            # Written whether it counts or not: a branch here would be mispredicted.
            ranked = order.rank(ib, at.scores[image, label, start[0] + i])
            order.join_zero(ranked)
            at.candidates[row, size[0]] = order.pack(ranked[0], start[0] + i)
            size[0] = size[0] + above(ranked)


def _read_box(at: _Buffers, box: Any, index: tuple[Any, Any], *, center: bool) -> None:
    """Load a box as low corner, high corner and area.

    Corners are put in order; a box in centre form with a negative side is left as it comes, so it
    overlaps nothing, as in onnxruntime.
    """
    image, number = index
    first, second, third, fourth = (at.boxes[image, number, i] for i in range(4))
    if center:
        half = tir.const(0.5, "float32")
        wide, high = fence(third * half), fence(fourth * half)
        corners = (first - wide, second - high, first + wide, second + high)
    else:
        corners = (
            tir.min(first, third),
            tir.min(second, fourth),
            tir.max(first, third),
            tir.max(second, fourth),
        )
    for i, corner in enumerate(corners):
        box[i] = corner
    box[4] = fence((box[2] - box[0]) * (box[3] - box[1]))


def _overlaps_a_kept_one(
    ib: Any, at: _Buffers, row: Any, box: Any, number_kept: Any, iou_threshold: float
) -> Any:
    """A cell that is not zero where the box overlaps a kept one by more than the threshold."""
    hit = cell(ib, "int32", "hit", int32(0))
    block = cell(ib, "int32", "block", int32(0))
    zero, limit = (_lanes(tir.const(value, "float32")) for value in (0.0, iou_threshold))
    mine = [_lanes(box[i]) for i in range(5)]
    with ib.while_loop(tir.all(block[0] * _LANES < number_kept[0], hit[0] == 0)):
        low_0, low_1, high_0, high_1, area = (
            at.kept[row, block[0], i, tir.Ramp(int32(0), int32(1), _LANES)] for i in range(5)
        )
        side_0 = tir.max(zero, tir.min(mine[2], high_0) - tir.max(mine[0], low_0))
        side_1 = tir.max(zero, tir.min(mine[3], high_1) - tir.max(mine[1], low_1))
        shared = fence(side_0 * side_1)
        union = mine[4] + area - shared
        over = tir.Cast(f"int32x{_LANES}", shared / union > limit)
        # A kept box without area, such as the filling of a block, suppresses nothing.
        for positive in (shared, area, mine[4], union):
            over = over & tir.Cast(f"int32x{_LANES}", positive > zero)
        hit[0] = intrinsic("llvm.vector.reduce.or", "int32", over)
        block[0] = block[0] + 1
    return hit


def _lanes(value: Any) -> Any:
    return tir.Broadcast(value, _LANES)


def _keep(ib: Any, at: _Buffers, row: Any, box: Any, position: Any) -> None:
    """Add a box to the kept ones; the rest of a block that begins gets no area."""
    block, lane = position // _LANES, position % _LANES
    with ib.if_scope(lane == 0), ib.for_range(0, _LANES, name="lane") as other:
        for i in range(5):
            at.kept[row, block, i, other] = tir.const(0, "float32")
    for i in range(5):
        at.kept[row, block, i, lane] = box[i]


def _write_rows(ib: Any, at: _Buffers, columns: int, classes: int, rows: int) -> None:
    """The result in ONNX order (image, class, falling score), then zeros."""
    written = cell(ib, "int32", "written", int32(0))
    with ib.for_range(0, columns, name="row") as row:
        left = tir.min(at.found[row], int32(rows) - written[0])
        taken = cell(ib, "int32", "taken", left)
        with ib.for_range(0, taken[0], name="i") as i:
            values = (row // classes, row % classes, at.picked[row, i])
            for column, value in enumerate(values):
                at.selected[written[0] + i, column] = tir.Cast("int64", value)
        written[0] = written[0] + taken[0]
    at.count[0] = tir.Cast("int64", written[0])
    with ib.for_range(0, int32(rows) - written[0], name="i") as i:
        for column in range(3):
            at.selected[written[0] + i, column] = int64(0)


def fence(value: Any) -> Any:
    """The value, rounded here: LLVM must not fuse the product into an addition behind it.

    TVM lets it (`AllowFPOpFusion = Fast`, src/target/llvm/llvm_instance.cc), and a fused
    multiply-add rounds once where onnxruntime rounds twice.
    """
    return intrinsic("llvm.arithmetic.fence", dtype_of(value), value)
