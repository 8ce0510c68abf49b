"""Formulas as standard ONNX.

A value is either known now (a row per candidate or one row for all, kept in numpy and folded) or
a tensor. Rows and columns lie as `Frame.column_axis` says, which follows the network's own order,
so that nothing is transposed without need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from bridge.errors import UsageError
from bridge.heads.describe import Activation, Head
from bridge.heads.formula import Call, Columns, Formula, Name, Numbers
from bridge.model.nodes import Nodes

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Known:
    """Numbers known before any image: float32[N or 1, columns]."""

    array: Float32

    @property
    def columns(self) -> int:
        """How many there are per row."""
        return int(self.array.shape[1])


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor float32[1, N, columns], or [1, columns, N]."""

    tensor: str
    columns: int


Value = Known | Computed


@dataclass(frozen=True, slots=True)
class Frame:
    """What the formulas of one head are read in.

    Attributes:
        column_axis: 2 where tensors are [1, N, columns], 1 where they are [1, columns, N].
        given: cells, priors, the input's size and the head's constants.
        raw: the columns of each role, no activation applied.
    """

    head: Head
    nodes: Nodes
    rows: int
    column_axis: int
    given: Mapping[str, Known]
    raw: Mapping[str, Computed]

    def error(self, where: str, what: str) -> UsageError:
        """What is wrong at a place of the head file."""
        return UsageError(f"head {self.head.name}, {where} {what}")


UNARY: Mapping[str, tuple[str, Callable[[Float32], Float32]]] = MappingProxyType(
    {
        "abs": ("Abs", np.abs),
        "exp": ("Exp", np.exp),
        "log": ("Log", np.log),
        "relu": ("Relu", lambda x: np.maximum(x, np.float32(0))),
        "sigmoid": ("Sigmoid", lambda x: np.float32(1) / (np.float32(1) + np.exp(-x))),
        "softplus": ("Softplus", lambda x: np.logaddexp(x, np.float32(0))),
        "sqrt": ("Sqrt", np.sqrt),
        "tanh": ("Tanh", np.tanh),
    }
)
"""Functions of one value: the ONNX operator, and the same in numpy."""

BINARY: Mapping[str, tuple[str, Callable[[Float32, Float32], Float32]]] = MappingProxyType(
    {
        "add": ("Add", np.add),
        "subtract": ("Sub", np.subtract),
        "multiply": ("Mul", np.multiply),
        "divide": ("Div", np.divide),
        "power": ("Pow", np.power),
        "min": ("Min", np.minimum),
        "max": ("Max", np.maximum),
    }
)
"""Functions of two values whose columns meet."""


def known(*numbers: float) -> Known:
    """Numbers that are the same for every row."""
    return Known(np.asarray([numbers], np.float32))


def evaluate(frame: Frame, formula: Formula, where: str, *, columns: int | None = None) -> Value:
    """Append what computes a formula; `where` names its place in the head file, for messages.

    Raises:
        UsageError: columns that do not meet, or not as many as `columns` come out.
    """
    value = _evaluate(frame, formula, where)
    if columns not in (None, value.columns):
        raise frame.error(where, f"has {value.columns} columns and needs {columns}")
    return value


def call(frame: Frame, where: str, function: str, *values: Value) -> Value:
    """Append a function of formulas on values."""
    match function:
        case _ if function in UNARY:
            return _unary(frame, function, values[0])
        case _ if function in BINARY:
            return _binary(frame, where, function, values[0], values[1])
        case "negate":
            return _binary(frame, where, "multiply", values[0], known(-1))
        case "clip":
            raised = _binary(frame, where, "max", values[0], values[1])
            return _binary(frame, where, "min", raised, values[2])
        case "concat":
            return concat(frame, values)
        case "swap":
            return _swap(frame, where, values[0])
        case "softmax":
            tensor = frame.nodes.add(
                "Softmax", [as_tensor(frame, values[0])], axis=frame.column_axis
            )
            return Computed(tensor, values[0].columns)
        case _:
            return _expectation(frame, where, values[0])


def pick(frame: Frame, where: str, value: Value, columns: slice) -> Value:
    """Append the choice of some columns."""
    start, stop, step = columns.indices(value.columns)
    count = len(range(start, stop, step))
    if not count:
        raise frame.error(where, f"takes columns {start} to {stop} of {value.columns}")
    if isinstance(value, Known):
        return Known(value.array[:, columns])
    if count == value.columns:
        return value
    return Computed(frame.nodes.slice(value.tensor, frame.column_axis, start, stop, step), count)


def concat(frame: Frame, values: Sequence[Value]) -> Value:
    """Append the concatenation of columns."""
    if len(values) == 1:
        return values[0]
    columns = sum(value.columns for value in values)
    arrays = [value.array for value in values if isinstance(value, Known)]
    if len(arrays) == len(values):
        rows = max(map(len, arrays))
        return Known(np.concatenate([np.broadcast_to(a, (rows, a.shape[1])) for a in arrays], 1))
    tensors = [as_tensor(frame, value) for value in values]
    return Computed(frame.nodes.add("Concat", tensors, axis=frame.column_axis), columns)


