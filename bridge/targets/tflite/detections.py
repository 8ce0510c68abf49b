"""`--outputs detections`: four float32 outputs around whatever the suppression became.

They are those of TFLite_Detection_PostProcess, as applications for SSDs expect them: boxes
(y1, x1, y2, x2), classes, scores and the number of detections, best first. Only the outputs change,
so that the suppression stays as exact as it is with the model's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from bridge.errors import UnsupportedModelError
from bridge.model.nodes import Nodes
from bridge.options import Options
from bridge.static_model import Rows, StaticModel
from bridge.targets.base import Port
from bridge.targets.tflite.detections_source import Columns, Source, find
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.form import Y_FIRST, Form, Meaning
from bridge.targets.tflite.postprocess import (
    BOXES,
    CLASSES,
    COUNT,
    NAMES,
    ROLES,
    SCORES,
)
from bridge.targets.tflite.postprocess_geometry import SWAPPED
from bridge.targets.tflite.postprocess_plan import UnfitError
from bridge.targets.tflite.suppression_narrow import narrow

_PREFIX: Final = "detections"


def form(static: StaticModel, options: Options) -> Form:
    """The four outputs of a static model whose own outputs can be told apart.

    Raises:
        UnsupportedModelError: they cannot, or the model is not a detector of one image.
    """
    narrowed = narrow(static.model)
    try:
        source = find(static, narrowed, options)
    except UnfitError as error:
        raise UnsupportedModelError(
            f"the outputs cannot become the four of a detector: {error}; use --outputs own"
        ) from error
    counted = (Rows(1, COUNT),)
    rows = source.rows

    def finish(builder: Builder, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _emitted(source, builder, tensors)

    return Form(
        model=narrowed.model,
        outputs=(
            Port(BOXES, "float32", (1, rows, 4), (1, None, 4), rows=counted),
            Port(CLASSES, "float32", (1, rows), (1, None), rows=counted),
            Port(SCORES, "float32", (1, rows), (1, None), rows=counted),
            Port(COUNT, "float32", (1,), (1,)),
        ),
        finish=finish,
        best_first=narrowed.best_first,
        meaning=Meaning(ROLES, Y_FIRST, source.class_count),
        reference=_reference(static.model, source),
        assumptions=source.assumptions,
    )


# In the artifact


def _emitted(
    source: Source, builder: Builder, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """The outputs, of the model's own. Rows that are not real are zero there, and stay last."""
    rows = source.rows

    def table(part: Columns) -> Tensor:
        tensor = tensors[part.output]
        whole = builder.cast(builder.reshape(tensor, [rows, part.width]), "float32")
        if part.columns == tuple(range(part.width)):
            return whole
        return builder.gather(whole, builder.constant(list(part.columns), "int32"), axis=1)

    boxes, scores = table(source.boxes), builder.reshape(table(source.scores), [rows])
    count = builder.constant(np.array([rows], np.float32))
    if source.count is not None:
        count = builder.cast(builder.reshape(tensors[source.count], [1]), "float32")
    places = builder.constant(np.arange(rows, dtype=np.float32))
    real = builder.compare("LESS", places, count)
    key = builder.select(real, scores, builder.constant(np.float32(-np.inf)))
    _, order = builder.topk(key, rows)
    boxes, scores = (builder.gather(one, order, axis=0) for one in (boxes, scores))
    if source.centres:
        half = builder.binary(
            "MUL", builder.slice_axis(boxes, 1, 2, 2), builder.constant(np.float32(0.5))
        )
        centre = builder.slice_axis(boxes, 1, 0, 2)
        ends = [builder.binary(kind, centre, half) for kind in ("SUB", "ADD")]
        boxes = builder.concat(ends, 1)
    if source.x_first:
        boxes = builder.gather(boxes, builder.constant(list(SWAPPED), "int32"), axis=1)
    classes = builder.constant(np.zeros((1, rows), np.float32))
    if source.classes is not None:
        classes = builder.gather(builder.reshape(table(source.classes), [rows]), order, axis=0)
    return {
        BOXES: builder.reshape(boxes, [1, rows, 4]),
        CLASSES: builder.reshape(classes, [1, rows]),
        SCORES: builder.reshape(scores, [1, rows]),
        COUNT: count,
    }


