"""Outputs of a network, in any layout a head file may name, to columns by role.

Given:   per-level maps, or rows of all levels in one output, columns first or last
Result:  per role float32[1, N, columns], or [1, columns, N] where every output is columns first
"""

import math
from collections.abc import Mapping, Sequence

from bridge.heads.bind import Binding, Bound
from bridge.heads.describe import Layout
from bridge.heads.evaluate import Computed
from bridge.model.nodes import Nodes


def column_axis(binding: Binding) -> int:
    """The axis of columns that moves least: 1 where every output has them first, else 2."""
    return 1 if all(_columns_first(bound) for bound in binding.outputs) else 2


def by_role(
    nodes: Nodes, binding: Binding, row_order: Sequence[str], axis: int
) -> dict[str, Computed]:
    """Append what brings every output into rows and columns; roles without columns are absent."""
    roles: dict[str, Computed] = {}
    for bound in binding.outputs:
        roles |= _roles(nodes, bound, row_order, axis)
    return roles


def _columns_first(bound: Bound) -> bool:
    letters = bound.layout.letters
    return "C" in letters and all(
        letters.index("C") < letters.index(letter) for letter in "NHW" if letter in letters
    )


def _roles(nodes: Nodes, bound: Bound, row_order: Sequence[str], axis: int) -> dict[str, Computed]:
    parts = [
        _lay_out(nodes, tensor.name, bound.layout, sizes, row_order, axis)
        for tensor, sizes in zip(bound.tensors, bound.sizes, strict=True)
    ]
    whole = parts[0] if len(parts) == 1 else nodes.add("Concat", parts, axis=3 - axis)
    if len(bound.columns) == 1:
        ((role, size),) = bound.columns
        return {role: Computed(whole, size)}
    roles, start = {}, 0
    for role, size in bound.columns:
        if size:
            roles[role] = Computed(nodes.slice(whole, axis, start, start + size), size)
        start += size
    return roles


def _lay_out(
    nodes: Nodes,
    tensor: str,
    layout: Layout,
    sizes: Mapping[str, int],
    row_order: Sequence[str],
    axis: int,
) -> str:
    """One tensor as [1, rows, columns], or [1, columns, rows]."""
    wanted = _wanted(layout, row_order, axis)
    letters = [letter for letter in layout.letters if letter in wanted]
    if letters != wanted:
        opened = nodes.reshape(tensor, *(sizes[letter] for letter in letters))
        tensor = nodes.add("Transpose", [opened], perm=[letters.index(x) for x in wanted])
    elif layout.text == ("1 C N", "1 N C")[axis - 1]:
        return tensor
    rows = math.prod(sizes[letter] for letter in wanted if letter != "C")
    shape = (1, rows, sizes["C"]) if axis == 2 else (1, sizes["C"], rows)
    return nodes.reshape(tensor, *shape)


def _wanted(layout: Layout, row_order: Sequence[str], axis: int) -> list[str]:
    """The letters of a layout in the order of rows and columns; N stands for H and W."""
    rows = ["N" if letter in "HW" and "N" in layout.letters else letter for letter in row_order]
    wanted = ["C", *dict.fromkeys(rows)] if axis == 1 else [*dict.fromkeys(rows), "C"]
    return [letter for letter in wanted if letter in layout.letters]
