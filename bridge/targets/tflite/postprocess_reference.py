"""The detections of `--nms postprocess` in standard ONNX, for onnxruntime to judge the artifact."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper, shape_inference

from bridge import static_nms
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
    results = graph.outputs(graph.detections())
    made = {name for node in graph.nodes for name in node.output}
    read = {name for node in graph.nodes for name in node.input}
    constants = {tensor.name for tensor in graph.constants} | plan.copies.constants.keys()
    model = plan.front(sorted(name for name in read - made - constants if name in plan.types))
    model.graph.value_info.extend(model.graph.output)
    del model.graph.output[:]
    renamed = [
        helper.make_node("Identity", [x], [name]) for x, name in zip(results, names, strict=True)
    ]
    model.graph.node.extend([*graph.nodes, *renamed])
    model.graph.initializer.extend(graph.constants)
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
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, operator: str, *inputs: str, results: int = 1, **attributes: Any) -> str:
        """Add a node; the name of its first result, those of others end in `_1`."""
        name = f"{_PREFIX}/{operator}_{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, results))]
        self.nodes.append(helper.make_node(operator, inputs, names, name=name, **attributes))
        return name

    def constant(self, value: ArrayLike, dtype: str = "int64") -> str:
        """Add a constant."""
        name = f"{_PREFIX}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def detections(self) -> _Found:
        """The suppression, a stable sort by score, and the first M of it."""
        call, plan = self.plan.call, self.plan
        rows = plan.classes * min(call.max_output_boxes_per_class, plan.boxes)
        selected, found = f"{_PREFIX}/selected", f"{_PREFIX}/count"
        whole = replace(call, boxes=self._boxes(), scores=self._scores())
        whole = replace(whole, rows=rows, selected=selected, count=found)
        self.nodes.append(static_nms.make_node(whole))
        scores = self.node("GatherND", whole.scores, selected)
        exists = self.node("Less", self.constant(np.arange(rows)), found)
        key = self.node("Where", exists, scores, self.constant(-np.inf, "float32"))
        most = self.constant([call.rows])
        best = self.node("TopK", key, most, results=2, axis=0)
        count = self.node("Where", self.node("Less", most, found), most, found)
        real = self.node("Less", self.constant(np.arange(call.rows)), count)
        picked = self.node("Gather", selected, f"{best}_1", axis=0)
        classes, boxes = (
            self.node("Gather", picked, self.constant(column), axis=1) for column in (1, 2)
        )
        flat = self.node("Reshape", whole.boxes, self.constant([plan.boxes, 4]))
        corners = self._sorted(self.node("Gather", flat, boxes, axis=0))
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
        return self.node(
            "Reshape", self.plan.recovered.boxes, self.constant([1, self.plan.boxes, 4])
        )

    def _scores(self) -> str:
        """float32[1, C, N]; -inf where a box is of another class."""
        plan, scores = self.plan, self.plan.call.scores
        if plan.recovered is None:
            return scores
        ids = self.node("Reshape", plan.recovered.ids, self.constant([1, 1, plan.boxes]))
        numbers = plan.recovered.first + np.arange(plan.classes)
        each = self.constant(numbers.reshape(1, -1, 1), plan.types[plan.recovered.ids].dtype)
        hidden = self.constant(-np.inf, "float32")
        return self.node("Where", self.node("Equal", ids, each), scores, hidden)

    def _sorted(self, boxes: str) -> str:
        one, other = (self.columns(boxes, pair) for pair in ((0, 1), (2, 3)))
        low, high = (self.node(kind, one, other) for kind in ("Min", "Max"))
        return self.node("Concat", low, high, axis=1)

    def columns(self, table: str, columns: Sequence[int]) -> str:
        """Columns of a table, in this order."""
        return self.node("Gather", table, self.constant(columns), axis=1)

    def masked(self, tensor: str, real: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        """Zero in rows that are not real."""
        mask = self.node("Reshape", real, self.constant([shape[0], *(1 for _ in shape[1:])]))
        return self.node("Where", mask, tensor, self.constant(0, dtype))

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
        first = self.constant([0])
        count = self.node("Cast", found.count, to=TensorProto.FLOAT)
        return (
            self.node("Unsqueeze", boxes, first),
            self.node("Unsqueeze", classes, first),
            self.node("Unsqueeze", scores, first),
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
            self.nodes.append(copied)

    def _behind(self, name: str) -> str:
        """What a tensor behind the suppression is called here."""
        return f"{_PREFIX}/{name}" if self.plan.is_behind(name) else name

    def _preset(self, found: _Found, name: str) -> None:
        """A tensor that the source fetches or counts, made of the detections."""
        plan, shape = self.plan, self.plan.types[name].shape
        if name in plan.tail.counts:
            made = found.count
        elif name in plan.roles.classes:
            table = self.constant(plan.roles.classes[name], plan.types[name].dtype)
            made = self.node("Gather", table, found.classes, axis=0)
        else:
            columns = [self._column(found, c.role, c.index) for c in plan.roles.leaves[name]]
            made = self.node("Concat", *columns, axis=1) if columns[1:] else columns[0]
            dtype = helper.np_dtype_to_tensor_dtype(np.dtype(plan.types[name].dtype))
            made = self.node("Cast", made, to=dtype)
        target = self.constant(shape)
        self.nodes.append(helper.make_node("Reshape", [made, target], [self._behind(name)]))

    def _column(self, found: _Found, role: Role, index: int) -> str:
        if role is Role.BOX:
            return self.columns(found.boxes, [index])
        column = found.scores
        if role is Role.CLASS and self.plan.recovered is not None:
            first = self.constant(self.plan.recovered.first)
            number = self.node("Add", found.classes, first)
            column = self.node("Cast", number, to=TensorProto.FLOAT)
        return self.node("Unsqueeze", column, self.constant([1]))

    def _part(self, found: _Found, role: Role, raw: str, shape: tuple[int, ...]) -> str:
        """float32[shape]: the source's part of a role, or the detections' own."""
        part = self.plan.part(role)
        made = raw
        if part is not None:
            made = self._chosen(part)
            made = self.node("Reshape", made, self.constant(shape))
        made = self.node("Cast", made, to=TensorProto.FLOAT)
        return self.masked(made, found.real, shape)

    def _chosen(self, part: Part) -> str:
        name = self._behind(part.tensor)
        return name if part.columns is None else self.columns(name, part.columns)
