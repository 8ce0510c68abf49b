"""FlatBuffers by a description of their tables: written field by field, read with bounds checked.

The code that the FlatBuffers compiler makes follows whatever offset a file holds. A file of unknown
origin is read here instead: an offset or a length that leaves the file ends the reading, and so
does a file that refers to the same bytes so often that reading it would not end.

Source: the FlatBuffers binary format ("FlatBuffer Internals" of its documentation).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import flatbuffers

type Document = Mapping[str, Any]
"""A table by the names of its fields; a field that is not there is left out."""

type Schema = Mapping[str, Mapping[str, Field]]
"""Tables by name, their fields by name."""

TEXT: Final = "text"
BYTES: Final = "bytes"
TABLE: Final = "table"
UNION: Final = "union"

_MOST_WORK: Final = 4_000_000
"""What reading one file may take, in numbers read; a detector takes some hundred thousand."""

_TABLE: Final = 32
"""What reading a table takes, in numbers read."""


class BrokenFileError(ValueError):
    """Why bytes are not a FlatBuffer of the kind that was asked for."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table.

    Attributes:
        slot: its number in the order of the schema; a union takes two, its type and its value.
        kind: `TEXT`, `BYTES`, `TABLE`, `UNION`, or the `struct` letter of a number.
        table: the name of a `TABLE`.
        tables: the names by number of a `UNION`.
        many: a vector of them.
    """

    slot: int
    kind: str
    table: str = ""
    tables: Mapping[int, str] = field(default_factory=dict)
    many: bool = False


def pack(schema: Schema, root: str, document: Document, identifier: bytes) -> bytes:
    """The bytes of a document. A union is a pair of the table's name and its document."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(_Writer(schema, builder).table(root, document), identifier)
    return bytes(builder.Output())


def unpack(schema: Schema, root: str, content: bytes, identifier: bytes) -> dict[str, Any]:
    """What the fields of a schema hold; fields that it does not know are passed over.

    Texts are `str` (what is no UTF-8 replaced), `BYTES` a memoryview of the content, vectors lists,
    unions pairs as in `pack`, and left out where the schema does not know the type.

    Raises:
        BrokenFileError: the content is not such a FlatBuffer.
    """
    if content[4:8] != identifier:
        raise BrokenFileError(f"it does not start as a {identifier.decode()} file does")
    reader = _Reader(schema, memoryview(content))
    return reader.table(root, reader.follow(0))


@dataclass(frozen=True, slots=True)
class _Writer:
    schema: Schema
    builder: Any

    def table(self, name: str, document: Document) -> int:
        """Write what the table refers to, then the table."""
        fields = self.schema[name]
        made = [
            (entry, self._value(fields[entry], value))
            for entry, value in document.items()
            if value is not None
        ]
        self.builder.StartObject(max((f.slot for f in fields.values()), default=-1) + 2)
        for entry, value in made:
            self._put(fields[entry], value)
        return int(self.builder.EndObject())

    def _value(self, kind: Field, value: Any) -> Any:
        """An offset, a pair of type and offset, or the number itself."""
        if kind.kind == UNION:
            numbers = {name: number for number, name in kind.tables.items()}
            return numbers[value[0]], self.table(*value)
        if not kind.many:
            return self._one(kind, value)
        made = [self._one(kind, one) for one in value]
        size = 4 if kind.kind in (TEXT, TABLE) else struct.calcsize(kind.kind)
        self.builder.StartVector(size, len(made), size)
        for one in reversed(made):
            self._prepend(kind)(one)
        return self.builder.EndVector()

    def _one(self, kind: Field, value: Any) -> Any:
        if kind.kind == TEXT:
            return self.builder.CreateString(value)
        return self.table(kind.table, value) if kind.kind == TABLE else value

    def _prepend(self, kind: Field) -> Callable[[Any], None]:
        if kind.kind in (TEXT, TABLE):
            made: Callable[[Any], None] = self.builder.PrependUOffsetTRelative
        else:
            made = getattr(self.builder, f"Prepend{_NUMBERS[kind.kind]}")
        return made

    def _put(self, kind: Field, value: Any) -> None:
        if kind.kind == UNION:
            self.builder.PrependUint8Slot(kind.slot, value[0], 0)
            self.builder.PrependUOffsetTRelativeSlot(kind.slot + 1, value[1], 0)
        elif kind.many or kind.kind in (TEXT, TABLE):
            self.builder.PrependUOffsetTRelativeSlot(kind.slot, value, 0)
        else:
            getattr(self.builder, f"Prepend{_NUMBERS[kind.kind]}Slot")(kind.slot, value, 0)


