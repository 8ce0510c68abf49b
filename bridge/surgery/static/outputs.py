"""The way out: every padded output compact, as numbers, zero behind its count."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bridge.errors import UnsupportedModelError
from bridge.static_model import Finding, PaddedOutput, Rows
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int, Linear, hi
from bridge.surgery.static.lattice import Group, Tensor, count, listed
from bridge.surgery.static.rows import compact, data, fill

ROWS_LIMIT = 10_000
"""Rows of a padded output above which the user must say how many are wanted."""

NUM_DETECTIONS = "num_detections"


@dataclass(frozen=True, slots=True)
class Output:
    """A finished output.

    Attributes:
        tensor: dense, zero in every row behind the counts.
        rows: (axis, count) of each padded axis.
        source_shape: the source's shape; None marks a data-dependent dimension.
    """

    name: str
    tensor: Tensor
    rows: tuple[tuple[int, Int], ...]
    source_shape: tuple[int | None, ...]


def finish(g: Graph, name: str, x: Tensor, max_rows: int | None) -> Output:
    """One output: meant rows first, positions as data, zeros behind.

    Args:
        g: the graph.
        name: of the output.
        x: what the source returns.
        max_rows: rows kept of every padded axis; None keeps all there can be.
    """
    source_shape = tuple(None if isinstance(dim, Group) else dim for dim in x.dims)
    x = data(g, x)
    for axis, group in x.groups:
        if max_rows is not None and max_rows < hi(group.count):
            g.assume(
                f"output '{name}' has at most {max_rows} rows (the graph allows "
                f"{hi(group.count)}); a count of {max_rows} may mean that rows were cut"
            )
        x = compact(g, x, axis, max_rows)
    rows = tuple((axis, count(dim)) for axis, dim in x.groups)
    for axis, _ in x.groups:
        x = fill(g, x, axis, x.dtype.type(0).item())
    return Output(name, x, rows, source_shape)


def require_bound(name: str, x: Tensor) -> None:
    """Refuse an output that would be padded to very many rows unasked.

    Raises:
        UnsupportedModelError: an axis can have more than 10,000 rows.
    """
    for axis, group in x.groups:
        bound = hi(group.count)
        if bound > ROWS_LIMIT:
            raise UnsupportedModelError(
                f"output '{name}' can have {bound} rows on axis {axis}, more than {ROWS_LIMIT}; "
                "say how many are wanted with --max-detections K"
            )


def counts(
    outputs: Sequence[Output], inputs: Collection[str]
) -> tuple[dict[str, Int], tuple[PaddedOutput, ...]]:
    """The count outputs to add, by name, and which one counts the rows of which axis.

    One `num_detections` where all counts are the same number, else one `<output>_count` per output,
    for several axes `<output>_count_<axis>`. An output of the source that has the name and is that
    very count serves as it; any other clash gets a number behind the name.

    Args:
        outputs: all of them.
        inputs: names that are taken beside the outputs' own.
    """
    padded = [output for output in outputs if output.rows]
    own = {output.name: _number_in(output) for output in outputs}
    shared = len({number for output in padded for _, number in output.rows}) == 1
    added: dict[str, Int] = {}
    results = []
    for output in padded:
        rows = []
        for axis, number in output.rows:
            several = f"_{axis}" if len(output.rows) > 1 else ""
            name = NUM_DETECTIONS if shared else f"{output.name}_count{several}"
            name = _free(name, number, {**dict.fromkeys(inputs), **own, **added})
            if name not in own:
                added[name] = number
            rows.append(Rows(axis, name))
        results.append(PaddedOutput(output.name, tuple(rows)))
    return added, tuple(results)


def _number_in(output: Output) -> Int | None:
    """The number that an int64[1] output holds, where it is followed."""
    x = output.tensor
    if x.values is None or x.dims != (1,) or x.dtype != np.int64:
        return None
    (element,) = listed(x.values)
    return element if isinstance(element, int | Linear) else None


def _free(wanted: str, number: Int, taken: Mapping[str, Int | None]) -> str:
    name, k = wanted, 1
    while taken.get(name, number) != number:
        k += 1
        name = f"{wanted}_{k}"
    return name


def findings(outputs: Iterable[Output], made_by: Mapping[str, str]) -> Iterator[Finding]:
    """What was padded, by the node that makes it."""
    for output in outputs:
        for axis, _ in output.rows:
            yield Finding(
                made_by.get(output.name, output.name),
                f"static-max-output: output '{output.name}' has {output.tensor.shape[axis]} rows "
                f"on axis {axis}, zeros behind the real ones",
                changed=True,
            )
