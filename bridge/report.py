"""A conversion told to a person, and to a machine. No logic."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bridge.command import STDERR
from bridge.model import write_whole
from bridge.pipeline import Result
from bridge.verify import Agreement

_MOST = 12
"""Lines of one kind that a person is shown; the JSON holds all."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the stage that runs on standard error while it is a terminal; yields the teller."""
    if quiet or not STDERR.is_terminal:
        yield lambda stage: None
        return
    with STDERR.status("start") as status:
        yield lambda stage: status.update(f"{stage} …")


def as_dict(result: Result) -> dict[str, object]:
    """The whole report as JSON holds it: the manifest, and where the artifact is."""
    return {"path": None if result.path is None else str(result.path), **result.manifest.as_dict()}


def write(result: Result, path: Path) -> None:
    """Write the report as JSON, whole or not at all.

    Raises:
        UsageError: the folder is missing or cannot be written.
    """
    document = {"path": None if result.path is None else str(result.path)}
    document |= json.loads(result.manifest.as_json())
    write_whole(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def show(result: Result, console: Console, *, verbose: bool) -> None:
    """Tell a person what was done, under which conditions, and what the proof came to."""
    manifest = result.manifest
    changed = [record for record in manifest.passes if record.changed or verbose]
    for record in changed:
        console.print(f"[bold]{record.name}[/bold]  {record.seconds:.2f} s")
        _lines(console, record.findings, verbose=verbose)
    for nms in manifest.nms:
        exact = "exact" if nms.exact else "not exact"
        console.print(
            f"[bold]{escape(nms.node)}[/bold]  {nms.lowered_to}, {exact}: {escape(nms.because)}"
        )
    for text in manifest.assumptions:
        console.print(f"[yellow]assumes[/yellow]  {escape(text)}")
    for text in manifest.warnings:
        console.print(f"[yellow]warning[/yellow]  {escape(text)}")
    console.print(_outputs(result))
    if result.comparison is not None:
        _comparison(result, console, verbose=verbose)
    seconds = ", ".join(f"{name} {spent:.2f} s" for name, spent in manifest.seconds.items())
    console.print(f"{manifest.verdict.upper()}  {result.path or 'nothing written'}  ({seconds})")


def _outputs(result: Result) -> Table:
    table = Table("output", "type", "shape", "source shape", "real rows", box=None)
    for port in result.manifest.outputs:
        rows = ", ".join(f"axis {rows.axis}: {rows.count}" for rows in port.rows)
        source = ", ".join("n" if dim is None else str(dim) for dim in port.source_shape)
        table.add_row(
            port.name, port.dtype, escape(str(list(port.shape))), escape(f"[{source}]"), rows
        )
    return table


def _comparison(result: Result, console: Console, *, verbose: bool) -> None:
    comparison = result.comparison
    assert comparison is not None
    for proof in comparison.proofs:
        held = "exact" if proof.exact else "holds" if not proof.problems else "[red]fails[/red]"
        console.print(f"[bold]{proof.name}[/bold]  {held} on {proof.sets} sets  {proof.note}")
    if comparison.quantised is not None:
        _agreement(comparison.quantised, console)
        _lines(console, comparison.problems, verbose=verbose)
        return
    console.print(
        f"golden  {comparison.inputs} inputs, {comparison.detections} detections, "
        f"worst box {comparison.worst_box:.3g}, worst score {comparison.worst_score:.3g}, "
        f"{comparison.unmatched} unmatched, {len(comparison.excused)} within float noise"
    )
    _lines(console, comparison.problems, verbose=verbose)
    if verbose:
        _lines(console, [str(difference) for difference in comparison.excused], verbose=True)


def _agreement(told: Agreement, console: Console) -> None:
    for text in agreement_lines(told):
        console.print(text, markup=False)


def agreement_lines(told: Agreement) -> Iterator[str]:
    """What a quantised file finds, in sentences."""
    overlap = "" if told.mean_iou is None else f"; mean IoU {told.mean_iou:.3f}"
    yield (
        f"quantised  {told.matched} of {told.found} detections of the source matched on "
        f"{told.judged_on}, {told.lost} lost, {told.extra} extra{overlap}, worst score "
        f"{told.worst_score:.3g}"
    )
    if told.ap is not None and told.source_ap is not None:
        yield (
            f"average precision  {told.source_ap:.4f} -> {told.ap:.4f} ({told.truth}), limit on "
            f"the drop {told.limit:g}"
        )
    yield from (f"note: {text}" for text in told.notes)


def _lines(console: Console, texts: tuple[str, ...] | list[str], *, verbose: bool) -> None:
    most = len(texts) if verbose else _MOST
    for text in texts[:most]:
        console.print(f"  {text}", markup=False)
    if len(texts) > most:
        console.print(f"  … and {len(texts) - most} more (-v shows all)")
