"""`python -m bridge.inspect MODEL`: what is in a model, and which target can take it. Thin.

Of a TFLite file, ours or anybody's, `inspect_tflite` tells.
"""

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from bridge import arguments, detection, inspect_tflite, static_nms, surgery
from bridge.command import STDOUT, exit_on_error, parse_constant, parse_shape, single_command
from bridge.detection import DetectionSpec, NmsSite, Value
from bridge.errors import LoweringError, UnsupportedModelError, UsageError
from bridge.heads.guess import Guess, guess
from bridge.model import load, spelt
from bridge.options import BoxLayout, Options
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import Target, ports
from bridge.targets.table import TARGETS

_COMPUTED = "computed"


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is told of a model.

    Attributes:
        static: the outcome of the surgery, or None with the reason in `refusal`.
        targets: per target why it cannot take the model; None where nothing is in the way.
        tried: whether each target has lowered the model, which is the only proof.
        guesses: heads that would complete a model without a suppression.
    """

    spec: DetectionSpec
    static: StaticModel | None
    refusal: str | None
    targets: Mapping[str, str | None]
    tried: bool
    guesses: tuple[Guess, ...]


def inspect(
    model: Annotated[
        Path, typer.Argument(help="an ONNX model or a TFLite file", show_default=False)
    ],
    *,
    input_shape: arguments.InputShape = None,
    freeze: arguments.Freeze = None,
    max_detections: arguments.MaxDetections = None,
    box_layout: Annotated[
        BoxLayout | None, typer.Option(help="what the graph cannot tell of its boxes")
    ] = None,
    try_targets: Annotated[
        bool, typer.Option("--try", help="lower for every target, to be sure (seconds, minutes)")
    ] = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Say what is in MODEL: inputs, outputs, suppressions, what is dynamic, who can take it."""
    with exit_on_error():
        options = Options(
            max_detections=max_detections,
            input_shapes=dict(map(parse_shape, input_shape or ())),
            freeze=dict(map(parse_constant, freeze or ())),
            box_layout=box_layout,
        )
        if inspect_tflite.is_tflite(model):
            _tflite(model, options, try_targets=try_targets, as_json=as_json)
            return
        found = look(model, options, try_targets=try_targets)
    if as_json:
        STDOUT.print_json(json.dumps(as_dict(found)))
    else:
        show(found, STDOUT)


def _tflite(path: Path, options: Options, *, try_targets: bool, as_json: bool) -> None:
    if try_targets or options != Options():
        raise UsageError(
            f"{path} is a TFLite file, which is told as it is: options that would change an ONNX "
            "model or try targets do not apply; leave them out"
        )
    contents = inspect_tflite.look(path)
    if as_json:
        STDOUT.print_json(json.dumps(inspect_tflite.as_dict(contents)))
    else:
        inspect_tflite.show(contents, STDOUT)


def look(path: Path, options: Options, *, try_targets: bool = False) -> Inspection:
    """Inspect a file; the surgery is tried, the targets only if asked, and nothing is kept.

    Raises:
        UsageError: the file or an option cannot be used.
        UnsupportedModelError: it is not a valid ONNX model.
    """
    model = load(path).model
    spec = detection.inspect(model, box_layout=options.box_layout)
    static, refusal = None, None
    try:
        static = surgery.run(model, options).static
    except UnsupportedModelError as error:
        refusal = str(error)
    targets = {
        target.name: refusal
        or target.missing(options)
        or (_tried(target, static, options) if try_targets else None)
        for target in TARGETS
    }
    guesses = () if spec.sites else guess(model)
    return Inspection(spec, static, refusal, targets, try_targets, guesses)


def _tried(target: Target, static: StaticModel | None, options: Options) -> str | None:
    if static is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bridge-") as folder:
        try:
            target.lower(static, options, Path(folder))
        except (UnsupportedModelError, LoweringError) as error:
            return str(error)
    return None


