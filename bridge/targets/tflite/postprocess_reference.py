"""The detections of `--nms postprocess` in standard ONNX, for onnxruntime to judge the artifact."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from bridge import static_nms
from bridge.model.nodes import Nodes
from bridge.targets.tflite.postprocess_geometry import SWAPPED
from bridge.targets.tflite.postprocess_plan import Plan
from bridge.targets.tflite.postprocess_roles import Part, Role

_PREFIX: Final = "postprocess"


def reference(plan: Plan, names: Sequence[str]) -> onnx.ModelProto:
    """The static model up to its suppression, and what the operator has to make of that.

    Args:
        plan: of the model.
        names: of boxes float32[1, M, 4] (y1, x1, y2, x2), classes float32[1, M], scores
            float32[1, M] and count float32[1], in this order.
    """
    graph = _Graph(plan)
    results, written = graph.outputs(graph.detections()), graph.nodes
    made = {name for node in written.nodes for name in node.output}
    read = {name for node in written.nodes for name in node.input}
    constants = {tensor.name for tensor in written.constants} | plan.copies.constants.keys()
    model = plan.front(sorted(name for name in read - made - constants if name in plan.types))
    model.graph.value_info.extend(model.graph.output)
    del model.graph.output[:]
    renamed = [
        helper.make_node("Identity", [x], [name]) for x, name in zip(results, names, strict=True)
    ]
    model.graph.node.extend([*written.nodes, *renamed])
    model.graph.initializer.extend(written.constants)
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


@dataclass(frozen=True, slots=True)
class _Found:
    """Names of boxes float32[M, 4], sorted corners, axes as in the model; zero where not real.

    Attributes:
        classes: int64[M].
        real: bool[M].
        count: int64[1].
    """

    boxes: str
    scores: str
    classes: str
    real: str
    count: str


@dataclass(slots=True)
class _Graph:
    """The nodes behind the suppression; names do not meet those of the model."""

    plan: Plan
    nodes: Nodes = field(default_factory=lambda: Nodes(_PREFIX))

    def detections(self) -> _Found:
        """The suppression, a stable sort by score, and the first M of it."""
        call, plan = self.plan.call, self.plan
        rows = plan.classes * min(call.max_output_boxes_per_class, plan.boxes)
        selected, found = f"{_PREFIX}/selected", f"{_PREFIX}/count"
        whole = replace(call, boxes=self._boxes(), scores=self._scores())
        whole = replace(whole, rows=rows, selected=selected, count=found)
        self.nodes.nodes.append(static_nms.make_node(whole))
        scores = self.nodes.add("GatherND", [whole.scores, selected])
        exists = self.nodes.add("Less", [self.nodes.constant(np.arange(rows), "int64"), found])
        key = self.nodes.add("Where", [exists, scores, self.nodes.constant(-np.inf, "float32")])
        most = self.nodes.integers(call.rows)
        best, places = self.nodes.add_topk(key, most)
        count = self.nodes.add("Where", [self.nodes.add("Less", [most, found]), most, found])
        real = self.nodes.add("Less", [self.nodes.constant(np.arange(call.rows), "int64"), count])
        picked = self.nodes.add("Gather", [selected, places], axis=0)
        classes, boxes = (
            self.nodes.add("Gather", [picked, self.nodes.constant(column, "int64")], axis=1)
            for column in (1, 2)
        )
        flat = self.nodes.add("Reshape", [whole.boxes, self.nodes.integers(plan.boxes, 4)])
        corners = self._sorted(self.nodes.add("Gather", [flat, boxes], axis=0))
        return _Found(
            self.masked(corners, real, (call.rows, 4)),
            self.masked(best, real, (call.rows,)),
            self.masked(classes, real, (call.rows,), "int64"),
            real,
            count,
        )

    def _boxes(self) -> str:
        """float32[1, N, 4], where they really are."""
        if self.plan.recovered is None:
            return self.plan.call.boxes
        return self.nodes.add(
            "Reshape",
            [self.plan.recovered.boxes, self.nodes.integers(1, self.plan.boxes, 4)],
        )

    def _scores(self) -> str:
        """float32[1, C, N]; -inf where a box is of another class."""
        plan, scores = self.plan, self.plan.call.scores
        if plan.recovered is None:
            return scores
        ids = self.nodes.add("Reshape", [plan.recovered.ids, self.nodes.integers(1, 1, plan.boxes)])
        numbers = plan.recovered.first + np.arange(plan.classes)
        each = self.nodes.constant(numbers.reshape(1, -1, 1), plan.types[plan.recovered.ids].dtype)
        hidden = self.nodes.constant(-np.inf, "float32")
        return self.nodes.add("Where", [self.nodes.add("Equal", [ids, each]), scores, hidden])

    def _sorted(self, boxes: str) -> str:
        one, other = (self.columns(boxes, pair) for pair in ((0, 1), (2, 3)))
        low, high = (self.nodes.add(kind, [one, other]) for kind in ("Min", "Max"))
        return self.nodes.add("Concat", [low, high], axis=1)

    def columns(self, table: str, columns: Sequence[int]) -> str:
        """Columns of a table, in this order."""
        return self.nodes.add("Gather", [table, self.nodes.constant(columns, "int64")], axis=1)

    def masked(self, tensor: str, real: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        """Zero in rows that are not real."""
        mask = self.nodes.add(
            "Reshape", [real, self.nodes.integers(shape[0], *(1 for _ in shape[1:]))]
        )
        return self.nodes.add("Where", [mask, tensor, self.nodes.constant(0, dtype)])

    def outputs(self, found: _Found) -> tuple[str, str, str, str]:
        """Boxes, classes, scores and count as the operator shapes them."""
        self._work(found)
        plan, rows = self.plan, self.plan.call.rows
        boxes = self._part(found, Role.BOX, found.boxes, (rows, 4))
        own = plan.part(Role.BOX) is None
        if plan.geometry.x_first if own else plan.returns_x_first:
            boxes = self.columns(boxes, SWAPPED)
        classes = self._part(found, Role.CLASS, found.classes, (rows,))
        scores = self._part(found, Role.SCORE, found.scores, (rows,))
        first = self.nodes.integers(0)
        count = self.nodes.add("Cast", [found.count], to=TensorProto.FLOAT)
        return (
            self.nodes.add("Unsqueeze", [boxes, first]),
            self.nodes.add("Unsqueeze", [classes, first]),
            self.nodes.add("Unsqueeze", [scores, first]),
            count,
        )

    def _work(self, found: _Found) -> None:
        """What the source does with boxes, scores and classes, on these detections."""
        plan = self.plan
        for name in plan.presets():
            self._preset(found, name)
        for node in plan.work:
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            copied.name = f"{_PREFIX}/{node.name}"
            copied.input[:] = [self._behind(name) for name in node.input]
            copied.output[:] = [self._behind(name) for name in node.output]
            self.nodes.nodes.append(copied)

    def _behind(self, name: str) -> str:
        """What a tensor behind the suppression is called here."""
        return f"{_PREFIX}/{name}" if self.plan.is_behind(name) else name

    def _preset(self, found: _Found, name: str) -> None:
        """A tensor that the source fetches or counts, made of the detections."""
        plan, shape = self.plan, self.plan.types[name].shape
        if name in plan.tail.counts:
            made = found.count
        elif name in plan.roles.classes:
            table = self.nodes.constant(plan.roles.classes[name], plan.types[name].dtype)
            made = self.nodes.add("Gather", [table, found.classes], axis=0)
        else:
            columns = [self._column(found, c.role, c.index) for c in plan.roles.leaves[name]]
            made = self.nodes.add("Concat", columns, axis=1) if columns[1:] else columns[0]
            dtype = helper.np_dtype_to_tensor_dtype(np.dtype(plan.types[name].dtype))
            made = self.nodes.add("Cast", [made], to=dtype)
        target = self.nodes.constant(shape, "int64")
        self.nodes.nodes.append(helper.make_node("Reshape", [made, target], [self._behind(name)]))

    def _column(self, found: _Found, role: Role, index: int) -> str:
        if role is Role.BOX:
            return self.columns(found.boxes, [index])
        column = found.scores
        if role is Role.CLASS and self.plan.recovered is not None:
            first = self.nodes.constant(self.plan.recovered.first, "int64")
            number = self.nodes.add("Add", [found.classes, first])
            column = self.nodes.add("Cast", [number], to=TensorProto.FLOAT)
        return self.nodes.add("Unsqueeze", [column, self.nodes.integers(1)])

    def _part(self, found: _Found, role: Role, raw: str, shape: tuple[int, ...]) -> str:
        """float32[shape]: the source's part of a role, or the detections' own."""
        part = self.plan.part(role)
        made = raw
        if part is not None:
            made = self._chosen(part)
            made = self.nodes.add("Reshape", [made, self.nodes.constant(shape, "int64")])
        made = self.nodes.add("Cast", [made], to=TensorProto.FLOAT)
        return self.masked(made, found.real, shape)

    def _chosen(self, part: Part) -> str:
        name = self._behind(part.tensor)
        return name if part.columns is None else self.columns(name, part.columns)
