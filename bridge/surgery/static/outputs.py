"""The way out: every padded output compact, as numbers, zero behind its count."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bridge.errors import UnsupportedModelError
from bridge.static_model import Finding, PaddedOutput, Rows
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int, hi
from bridge.surgery.static.lattice import Group, Tensor, count
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


def finish(g: Graph, name: str, x: Tensor, max_detections: int | None) -> Output:
    """One output: rows first, positions as data, at most `max_detections` rows, zeros behind.

    Raises:
        UnsupportedModelError: more than 10,000 rows are possible and no maximum is given.
    """
    source_shape = tuple(None if isinstance(dim, Group) else dim for dim in x.dims)
    x = data(g, x)
    for axis, group in x.groups:
        bound = hi(group.count)
        if max_detections is None and bound > ROWS_LIMIT:
            raise UnsupportedModelError(
                f"output '{name}' can have {bound} rows on axis {axis}, more than {ROWS_LIMIT}; "
                "say how many are wanted with --max-detections K"
            )
        if max_detections is not None and max_detections < bound:
            g.assumptions[
                f"output '{name}' never has more than {max_detections} rows (the graph allows "
                f"{bound}); a count of {max_detections} may mean that rows were cut"
            ] = None
        x = compact(g, x, axis, max_detections)
    rows = tuple((axis, count(dim)) for axis, dim in x.groups)
    for axis, _ in x.groups:
        x = fill(g, x, axis, x.dtype.type(0).item())
    return Output(name, x, rows, source_shape)


def counts(
    outputs: Iterable[Output], taken: Collection[str]
) -> tuple[dict[str, Int], tuple[PaddedOutput, ...]]:
    """The count outputs by name, and which output counts the rows of which axis.

    One `num_detections` where all counts are the same number, else `<output>_count`, for several
    axes `<output>_count_<axis>`. A name that is taken gets a number behind it.
    """
    padded = [output for output in outputs if output.rows]
    distinct = {rows for output in padded for _, rows in output.rows}
    named: dict[str, Int] = {}
    used = set(taken)
    results = []
    shared = _free(NUM_DETECTIONS, used) if len(distinct) == 1 else None
    for output in padded:
        rows = []
        for axis, number in output.rows:
            several = f"_{axis}" if len(output.rows) > 1 else ""
            name = shared or _free(f"{output.name}_count{several}", used)
            used.add(name)
            named[name] = number
            rows.append(Rows(axis, name))
        results.append(PaddedOutput(output.name, tuple(rows)))
    return named, tuple(results)


def _free(name: str, used: Collection[str]) -> str:
    candidate, k = name, 1
    while candidate in used:
        k += 1
        candidate = f"{name}_{k}"
    return candidate


def findings(outputs: Iterable[Output], origins: dict[str, str]) -> list[Finding]:
    """What was padded, by the node that makes it."""
    return [
        Finding(
            origins.get(output.name, output.name),
            f"static-max-output: output '{output.name}' has {output.tensor.shape[axis]} rows on "
            f"axis {axis}, zero behind the count",
            changed=True,
        )
        for output in outputs
        for axis, _ in output.rows
    ]
