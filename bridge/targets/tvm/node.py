"""An ONNX node as a converter sees it: every type known, constants in the hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import UnsupportedModelError
from bridge.static_model import TensorType
from bridge.targets.base import Array


@dataclass(frozen=True, slots=True)
class Operand:
    """One input.

    Attributes:
        expr: a variable of the operand's type, or a constant.
        value: the numbers, where they are known.
    """

    expr: Any
    type: TensorType
    value: Array | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node; trailing absent inputs are left out, absent ones between are None."""

    name: str
    op_type: str
    operands: tuple[Operand | None, ...]
    outputs: tuple[TensorType, ...]
    attributes: Mapping[str, Any]

    def has(self, index: int) -> bool:
        """Whether the node is given this input."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Operand:
        """An input that must be there.

        Raises:
            UnsupportedModelError: it is absent.
        """
        found = self.operands[index] if index < len(self.operands) else None
        if found is None:
            raise self.refusal(f"input {index} is absent")
        return found

    def expr(self, index: int = 0) -> Any:
        """An input's expression."""
        return self.operand(index).expr

    def type(self, index: int = 0) -> TensorType:
        """An input's type."""
        return self.operand(index).type

    def constant(self, index: int) -> Array:
        """An input's numbers.

        Raises:
            UnsupportedModelError: they are not known before the model runs.
        """
        value = self.operand(index).value
        if value is None:
            raise self.refusal(f"input {index} is not a constant")
        return value

    def integers(self, index: int) -> list[int]:
        """An input of known whole numbers, as a list."""
        return [int(number) for number in self.constant(index).reshape(-1)]

    def text(self, attribute: str, default: str) -> str:
        """An attribute of type string."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front."""
        return int(self.attributes.get("axis", default)) % (rank or len(self.type().shape) or 1)

    def refusal(self, reason: str) -> UnsupportedModelError:
        """The error that says this node has no exact lowering, and why."""
        return UnsupportedModelError(
            f"node {self.name!r}: operator {self.op_type} has no exact lowering to TVM here: "
            f"{reason}; rewrite that part of the model, or convert with --to onnx or tflite"
        )
