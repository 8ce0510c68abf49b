"""Which outputs of a detector are its boxes, its scores and its classes.

Not by name: by what they are made of. A detector qualifies where every output, padding apart, is
made of the boxes of its one suppression, or of its scores, or of its classes, row by row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Final

import numpy as np
import onnx

from bridge.targets.tflite.suppression_copies import Addresses, Copies
from bridge.targets.tflite.suppression_tail import ELEMENTWISE, Tail, copied, numbered


class Role(Enum):
    """What a column of a row tensor is made of."""

    BOX = "boxes"
    SCORE = "scores"
    CLASS = "classes"


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is fetched: coordinate `index` of a box, a score, or the number of a class."""

    role: Role
    index: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of a row tensor that make one role; all of them where `columns` is None."""

    role: Role
    tensor: str
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What boxes and scores of a suppression are copies of.

    Attributes:
        boxes: int64[N, k], the addresses of the coordinates that a box may be fetched as.
        scores: int64[C, N].
        ids: int64[N], of the class numbers of boxes, where the suppression knows one class only
            and the boxes' own are known all the same.
    """

    boxes: Addresses
    scores: Addresses
    ids: Addresses | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """The parts of a detector's outputs.

    Attributes:
        parts: in the order of the outputs.
        leaves: of each row tensor that fetches boxes or scores: its columns.
        classes: of each row tensor made of class numbers alone: its value by class.
        outputs: of each output whose parts stand side by side: the role of every column.
    """

    parts: tuple[Part, ...]
    leaves: Mapping[str, tuple[Column, ...]]
    classes: Mapping[str, Addresses]
    outputs: Mapping[str, tuple[Role, ...]]

    def one(self, role: Role) -> Part | None:
        """The first part of a role."""
        return next((part for part in self.parts if part.role is role), None)


class NoRoleError(Exception):
    """Why an output is none of the three."""


def roles(model: onnx.ModelProto, tail: Tail, copies: Copies, source: Source) -> Roles:
    """The roles of a model's outputs, counts left out.

    Raises:
        NoRoleError: an output is something else.
    """
    reader = _Reader(model, tail, copies, source)
    reader.read_leaves()
    parts: list[Part] = []
    outputs: dict[str, tuple[Role, ...]] = {}
    for value in model.graph.output:
        if value.name in tail.rows:
            try:
                found = reader.parts(value.name)
                parts += found
                outputs[value.name] = reader.side_by_side(found)
            except NoRoleError as error:
                raise NoRoleError(f"of output {value.name!r}, {error}") from None
        elif value.name not in tail.counts:
            raise NoRoleError(f"output {value.name!r} does not come from the suppression")
    return Roles(tuple(parts), reader.leaves, reader.classes, outputs)


def box_order(
    copies: Copies, found: Roles, work: Sequence[onnx.NodeProto], part: Part
) -> tuple[int, ...]:
    """Of which coordinate each column of a part is made; -1 where of none or of several."""
    made = {
        name: np.broadcast_to(
            [column.index if column.role is Role.BOX else -1 for column in columns],
            (copies.types[name].shape[0], len(columns)),
        ).reshape(copies.types[name].shape)
        for name, columns in found.leaves.items()
    }
    made |= {name: np.full(copies.types[name].shape, -1) for name in found.classes}
    for node in work:
        read = {name: made[name] for name in node.input if name in made}
        shape = copies.types[node.output[0]].shape
        if not read:
            continue
        if node.op_type in ELEMENTWISE:
            first, *others = (np.broadcast_to(array, shape) for array in read.values())
            same = np.logical_and.reduce([np.ones(shape, bool), *(first == x for x in others)])
            made[node.output[0]] = np.where(same, first, -1)
        elif all(name in made or name in copies.constants for name in node.input):
            made |= zip(node.output, copies.move(node, read), strict=True)
    if part.tensor not in made:
        return ()
    row = made[part.tensor].reshape(len(made[part.tensor]), -1)[0]
    chosen = row if part.columns is None else row[list(part.columns)]
    return tuple(int(index) for index in chosen)


# Operators that only pack rows: a part of what they read is a part of what they make.
_PACKING: Final = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})


