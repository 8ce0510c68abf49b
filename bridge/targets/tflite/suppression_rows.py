"""From the boxes that each suppression selects to the rows of a `StaticNMS`."""

from dataclasses import dataclass

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor


@dataclass(frozen=True, slots=True)
class Found:
    """What S independent suppressions selected.

    Attributes:
        boxes: int32[S, L], numbers of boxes; the first ones of a row are real.
        scores: float32[S, L], falling along a row as far as they are real.
        counts: int32[S], how many of each row are.
    """

    boxes: Tensor
    scores: Tensor
    counts: Tensor


def rows(
    builder: Builder, found: Found, classes: int, rows: int, *, best_first: bool = False
) -> tuple[Tensor, Tensor]:
    """Rows (image, class, box) int64[rows, 3], real ones first, zeros behind, and int64[1] count.

    Suppression s is class `s % classes` of image `s // classes`. The rows of one suppression follow
    those of another, or all are sorted by falling score. What does not fit is cut.
    """
    suppressions, limit = found.boxes.shape
    kept = min(suppressions * limit, rows)
    if suppressions == 1:
        table = builder.slice_axis(builder.reshape(found.boxes, [limit, 1]), 0, 0, kept)
        count = builder.reshape(found.counts, [1])
    else:
        table = _joined(builder, found, classes, kept, best_first=best_first)
        total = builder.reduce("SUM", found.counts, [0], keep=True)
        count = builder.binary("MINIMUM", total, builder.constant(np.int32(rows)))
    return finish(builder, table, count, rows)


def finish(builder: Builder, table: Tensor, count: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The last columns of the rows, as int32[at most rows, 1 to 3], and int32[1], made whole."""
    kept, columns = table.shape
    table, count = builder.cast(table, "int64"), builder.cast(count, "int64")
    # In the very form that masks have behind the suppression, so that both are one operator.
    real = builder.compare("LESS", builder.constant(np.arange(kept, dtype=np.int64)), count)
    mask = builder.reshape(real, [kept, 1])
    table = builder.select(mask, table, builder.constant(np.int64(0)))
    if (kept, columns) != (rows, 3):
        padding = [[0, rows - kept], [3 - columns, 0]]
        table = builder.op("PAD", [table, builder.constant(padding, "int32")], [rows, 3])
    return table, count


def _joined(builder: Builder, found: Found, classes: int, kept: int, *, best_first: bool) -> Tensor:
    """The real places of all suppressions: int32[kept, 3]."""
    suppressions, limit = found.boxes.shape
    size = suppressions * limit
    places = builder.constant(np.arange(limit, dtype=np.int32)[None])
    real = builder.compare("LESS", places, builder.reshape(found.counts, [suppressions, 1]))
    # TOPK_V2 keeps the order of what is equal.
    if best_first:
        key = builder.select(real, found.scores, builder.constant(np.float32(-np.inf)))
    else:
        key = builder.cast(real, "int32")
    _, order = builder.topk(builder.reshape(key, [size]), kept)
    boxes = builder.gather(builder.reshape(found.boxes, [size, 1]), order)
    suppression = builder.binary("FLOOR_DIV", order, builder.constant(np.int32(limit)))
    owners = np.stack(np.divmod(np.arange(suppressions), classes), 1).astype(np.int32)
    return builder.concat([builder.gather(builder.constant(owners), suppression), boxes], 1)