_NUMBERS: Final[Mapping[str, str]] = {
    "?": "Bool",
    "b": "Int8",
    "B": "Uint8",
    "i": "Int32",
    "I": "Uint32",
    "q": "Int64",
    "Q": "Uint64",
    "f": "Float32",
}


@dataclass(slots=True)
class _Reader:
    """Attributes: left, how much work may still be done."""

    schema: Schema
    content: memoryview
    left: int = field(default=_MOST_WORK)

    def table(self, name: str, at: int) -> dict[str, Any]:
        """The fields of the table at a position."""
        self._take(_TABLE)
        places = at - self._number("i", at)
        size = self._number("H", places)
        found = {}
        for entry, kind in self.schema[name].items():
            place = self._place(places, size, kind.slot, at)
            value = None if place is None else self._field(kind, places, size, at, place)
            if value is not None:
                found[entry] = value
        return found

    def _place(self, places: int, size: int, slot: int, at: int) -> int | None:
        """Where a field lies; None where the table leaves it out."""
        entry = 4 + 2 * slot
        if entry + 2 > size:
            return None
        offset = self._number("H", places + entry)
        return at + offset if offset else None

    def _field(self, kind: Field, places: int, size: int, at: int, place: int) -> Any:
        if kind.kind == UNION:
            name = kind.tables.get(self._number("B", place))
            value = self._place(places, size, kind.slot + 1, at)
            if name is None or value is None:
                return None
            return name, self.table(name, self.follow(value))
        if not kind.many:
            return self._one(kind, place)
        start, length = self._vector(place)
        if kind.kind in (TEXT, TABLE):
            self._inside(start, 4 * length)
            return [self._one(kind, start + 4 * i) for i in range(length)]
        self._inside(start, length * struct.calcsize(kind.kind))
        self._take(length)
        return list(struct.unpack_from(f"<{length}{kind.kind}", self.content, start))

    def _one(self, kind: Field, place: int) -> Any:
        if kind.kind == TABLE:
            return self.table(kind.table, self.follow(place))
        if kind.kind not in (TEXT, BYTES):
            return self._number(kind.kind, place)
        start, length = self._vector(place)
        self._inside(start, length)
        found = self.content[start : start + length]
        if kind.kind == BYTES:
            return found
        self._take(length // 8)
        return bytes(found).decode(errors="replace")

    def _vector(self, place: int) -> tuple[int, int]:
        start = self.follow(place)
        return start + 4, self._number("I", start)

    def follow(self, place: int) -> int:
        """The position that the offset at a position refers to."""
        return place + int(self._number("I", place))

    def _number(self, letter: str, at: int) -> Any:
        self._inside(at, struct.calcsize(letter))
        return struct.unpack_from(f"<{letter}", self.content, at)[0]

    def _inside(self, at: int, size: int) -> None:
        if at < 0 or at + size > len(self.content):
            raise BrokenFileError(
                f"it refers to byte {max(at, at + size - 1)}, and ends at {len(self.content)}"
            )

    def _take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise BrokenFileError("it refers to the same bytes again and again")


def tables(slot: int, name: str) -> Field:
    """A vector of tables."""
    return Field(slot, TABLE, name, many=True)


def union(slot: int, *names: str) -> Field:
    """One of several tables, which are counted from 1; 0 is none."""
    return Field(slot, UNION, tables=dict(enumerate(names, 1)))
