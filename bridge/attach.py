"""`python -m bridge.attach MODEL -o with_nms.onnx --head NAME`: decode and suppression go inside.

Thin: the work is `bridge.heads` and `bridge.preprocess`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bridge import arguments
from bridge import model as models
from bridge.command import STDERR, exit_on_error, parse_numbers, parse_shape, single_command
from bridge.errors import UsageError
from bridge.heads import HeadOptions, complete
from bridge.preprocess import (
    ChannelOrder,
    PreprocessOptions,
    add_preprocessing,
)


def attach(
    model: Annotated[Path, typer.Argument(help="the headless ONNX model", show_default=False)],
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="the completed model", show_default=False)
    ],
    head: Annotated[
        str, typer.Option(help="a built-in head, or the path of a head file", show_default=False)
    ],
    head_option: arguments.HeadOption = None,
    score_threshold: arguments.ScoreThreshold = None,
    iou_threshold: arguments.IouThreshold = None,
    max_detections: arguments.MaxDetections = None,
    class_agnostic: arguments.ClassAgnostic = None,
    pre_nms_top_k: arguments.PreNmsTopK = None,
    input_shape: arguments.InputShape = None,
    input_dtype: arguments.InputDtypeFed = None,
    mean: arguments.Mean = "",
    std: arguments.Std = "",
    channel_order: arguments.ChannelOrderTrained = ChannelOrder.RGB,
    input_layout: arguments.InputLayoutFed = None,
) -> None:
    """Complete a model that ends in raw outputs with its decode and a NonMaxSuppression."""
    with exit_on_error():
        source = models.load(model)
        if output.resolve() == model.resolve():
            raise UsageError(f"{output} is the source file; name another one with -o")
        completed = complete(
            source.model,
            head,
            HeadOptions(
                score_threshold=score_threshold,
                iou_threshold=iou_threshold,
                max_detections=max_detections,
                class_agnostic=class_agnostic,
                pre_nms_top_k=pre_nms_top_k,
                overrides=tuple(head_option or ()),
                input_shapes=dict(map(parse_shape, input_shape or ())),
            ),
        )
        preprocess = PreprocessOptions(
            input_dtype=input_dtype,
            mean=parse_numbers("mean", mean),
            std=parse_numbers("std", std),
            channel_order=channel_order,
            input_layout=input_layout,
        )
        models.save(add_preprocessing(completed, preprocess), output)
        names = ", ".join(value.name for value in completed.graph.output)
        STDERR.print(f"{output}: outputs {names}", markup=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with the given arguments, by default those of the process."""
    single_command(attach)(arguments)


if __name__ == "__main__":
    main()
