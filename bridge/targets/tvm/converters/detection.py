"""StaticNMS and RoiAlign, whose kernels are our own."""

from collections.abc import Mapping
from typing import Any

from tvm import relay

from bridge.targets.tvm import operators
from bridge.targets.tvm.converters.node import Converter
from bridge.targets.tvm.kernel import limits_of
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.roi_align import pooling_of


def _static_nms(node: Node) -> Any:
    both = operators.static_nms(node.expr(0), node.expr(1), limits_of(node))
    pair = relay.TupleWrapper(both, 2)
    return pair[0], pair[1]


def _roi_align(node: Node) -> Any:
    return operators.roi_align(node.expr(0), node.expr(1), node.expr(2), pooling_of(node))


CONVERTERS: Mapping[str, Converter] = {"RoiAlign": _roi_align, "StaticNMS": _static_nms}
