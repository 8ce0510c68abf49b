"""`python -m bridge.export SPEC -o model.onnx`: a PyTorch detector as ONNX, held to torch."""

import ast
import importlib.util
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.logging import RichHandler

from bridge import model as onnx_model
from bridge.command import STDERR, STDOUT, exit_on_error, single_command
from bridge.errors import (
    GoldenMismatchError,
    InconclusiveError,
    TargetMissingError,
    UsageError,
)
from bridge.options import Options
from bridge.pytorch import Exporter, Input

if TYPE_CHECKING:
    from bridge.pytorch.agreement import Agreement
    from bridge.pytorch.source import Wrapped

OPSET = 17
_NEEDED = ("torch", "torchvision", "onnxscript")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export came to.

    Attributes:
        opset: of the file; the dynamo exporter can leave it higher than what was asked for.
        agreement: None where the check was skipped.
        warnings: what the user should know, one sentence each.
    """

    path: Path
    opset: int
    nodes: int
    agreement: "Agreement | None"
    warnings: tuple[str, ...]


def export(
    spec: str,
    output: Path,
    inputs: Sequence[Input],
    *,
    weights: Path | None = None,
    model_options: Mapping[str, object] | None = None,
    output_names: Sequence[str] = (),
    opset: int = OPSET,
    exporter: Exporter = Exporter.TORCHSCRIPT,
    images: Sequence[Path] = (),
    verify: bool = True,
) -> Exported:
    """Export a model, and hold onnxruntime to torch on generated inputs and photos.

    A detector of torchvision without weights gets random ones with which it detects something.

    Args:
        spec: `torchvision:NAME`, `module:callable` or `file.py:callable`.
        output: the file to write; it is there whole or not at all.
        inputs: of the model, in its order.
        weights: a state dict saved by torch.save, read as data: no code in it can run.
        model_options: keyword arguments of the callable.
        output_names: in place of the names that the model gives its outputs.
        opset: what to ask the exporter for.
        exporter: which of torch's two.
        images: photos, or folders of photos, to check with beside the generated inputs.
        verify: False leaves the check out.

    Raises:
        TargetMissingError: torch is not installed.
        UsageError: nothing of that name; weights, inputs or names that do not fit.
        UnsupportedModelError: the exporter refuses the model.
        GoldenMismatchError: onnxruntime and torch disagree; the file is kept as `….mismatch`.
        InconclusiveError: nothing was detected in any input; nothing is written.
    """
    _require_torch()
    _check_output(output)
    from bridge.pytorch import exporters, random_weights, source

    model = source.build(spec, weights=weights, options=model_options, output_names=output_names)
    warnings = []
    if weights is None and model.takes_list:
        warnings.append("no --weights: they are random, and what is detected means nothing")
        random_weights.make_detect(model, inputs[0].shape)
    made = exporters.to_onnx(model, inputs, opset=opset, exporter=exporter)
    actual = next(entry.version for entry in made.opset_import if not entry.domain)
    if actual != opset:
        warnings.append(f"opset {actual}, not {opset}: {exporter} writes no other for this model")
    with tempfile.TemporaryDirectory(prefix="bridge-") as folder:
        unproven = Path(folder, "model.onnx")
        onnx_model.save(made, unproven)
        agreement = _agreement(model, unproven, images) if verify else None
    if agreement is not None:
        warnings += _differences(agreement)
    if agreement is not None and agreement.different:
        kept = output.with_name(f"{output.name}.mismatch")
        onnx_model.save(made, kept)
        raise GoldenMismatchError(f"{summary(agreement)}; the file is kept as {kept}")
    onnx_model.save(made, output)
    return Exported(output, actual, len(made.graph.node), agreement, tuple(warnings))


def summary(agreement: "Agreement") -> str:
    """One sentence with the counts of a check."""
    verb = "disagree" if agreement.different else "agree"
    text = (
        f"torch and onnxruntime {verb} on {agreement.inputs} inputs: {agreement.same} of "
        f"{agreement.detections} detections the same"
    )
    for count, what in (
        (agreement.borderline, "on the border, where only rounding decides"),
        (agreement.different, "different"),
    ):
        if count:
            text += f", {count} {what}"
    return (
        f"{text}; worst deviation {agreement.deviation:.1e} "
        f"(torch from itself with other rounding: {agreement.noise:.1e})"
    )


def _require_torch() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise TargetMissingError(
            f"bridge export needs {', '.join(missing)}: pip install 'bridge[torch]'"
        )


def _check_output(path: Path) -> None:
    """Before minutes of work: whether the file can be written at all."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--output {path}: name a file in a folder that is there")


