"""The first rows of an axis, asked of whatever makes the rows.

Exporters sort or suppress everything and then keep the first K. The slice moves up to the operator
that makes the rows, which then does less: a TopK of K, a suppression that ends after K rows.
"""

from collections.abc import Iterable

from onnx import NodeProto, helper

from bridge import static_nms
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import Tensor
from bridge.surgery.static.operators import ELEMENTWISE


def first_rows(g: Graph, x: Tensor, axis: int, rows: int) -> Tensor:
    """The first `rows` dense rows of an axis, dense.

    Given    Gather(boxes, Squeeze(StaticNMS(..)[:, 2])), axis 0, rows 100
    Result   the same of a StaticNMS of 100 rows
    """
    if rows >= x.shape[axis]:
        return x
    made = g.maker(x) if g.moves_slices else None
    moved = _moved(g, *made, x, axis, rows) if made else None
    if moved is not None:
        g.replaces.setdefault(moved.id, x.id)
        return moved
    return g.emit("Slice", [x, g.int64(0), g.int64(rows), g.int64(axis)])


def first_count(g: Graph, holder: Tensor, rows: int) -> Tensor | None:
    """`min(holder, rows)` as the count of a suppression of fewer rows, where it is such a count."""
    made = g.maker(holder) if g.moves_slices else None
    if made is None or not static_nms.is_call(made[0]):
        return None
    number = _suppression(g, made[0], rows)[1]
    g.replaces.setdefault(number.id, holder.id)
    return number


def _moved(g: Graph, node: NodeProto, slot: int, x: Tensor, axis: int, rows: int) -> Tensor | None:
    inputs = [g.tensor(name) for name in node.input if name]
    if static_nms.is_call(node):
        return _suppression(g, node, rows)[0] if axis == 0 and slot == 0 else None
    match node.op_type:
        case "TopK" if _attribute(node, "axis", -1) % x.rank == axis:
            attributes = list(node.attribute)
            return g.emit_all("TopK", [inputs[0], g.int64(rows)], attributes, 2)[slot]
        case "Gather":
            return _gather(g, node, inputs, axis, rows)
        case "Transpose":
            order = next((list(a.ints) for a in node.attribute), list(range(x.rank))[::-1])
            cut = first_rows(g, inputs[0], order[axis], rows)
            return g.emit("Transpose", [cut], perm=order)
        case "Squeeze" | "Unsqueeze" if len(inputs) == 2:
            return _inserted(g, node, inputs, x, axis, rows)
        case "Slice" if len(inputs) > 3 and (over := g.array(inputs[3])) is not None:
            if axis in over % x.rank:
                return None
            return g.emit("Slice", [first_rows(g, inputs[0], axis, rows), *inputs[1:]])
        case "Reshape" if axis == 0 and x.rank and inputs[0].shape[:1] == x.shape[:1]:
            cut = first_rows(g, inputs[0], 0, rows)
            return g.emit("Reshape", [cut, g.int64(rows, *x.shape[1:])])
        case "Concat" if _attribute(node, "axis", 0) % x.rank != axis:
            parts = [first_rows(g, part, axis, rows) for part in inputs]
            return g.emit_all("Concat", parts, list(node.attribute), 1)[0]
        case op_type if op_type in ELEMENTWISE and len(inputs) == len(node.input):
            return _elementwise(g, node, inputs, x, axis, rows)
        case _:
            return None


def _suppression(g: Graph, node: NodeProto, rows: int) -> tuple[Tensor, ...]:
    call = static_nms.read_node(node)
    limit = min(call.max_output_boxes_per_class, rows)
    changed = {"rows": min(call.rows, rows), "max_output_boxes_per_class": limit}
    attributes = [a for a in node.attribute if a.name not in changed]
    attributes += [helper.make_attribute(name, value) for name, value in changed.items()]
    attributes.sort(key=lambda a: a.name)
    inputs = [g.tensor(call.boxes), g.tensor(call.scores)]
    return g.emit_all(node.op_type, inputs, attributes, 2, node.domain)


def _gather(g: Graph, node: NodeProto, inputs: list[Tensor], axis: int, rows: int) -> Tensor:
    x, index = inputs
    at = _attribute(node, "axis", 0) % x.rank
    if at <= axis < at + index.rank:
        index = first_rows(g, index, axis - at, rows)
    else:
        x = first_rows(g, x, axis if axis < at else axis - index.rank + 1, rows)
    return g.emit("Gather", [x, index], axis=at)


def _inserted(
    g: Graph, node: NodeProto, inputs: list[Tensor], result: Tensor, axis: int, rows: int
) -> Tensor | None:
    """Squeeze and Unsqueeze: the axis as it is numbered before axes of length 1 went or came."""
    x, axes = inputs[0], g.array(inputs[1])
    if axes is None:
        return None
    longer = max(x.rank, result.rank)
    ones = {int(k) % longer for k in axes.reshape(-1)}
    others = [k for k in range(longer) if k not in ones]
    if node.op_type == "Squeeze":
        before = others[axis]
    elif axis in others:
        before = others.index(axis)
    else:
        return None
    return g.emit(node.op_type, [first_rows(g, x, before, rows), inputs[1]])


def _elementwise(
    g: Graph, node: NodeProto, inputs: list[Tensor], result: Tensor, axis: int, rows: int
) -> Tensor:
    cut = []
    for x in inputs:
        at = axis - result.rank + x.rank
        cut.append(first_rows(g, x, at, rows) if at >= 0 and x.shape[at] > 1 else x)
    return g.emit_all(node.op_type, cut, list(node.attribute), 1)[0]


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def repeats_work(nodes: Iterable[NodeProto]) -> bool:
    """Whether a TopK or a suppression runs twice on the same numbers, for more and for fewer rows.

    Slices then better stay where they were.
    """
    seen = set()
    for node in nodes:
        if static_nms.is_call(node) or node.op_type == "TopK":
            what = (node.op_type, *node.input[: 2 if node.domain else 1])
            if what in seen:
                return True
            seen.add(what)
    return False
