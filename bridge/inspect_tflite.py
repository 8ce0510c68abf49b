"""What `bridge inspect` tells of a TFLite file. Thin: the reading is done by the target."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape

from bridge.errors import TargetMissingError
from bridge.options import Options
from bridge.targets.tflite import TFLITE

if TYPE_CHECKING:
    from bridge.targets.tflite.contents import Contents, Notes, Quantized, Tensor, TensorNote

_IDENTIFIER: Final = b"TFL3"
_FEW: Final = 3


def is_tflite(path: Path) -> bool:
    """Whether a file is called or starts as a TFLite file does."""
    if path.suffix == TFLITE.suffix:
        return True
    try:
        with path.open("rb") as file:
            return file.read(8)[4:] == _IDENTIFIER
    except OSError:
        return False


def look(path: Path) -> Contents:
    """Read a file; nothing of it is executed.

    Raises:
        UsageError: it cannot be read.
        UnsupportedModelError: it is not a TFLite file, or a broken one.
        TargetMissingError: the target, which knows the format, is not installed.
    """
    missing = TFLITE.missing(Options())
    if missing is not None:
        raise TargetMissingError(f"to look into {path}: {missing}")
    from bridge.targets.tflite.contents import read

    return read(path)


def as_dict(found: Contents) -> dict[str, object]:
    """The contents as JSON holds them; a number that JSON has no word for is null."""
    entry: dict[str, object] = json.loads(json.dumps(asdict(found)), parse_constant=lambda _: None)
    return entry


def show(found: Contents, console: Console) -> None:
    """Tell a person."""
    graphs = "" if found.subgraphs == 1 else f", {found.subgraphs} subgraphs"
    about = f", {found.description!r}" if found.description else ""
    _line(
        console, "TFLite file", f"{sum(o.count for o in found.operators)} operators{graphs}{about}"
    )
    notes = found.notes
    for kind, tensors, told in (
        ("input ", found.inputs, () if notes is None else notes.inputs),
        ("output", found.outputs, () if notes is None else notes.outputs),
    ):
        for index, tensor in enumerate(tensors):
            _tensor(tensor, kind, told[index] if index < len(told) else None, console)
    for signature in found.signatures:
        sides = (", ".join(side) for side in (signature.inputs, signature.outputs))
        _line(console, "signature", "{}  {} -> {}".format(signature.key, *sides))
    for one in found.suppressions:
        settings = "".join(f", {name} {value:g}" for name, value in one.settings.items())
        shapes = f"boxes {list(one.boxes)}, scores {list(one.scores)}"
        _line(console, "suppression", f"{one.operator}  {shapes}{settings}")
    for custom, head in ((False, "operators"), (True, "custom operators")):
        names = [f"{o.name} x {o.count}" for o in found.operators if o.custom is custom]
        if names:
            _line(console, head, ", ".join(names))
    for share in found.shares:
        text = f"{share.dtype}: {share.tensors}"
        if share.constants:
            text += f", {share.constants} of them constants of {share.constant_bytes} bytes"
        if share.quantized:
            text += f"; {share.quantized} quantised, {share.per_channel} of them per channel"
        _line(console, "tensors", text)
    if notes is None:
        _line(console, "metadata", "none")
    else:
        _notes(notes, found, console)


def _line(console: Console, head: str, text: str) -> None:
    console.print(f"[bold]{escape(head)}[/bold]  {escape(_printable(text))}")


def _printable(text: str) -> str:
    """Without what would move the cursor or colour the terminal: the file is anybody's."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _tensor(tensor: Tensor, kind: str, note: TensorNote | None, console: Console) -> None:
    scale = "" if tensor.quantized is None else f", {_quantized(tensor.quantized)}"
    _line(console, kind, f"{tensor.name}  {tensor.dtype}{list(tensor.shape)}{scale}")
    for text in () if note is None else _facts(note):
        console.print(f"  {_printable(text)}", markup=False)


def _quantized(how: Quantized) -> str:
    if how.axis is not None:
        return f"{len(how.scale)} scales along axis {how.axis}"
    point = how.zero_point[0] if how.zero_point else 0
    return f"(q - {point}) * {how.scale[0]:g}"


def _facts(note: TensorNote) -> list[str]:
    """What the metadata say of a tensor, a sentence each."""
    facts = []
    if note.color_space is not None:
        size = "" if note.size is None else " {} x {}".format(*note.size)
        facts.append(f"image {note.color_space}{size}")
    if note.mean or note.std:
        facts.append(f"normalised: (x - {list(note.mean)}) / {list(note.std)}")
    if note.corners:
        columns = ", ".join(map(str, note.corners))
        facts.append(f"left, top, right, bottom in columns {columns}; {note.coordinates}")
    if note.labels is not None:
        facts.append(f"classes are named in {note.labels}")
    title = ": ".join(text for text in (note.name, note.description) if text)
    return [title, *facts] if title else facts


def _notes(notes: Notes, found: Contents, console: Console) -> None:
    parser = f", for parsers from {notes.min_parser_version}" if notes.min_parser_version else ""
    _line(console, "metadata", f"{notes.name or '(no name)'}{parser}")
    for file, names in notes.labels.items():
        few = ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")
        _line(console, "labels", f"{file}: {len(names)} names, {few}")
    for file in notes.absent:
        console.print(f"[yellow]labels[/yellow]  {escape(_printable(file))} is not in the archive")
    for side, told, there in (
        ("inputs", notes.inputs, found.inputs),
        ("outputs", notes.outputs, found.outputs),
    ):
        if len(told) != len(there):
            text = f"describes {len(told)} {side}, and the file has {len(there)}"
            console.print(f"[yellow]metadata[/yellow]  {text}")
