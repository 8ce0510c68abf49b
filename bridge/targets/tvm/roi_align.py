"""RoiAlign in TIR, in the order and with the rounding of onnxruntime's kernel.

relay's own knows no `half_pixel`, the default since opset 16, and takes another maximum. This one
follows onnxruntime `roialign.cc`: in mode `max` the maximum is over the weighted corners, one by
one, which is not what the operator's text says but what the models are checked against.
"""

from dataclasses import dataclass
from typing import Any

from tvm import te

from bridge.targets.tvm.heap import cell, int32
from bridge.targets.tvm.kernel import fence
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.tir import builder, tir


@dataclass(frozen=True, slots=True)
class RoiAlign:
    """The operator's attributes.

    Attributes:
        average: mode `avg`; else `max`.
        half_pixel: coordinate_transformation_mode `half_pixel`; else `output_half_pixel`.
        sampling_ratio: points per bin and axis; 0 takes as many as the bin is pixels long.
    """

    output_height: int
    output_width: int
    sampling_ratio: int
    spatial_scale: float
    average: bool
    half_pixel: bool


def pooling_of(node: Node) -> RoiAlign:
    """The attributes of a RoiAlign node.

    Raises:
        UnsupportedModelError: its features are no float32.
    """
    given = node.attributes
    if node.type().dtype != "float32":
        raise node.refusal(f"features of type {node.type().dtype}")
    return RoiAlign(
        output_height=int(given.get("output_height", 1)),
        output_width=int(given.get("output_width", 1)),
        sampling_ratio=int(given.get("sampling_ratio", 0)),
        spatial_scale=float(given.get("spatial_scale", 1.0)),
        average=node.text("mode", "avg") == "avg",
        half_pixel=node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel",
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of a region: where it starts, how long a bin is, how many points a bin has."""

    start: Any
    bin_size: Any
    points: Any
    size: int


def roi_align(features: Any, rois: Any, batch: Any, given: RoiAlign) -> Any:
    """Features float32[B, C, H, W], rois float32[R, 4], batch int64[R] to float32[R, C, h, w]."""
    images, channels, height, width = (int(dim) for dim in features.shape)
    regions = int(rois.shape[0])
    shape = (regions, channels, given.output_height, given.output_width)

    def body(ins: Any, outs: Any) -> Any:
        ib = builder()
        data, boxes, indices, out = (ib.buffer_ptr(buffer) for buffer in (*ins, *outs))
        with ib.for_range(0, regions, name="roi", kind="parallel") as roi:
            image = cell(ib, "int32", "image", tir.Cast("int32", indices[roi]))
            image[0] = tir.max(tir.min(image[0], int32(images - 1)), int32(0))
            x = _axis(ib, given, (boxes[roi, 0], boxes[roi, 2]), (given.output_width, width))
            y = _axis(ib, given, (boxes[roi, 1], boxes[roi, 3]), (given.output_height, height))
            count = tir.max(x.points[0] * y.points[0], int32(1))
            with (
                ib.for_range(0, given.output_height, name="row") as row,
                ib.for_range(0, given.output_width, name="column") as column,
            ):
                result = (out, (roi, row, column))
                _pool(ib, (data, image[0]), (y, x), result, channels, average=given.average)
                if given.average:
                    with ib.for_range(0, channels, name="c") as c:
                        total = out[roi, c, row, column]
                        out[roi, c, row, column] = total / tir.Cast("float32", count)
        return ib.get()

    return te.extern(shape, [features, rois, batch], body, dtype="float32", name="bridge_roi_align")


def _axis(ib: Any, given: RoiAlign, ends: tuple[Any, Any], sizes: tuple[int, int]) -> _Axis:
    bins, size = sizes
    scale, offset = _float(given.spatial_scale), _float(0.5 if given.half_pixel else 0.0)
    start, end = (cell(ib, "float32", "end", fence(value * scale) - offset) for value in ends)
    length = cell(ib, "float32", "length", end[0] - start[0])
    if not given.half_pixel:
        length[0] = tir.max(length[0], _float(1.0))
    bin_size = cell(ib, "float32", "bin_size", length[0] / fence(_float(bins)))
    points = int32(given.sampling_ratio)
    if given.sampling_ratio <= 0:
        points = tir.Cast("int32", tir.ceil(bin_size[0]))
    return _Axis(start, bin_size, cell(ib, "int32", "points", points), size)


def _pool(
    ib: Any,
    source: tuple[Any, Any],
    axes: tuple[_Axis, _Axis],
    result: tuple[Any, tuple[Any, Any, Any]],
    channels: int,
    *,
    average: bool,
) -> None:
    """One bin of every channel: the sum, or the maximum, over its points."""
    data, image = source
    y_axis, x_axis = axes
    out, (roi, row, column) = result
    zero = _float(0.0)
    with ib.for_range(0, channels, name="c") as c:
        out[roi, c, row, column] = zero
    first = cell(ib, "int32", "first", int32(1))
    with ib.for_range(0, y_axis.points[0], name="i") as i:
        y_inside, y_low, y_high, y_share = _sample(ib, y_axis, row, i)
        with ib.for_range(0, x_axis.points[0], name="j") as j:
            x_inside, x_low, x_high, x_share = _sample(ib, x_axis, column, j)
            inside = tir.all(y_inside, x_inside)
            one = _float(1.0)
            weights = [
                cell(ib, "float32", "weight", tir.Select(inside, fence(v * h), zero))
                for v, h in (
                    (one - y_share[0], one - x_share[0]),
                    (one - y_share[0], x_share[0]),
                    (y_share[0], one - x_share[0]),
                    (y_share[0], x_share[0]),
                )
            ]
            places = [(v[0], h[0]) for v in (y_low, y_high) for h in (x_low, x_high)]
            with ib.for_range(0, channels, name="c") as c:
                terms = [
                    fence(weight[0] * data[image, c, v, h])
                    for weight, (v, h) in zip(weights, places, strict=True)
                ]
                so_far = out[roi, c, row, column]
                if average:
                    value = so_far + (terms[0] + terms[1] + terms[2] + terms[3])
                else:
                    best = terms[0]
                    for term in terms[1:]:
                        best = tir.max(best, term)
                    value = tir.Select(tir.EQ(first[0], int32(1)), best, tir.max(so_far, best))
                out[roi, c, row, column] = value
            first[0] = int32(0)


def _sample(ib: Any, axis: _Axis, bin_index: Any, point: Any) -> tuple[Any, Any, Any, Any]:
    """A point on one axis: inside or not, the pixels around it, the share of the second."""
    middle = tir.Cast("float32", point) + _float(0.5)
    within = fence(middle * axis.bin_size[0]) / tir.Cast("float32", axis.points[0])
    place = axis.start[0] + fence(tir.Cast("float32", bin_index) * axis.bin_size[0]) + within
    at = cell(ib, "float32", "at", place)
    inside = cell(
        ib,
        "int32",
        "inside",
        tir.Cast("int32", tir.all(at[0] >= _float(-1.0), at[0] <= _float(float(axis.size)))),
    )
    last = int32(axis.size - 1)
    at[0] = tir.max(at[0], _float(0.0))
    low = cell(ib, "int32", "low", tir.max(tir.Cast("int32", at[0]), int32(0)))
    beyond = low[0] >= last
    at[0] = tir.Select(beyond, _float(float(axis.size - 1)), at[0])
    high = cell(ib, "int32", "high", tir.Select(beyond, last, low[0] + 1))
    low[0] = tir.min(low[0], last)
    share = cell(ib, "float32", "share", at[0] - tir.Cast("float32", low[0]))
    return tir.EQ(inside[0], int32(1)), low, high, share


def _float(value: float) -> Any:
    return tir.const(value, "float32")
