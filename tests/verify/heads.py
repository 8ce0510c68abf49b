"""A small detector, and fake artifacts of it: right ones, noisy ones and broken ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnx
from onnx import numpy_helper

from bridge import static_nms, surgery
from bridge.model import Source, load
from bridge.options import Options
from bridge.static_model import Rows, StaticModel, tensor_types
from bridge.targets.base import Array, Lowered, Port, ports
from bridge.targets.onnx_file import ONNX, OnnxSession
from bridge.verify.judge import behind, with_outputs

BORDER = ("corners", "probabilities")
BOXES = 60
LIMIT = 0.3

HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
head (float[1, 60, 7] x) => (float[n, 4] boxes, float[n] scores, int64[n] labels)
<int64 most = {20}, float iou = {0.5}, float score = {0.3}, int64[1] zero = {0},
 int64[1] two = {2}, int64[1] four = {4}, int64[1] seven = {7}, int64[1] last = {2},
 int64 box_column = {2}, int64 class_column = {1}>
{
  y = MatMul(x, weights)
  centre = Slice(y, zero, two, last)
  size = Slice(y, two, four, last)
  logits = Slice(y, four, seven, last)
  positive = Exp(size)
  low = Sub(centre, positive)
  high = Add(centre, positive)
  corners = Concat<axis = 2>(low, high)
  probabilities = Sigmoid(logits)
  by_class = Transpose<perm = [0, 2, 1]>(probabilities)
  selected = NonMaxSuppression(corners, by_class, most, iou, score)
  box = Gather<axis = 1>(selected, box_column)
  labels = Gather<axis = 1>(selected, class_column)
  flat = Squeeze(corners, zero)
  boxes = Gather<axis = 0>(flat, box)
  scores = GatherND(by_class, selected)
}
"""


def head_model() -> onnx.ModelProto:
    """A detector of 60 boxes and 3 classes; its input is a table, not an image."""
    model = onnx.parser.parse_model(HEAD)
    weights = np.eye(7, dtype=np.float32)
    weights[:2, :2] *= 4
    weights[2:4, 2:4] *= 0.3
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    return model


@dataclass(frozen=True, slots=True)
class Head:
    """The source and its static model."""

    source: Source
    static: StaticModel


def head(folder: Path) -> Head:
    """Write the source and operate on it."""
    path = folder / "head.onnx"
    onnx.save(head_model(), path)
    source = load(path)
    return Head(source, surgery.run(source.model, Options()).static)


def write_lowered(
    static: StaticModel,
    folder: Path,
    noise: Mapping[str, Array] | None = None,
    *,
    network: bool = True,
) -> Lowered:
    """An artifact in ONNX whose network is off by `noise` at its border, cut in two as well."""
    types = tensor_types(static.model)
    outputs = [value.name for value in static.model.graph.output]
    noisy = _noisy(static.model, noise or {})
    parts = {
        "whole.onnx": noisy,
        "network.onnx": _only(with_outputs(noisy, BORDER, types), BORDER),
        "tail.onnx": behind(static.model, BORDER, outputs, types),
    }
    for name, part in parts.items():
        (folder / name).write_bytes(static_nms.inline(part).SerializeToString())
    inputs, made = ports(static)
    return Lowered(
        path=folder / "whole.onnx",
        inputs=inputs,
        outputs=made,
        nms=(),
        border=BORDER,
        tail=folder / "tail.onnx",
        network=folder / "network.onnx" if network else None,
    )


