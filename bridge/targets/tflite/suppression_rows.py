"""From the boxes that each suppression selects to the rows of a `StaticNMS`."""

from dataclasses import dataclass

import numpy as np

from bridge.targets.tflite.flatbuffer import Builder, Tensor


@dataclass(frozen=True, slots=True)
class Found:
    """What S independent suppressions selected.

    Attributes:
        boxes: int32[S, L], numbers of boxes; the first ones of a row are real.
        counts: int32[S], how many of each row are.
    """

    boxes: Tensor
    counts: Tensor


def rows(builder: Builder, found: Found, classes: int, rows: int) -> tuple[Tensor, Tensor]:
    """Rows (image, class, box) int64[rows, 3], real ones first, zeros behind, and int64[1] count.

    Suppression s is class `s % classes` of image `s // classes`. What does not fit is cut.
    """
    suppressions, limit = found.boxes.shape
    kept = min(suppressions * limit, rows)
    if suppressions == 1:
        table = builder.slice_axis(builder.reshape(found.boxes, [limit, 1]), 0, 0, kept)
        count = builder.reshape(found.counts, [1])
    else:
        table = _compact(builder, found, classes, kept)
        total = builder.reduce("SUM", found.counts, [0], keep=True)
        count = builder.binary("MINIMUM", total, builder.constant(np.int32(rows)))
    return finish(builder, table, count, rows)


def finish(builder: Builder, table: Tensor, count: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The last columns of the rows, as int32[at most rows, 1 to 3], and int32[1], made whole."""
    kept, columns = table.shape
    places = builder.constant(np.arange(kept, dtype=np.int32)[:, None])
    real = builder.compare("LESS", places, count)
    table = builder.select(real, table, builder.constant(np.int32(0)))
    if (kept, columns) != (rows, 3):
        padding = [[0, rows - kept], [3 - columns, 0]]
        table = builder.op("PAD", [table, builder.constant(padding, "int32")], [rows, 3])
    return builder.cast(table, "int64"), builder.cast(count, "int64")


def _compact(builder: Builder, found: Found, classes: int, kept: int) -> Tensor:
    """The real places of all suppressions, one after the other: int32[kept, 3]."""
    suppressions, limit = found.boxes.shape
    size = suppressions * limit
    places = builder.constant(np.arange(limit, dtype=np.int32)[None])
    counts = builder.reshape(found.counts, [suppressions, 1])
    real = builder.cast(builder.compare("LESS", places, counts), "int32")
    # A stable sort by being real.
    _, order = builder.topk(builder.reshape(real, [size]), kept)
    boxes = builder.gather(builder.reshape(found.boxes, [size, 1]), order)
    suppression = builder.binary("FLOOR_DIV", order, builder.constant(np.int32(limit)))
    owners = np.stack(np.divmod(np.arange(suppressions), classes), 1).astype(np.int32)
    return builder.concat([builder.gather(builder.constant(owners), suppression), boxes], 1)
