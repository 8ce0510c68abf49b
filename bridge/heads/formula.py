"""Formulas of a head file: arithmetic over columns, parsed by rule and never run as Python.

A formula such as `(xy + cell) * stride` becomes a tree of four kinds of node. What a name or a
function means, and how columns meet, is told in docs/heads.md.
"""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bridge.errors import UsageError

MAX_LENGTH = 500
MAX_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number, or one number per column where several stand in brackets."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Name:
    """Columns of an output by role, a constant of the head, or something the grid knows."""

    name: str


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of a formula: `x[2]`, `x[0:4]`, `x[0::3]`."""

    operand: "Formula"
    start: int | None
    stop: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator (`+` is `add`) on formulas."""

    function: str
    arguments: tuple["Formula", ...]


Formula = Numbers | Name | Columns | Call

FUNCTIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("abs", "exp", "log", "relu", "sigmoid", "softplus", "sqrt", "tanh"), (1, 1)
        ),
        **dict.fromkeys(("softmax", "expectation", "swap"), (1, 1)),
        **dict.fromkeys(("min", "max"), (2, 2)),
        "clip": (3, 3),
        "concat": (1, 32),
    }
)
"""Functions that a formula may call, with the least and the most arguments of each."""

_BINARY: Mapping[type[ast.operator], str] = MappingProxyType(
    {
        ast.Add: "add",
        ast.Sub: "subtract",
        ast.Mult: "multiply",
        ast.Div: "divide",
        ast.Pow: "power",
    }
)


def parse(text: str, where: str) -> Formula:
    """The tree of a formula; `where` names its place in the head file, for messages.

    Raises:
        UsageError: not a formula, or a function that formulas do not have.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"{where}: a formula has at most {MAX_LENGTH} characters")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(
            f"{where}: {text!r} is not a formula such as '(xy + cell) * stride'"
        ) from None
    return _convert(body, f"{where}: {text!r}", 0)


def names(formula: Formula) -> Iterator[str]:
    """Every name the formula reads, in reading order, repeats included."""
    match formula:
        case Name(name):
            yield name
        case Columns(operand=operand):
            yield from names(operand)
        case Call(arguments=arguments):
            for argument in arguments:
                yield from names(argument)


def _convert(node: ast.expr, where: str, depth: int) -> Formula:
    if depth > MAX_DEPTH:
        raise UsageError(f"{where} nests deeper than {MAX_DEPTH}")
    below = depth + 1
    match node:
        case ast.Name(id=name):
            return Name(name)
        case ast.Constant() | ast.List() | ast.Tuple():
            return Numbers(_numbers(node, where))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            operands = (_convert(left, where, below), _convert(right, where, below))
            return Call(_BINARY[type(op)], operands)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Call("negate", (_convert(operand, where, below),))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _convert(operand, where, below)
        case ast.Subscript(value=value, slice=index):
            return Columns(_convert(value, where, below), *_slice(index, where))
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            _check_call(function, len(arguments), where)
            return Call(function, tuple(_convert(a, where, below) for a in arguments))
        case _:
            raise UsageError(
                f"{where} holds {ast.unparse(node)!r}; a formula has numbers, names, + - * / **, "
                f"columns such as x[0:2], and the functions {', '.join(sorted(FUNCTIONS))}"
            )


def _check_call(function: str, count: int, where: str) -> None:
    if function not in FUNCTIONS:
        known = ", ".join(sorted(FUNCTIONS))
        raise UsageError(f"{where} calls {function!r}, which is not a function; there are {known}")
    least, most = FUNCTIONS[function]
    if not least <= count <= most:
        takes = str(least) if least == most else f"{least} to {most}"
        raise UsageError(f"{where}: {function} takes {takes} arguments, not {count}")


def _numbers(node: ast.expr, where: str) -> tuple[float, ...]:
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    values = tuple(_number(item, where) for item in items)
    if not values:
        raise UsageError(f"{where} holds an empty list")
    return values


def _number(node: ast.expr, where: str) -> float:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    value = inner.value if isinstance(inner, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{where} holds {ast.unparse(node)!r} where a number belongs")
    return -float(value) if negative else float(value)


def _slice(node: ast.expr, where: str) -> tuple[int | None, int | None, int | None]:
    if isinstance(node, ast.Slice):
        parts = tuple(_index(part, where) for part in (node.lower, node.upper, node.step))
        if parts[2] is not None and parts[2] < 1:
            raise UsageError(f"{where} steps by {parts[2]}; columns step forward")
        return parts[0], parts[1], parts[2]
    index = _index(node, where)
    return index, (None if index == -1 or index is None else index + 1), None


def _index(node: ast.expr | None, where: str) -> int | None:
    if node is None:
        return None
    value = _number(node, where)
    if value != int(value):
        raise UsageError(f"{where} counts columns with {value}; write a whole number")
    return int(value)