def _agreement(model: "Wrapped", path: Path, images: Sequence[Path]) -> "Agreement":
    from bridge.pytorch import agreement
    from bridge.verify import golden
    from bridge.verify.inputs import input_sets

    exported = onnx_model.load(path)
    sets = input_sets(exported, Options(), images)
    found = agreement.compare(model, golden.record(exported, sets))
    if not found.same and not found.different:
        raise InconclusiveError(
            f"torch detects nothing certain in any of {found.inputs} inputs ({found.borderline} "
            "on the border of a limit), so nothing was compared: "
            "give photos of what it detects with --images, or leave the check out with --no-verify"
        )
    return found


def _differences(agreement: "Agreement") -> list[str]:
    """What torch and ONNX define differently and this model shows."""
    from bridge.pytorch.agreement import Definition

    texts = [
        f"{definition}; the ONNX file gives other detections than torch, and bridge keeps to it"
        for definition in agreement.definitions
    ]
    if agreement.reversed_boxes and Definition.REVERSED_CORNERS not in agreement.definitions:
        texts.append(
            f"{Definition.REVERSED_CORNERS}; {agreement.reversed_boxes} boxes were reversed, "
            "without a difference in what was detected here"
        )
    return texts


def parse_input(text: str, *, default: str = "images") -> Input:
    """`1x3x320x320` or `NAME=1x3x320x320`.

    Raises:
        UsageError: something that is not a whole number of at least 1.
    """
    name, found, dims = text.rpartition("=")
    try:
        shape = tuple(int(dim) for dim in dims.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1 or (found and not name):
        raise UsageError(f"--input {text}: write 1x3x320x320 or NAME=1x3x320x320")
    return Input(name or default, shape)


def parse_option(text: str) -> tuple[str, object]:
    """`num_classes=5` as name and value: a Python literal, or else a text.

    Raises:
        UsageError: no name.
    """
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise UsageError(f"--model-option {text}: write NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def command(
    spec: Annotated[
        str,
        typer.Argument(
            help="torchvision:NAME, module:callable or file.py:callable", show_default=False
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="the ONNX file to write", show_default=False)
    ],
    inputs: Annotated[
        list[str],
        typer.Option("--input", help="1x3x320x320 or NAME=1x3x320x320", show_default=False),
    ],
    weights: Annotated[
        Path | None, typer.Option(help="state dict saved by torch.save; never runs code")
    ] = None,
    model_option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, an argument of the callable")
    ] = None,
    output_names: Annotated[
        str | None, typer.Option(help="boxes,scores,labels: instead of the model's own names")
    ] = None,
    opset: Annotated[int, typer.Option(min=11, help="what to ask the exporter for")] = OPSET,
    exporter: Annotated[Exporter, typer.Option(help="of torch")] = Exporter.TORCHSCRIPT,
    images: Annotated[
        list[Path] | None, typer.Option(help="photos or folders of photos to check with")
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="do not compare with torch")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", help="print nothing but errors")] = False,
    verbose: Annotated[bool, typer.Option("-v", help="show torch's own warnings")] = False,
) -> None:
    """Export the PyTorch model SPEC to ONNX and check onnxruntime against torch.

    A module of your own is imported, and so its code runs.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=STDERR, show_path=False)],
    )
    with exit_on_error():
        many = len(inputs) > 1
        done = export(
            spec,
            output,
            [
                parse_input(text, default=f"input_{i}" if many else "images")
                for i, text in enumerate(inputs)
            ],
            weights=weights,
            model_options=dict(map(parse_option, model_option or ())),
            output_names=tuple(output_names.split(",")) if output_names else (),
            opset=opset,
            exporter=exporter,
            images=tuple(images or ()),
            verify=not no_verify,
        )
        if not quiet:
            _tell(done)


def _tell(done: Exported) -> None:
    STDOUT.print(f"{done.path}: opset {done.opset}, {done.nodes} nodes", markup=False)
    checked = "not compared with torch" if done.agreement is None else summary(done.agreement)
    STDOUT.print(checked, markup=False)
    for warning in done.warnings:
        STDERR.print(f"warning: {warning}", style="yellow", markup=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with the given arguments, by default those of the process."""
    single_command(command)(arguments)


if __name__ == "__main__":
    main()
