"""Reading one table of a head file: typed keys, and a message for every key that is not known."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bridge.errors import UsageError

type Convert[T] = Callable[[Any, str], T]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a head file and where it stands, for messages.

    Attributes:
        keys: all that it may hold; None where the user names the keys.
    """

    values: Mapping[str, Any]
    where: str
    keys: tuple[str, ...] | None

    def __post_init__(self) -> None:
        """Refuse keys that are not known."""
        for key in self.values:
            if self.keys is not None and key not in self.keys:
                close = difflib.get_close_matches(key, self.keys, 1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise UsageError(
                    f"{self.where} has no key {key!r}{hint}; it takes {', '.join(self.keys)}"
                )

    def need[T](self, key: str, convert: Convert[T]) -> T:
        """The value of a key that must be there."""
        if key not in self.values:
            raise UsageError(f"{self.where} lacks the key {key!r}")
        return convert(self.values[key], self.place(key))

    def get[T, D](self, key: str, convert: Convert[T], default: D) -> T | D:
        """The value of a key that may be absent."""
        return self.need(key, convert) if key in self.values else default

    def place(self, key: str) -> str:
        """Where a key stands, for messages."""
        return f"{self.where}, {key}"


def table(keys: tuple[str, ...] | None) -> Convert[Table]:
    """A converter to a table of these keys."""

    def convert(value: Any, where: str) -> Table:
        if not isinstance(value, dict):
            raise _wrong(where, "a table", value)
        return Table(value, where, keys)

    return convert


def text(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _wrong(where, "a string", value)
    return value


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def number(value: Any, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(where, "a number", value)
    return float(value)


def positive(value: Any, where: str) -> float:
    """A number above zero."""
    result = number(value, where)
    if result <= 0:
        raise _wrong(where, "a number above 0", value)
    return result


def fraction(value: Any, where: str) -> float:
    """A number from 0 to 1."""
    result = number(value, where)
    if not 0 <= result <= 1:
        raise _wrong(where, "a number from 0 to 1", value)
    return result


def count(least: int) -> Convert[int]:
    """A converter to a whole number of at least `least`."""

    def convert(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _wrong(where, f"a whole number of at least {least}", value)
        return value

    return convert


def choice[E: StrEnum](kind: type[E]) -> Convert[E]:
    """A converter to one of the words of an enumeration."""

    def convert(value: Any, where: str) -> E:
        try:
            return kind(text(value, where))
        except ValueError:
            raise _wrong(where, f"one of {', '.join(kind)}", value) from None

    return convert


def each[T](convert: Convert[T], what: str, *, length: int | None = None) -> Convert[tuple[T, ...]]:
    """A converter to a list, of `length` items where that is given, and never empty."""

    def convert_all(value: Any, where: str) -> tuple[T, ...]:
        if not isinstance(value, list) or not value or length not in (None, len(value)):
            raise _wrong(where, what, value)
        return tuple(convert(item, where) for item in value)

    return convert_all


def one_or_more[T](convert: Convert[T]) -> Convert[tuple[T, ...]]:
    """A converter to a list that may be written as its only item."""

    def convert_all(value: Any, where: str) -> tuple[T, ...]:
        items = value if isinstance(value, list) else [value]
        if not items:
            raise _wrong(where, "at least one item", value)
        return tuple(convert(item, where) for item in items)

    return convert_all


def optional[T](convert: Convert[T]) -> Convert[T | None]:
    """A converter that takes the word `auto` for None."""

    def convert_unless_auto(value: Any, where: str) -> T | None:
        return None if value == "auto" else convert(value, where)

    return convert_unless_auto


def _wrong(where: str, wanted: str, value: Any) -> UsageError:
    return UsageError(f"{where}: give {wanted}, not {value!r}")
