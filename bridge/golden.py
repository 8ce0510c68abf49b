"""`python -m bridge.golden`: record what a model gives, and hold an artifact to it. Thin."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bridge import arguments, report
from bridge.command import STDOUT, exit_on_error, parse_constant, parse_shape
from bridge.errors import GoldenMismatchError, InconclusiveError
from bridge.model import load
from bridge.options import Options
from bridge.verify import Comparison, Verdict, golden
from bridge.verify.check import check as hold
from bridge.verify.inputs import SEED, input_sets

MOVES = 8
"""Runs of each set with inputs moved in their last bits: what float noise does is kept as well."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Record what onnxruntime makes of a model, and hold artifacts to it.",
)


@app.command()
def record(
    model: arguments.Model,
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="the golden (.npz)", show_default=False)
    ],
    images: arguments.Images = None,
    inputs: arguments.Inputs = None,
    input_shape: arguments.InputShape = None,
    freeze: arguments.Freeze = None,
    seed: Annotated[int, typer.Option(min=0, help="of the generated inputs")] = SEED,
) -> None:
    """Record inputs and the outputs of the untouched MODEL under onnxruntime."""
    with exit_on_error():
        options = Options(
            input_shapes=dict(map(parse_shape, input_shape or ())),
            freeze=dict(map(parse_constant, freeze or ())),
        )
        source = load(model)
        sets = input_sets(source, options, images or (), inputs, seed=seed)
        made = golden.record(source, sets, options, moves=MOVES, seed=seed)
        golden.save(made, output)
        STDOUT.print(f"{output}: {len(made.sets)} sets of inputs, {made.runtime}", markup=False)
        for text in made.failed:
            STDOUT.print(f"not recorded: {text}", markup=False)


@app.command()
def check(
    golden_file: Annotated[
        Path, typer.Argument(metavar="GOLDEN", help="what `record` wrote", show_default=False)
    ],
    artifact: Annotated[
        Path, typer.Argument(help="a converted model, its manifest beside it", show_default=False)
    ],
    *,
    max_ap_drop: Annotated[
        float | None,
        typer.Option(min=0, help="quantised: average precision that may be lost; default: any"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> None:
    """Hold ARTIFACT to GOLDEN; the exit status is 0 if they agree, 1 if not, 7 if nothing shows."""
    with exit_on_error():
        comparison = hold(golden.load(golden_file), artifact, max_ap_drop)
        if as_json:
            entry = {"verdict": comparison.verdict.value, **comparison.as_dict()}
            STDOUT.print_json(json.dumps(entry))
        else:
            _show(comparison)
        _raise_for(comparison)


def _show(comparison: Comparison) -> None:
    STDOUT.print(comparison.verdict.value.upper(), markup=False)
    STDOUT.print(
        f"{comparison.inputs} sets of inputs, {comparison.detections} detections matched, "
        f"{comparison.unmatched} unmatched; worst box {comparison.worst_box:.3g}, "
        f"worst score {comparison.worst_score:.3g}",
        markup=False,
    )
    if comparison.quantised is not None:
        for text in report.agreement_lines(comparison.quantised):
            STDOUT.print(text, markup=False)
    for text in (*comparison.warnings, *map(str, comparison.excused)):
        STDOUT.print(f"note: {text}", markup=False)


def _raise_for(comparison: Comparison) -> None:
    if comparison.verdict is Verdict.MISMATCH:
        problems = comparison.problems
        raise GoldenMismatchError(
            f"the artifact differs from the golden in {len(problems)} places, first: {problems[0]}"
        )
    if comparison.verdict is Verdict.INCONCLUSIVE:
        raise InconclusiveError(
            f"nothing was detected in any of {comparison.inputs} sets of inputs, so nothing was "
            "shown; record inputs with detections in them: --images PHOTOS or --inputs FILE.npz"
        )


if __name__ == "__main__":
    app()
