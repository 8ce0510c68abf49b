"""Resize in relay, by the tables of `resampling`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relay

from bridge.targets.tvm.converters.elementwise import product
from bridge.targets.tvm.converters.node import Converter, constant
from bridge.targets.tvm.node import Node
from bridge.targets.tvm.resampling import Resampling, resamplings


def _resize(node: Node) -> Any:
    result = node.expr()
    for one in resamplings(node):
        result = _resample(result, one, len(node.type().shape))
    return result


def _resample(x: Any, one: Resampling, rank: int) -> Any:
    shape = [-1 if axis == one.axis else 1 for axis in range(rank)]
    total = None
    for index, weight in one.taps:
        part = relay.take(x, constant(index, "int32"), axis=one.axis, mode="clip")
        if weight is not None:
            part = product(part, constant(weight.reshape(shape), "float32"), "float32")
        total = part if total is None else relay.add(total, part)
    if one.outside is None:
        return total
    filling = constant(np.array(one.filling, np.float32))
    return relay.where(constant(one.outside.reshape(shape)), filling, total)


CONVERTERS: Mapping[str, Converter] = {"Resize": _resize}
