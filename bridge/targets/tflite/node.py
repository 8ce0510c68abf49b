"""One ONNX node as the emitter sees it: tensors, declared types, attributes, and refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge.errors import UnsupportedModelError
from bridge.static_model import TensorType
from bridge.targets.tflite.flatbuffer import Builder, Tensor

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of every element of an integer tensor, inclusive, exact at conversion time."""

    low: int
    high: int

    @property
    def fits_int32(self) -> bool:
        """Whether a cast to int32 keeps every value."""
        return self.low >= INT32_MIN and self.high <= INT32_MAX

    @classmethod
    def of_dtype(cls, dtype: str) -> "Interval":
        """All that a type can hold; bool counts as 0 and 1."""
        if dtype == "bool":
            return cls(0, 1)
        limits = np.iinfo(dtype)
        return cls(int(limits.min), int(limits.max))


@dataclass(frozen=True, slots=True)
class Node:
    """One node, ready to be emitted.

    Attributes:
        inputs: None stands for an omitted optional input.
        intervals: bounds of each input; None for floats and omitted inputs.
        outputs: declared types.
    """

    builder: Builder
    name: str
    op_type: str
    domain: str
    inputs: tuple[Tensor | None, ...]
    intervals: tuple[Interval | None, ...]
    outputs: tuple[TensorType, ...]
    attributes: Mapping[str, Any]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The inputs that are there."""
        return tuple(tensor for tensor in self.inputs if tensor is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.outputs[0].shape

    @property
    def dtype(self) -> str:
        """Element type of the first output."""
        return self.outputs[0].dtype

    def has(self, position: int) -> bool:
        """Whether an optional input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def input(self, position: int) -> Tensor:
        """An input that must be there."""
        tensor = self.inputs[position] if position < len(self.inputs) else None
        if tensor is None:
            raise self.unsupported(f"input {position} is missing", "give it")
        return tensor

    def constant(self, position: int) -> NDArray[Any]:
        """The value of an input that must be known at conversion time."""
        value = self.builder.value(self.input(position))
        if value is None:
            raise self.unsupported(
                f"input {position} is computed at run time", "make it a constant (--freeze)"
            )
        return value

    def integers(self, position: int) -> list[int]:
        """`constant`, flat, as Python integers."""
        return [int(v) for v in self.constant(position).reshape(-1)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default that the operator's specification gives."""
        return self.attributes.get(name, default)

    def axis(self, rank: int, default: int = 0) -> int:
        """The attribute `axis`, counted from the front."""
        return int(self.attribute("axis", default)) % rank

    def interval(self, position: int) -> Interval:
        """Bounds of an integer input."""
        interval = self.intervals[position]
        return interval or Interval.of_dtype(self.input(position).dtype)

    def unsupported(self, reason: str, remedy: str) -> UnsupportedModelError:
        """The refusal of this node, to be raised."""
        return UnsupportedModelError(
            f"{self.op_type} (domain {self.domain or 'ai.onnx'}, node '{self.name}'): {reason} has "
            f"no exact TFLite lowering; {remedy}"
        )

    def require(self, position: int, dtypes: Sequence[str]) -> Tensor:
        """An input whose type must be one of these."""
        tensor = self.input(position)
        if tensor.dtype not in dtypes:
            raise self.unsupported(
                f"element type {tensor.dtype}", f"use one of {', '.join(sorted(dtypes))}"
            )
        return tensor
