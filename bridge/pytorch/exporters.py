"""torch's two exporters, made to take detectors and to keep quiet."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
import torchvision
from torch import Tensor

from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import graphs
from bridge.pytorch import Exporter, Input
from bridge.pytorch.quiet import quiet
from bridge.pytorch.source import SEED, Wrapped


def to_onnx(
    model: Wrapped, inputs: Sequence[Input], *, opset: int, exporter: Exporter
) -> onnx.ModelProto:
    """Export the model; every input keeps its shape.

    The opset is `opset` with TorchScript. The dynamo exporter writes no opset below 18 by itself
    and converts down only where a converter knows every operator: the model says what it got.
    What the exporters write down about the exporting machine (stack traces) is taken out.

    Raises:
        UsageError: the model does not take such inputs, or two of its tensors have one name.
        UnsupportedModelError: the exporter refuses the model.
    """
    tensors = example_inputs(inputs)
    names = [one.name for one in inputs]
    outputs = _output_names(model, tensors)
    if len({*names, *outputs}) != len(names) + len(outputs):
        raise UsageError(
            f"inputs {', '.join(names)} and outputs {', '.join(outputs)} share a name; give others "
            "with --input NAME=... or --output-names"
        )
    run = {Exporter.TORCHSCRIPT: _torchscript, Exporter.DYNAMO: _dynamo}[exporter]
    with quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            exported = run(model, tensors, names, outputs, opset)
        except Exception as error:
            # Both exporters let through whatever tracing, their checks or the model itself raise.
            raise UnsupportedModelError(_refusal(exporter, error)) from error
    _forget_machine(exported)
    return exported


def example_inputs(inputs: Sequence[Input]) -> tuple[Tensor, ...]:
    """Seeded noise in 0..1 of the given shapes."""
    generator = torch.Generator().manual_seed(SEED)
    return tuple(torch.rand(one.shape, generator=generator) for one in inputs)


def _output_names(model: Wrapped, inputs: Sequence[Tensor]) -> list[str]:
    with quiet(), torch.no_grad():
        try:
            return list(model.named(*inputs))
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in inputs)
            raise UsageError(
                f"the model does not run on inputs of shape {shapes}: {error}; see --input"
            ) from error


@contextlib.contextmanager
def traceable_batched_nms() -> Iterator[None]:
    """Let `torchvision.ops.batched_nms` shift boxes by class whatever their number is.

    Both of its branches ask for the number of boxes (more than 4000 coordinates: class by class;
    none: no suppression), which `torch.export` cannot answer where it depends on the data. The
    coordinate trick itself serves every number: it is what TorchScript exports always take.
    """
    with _batched_nms_runs(_shifted_nms):
        yield


@contextlib.contextmanager
def class_by_class_as_exported() -> Iterator[None]:
    """Let eager torch take the coordinate trick for every number of boxes, as its exports do."""
    with _batched_nms_runs(_shifted_nms_unless_empty):
        yield


@contextlib.contextmanager
def _batched_nms_runs(replacement: Callable[..., Tensor]) -> Iterator[None]:
    """Exchange the code of batched_nms, not its name.

    A model's module may hold the function itself (`from torchvision.ops import batched_nms`).
    """
    function = torchvision.ops.boxes.batched_nms
    original = function.__code__
    function.__code__ = replacement.__code__
    try:
        yield
    finally:
        function.__code__ = original


def _torchscript(
    model: Wrapped, inputs: tuple[Tensor, ...], names: list[str], outputs: list[str], opset: int
) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="bridge-") as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(
            model,
            inputs,
            path,
            input_names=names,
            output_names=outputs,
            opset_version=opset,
            dynamo=False,
        )
        return onnx.load(path)


def _dynamo(
    model: Wrapped, inputs: tuple[Tensor, ...], names: list[str], outputs: list[str], opset: int
) -> onnx.ModelProto:
    torch.compiler.reset()
    with traceable_batched_nms():
        program = torch.onnx.export(
            model,
            inputs,
            input_names=names,
            output_names=outputs,
            opset_version=opset,
            dynamo=True,
            external_data=False,
            verbose=False,
            custom_translation_table={torch.ops.torchvision.roi_align.default: _roi_align()},
        )
    if program is None:
        raise UnsupportedModelError("torch's dynamo exporter returned nothing")
    return program.model_proto


# These two run as torchvision.ops.boxes.batched_nms: with that module's globals, not this one's.


def _shifted_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    offsets = idxs.to(boxes) * (boxes.max() + torch.tensor(1).to(boxes))
    kept: Tensor = torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)
    return kept


def _shifted_nms_unless_empty(
    boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float
) -> Tensor:
    kept: Tensor = torchvision.ops.boxes._batched_nms_coordinate_trick(
        boxes, scores, idxs, iou_threshold
    )
    return kept


def _roi_align() -> Callable[..., object]:
    """torchvision.ops.roi_align as the ONNX operator.

    onnxscript 0.6's own translation takes the pooled height and width as one argument, which is
    not how the operator is called.
    """
    from onnxscript import opset18

    op: Any = opset18

    def roi_align(
        features: Any,
        rois: Any,
        spatial_scale: float,
        pooled_height: int,
        pooled_width: int,
        sampling_ratio: int = -1,
        aligned: bool = False,
    ) -> object:
        image = op.Squeeze(op.Slice(rois, [0], [1], [1]), [1])
        return op.RoiAlign(
            features,
            op.Slice(rois, [1], [5], [1]),
            op.Cast(image, to=onnx.TensorProto.INT64),
            coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
            output_height=pooled_height,
            output_width=pooled_width,
            sampling_ratio=max(sampling_ratio, 0),
            spatial_scale=spatial_scale,
        )

    return roi_align


def _refusal(exporter: Exporter, error: Exception) -> str:
    """The cause that torch's exporters bury under pages of advice, and the way round it."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = re.sub(r"\x1b\[\d+m", "", str(cause)).strip() or type(cause).__name__
    other = next(one for one in Exporter if one is not exporter)
    return (
        f"torch's {exporter} exporter refuses the model: {type(cause).__name__}: "
        f"{text.splitlines()[0]}; try --exporter {other}"
    )


def _forget_machine(model: onnx.ModelProto) -> None:
    """Drop doc strings and node metadata: they hold file names and source lines of this machine."""
    for graph in graphs(model):
        graph.ClearField("doc_string")
        graph.ClearField("metadata_props")
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
        if isinstance(graph, onnx.GraphProto):
            for value in (*graph.input, *graph.value_info, *graph.output, *graph.initializer):
                value.ClearField("doc_string")
                value.ClearField("metadata_props")