def as_tensor(frame: Frame, value: Value) -> str:
    """The value as a tensor of all rows."""
    if isinstance(value, Computed):
        return value.tensor
    array = np.broadcast_to(value.array, (frame.rows, value.columns))
    return frame.nodes.constant(_oriented(frame, array))


def as_rows(frame: Frame, value: Value) -> str:
    """The value as a tensor float32[1, N, columns]."""
    tensor = as_tensor(frame, value)
    if frame.column_axis == 2:
        return tensor
    return frame.nodes.add("Transpose", [tensor], perm=[0, 2, 1])


def _evaluate(frame: Frame, formula: Formula, where: str) -> Value:
    match formula:
        case Numbers(numbers):
            return known(*numbers)
        case Name(name) if name in frame.given:
            return frame.given[name]
        case Name(name):
            return _role(frame, where, name)
        case Columns(operand, start, stop, step):
            value = _evaluate(frame, operand, where)
            return pick(frame, where, value, slice(start, stop, step))
        case Call(function, arguments):
            values = [_evaluate(frame, argument, where) for argument in arguments]
            return call(frame, where, function, *values)


def _role(frame: Frame, where: str, name: str) -> Value:
    if name not in frame.raw:
        raise frame.error(where, f"reads {name!r}, for which the model has no columns left")
    activation = frame.head.activations.get(name, Activation.NONE)
    if activation is Activation.NONE:
        return frame.raw[name]
    return call(frame, where, activation.value, frame.raw[name])


def _unary(frame: Frame, function: str, value: Value) -> Value:
    operator, fold = UNARY[function]
    if isinstance(value, Known):
        return Known(np.asarray(fold(value.array), np.float32))
    return Computed(frame.nodes.add(operator, [value.tensor]), value.columns)


def _binary(frame: Frame, where: str, function: str, left: Value, right: Value) -> Value:
    """Columns meet where they are as many, or one, or a pair against pairs."""
    operator, fold = BINARY[function]
    columns = max(left.columns, right.columns)
    left, right = _widen(frame, where, left, columns), _widen(frame, where, right, columns)
    if isinstance(left, Known) and isinstance(right, Known):
        return Known(np.asarray(fold(left.array, right.array), np.float32))
    inputs = [_operand(frame, left), _operand(frame, right)]
    if function == "power" and isinstance(right, Known) and np.all(right.array == 2):
        # A square is exact where Pow need not be.
        return Computed(frame.nodes.add("Mul", [inputs[0], inputs[0]]), columns)
    return Computed(frame.nodes.add(operator, inputs), columns)


def _widen(frame: Frame, where: str, value: Value, columns: int) -> Value:
    if value.columns in (1, columns):
        return value
    if value.columns != 2 or columns % 2:
        raise frame.error(
            where,
            f"lets {value.columns} columns meet {columns}: they must be as many, or one, or one "
            "x, y pair that goes with every pair",
        )
    if isinstance(value, Known):
        return Known(np.tile(value.array, (1, columns // 2)))
    repeated = [value.tensor] * (columns // 2)
    return Computed(frame.nodes.add("Concat", repeated, axis=frame.column_axis), columns)


def _operand(frame: Frame, value: Value) -> str:
    """The value as a tensor that broadcasts against one of all rows."""
    if isinstance(value, Computed):
        return value.tensor
    if value.array.size == 1:
        return frame.nodes.scalar(float(value.array[0, 0]))
    return frame.nodes.constant(_oriented(frame, value.array))


def _oriented(frame: Frame, array: Float32) -> Float32:
    return (array if frame.column_axis == 2 else array.T)[None]


def _swap(frame: Frame, where: str, value: Value) -> Value:
    """Each y, x pair as x, y."""
    if value.columns % 2:
        raise frame.error(where, f"swaps {value.columns} columns, which are no pairs")
    order = np.arange(value.columns).reshape(-1, 2)[:, ::-1].reshape(-1)
    if isinstance(value, Known):
        return Known(value.array[:, order])
    indices = frame.nodes.integers(*order.tolist())
    swapped = frame.nodes.add("Gather", [value.tensor, indices], axis=frame.column_axis)
    return Computed(swapped, value.columns)


def _expectation(frame: Frame, where: str, value: Value) -> Value:
    """Four distributions side by side: the mean bin of each, after softmax."""
    nodes, bins = frame.nodes, value.columns // 4
    if value.columns % 4 or bins < 2:
        raise frame.error(
            where, f"takes the expectation of {value.columns} columns, which are not 4 x bins"
        )
    # Two dimensions, because every target handles a softmax over the last of two.
    sides = nodes.reshape(as_rows(frame, value), -1, bins)
    weights = nodes.constant(np.arange(bins, dtype=np.float32).reshape(bins, 1))
    means = nodes.add("MatMul", [nodes.add("Softmax", [sides], axis=1), weights])
    rows = nodes.reshape(means, 1, frame.rows, 4)
    if frame.column_axis == 1:
        rows = nodes.add("Transpose", [rows], perm=[0, 2, 1])
    return Computed(rows, 4)
