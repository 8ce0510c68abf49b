"""Leave out the rows of a suppression that nobody reads.

Exporters suppress everything and keep the best hundred afterwards, by a TopK or a Slice. Rows that
are cut in any case need not be selected: a kernel stops sooner, and every tensor of the tail is
smaller by a factor of up to the number of classes.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge import static_nms
from bridge.static_nms import StaticNms
from bridge.targets.tflite.suppression_copies import Copies
from bridge.targets.tflite.suppression_tail import Tail, copied, follow


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A static model with fewer rows.

    Attributes:
        best_first: names of the calls whose rows must now come by falling score, equal ones in the
            order of a `StaticNMS`: the TopK that sorted and cut them is gone.
    """

    model: onnx.ModelProto
    best_first: frozenset[str]


def narrow(model: onnx.ModelProto) -> Narrowed:
    """Cut every call of a static model to the rows that are read; the argument is left alone.

    Given    StaticNMS(rows=8000) -> GatherND(scores) -> TopK(100) -> Gather ...
    Result   StaticNMS(rows=100), best first -> GatherND(scores) -> ...

    Given    StaticNMS(rows=8400), one image, one class -> Slice[:100] -> Gather ...
    Result   StaticNMS(rows=100) -> Gather ...
    """
    narrowed, best_first = model, set[str]()
    for call in static_nms.calls(model):
        tail = follow(narrowed, call)
        if tail is None or tail.outputs or not (tail.sorts or tail.firsts):
            continue
        copies = Copies.of(narrowed)
        most = _rows_read(tail, copies)
        if most is None or most >= call.rows or any(x.most > most for x in tail.limits):
            continue
        if tail.sorts and not _sorts_by_score(narrowed, tail, copies):
            continue
        if tail.sorts and len(tail.firsts) and _suppressions(call, copies) > 1:
            continue
        narrowed = _cut(narrowed, tail, copies, most)
        if tail.sorts and _suppressions(call, copies) > 1:
            best_first.add(call.name)
    return Narrowed(narrowed, frozenset(best_first))


def _suppressions(call: StaticNms, copies: Copies) -> int:
    images, classes, _ = copies.types[call.scores].shape
    return images * classes


def _rows_read(tail: Tail, copies: Copies) -> int | None:
    """How many rows are read at most."""
    read = [copies.constant(node.input[1]) for node in tail.sorts]
    read += [copies.constant(node.input[2]) for node in tail.firsts]
    numbers = [int(value.reshape(-1)[0]) for value in read if value is not None]
    return max(numbers) if len(numbers) == len(read) else None


def _sorts_by_score(model: onnx.ModelProto, tail: Tail, copies: Copies) -> bool:
    """Whether every TopK sorts rows that count by the score they were selected for, others last."""
    expected = copies.addresses(tail.call.scores).reshape(-1)
    for node in tail.sorts:
        key = copies.makers[node.input[0]]
        if key.op_type != "Where" or key.input[0] not in tail.masks:
            return False
        hidden = copies.constant(key.input[2])
        if hidden is None or not np.all(hidden == -np.inf):
            return False
        found = copied(model, tail, key.input[1], copies)
        if found is None or not np.array_equal(found, expected):
            return False
    return True


def _cut(model: onnx.ModelProto, tail: Tail, copies: Copies, most: int) -> onnx.ModelProto:
    """The model with `most` rows in every row tensor, its sorts gone."""
    narrowed = onnx.ModelProto()
    narrowed.CopyFrom(model)
    graph = narrowed.graph
    editor = _Editor(tail, copies, most)
    nodes = [editor.edited(node) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(editor.constants.values())
    for value in graph.value_info:
        if value.name in tail.rows:
            value.type.tensor_type.shape.dim[0].dim_value = most
    return narrowed


@dataclass(frozen=True, slots=True)
class _Editor:
    """Rewrites nodes one by one; `constants` grows by what they need."""

    tail: Tail
    copies: Copies
    most: int
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def edited(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node in the narrowed graph."""
        tail = self.tail
        if static_nms.is_call(node) and node.output[0] == tail.call.selected:
            return static_nms.make_node(replace(tail.call, rows=self.most))
        if any(node == limit.node and limit.most >= self.most for limit in tail.limits):
            return helper.make_node("Identity", [tail.call.count], node.output, name=node.name)
        if node in (*tail.sorts, *tail.picks, *tail.firsts):
            return self._first(node, node.input[0], node.output[0])
        if node.output[0] in tail.masks:
            return self._with_input(node, 0, np.arange(self.most))
        if node.op_type == "Reshape" and node.output[0] in tail.rows:
            shape = self.copies.constant(node.input[1])
            if shape is not None and shape[0] == tail.call.rows:
                return self._with_input(node, 1, np.concatenate([[self.most], shape[1:]]))
        return node

    def _first(self, node: onnx.NodeProto, rows: str, result: str) -> onnx.NodeProto:
        """As many of the first rows as the result has."""
        kept = self.copies.types[result].shape[0]
        if kept == self.most:
            return helper.make_node("Identity", [rows], [result], name=node.name)
        limits = [self._constant(np.array([limit])) for limit in (0, kept, 0)]
        return helper.make_node("Slice", [rows, *limits], [result], name=node.name)

    def _with_input(
        self, node: onnx.NodeProto, position: int, value: NDArray[np.int64]
    ) -> onnx.NodeProto:
        """The node with another constant of the same type."""
        dtype = self.copies.types[node.input[position]].dtype
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[position] = self._constant(value.astype(dtype))
        return changed

    def _constant(self, value: NDArray[Any]) -> str:
        numbers = "_".join(map(str, value.reshape(-1)[:4]))
        name = f"{self.tail.call.name}/narrow/{value.dtype.name}_{value.size}_{numbers}"
        self.constants[name] = numpy_helper.from_array(value, name)
        return name
