"""What is known of a tensor: the lattice of the abstract interpretation.

The static graph computes on *dense* tensors. Where the source had a data-dependent number of rows,
the dense axis holds more rows than are meant; a `Group` on that axis says which. Masked rows hold
anything, finite or not, and never influence a meant one. Dropping the masked rows along every
group axis, and turning positions into ranks among the rows left, gives the source's tensor, bit
for bit: that is the meaning of every `Tensor` here.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge.errors import UnsupportedModelError
from bridge.surgery.static.integers import Element, Int, hi


class NoRuleError(UnsupportedModelError):
    """Why a node has no static form. The walk adds which node it is."""


@dataclass(frozen=True, slots=True)
class Group:
    """An axis of `length` dense rows, `count` of which are meant.

    Attributes:
        length: dense rows; an upper bound of `count`.
        mask: identity of the bool[length] tensor that is true on meant rows. None in a *prefix*
            group: the first `count` rows are meant, in order. Any other group is *scattered*.
        parts: of a concatenation, the dimensions that were joined.
        merged: of a reshape, (group, left, right): row `(i, j, k)` of `[left, group, right]`
            is meant where row j of the group is.
    """

    length: int
    count: Int
    mask: str | None = None
    parts: "tuple[Dim, ...]" = field(default=(), compare=False)
    merged: "tuple[Group, int, int] | None" = field(default=None, compare=False)

    @property
    def is_prefix(self) -> bool:
        """Whether the meant rows come first."""
        return self.mask is None


type Dim = int | Group


@dataclass(frozen=True, slots=True)
class Columns:
    """Spaces that differ per entry of one axis, as in the rows `(image, class, box)` of an NMS."""

    axis: int
    spaces: tuple[Group | None, ...]


type Space = Group | Columns | None
"""What the values are positions in: the dense rows of a scattered group; None: plain numbers."""

type Values = NDArray[np.object_]
"""An array of `integers.Element`: the elements of a small integer or bool tensor."""


def listed(values: Values) -> list[Element]:
    """The elements, row-major, as Python objects."""
    return [e.item() if isinstance(e, np.generic) else e for e in values.reshape(-1).tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of the static graph, and what its source tensor was.

    Attributes:
        id: its name while the graph is built.
        dims: the dense length of each axis, or the group of its rows.
        values: the elements, where they are followed (integer and bool tensors, at most 512).
        space: what its values are positions in.
        iota: the axis along which every value equals its dense position.
        range: bounds of every element, masked ones included (integer tensors).
        magnitude: no meant element exceeds it in absolute value, so none is infinite (floats).
    """

    id: str
    dtype: np.dtype[Any]
    dims: tuple[Dim, ...]
    values: Values | None = None
    space: Space = None
    iota: int | None = None
    range: tuple[int, int] | None = None
    magnitude: float | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dense shape."""
        return tuple(length(dim) for dim in self.dims)

    @property
    def groups(self) -> tuple[tuple[int, Group], ...]:
        """The axes that hold masked rows."""
        return tuple((k, dim) for k, dim in enumerate(self.dims) if isinstance(dim, Group))


def length(dim: Dim) -> int:
    """Dense length of an axis."""
    return dim.length if isinstance(dim, Group) else dim


def count(dim: Dim) -> Int:
    """Length of the axis in the source."""
    return dim.count if isinstance(dim, Group) else dim


def prefix(rows: Int) -> Dim:
    """The axis of `rows` rows that are all meant, stored in as many as there can be."""
    return rows if isinstance(rows, int) else Group(hi(rows), rows)


def position_space(dim: Dim) -> Group | None:
    """The space of positions along an axis. In a prefix group a position is its own rank."""
    return dim if isinstance(dim, Group) and not dim.is_prefix else None


def tagged(
    x: Tensor, dims: tuple[Dim, ...] | list[Dim], *, space: Space = None, iota: int | None = None
) -> Tensor:
    """`x` with the meaning of its axes and values; the dense shape must not change."""
    if tuple(length(dim) for dim in dims) != x.shape:
        raise AssertionError(f"a rule claims {dims} for a tensor of shape {list(x.shape)}")
    return replace(x, dims=tuple(dims), space=space, iota=iota)


def columns(spaces: list[Group | None] | tuple[Group | None, ...], axis: int) -> Space:
    """The spaces of the entries of an axis, as one space where they agree."""
    return Columns(axis, tuple(spaces)) if len(set(spaces)) > 1 else spaces[0]


def column_spaces(x: Tensor, axis: int) -> tuple[Group | None, ...] | None:
    """The space of each entry along `axis`; None where the spaces differ along another axis."""
    if isinstance(x.space, Columns):
        return x.space.spaces if x.space.axis == axis else None
    return (x.space,) * x.shape[axis]