def as_dict(found: Inspection) -> dict[str, object]:
    """The inspection as JSON holds it.

    A limit that is computed at run time is the word `computed`; no score threshold is null.
    """
    spec = asdict(found.spec)
    for site in spec["sites"]:
        for limit in ("max_output_boxes_per_class", "iou_threshold", "score_threshold"):
            value = site[limit]
            site[limit] = _COMPUTED if value is None else None if value == -math.inf else value
    outputs = () if found.static is None else ports(found.static)[1]
    return {
        **spec,
        "static": None if found.static is None else [asdict(port) for port in outputs],
        "assumptions": [] if found.static is None else list(found.static.assumptions),
        "refusal": found.refusal,
        "targets": {
            name: {"can_take": because is None, "tried": found.tried, "because": because}
            for name, because in found.targets.items()
        },
        "heads": [asdict(one) for one in found.guesses],
    }


def show(found: Inspection, console: Console) -> None:
    """Tell a person."""
    spec = found.spec
    for value in (*spec.inputs, *spec.outputs):
        _value(value, "input " if value in spec.inputs else "output", console)
    if spec.functions:
        _line(console, "functions", ", ".join(spec.functions))
    for cause in spec.foreign:
        _line(console, "foreign", f"{cause.operator} (node {cause.node})")
    for site in spec.sites:
        _site(site, console)
    for guard in spec.guards:
        _line(console, "guard", f"{_placed(guard.node, guard.scope)}, if {guard.condition}")
    if not spec.sites and not spec.foreign:
        _headless(found.guesses, console)
    if found.static is not None:
        _static(found.static, console)
    for name, because in found.targets.items():
        able = (
            "can take it" if found.tried else "nothing is in the way (--try lowers it, to be sure)"
        )
        _line(console, name, able if because is None else f"cannot: {because}")


def _line(console: Console, head: str, text: str) -> None:
    console.print(f"[bold]{escape(head)}[/bold]  {escape(text)}")


def _placed(node: str, scope: tuple[str, ...]) -> str:
    return f"{node} in {' > '.join(scope)}" if scope else node


def _value(value: Value, kind: str, console: Console) -> None:
    role = f", {value.role}" if value.role else ""
    _line(console, kind, f"{value.name}  {value.dtype}{spelt(value.shape)}{role}")
    for cause in value.causes:
        placed = _placed(cause.node, cause.scope)
        console.print(f"  dynamic because of {cause.operator} {placed}", markup=False)


def _site(site: NmsSite, console: Console) -> None:
    _line(console, "suppression", _placed(site.node, site.scope))
    sizes = ("?" if n is None else str(n) for n in (site.images, site.classes, site.boxes))
    console.print("  {} images x {} classes x {} boxes".format(*sizes), markup=False)
    layout = site.layout
    because = f"{layout.provenance}: {layout.because}"
    console.print(f"  layout {layout.order or 'not visible'} ({because})", markup=False)
    limits = (site.max_output_boxes_per_class, site.iou_threshold, site.score_threshold)
    console.print(_limits(*limits))


def _limits(most: float | None, iou: float | None, score: float | None) -> str:
    return f"  at most {_limit(most)} per class, IoU {_limit(iou)}, score {_limit(score)}"


def _limit(value: float | None) -> str:
    if value is None:
        return _COMPUTED
    if value == -math.inf:
        return "none"
    return "unlimited" if value >= 2**63 - 1 else f"{value:g}"


def _headless(guesses: tuple[Guess, ...], console: Console) -> None:
    console.print(
        "no NonMaxSuppression: `bridge attach` (or `bridge.run --head`) completes the model"
    )
    for one in guesses:
        options = "".join(f" --head-option {option}" for option in one.options)
        console.print(f"  --head {one.head}{options}  {one.why}", markup=False)


def _static(static: StaticModel, console: Console) -> None:
    types = tensor_types(static.model)
    for call in static_nms.calls(static.model):
        _, classes, boxes = types[call.scores].shape
        _line(
            console, "static", f"{call.name}  {classes} classes x {boxes} boxes, {call.rows} rows"
        )
        limits = (call.max_output_boxes_per_class, call.iou_threshold, call.score_threshold)
        console.print(_limits(*limits))
    for port in ports(static)[1]:
        rows = "".join(f", axis {rows.axis} counted by {rows.count}" for rows in port.rows)
        _line(console, "static", f"{port.name}  {port.dtype}{spelt(port.shape)}{rows}")
    for text in static.assumptions:
        console.print(f"[yellow]assumes[/yellow]  {escape(text)}")


def main() -> None:
    """Run the command with the arguments of the process."""
    single_command(inspect)()


if __name__ == "__main__":
    main()
