"""`python -m bridge.run MODEL --to TARGET`: convert a detector and prove the result. Thin."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler

from bridge import report
from bridge.command import (
    STDERR,
    STDOUT,
    exit_on_error,
    parse_constant,
    parse_numbers,
    parse_shape,
    single_command,
)
from bridge.completion import Completion
from bridge.errors import UsageError
from bridge.heads import HeadOptions
from bridge.options import (
    BoxLayout,
    BoxUnits,
    NmsForm,
    Normalization,
    Options,
    Outputs,
    Quantization,
    Quantize,
)
from bridge.pipeline import Checks, Result, convert
from bridge.preprocess import ChannelOrder, InputDtype, InputLayout, PreprocessOptions

AUTO = "auto"


class Normalize(StrEnum):
    """Where `--mean` and `--std` are applied."""

    GRAPH = "graph"
    OUTSIDE = "outside"


def run(
    model: Annotated[Path, typer.Argument(help="the ONNX model", show_default=False)],
    *,
    to: Annotated[str, typer.Option(help="onnx, tflite or tvm", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="the artifact; never the source file")
    ] = None,
    nms: Annotated[NmsForm, typer.Option(help="TFLite: how it suppresses")] = NmsForm.AUTO,
    outputs: Annotated[
        Outputs | None,
        typer.Option(help="TFLite: the model's own outputs, or the four that apps for SSDs read"),
    ] = None,
    max_detections: Annotated[
        int | None, typer.Option(min=1, help="cap on the rows of a padded output")
    ] = None,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="NAME=1,3,320,320 fixes symbolic dimensions")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE makes an input a constant: number, [list] or .npy file"),
    ] = None,
    box_layout: Annotated[
        str, typer.Option(help="auto, xyxy, yxyx, cxcywh or cycxhw: what the graph cannot tell")
    ] = AUTO,
    class_aware: Annotated[
        bool, typer.Option(help="turn batched_nms' coordinate trick into one class-aware NMS")
    ] = False,
    keep_nchw: Annotated[bool, typer.Option(help="TFLite: image inputs stay NCHW")] = False,
    quantize: Annotated[
        Quantize, typer.Option(help="TFLite: what of the network becomes narrow")
    ] = Quantize.NONE,
    calibrate: Annotated[
        Path | None, typer.Option(help="int8: a folder of photos, or arrays by input name (.npz)")
    ] = None,
    keep_float: Annotated[
        list[str] | None,
        typer.Option(help="quantised: a source node (or pattern) whose layer stays float32"),
    ] = None,
    integer_postprocess: Annotated[
        bool, typer.Option(help="int8, --nms postprocess: it decodes and decides on uint8")
    ] = False,
    quantize_report: Annotated[
        Path | None, typer.Option(help="write there as JSON what quantising each layer costs")
    ] = None,
    quantize_python: Annotated[
        Path | None, typer.Option(help="interpreter that has ai-edge-quantizer")
    ] = None,
    ground_truth: Annotated[
        Path | None, typer.Option(help="quantised: what is on the --images, as COCO JSON")
    ] = None,
    max_ap_drop: Annotated[
        float | None,
        typer.Option(min=0, help="quantised: average precision that may be lost  [0.01]"),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="TFLite: class names, one a line, for the metadata")
    ] = None,
    box_units: Annotated[
        BoxUnits | None, typer.Option(help="what box coordinates count; default: as they are")
    ] = None,
    source_box_units: Annotated[
        BoxUnits | None,
        typer.Option(help="what they count in MODEL; default: the unit that --box-units is not"),
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="photos or folders of photos to check with")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="arrays to check with (.npz), by input name")
    ] = None,
    no_verify: Annotated[bool, typer.Option(help="skip the golden check")] = False,
    dry_run: Annotated[bool, typer.Option(help="say what would be done, write nothing")] = False,
    report_file: Annotated[
        Path | None, typer.Option("--report", help="write the whole report there as JSON")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the report as JSON instead of text")
    ] = False,
    dump: Annotated[
        Path | None, typer.Option(help="write the model after each stage into this folder")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", help="print nothing but errors")] = False,
    verbose: Annotated[bool, typer.Option("-v", help="print every finding")] = False,
    head: Annotated[
        str | None, typer.Option(help="complete a headless model: a built-in head or a head file")
    ] = None,
    head_option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE changes a key of the head file")
    ] = None,
    score_threshold: Annotated[float | None, typer.Option(help="head: keep scores above")] = None,
    iou_threshold: Annotated[
        float | None, typer.Option(help="head: suppress boxes that overlap a better one by more")
    ] = None,
    class_agnostic: Annotated[
        bool | None,
        typer.Option("--class-agnostic/--per-class", help="head: may classes suppress each other"),
    ] = None,
    pre_nms_top_k: Annotated[
        int | None, typer.Option(help="head: candidates that meet the suppression; 0 is all")
    ] = None,
    input_dtype: Annotated[InputDtype | None, typer.Option(help="what is fed")] = None,
    mean: Annotated[str, typer.Option(help="subtracted from bytes: 127 or 104,116,124")] = "",
    std: Annotated[str, typer.Option(help="divided by after it: 128 or 57,57,58")] = "",
    normalize: Annotated[
        Normalize, typer.Option(help="where --mean and --std are applied: in the graph, or outside")
    ] = Normalize.GRAPH,
    channel_order: Annotated[
        ChannelOrder, typer.Option(help="what the network was trained on; RGB is fed")
    ] = ChannelOrder.RGB,
    input_layout: Annotated[InputLayout | None, typer.Option(help="what is fed")] = None,
    tvm_target: Annotated[
        str | None, typer.Option(help="LLVM target string; default: this machine's CPU")
    ] = None,
    tvm_opt_level: Annotated[int, typer.Option(min=0, max=4, help="relay's opt_level")] = 3,
    tvm_disable_pass: Annotated[
        list[str] | None, typer.Option(help="a relay pass to leave out")
    ] = None,
    tvm_executor: Annotated[str, typer.Option(help="graph, or vm for the dynamic model")] = "graph",
    tvm_python: Annotated[
        Path | None, typer.Option(help="interpreter that has TVM; default: this one")
    ] = None,
    cc: Annotated[str | None, typer.Option(help="TVM: the compiler that links lib.so")] = None,
) -> None:
    """Convert MODEL and check every result against onnxruntime on the untouched model."""
    _log(verbose=verbose, quiet=quiet)
    with exit_on_error():
        preprocess = PreprocessOptions(
            input_dtype=input_dtype,
            mean=parse_numbers("mean", mean),
            std=parse_numbers("std", std),
            channel_order=channel_order,
            input_layout=input_layout,
        )
        options = Options(
            max_detections=max_detections,
            input_shapes=dict(map(parse_shape, input_shape or ())),
            freeze=dict(map(parse_constant, freeze or ())),
            box_layout=None if box_layout == AUTO else _layout(box_layout),
            class_aware=class_aware,
            nms=nms,
            outputs=outputs,
            keep_nchw=keep_nchw,
            quantization=Quantization(
                form=quantize,
                calibrate=calibrate,
                keep_float=tuple(keep_float or ()),
                integer_postprocess=integer_postprocess,
                report=quantize_report,
                python=quantize_python,
            ),
            labels=labels,
            normalization=_outside(preprocess, normalize),
            tvm_target=tvm_target,
            tvm_opt_level=tvm_opt_level,
            tvm_disabled_passes=tuple(tvm_disable_pass or ()),
            tvm_executor=tvm_executor,
            tvm_python=tvm_python,
            tvm_cc=cc,
        )
        completion = Completion(
            head=head,
            head_options=HeadOptions(
                score_threshold=score_threshold,
                iou_threshold=iou_threshold,
                class_agnostic=class_agnostic,
                pre_nms_top_k=pre_nms_top_k,
                overrides=tuple(head_option or ()),
            ),
            preprocess=_inside(preprocess, normalize),
            box_units=box_units,
            source_box_units=source_box_units,
        )
        checks = Checks(
            images=tuple(images or ()),
            inputs=inputs,
            skip=no_verify,
            ground_truth=ground_truth,
            max_ap_drop=max_ap_drop,
        )
        with report.progress(quiet=quiet) as stage:
            result = convert(
                model,
                to,
                output,
                options,
                completion=completion,
                checks=checks,
                dry_run=dry_run,
                dump=dump,
                stage=stage,
            )
        _tell(result, report_file, as_json=as_json, quiet=quiet, verbose=verbose)
        result.check()


def _inside(preprocess: PreprocessOptions, normalize: Normalize) -> PreprocessOptions:
    """What of the preprocessing goes into the graph."""
    return preprocess if normalize is Normalize.GRAPH else replace(preprocess, mean=(), std=())


def _outside(preprocess: PreprocessOptions, normalize: Normalize) -> Normalization | None:
    """What the application still does to its bytes; None where nothing was said about it."""
    mean, std = preprocess.mean or (0.0,), preprocess.std or (1.0,)
    if normalize is Normalize.OUTSIDE:
        # They are given in the order of the network's channels, and done to RGB.
        turn = -1 if preprocess.channel_order is ChannelOrder.BGR else 1
        return Normalization(mean[::turn], std[::turn])
    told = preprocess.mean or preprocess.std or preprocess.input_dtype is InputDtype.UINT8
    return Normalization() if told else None


def _tell(
    result: Result, report_file: Path | None, *, as_json: bool, quiet: bool, verbose: bool
) -> None:
    if report_file is not None:
        report.write(result, report_file)
    if as_json:
        STDOUT.print_json(json.dumps(report.as_dict(result)))
    elif not quiet:
        report.show(result, STDOUT, verbose=verbose)


def _log(*, verbose: bool, quiet: bool) -> None:
    level = logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(
        level=level, format="%(message)s", handlers=[RichHandler(console=STDERR, show_path=False)]
    )


def _layout(text: str) -> BoxLayout:
    try:
        return BoxLayout(text)
    except ValueError:
        known = ", ".join([AUTO, *BoxLayout])
        raise UsageError(f"--box-layout {text}: give one of {known}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with the given arguments, by default those of the process."""
    single_command(run)(arguments)


if __name__ == "__main__":
    main()
