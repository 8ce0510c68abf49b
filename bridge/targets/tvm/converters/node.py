"""What converters to relay share."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relay

from bridge.targets.base import Array
from bridge.targets.tvm.node import Node

Converter = Callable[[Node], Any]


def constant(value: Array | Sequence[Any], dtype: str | None = None) -> Any:
    """A relay constant of exactly this type; `relay.const` makes int32 of int64."""
    return relay.Constant(tvm.nd.array(np.array(value, dtype, order="C")))


def scalar(value: float, dtype: str) -> Any:
    """A constant of rank 0."""
    return relay.Constant(tvm.nd.array(np.array(value, dtype)))


def is_float(dtype: str) -> bool:
    """Whether a numpy type name is a floating point type."""
    return dtype.startswith(("float", "bfloat"))
