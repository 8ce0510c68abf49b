"""What a .tflite costs against onnxruntime and onnx2tf, as Markdown.

    python -m scripts.bench_tflite [-o FILE]

**Suppression**: a detector of nothing but boxes float32[1, N, 4] and scores float32[1, C, N] that
returns its 100 best detections (NonMaxSuppression, then TopK, then three gathers) is converted as
any other is; its .tflite, all of it, runs against onnxruntime's NonMaxSuppression alone on the same
numbers. At most 100 boxes of a class, IoU limit 0.5, score limit 0.05, one thread, in turns in one
process. The detections of the .tflite must be those of the whole model under onnxruntime.

**Conversion**: surgery and lowering of a model against `onnx2tf.convert` of its bare network alone,
as it stands in front of the first TopK, mask or suppression; in turns, imports apart.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import onnx
import onnx2tf
import onnxruntime
import typer
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray
from onnx import TensorProto, helper, parser

from bridge import model as models
from bridge import surgery
from bridge.options import Options
from bridge.static_model import tensor_types
from bridge.targets.table import find
from bridge.targets.tflite.cut import cut
from bridge.targets.tflite.silence import quiet

Floats = NDArray[np.float32]

SUPPRESSIONS = ((3000, 21, "sparse", 2.5), (8400, 80, "sparse", 0.7), (8400, 80, "dense", 0.4))
MOST_OPERATORS = 40

CONVERSIONS: tuple[tuple[str, Mapping[str, tuple[int, ...]]], ...] = (
    ("models/rtmdet-nano-person.onnx", {"input": (1, 3, 320, 320)}),
    ("exports/yolo8_topk_s.ts.op17.onnx", {}),
)
CONVERSION_BAR = 1.5

SHARED = Path(os.environ.get("BRIDGE_SHARED", Path(__file__).resolve().parents[2] / "shared"))

ROUNDS = 80
CONVERSION_ROUNDS = 3

_DETECTOR = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[1,%(boxes)d,4] boxes, float[1,%(classes)d,%(boxes)d] scores)
    => (float[n,4] found, float[n] best, int64[n] label)
<int64[1] limit = {100}, float[1] iou = {0.5}, float[1] score = {0.05}, int64[1] most = {100},
 int64 class_column = {1}, int64 box_column = {2}, int64[1] zero = {0}>
{
  rows = NonMaxSuppression (boxes, scores, limit, iou, score)
  value = GatherND (scores, rows)
  all = Shape (value)
  k = Min (all, most)
  best, at = TopK <axis = 0> (value, k)
  picked = Gather <axis = 0> (rows, at)
  label = Gather <axis = 1> (picked, class_column)
  box = Gather <axis = 1> (picked, box_column)
  image = Squeeze (boxes, zero)
  found = Gather <axis = 0> (image, box)
}
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the runs of two things in turns."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def least(self) -> float:
        """Ratio of the minima."""
        return min(self.ours) / min(self.theirs)

    @property
    def typical(self) -> float:
        """Ratio of the medians."""
        return median(self.ours) / median(self.theirs)


def in_turns(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> Times:
    """Run both, one after the other, this many times; other work on the machine hits both."""
    spent: tuple[list[float], list[float]] = ([], [])
    for run in (ours, theirs):
        run()
    for _ in range(rounds):
        for run, seconds in zip((ours, theirs), spent, strict=True):
            gc.collect(0)
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return Times(*spent)


# The suppression


def candidates(boxes: int, classes: int, kind: str) -> tuple[Floats, Floats]:
    """Random boxes of a fraction of the image, and scores: 2 % above the limit, or nearly all."""
    rng = np.random.default_rng(0)
    middle = rng.random((1, boxes, 2))
    size = rng.random((1, boxes, 2)) * 0.25 + 0.02
    corners = np.concatenate([middle - size / 2, middle + size / 2], -1)
    logits = rng.standard_normal((1, classes, boxes)) * 1.5 + {"sparse": -6, "dense": 0}[kind]
    return corners.astype(np.float32), (1 / (1 + np.exp(-logits))).astype(np.float32)


def suppression(boxes: int, classes: int, kind: str, folder: Path) -> tuple[Times, int]:
    """Times of the .tflite and of onnxruntime's NonMaxSuppression, and operators of the .tflite.

    Raises:
        AssertionError: the .tflite detects something else.
    """
    source = parser.parse_model(_DETECTOR % {"boxes": boxes, "classes": classes})
    path = convert(source, folder)
    corners, scores = candidates(boxes, classes, kind)
    feeds = {"boxes": corners, "scores": scores}
    session = find("tflite").open(path)
    found = session.run(feeds)
    count = int(found["num_detections"][0])
    expected = onnxruntime_session(source).run(None, feeds)
    for name, array in zip(("found", "best", "label"), expected, strict=True):
        np.testing.assert_array_equal(found[name][:count], array)
    alone = onnxruntime_session(node_of(source))
    # Feeding and fetching are the same few copies on both sides, of no weight against the work.
    times = in_turns(lambda: session.run(feeds), lambda: alone.run(None, feeds), ROUNDS)
    return times, operators(path)


def node_of(source: onnx.ModelProto) -> onnx.ModelProto:
    """The model's NonMaxSuppression and nothing else."""
    node = next(node for node in source.graph.node if node.op_type == "NonMaxSuppression")
    rows = helper.make_tensor_value_info(node.output[0], TensorProto.INT64, ["n", 3])
    graph = helper.make_graph(
        [node], "suppression", source.graph.input, [rows], source.graph.initializer
    )
    return helper.make_model(graph, opset_imports=source.opset_import, ir_version=8)


