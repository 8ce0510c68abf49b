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

from bridge import arguments, report
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
    NmsForm,
    Normalization,
    Options,
    Qdq,
    Quantization,
    Quantize,
)
from bridge.pipeline import Checks, Result, convert
from bridge.preprocess import ChannelOrder, InputDtype, PreprocessOptions

AUTO = "auto"


class Normalize(StrEnum):
    """Where `--mean` and `--std` are applied."""

    GRAPH = "graph"
    OUTSIDE = "outside"


def run(
    model: arguments.Model,
    *,
    to: Annotated[str, typer.Option(help="onnx, tflite or tvm", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="the artifact; never the source file")
    ] = None,
    max_detections: arguments.MaxDetections = None,
    box_units: arguments.BoxUnitsWanted = None,
    input_shape: arguments.InputShape = None,
    freeze: arguments.Freeze = None,
    box_layout: arguments.BoxLayoutName = AUTO,
    class_aware: arguments.ClassAware = False,
    source_box_units: arguments.SourceBoxUnits = None,
    images: arguments.Images = None,
    inputs: arguments.Inputs = None,
    no_verify: arguments.NoVerify = False,
    dry_run: arguments.DryRun = False,
    report_file: arguments.ReportFile = None,
    as_json: arguments.AsJson = False,
    dump: arguments.Dump = None,
    quiet: arguments.Quiet = False,
    verbose: arguments.Verbose = False,
    head: arguments.Head = None,
    head_option: arguments.HeadOption = None,
    score_threshold: arguments.ScoreThreshold = None,
    iou_threshold: arguments.IouThreshold = None,
    class_agnostic: arguments.ClassAgnostic = None,
    pre_nms_top_k: arguments.PreNmsTopK = None,
    input_dtype: arguments.InputDtypeFed = None,
    mean: arguments.Mean = "",
    std: arguments.Std = "",
    normalize: Annotated[
        Normalize,
        typer.Option(
            help="where --mean and --std are applied: in the graph, or outside",
            rich_help_panel=arguments.FED,
        ),
    ] = Normalize.GRAPH,
    channel_order: arguments.ChannelOrderTrained = ChannelOrder.RGB,
    input_layout: arguments.InputLayoutFed = None,
    nms: arguments.Nms = NmsForm.AUTO,
    outputs: arguments.OutputForm = None,
    keep_nchw: arguments.KeepNchw = False,
    labels: arguments.Labels = None,
    quantize: arguments.QuantizeForm = Quantize.NONE,
    calibrate: arguments.Calibrate = None,
    keep_float: arguments.KeepFloat = None,
    integer_postprocess: arguments.IntegerPostprocess = False,
    quantize_report: arguments.QuantizeReport = None,
    qdq: arguments.QdqLayers = Qdq.INTEGER,
    quantize_python: arguments.QuantizePython = None,
    ground_truth: arguments.GroundTruth = None,
    max_ap_drop: arguments.MaxApDrop = None,
    tvm_target: arguments.TvmTarget = None,
    tvm_opt_level: arguments.TvmOptLevel = 3,
    tvm_disable_pass: arguments.TvmDisablePass = None,
    tvm_executor: arguments.TvmExecutor = "graph",
    tvm_python: arguments.TvmPython = None,
    cc: arguments.Cc = None,
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
            qdq=qdq,
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
