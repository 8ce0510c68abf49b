"""`python -m bridge.attach MODEL -o with_nms.onnx --head NAME`: decode and suppression go inside.

Thin: the work is `bridge.heads` and `bridge.preprocess`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bridge import model as models
from bridge.command import STDERR, exit_on_error, parse_numbers, parse_shape, single_command
from bridge.errors import UsageError
from bridge.heads import HeadOptions, complete
from bridge.preprocess import (
    ChannelOrder,
    InputDtype,
    InputLayout,
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
    head_option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE changes a key of the head file; repeatable")
    ] = None,
    score_threshold: Annotated[float | None, typer.Option(help="keep scores above")] = None,
    iou_threshold: Annotated[
        float | None, typer.Option(help="suppress boxes that overlap a better one by more")
    ] = None,
    max_detections: Annotated[int | None, typer.Option(help="rows of the result at most")] = None,
    class_agnostic: Annotated[
        bool | None,
        typer.Option(
            "--class-agnostic/--per-class", help="whether boxes of other classes suppress, too"
        ),
    ] = None,
    pre_nms_top_k: Annotated[
        int | None, typer.Option(help="candidates that meet the suppression; 0 is all")
    ] = None,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="NAME=1,3,320,320 fixes symbolic dimensions")
    ] = None,
    input_dtype: Annotated[InputDtype | None, typer.Option(help="what is fed")] = None,
    mean: Annotated[str, typer.Option(help="subtracted from the bytes: 127 or 104,116,124")] = "",
    std: Annotated[str, typer.Option(help="divided by after that: 128 or 57,57,58")] = "",
    channel_order: Annotated[
        ChannelOrder, typer.Option(help="what the network was trained on; RGB is fed")
    ] = ChannelOrder.RGB,
    input_layout: Annotated[InputLayout | None, typer.Option(help="what is fed")] = None,
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