def onnxruntime_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """One thread, default optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def operators(path: Path) -> int:
    """How many operators a file holds."""
    graphs = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0).subgraphs
    return sum(len(graph.operators) for graph in graphs)


# Conversion


def convert(source: onnx.ModelProto, folder: Path, options: Options | None = None) -> Path:
    """Surgery and lowering, as `bridge.run` does them."""
    options = options or Options()
    static = surgery.run(source, options).static
    return find("tflite").lower(static, options, folder).path


def conversion(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Times:
    """Times of our conversion of a model and of onnx2tf's conversion of its network."""
    source, options = models.load(path).model, Options(input_shapes=shapes)
    network = bare_network(surgery.run(source, options).static.model)

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            convert(source, Path(folder), options)

    def theirs() -> None:
        with tempfile.TemporaryDirectory() as folder, quiet():
            # onnx2tf writes into the file it reads.
            file = Path(folder) / "network.onnx"
            onnx.save(network, file)
            onnx2tf.convert(
                input_onnx_file_path=str(file),
                output_folder_path=f"{folder}/out",
                tflite_backend="flatbuffer_direct",
                non_verbose=True,
            )

    return in_turns(ours, theirs, CONVERSION_ROUNDS)


def bare_network(static: onnx.ModelProto) -> onnx.ModelProto:
    """What stands in front of the first TopK, mask or suppression, its outputs as they are."""
    parts, types = cut(static), tensor_types(static)
    made = {name for node in parts.network for name in node.output}
    read = {name for node in parts.network for name in node.input}

    def values(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, types[name].shape)
            for name in names
        ]

    graph = helper.make_graph(
        parts.network,
        "network",
        values(parts.network_inputs),
        values([name for name in parts.border if name in made]),
        [tensor for tensor in static.graph.initializer if tensor.name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# The tables


def suppression_table() -> str:
    """Ratios and operators of the suppressions."""
    lines = [
        "| boxes x classes | scores | ratio of minima | of medians | bar | operators | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    for boxes, classes, kind, bar in SUPPRESSIONS:
        with tempfile.TemporaryDirectory() as folder:
            times, count = suppression(boxes, classes, kind, Path(folder))
        lines.append(
            f"| {boxes} x {classes} | {kind} | {times.least:.2f} | {times.typical:.2f} | "
            f"{bar} | {count} | {MOST_OPERATORS if classes == 80 else ''} |"
        )
    return "\n".join(lines)


def conversion_table() -> str:
    """Ratios of the conversions."""
    lines = [
        "| model | ratio of minima | of medians | bar | ours | onnx2tf, network alone |",
        "|---|---|---|---|---|---|",
    ]
    for name, shapes in CONVERSIONS:
        if not (SHARED / name).is_file():
            lines.append(f"| {name} | not measured: no such file | | | | |")
            continue
        times = conversion(SHARED / name, shapes)
        lines.append(
            f"| {name} | {times.least:.2f} | {times.typical:.2f} | {CONVERSION_BAR} | "
            f"{median(times.ours):.2f} s | {median(times.theirs):.2f} s |"
        )
    return "\n".join(lines)


def table() -> str:
    """All of it, as Markdown."""
    return (
        "## TFLite: the suppression against onnxruntime's\n\n"
        "One thread, the 100 best detections; operators of the whole file.\n\n"
        f"{suppression_table()}\n\n"
        "## TFLite: conversion against onnx2tf's of the bare network\n\n"
        f"{conversion_table()}\n"
    )


def main(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file to write")] = None,
) -> None:
    """Measure, and write Markdown."""
    onnxruntime.set_default_logger_severity(3)
    text = table()
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


if __name__ == "__main__":
    typer.run(main)
