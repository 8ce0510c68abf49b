"""StaticNMS and RoiAlign, whose kernels are our own."""

from collections.abc import Mapping
from typing import Any

from tvm import relay

from bridge.targets.tvm import operators
from bridge.targets.tvm.converters.node import Converter, Node
from bridge.targets.tvm.kernel import Limits
from bridge.targets.tvm.roi_align import RoiAlign


def _static_nms(node: Node) -> Any:
    given = node.attributes
    limits = Limits(
        max_output_boxes_per_class=int(given["max_output_boxes_per_class"]),
        iou_threshold=float(given["iou_threshold"]),
        score_threshold=float(given["score_threshold"]),
        center_point_box=bool(given["center_point_box"]),
        rows=int(given["rows"]),
    )
    both = relay.TupleWrapper(operators.static_nms(node.expr(0), node.expr(1), limits), 2)
    return both[0], both[1]


def _roi_align(node: Node) -> Any:
    given = node.attributes
    if node.type().dtype != "float32":
        raise node.refusal(f"features of type {node.type().dtype}")
    attributes = RoiAlign(
        output_height=int(given.get("output_height", 1)),
        output_width=int(given.get("output_width", 1)),
        sampling_ratio=int(given.get("sampling_ratio", 0)),
        spatial_scale=float(given.get("spatial_scale", 1.0)),
        average=node.text("mode", "avg") == "avg",
        half_pixel=node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel",
    )
    return operators.roi_align(node.expr(0), node.expr(1), node.expr(2), attributes)


CONVERTERS: Mapping[str, Converter] = {"RoiAlign": _roi_align, "StaticNMS": _static_nms}