@dataclass(slots=True)
class _Reader:
    model: onnx.ModelProto
    tail: Tail
    copies: Copies
    source: Source
    leaves: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    classes: dict[str, Addresses] = field(default_factory=dict)
    _known: dict[str, frozenset[Role | None]] = field(default_factory=dict)

    def read_leaves(self) -> None:
        """Find out what every fetching node fetches."""
        for node in self.tail.leaves:
            found = copied(self.model, self.tail, node.output[0], self.copies)
            if found is not None:
                columns = tuple(self._columns(found.reshape(len(found), -1)))
                if len(columns) == found[0].size:
                    self.leaves[node.output[0]] = columns

    def _columns(self, found: Addresses) -> Iterator[Column]:
        classes, boxes = self.source.scores.shape
        scores = self.source.scores.reshape(-1)
        coordinates = np.tile(self.source.boxes, (classes, 1))
        for column in found.T:
            same = np.flatnonzero((coordinates == column[:, None]).all(0))
            if same.size and boxes:
                yield Column(Role.BOX, int(same[0]))
            elif np.array_equal(column, scores):
                yield Column(Role.SCORE)
            elif self.source.ids is not None and np.array_equal(column, self.source.ids):
                yield Column(Role.CLASS)

    def made_of(self, name: str) -> frozenset[Role | None]:
        """Roles that a row tensor is made of; None stands for something else."""
        if name not in self._known:
            self._known[name] = self._made_of(name)
        return self._known[name]

    def _made_of(self, name: str) -> frozenset[Role | None]:
        if name in self.leaves:
            return frozenset(column.role for column in self.leaves[name])
        if any(name in node.output for node in self.tail.leaves):
            return frozenset({None})
        if name in self.tail.masks:
            return frozenset()
        if self._is_class(name):
            return frozenset({Role.CLASS})
        node = self.copies.makers[name]
        if name == self.tail.call.selected:
            return frozenset({None})
        read = [x for x in node.input if x in self.tail.rows]
        return frozenset[Role | None]().union(*(self.made_of(x) for x in read))

    def _is_class(self, name: str) -> bool:
        """Whether a row tensor of one column depends on the class number only."""
        if self.copies.types[name].shape != (self.tail.call.rows,) or self.source.ids is not None:
            return False
        found = numbered(self.model, self.tail, name, self.copies)
        if found is None:
            return False
        by_class = found.reshape(self.source.scores.shape)
        if not (by_class == by_class[:, :1]).all():
            return False
        self.classes[name] = by_class[:, 0]
        return True

    def parts(self, name: str) -> Sequence[Part]:
        """The parts of an output or of what is packed into one.

        Raises:
            NoRoleError: something else is in it.
        """
        node = self.copies.makers[name]
        if name in self.leaves and len(self.made_of(name)) > 1:
            return self._split(name)
        if node.op_type == "Where" and node.input[0] in self._masks() and self._is_zero(node):
            return self.parts(node.input[1])
        made_of = self.made_of(name)
        if len(made_of) == 1 and None not in made_of:
            (role,) = made_of
            assert role is not None
            return [Part(role, name)]
        if node.op_type in _PACKING and node.input[0] in self.tail.rows:
            return self.parts(node.input[0])
        if node.op_type in ELEMENTWISE and self._keeps_columns(node):
            return self._of_columns(name, self.side_by_side(self.parts(node.input[0])))
        if node.op_type == "Concat":
            return [part for x in node.input for part in self.parts(x)]
        raise NoRoleError(f"{name!r} is not made of boxes, scores or classes alone")

    def _keeps_columns(self, node: onnx.NodeProto) -> bool:
        """Whether a node calculates with columns that stand side by side, each for itself."""
        types, (table, *others) = self.copies.types, node.input
        if table not in self.tail.rows or not all(x in self.copies.constants for x in others):
            return False
        return types[node.output[0]].shape == types[table].shape

    def _of_columns(self, name: str, columns: Sequence[Role]) -> list[Part]:
        """The parts of a table, from the role of every column."""
        return [
            Part(role, name, tuple(i for i, other in enumerate(columns) if other is role))
            for role in dict.fromkeys(columns)
        ]

    def side_by_side(self, parts: Sequence[Part]) -> tuple[Role, ...]:
        """The role of every column of parts that are packed into one output."""
        found: list[Role] = []
        for tensor, together in groupby(parts, key=lambda part: part.tensor):
            columns = range(int(np.prod(self.copies.types[tensor].shape[1:])))
            role = {c: part.role for part in together for c in part.columns or columns}
            found += [role[column] for column in columns]
        return tuple(found)

    def _masks(self) -> frozenset[str]:
        """Masks, reshaped ones included."""
        reshaped = {
            node.output[0]
            for node in self.model.graph.node
            if node.op_type in ("Reshape", "Unsqueeze") and node.input[0] in self.tail.masks
        }
        return self.tail.masks | reshaped

    def _is_zero(self, node: onnx.NodeProto) -> bool:
        value = self.copies.constant(node.input[2])
        return value is not None and not np.any(value)

    def _split(self, name: str) -> list[Part]:
        """Columns of several roles that are fetched together."""
        return self._of_columns(name, [column.role for column in self.leaves[name]])