# In standard ONNX


def _reference(static: onnx.ModelProto, source: Source) -> onnx.ModelProto:
    """The static model with the four outputs in place of its own."""
    model = onnx.ModelProto()
    model.CopyFrom(static)
    graph = model.graph
    given = {value.name for value in graph.input}
    if taken := sorted(given & set(NAMES)):
        raise UnsupportedModelError(
            f"the model's input {taken[0]!r} has the name of a detector's output; rename it"
        )
    own = _renamed(graph)
    writer = _Writer(source, own)
    made, nodes = writer.outputs(), writer.nodes
    graph.value_info.extend(graph.output)
    del graph.output[:]
    graph.node.extend(nodes.nodes)
    graph.node.extend(
        helper.make_node("Identity", [x], [name]) for x, name in zip(made, NAMES, strict=True)
    )
    graph.initializer.extend(nodes.constants)
    graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in NAMES
    )
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def _renamed(graph: onnx.GraphProto) -> Mapping[str, str]:
    """Free the four names; what the model's own tensors of these names are called now."""
    own = {name: f"{_PREFIX}/own/{name}" for name in NAMES}
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = own.get(name, name)
    for values in (graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.name = own.get(value.name, value.name)
    return own


@dataclass(slots=True)
class _Writer:
    """The nodes behind the model's own outputs."""

    source: Source
    own: Mapping[str, str]
    nodes: Nodes = field(default_factory=lambda: Nodes(_PREFIX))

    def table(self, part: Columns) -> str:
        """float32[K, columns]."""
        source, name = self.source, self.own.get(part.output, part.output)
        rows = self.nodes.add("Reshape", [name, self.nodes.integers(source.rows, part.width)])
        floats = self.nodes.add("Cast", [rows], to=TensorProto.FLOAT)
        return self.nodes.add(
            "Gather", [floats, self.nodes.constant(part.columns, "int64")], axis=1
        )

    def outputs(self) -> tuple[str, str, str, str]:
        """Boxes, classes, scores and count."""
        source, rows = self.source, self.source.rows
        flat = self.nodes.integers(rows)
        boxes, scores = self.table(source.boxes), self.table(source.scores)
        scores = self.nodes.add("Reshape", [scores, flat])
        if source.count is None:
            count = self.nodes.constant([rows], "float32")
        else:
            given = self.own.get(source.count, source.count)
            shaped = self.nodes.add("Reshape", [given, self.nodes.integers(1)])
            count = self.nodes.add("Cast", [shaped], to=TensorProto.FLOAT)
        real = self.nodes.add("Less", [self.nodes.constant(np.arange(rows), "float32"), count])
        key = self.nodes.add("Where", [real, scores, self.nodes.constant(-np.inf, "float32")])
        _, order = self.nodes.add_topk(key, flat)
        boxes, scores = (self.nodes.add("Gather", [one, order], axis=0) for one in (boxes, scores))
        if source.centres:
            boxes = self._corners(boxes)
        if source.x_first:
            boxes = self.nodes.add("Gather", [boxes, self.nodes.constant(SWAPPED, "int64")], axis=1)
        classes = self.nodes.constant(np.zeros(rows), "float32")
        if source.classes is not None:
            shaped = self.nodes.add("Reshape", [self.table(source.classes), flat])
            classes = self.nodes.add("Gather", [shaped, order], axis=0)
        first = self.nodes.integers(0)
        made = [self.nodes.add("Unsqueeze", [one, first]) for one in (boxes, classes, scores)]
        return made[0], made[1], made[2], count

    def _corners(self, boxes: str) -> str:
        centre, size = (
            self.nodes.add("Gather", [boxes, self.nodes.constant(pair, "int64")], axis=1)
            for pair in ((0, 1), (2, 3))
        )
        half = self.nodes.add("Mul", [size, self.nodes.constant(0.5, "float32")])
        ends = [self.nodes.add(kind, [centre, half]) for kind in ("Sub", "Add")]
        return self.nodes.add("Concat", ends, axis=1)