def _noisy(model: onnx.ModelProto, noise: Mapping[str, Array]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = list(copy.graph.node)
    del copy.graph.node[:]
    for node in nodes:
        for index, name in enumerate(node.output):
            if name in noise:
                node.output[index] = f"{name}/clean"
        copy.graph.node.append(node)
        for name in noise:
            if f"{name}/clean" in node.output:
                copy.graph.initializer.append(numpy_helper.from_array(noise[name], f"{name}/noise"))
                inputs = [f"{name}/clean", f"{name}/noise"]
                copy.graph.node.append(onnx.helper.make_node("Add", inputs, [name]))
    return copy


def _only(model: onnx.ModelProto, names: tuple[str, ...]) -> onnx.ModelProto:
    kept = [value for value in model.graph.output if value.name in names]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model


type Fault = Callable[[dict[str, Array]], None]


@dataclass(frozen=True, slots=True)
class FaultyTarget:
    """Runs ONNX artifacts, and spoils the outputs of those whose file name is in `files`."""

    fault: Fault
    files: frozenset[str] = frozenset({"whole.onnx"})
    threads: frozenset[int] = frozenset({1, 4})
    name = "onnx"
    suffix = ".onnx"

    def missing(self, options: Options) -> str | None:
        return ONNX.missing(options)

    def lower(self, static: StaticModel, options: Options, workdir: Path) -> Lowered:
        return ONNX.lower(static, options, workdir)

    def open(self, path: Path, *, threads: int = 1) -> "FaultySession":
        spoils = path.name in self.files and threads in self.threads
        # One thread: several make onnxruntime's own sums differ.
        return FaultySession(ONNX.open(path), self.fault if spoils else None)


@dataclass(frozen=True, slots=True)
class FaultySession:
    session: OnnxSession
    fault: Fault | None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        outputs = {name: array.copy() for name, array in self.session.run(feeds).items()}
        if self.fault is not None:
            self.fault(outputs)
        return outputs

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def four_outputs(static: StaticModel, classes: str = "labels") -> onnx.ModelProto:
    """The static model with the outputs of TFLite_Detection_PostProcess behind its own."""
    model = onnx.ModelProto()
    model.CopyFrom(static.model)
    model.graph.value_info.extend(model.graph.output)
    del model.graph.output[:]
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    for name, value in (("order", [1, 0, 3, 2]), ("front", [0])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    model.graph.node.extend(
        [
            node("Gather", ["boxes", "order"], ["turned"], axis=1),
            node("Cast", [classes], ["numbers"], to=onnx.TensorProto.FLOAT),
            node("Cast", ["num_detections"], ["detections"], to=onnx.TensorProto.FLOAT),
            node("Unsqueeze", ["turned", "front"], ["detection_boxes"]),
            node("Unsqueeze", ["numbers", "front"], ["detection_classes"]),
            node("Unsqueeze", ["scores", "front"], ["detection_scores"]),
        ]
    )
    inner = {"turned": [BOXES, 4], "numbers": [BOXES]}
    model.graph.value_info.extend(info(n, onnx.TensorProto.FLOAT, s) for n, s in inner.items())
    made = {
        "detection_boxes": [1, BOXES, 4],
        "detection_classes": [1, BOXES],
        "detection_scores": [1, BOXES],
        "detections": [1],
    }
    model.graph.output.extend(info(n, onnx.TensorProto.FLOAT, s) for n, s in made.items())
    return model


def as_postprocess(
    static: StaticModel, folder: Path, made: onnx.ModelProto, reference: onnx.ModelProto
) -> Lowered:
    """An artifact with those outputs, and what it is held to."""
    path = folder / "whole.onnx"
    path.write_bytes(static_nms.inline(made).SerializeToString())
    counted = (Rows(1, "detections"),)
    return Lowered(
        path=path,
        inputs=ports(static)[0],
        outputs=(
            Port("detection_boxes", "float32", (1, BOXES, 4), (1, None, 4), rows=counted),
            Port("detection_classes", "float32", (1, BOXES), (1, None), rows=counted),
            Port("detection_scores", "float32", (1, BOXES), (1, None), rows=counted),
            Port("detections", "float32", (1,), (1,)),
        ),
        nms=(),
        reference=reference,
    )


def no_fault(outputs: dict[str, Array]) -> None:
    del outputs


def save_tables(folder: Path, *tables: Array) -> Path:
    """The sets of inputs as a file."""
    path = folder / "inputs.npz"
    np.savez(path, x=np.stack(tables))
    return path


def table_input(seed: int) -> Array:
    """Boxes in clusters with all scores well away from the limit and from each other."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, BOXES, 7))
    x[..., :2] = rng.integers(0, 5, (1, BOXES, 2)) + rng.normal(0, 0.05, (1, BOXES, 2))
    probabilities = 0.5 * rng.permutation(BOXES * 3).reshape(BOXES, 3) / (BOXES * 3) + 0.002
    x[0, :, 4:] = np.log(probabilities / (1 - probabilities))
    return x.astype(np.float32)
