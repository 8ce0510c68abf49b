"""Sequences of tensors: known at conversion time once loops are unrolled, so they leave no trace.

TorchScript writes `outputs.append(x)` in a loop over images or classes as SequenceInsert, and
`torch.cat(outputs)` as ConcatFromSequence.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from bridge.surgery.static.call import Call, constants, make_call
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int
from bridge.surgery.static.lattice import Group, NoRuleError, Tensor
from bridge.surgery.static.movers import concat, squeeze, unsqueeze
from bridge.surgery.static.slices import slice_axis

type Value = Tensor | tuple[Tensor, ...]
"""What a name of the source stands for: a tensor, or a sequence of them."""

type SequenceRule = Callable[[Graph, Call, Sequence[Value | None]], Value]
"""As `call.Rule`; the call's inputs hold None where the values hold a sequence."""


def sequence_empty(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """No tensors."""
    del g, call, values
    return ()


def sequence_construct(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """The inputs, in order."""
    del g
    return tuple(call.input(k) for k in range(len(values)))


def sequence_insert(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """One more at a constant place; without a place, at the end."""
    del g
    items = _items(values, 0)
    place = _place(call, 2, len(items), last=len(items))
    return (*items[:place], call.input(1), *items[place:])


def sequence_erase(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """One less at a constant place; without a place, the last."""
    del g
    items = _items(values, 0)
    place = _place(call, 1, len(items), last=len(items) - 1)
    return (*items[:place], *items[place + 1 :])


def sequence_at(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """The one at a constant place."""
    del g
    items = _items(values, 0)
    return items[_place(call, 1, len(items), last=len(items) - 1)]


def sequence_length(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """How many there are, a constant."""
    del call
    return g.constant(np.int64(len(_items(values, 0))))


def concat_from_sequence(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """Concat of all; with `new_axis`, each gets the axis first."""
    items, axis = _items(values, 0), call.integer("axis", 0)
    if not items:
        raise NoRuleError("joins no tensors, so the shape of its result is not known")
    if call.integer("new_axis", 0):
        where = g.int64(axis)
        items = tuple(unsqueeze(g, make_call("Unsqueeze", [item, where])) for item in items)
    return concat(g, make_call("Concat", items, axis=axis))


def split_to_sequence(g: Graph, call: Call, values: Sequence[Value | None]) -> Value:
    """Slices of constant sizes; without sizes, or the size 1, one entry each.

    `keepdims` 0 drops the axis of single entries. ONNX ignores it where a size is given;
    onnxruntime does not, and is what exporters are tried with.
    """
    del values
    x = call.input(0)
    axis = call.axis(x.rank, 0)
    sizes = call.optional(1)
    single = sizes is None or (not sizes.rank and constants(sizes, "the size of the parts") == [1])
    parts: list[Tensor] = []
    start: Int = 0
    for size in _sizes(x, axis, sizes):
        part = slice_axis(g, x, axis, start, start + size)
        if single and not call.integer("keepdims", 1):
            part = squeeze(g, make_call("Squeeze", [part, g.int64(axis)]))
        parts.append(part)
        start = start + size
    return tuple(parts)


def _sizes(x: Tensor, axis: int, sizes: Tensor | None) -> list[int]:
    whole = x.dims[axis]
    given = [1] if sizes is None else constants(sizes, "the size of the parts")
    if sizes is not None and sizes.rank:
        return given
    if isinstance(whole, Group):
        raise NoRuleError("splits a data-dependent number of rows into as many tensors")
    full, rest = divmod(whole, given[0])
    return [given[0]] * full + ([rest] if rest else [])


def _items(values: Sequence[Value | None], k: int) -> tuple[Tensor, ...]:
    items = values[k]
    if not isinstance(items, tuple):
        raise NoRuleError(f"input {k} is not a sequence")
    return items


def _place(call: Call, k: int, size: int, *, last: int) -> int:
    """A constant place in a sequence of `size`, counted from the front; by default the last."""
    if call.optional(k) is None:
        return last
    place = constants(call.optional(k), "the place in the sequence")[0]
    place += size if place < 0 else 0
    if not 0 <= place <= last:
        raise NoRuleError(f"asks for place {place} of a sequence of {size}")
    return place


SEQUENCES: Mapping[str, SequenceRule] = MappingProxyType(
    {
        "ConcatFromSequence": concat_from_sequence,
        "SequenceAt": sequence_at,
        "SequenceConstruct": sequence_construct,
        "SequenceEmpty": sequence_empty,
        "SequenceErase": sequence_erase,
        "SequenceInsert": sequence_insert,
        "SequenceLength": sequence_length,
        "SplitToSequence": split_to_sequence,
    }
)
