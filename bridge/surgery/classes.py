"""Give a suppression back the classes that the coordinate trick hid from it (--class-aware).

Given:   boxes + class id * offset -> StaticNMS <max = K> (float32[1, N, 4], float32[1, 1, N])
Result:  boxes -> StaticNMS <max = K> (float32[1, N, 4], float32[1, C, N]): the score of a box
         counts for its own class only
         -> of all that were selected the K best, equal scores by lower index, as the one
            suppression over all classes gives them

The same but where the trick itself goes wrong: where boxes reach so far that the classes were not
parted, and where the offset's rounding moved an overlap across the limit. Both are said.

Declines: class ids that nothing limits, boxes that are moved by anything else.
Source:   torchvision.ops.boxes, _batched_nms_coordinate_trick.
"""

import numpy as np
import onnx_graphsurgeon as gs

from bridge.detection import NoClasses, RecoveredClasses, recover
from bridge.options import Options
from bridge.static_model import Finding
from bridge.static_nms import DOMAIN, OP_TYPE, StaticNms
from bridge.surgery.edit import Builder, Tensor, nms_calls, rewrite, shape_of
from bridge.surgery.runner import Outcome

_MOST_SCORES = 2**26
"""Of one suppression, so that a suppression over thousands of made-up classes is not written."""


def recover_classes(graph: gs.Graph, options: Options) -> Outcome:
    """Every suppression behind the coordinate trick becomes one that knows its classes."""
    if not options.class_aware:
        return Outcome()
    calls = list(nms_calls(graph))
    model = gs.export_onnx(graph, do_type_check=False) if calls else None
    builder = Builder.of(graph)
    tensors = graph.tensors()
    findings: list[Finding] = []
    assumptions: list[str] = []
    for node, call in calls:
        assert model is not None
        found = recover(model, call)
        if isinstance(found, RecoveredClasses) and not _fits(call, found, node):
            found = NoClasses(
                f"{found.count} classes of {shape_of(node.inputs[0])[1]} boxes are many"
            )
        if isinstance(found, NoClasses):
            what = f"its classes are not recovered: {found.because}"
            findings.append(Finding(node.name, what, changed=False))
            continue
        _rewrite(builder, node, call, found, tensors[found.boxes], tensors[found.ids])
        findings.append(Finding(call.name, f"{found.count} classes recovered", changed=True))
        assumptions.append(_assumption(call.name, found))
    builder.done()
    return Outcome(tuple(findings), tuple(assumptions))


def _fits(call: StaticNms, found: RecoveredClasses, node: gs.Node) -> bool:
    boxes = shape_of(node.inputs[0])[1]
    return call.rows <= boxes and found.count * boxes <= _MOST_SCORES


def _assumption(node: str, found: RecoveredClasses) -> str:
    apart = (
        "no coordinate is -1 or less"
        if found.offset is None
        else f"all coordinates lie within a range of {found.offset:g}"
    )
    return (
        f"NonMaxSuppression '{node}' suppresses class by class: the source moves classes apart by "
        f"an offset, which gives the same where {apart} and no overlap is so near the limit that "
        "the rounding of the moved boxes decides"
    )


def _rewrite(
    builder: Builder,
    node: gs.Node,
    call: StaticNms,
    found: RecoveredClasses,
    plain: Tensor,
    ids: Tensor,
) -> None:
    selected, count = node.outputs
    scores = node.inputs[1]
    _, _, boxes = shape_of(scores)
    name = f"{call.name}/classes"
    each = min(call.max_output_boxes_per_class, boxes)
    rows = min(boxes, found.count * each)

    def reshaped(wish: str, tensor: Tensor, shape: list[int]) -> Tensor:
        target = builder.ints(f"{name}/shape", shape)
        return builder.node("Reshape", f"{name}/{wish}", [tensor, target], shape)

    lowest = builder.constant(f"{name}/none", np.array(-np.inf, np.float32))
    classes = np.arange(found.first, found.first + found.count).astype(ids.dtype)
    known = builder.constant(f"{name}/known", classes.reshape(1, -1, 1))
    shape = [1, found.count, boxes]
    own = builder.node(
        "Equal", f"{name}/own", [reshaped("ids", ids, [1, 1, boxes]), known], shape, np.bool_
    )
    masked = builder.node("Where", f"{name}/scores", [own, scores, lowest], shape, np.float32)
    found_rows = gs.Variable(builder.name(f"{name}/selected"), np.dtype(np.int64), [rows, 3])
    found_count = gs.Variable(builder.name(f"{name}/count"), np.dtype(np.int64), [1])
    rewrite(node, [])
    replacement = builder.add(
        OP_TYPE,
        call.name,
        [reshaped("boxes", plain, [1, boxes, 4]), masked],
        [found_rows, found_count],
        {**node.attrs, "max_output_boxes_per_class": each, "rows": rows},
        domain=DOMAIN,
    )
    # The call keeps its name; the node that had it is dead.
    replacement.name, node.name = node.name, replacement.name
    best = _best(
        builder, name, found_rows, found_count, reshaped("flat", scores, [boxes]), call.rows
    )
    _write(builder, name, best, (selected, count), found_count, call.rows)


def _best(
    builder: Builder, name: str, selected: Tensor, count: Tensor, scores: Tensor, rows: int
) -> Tensor:
    """int64[rows]: of the selected boxes those with the best scores, equal ones by lower index.

    Selected scores go to their box's place and nothing to any other; a TopK there takes equal
    scores in the order of the boxes, whatever the order in which the classes found them.
    """
    many, boxes = shape_of(selected)[0], shape_of(scores)[0]
    index = builder.node(
        "Gather", f"{name}/index", [selected, builder.constant(f"{name}/two", np.array(2))], [many],
        axis=1,
    )  # fmt: skip
    iota = builder.ints(f"{name}/iota", list(range(many)))
    real = builder.node("Less", f"{name}/real", [iota, count], [many], np.bool_)
    # Rows behind the count name box 0; they write to one place more, which is cut off.
    spare = builder.ints(f"{name}/spare", [boxes])
    place = builder.node("Where", f"{name}/place", [real, index, spare], [many], np.int64)
    theirs = builder.node("Gather", f"{name}/theirs", [scores, index], [many], axis=0)
    empty = builder.constant(f"{name}/empty", np.full(boxes + 1, -np.inf, np.float32))
    placed = builder.node(
        "ScatterElements", f"{name}/placed", [empty, place, theirs], [boxes + 1], axis=0
    )
    limits = [builder.ints(f"{name}/limit", [limit]) for limit in (0, boxes, 0)]
    kept = builder.node("Slice", f"{name}/kept", [placed, *limits], [boxes])
    values = gs.Variable(builder.name(f"{name}/values"), np.dtype(np.float32), [rows])
    best = gs.Variable(builder.name(f"{name}/best"), np.dtype(np.int64), [rows])
    most = builder.ints(f"{name}/rows", [rows])
    builder.add("TopK", name, [kept, most], [values, best], {"axis": 0, "largest": 1, "sorted": 1})
    return best


def _write(
    builder: Builder,
    name: str,
    best: Tensor,
    outputs: tuple[Tensor, Tensor],
    found: Tensor,
    rows: int,
) -> None:
    """The outputs of the call that was: rows (0, 0, box), zero behind the count."""
    selected, count = outputs
    most = builder.ints(f"{name}/rows", [rows])
    fewer = builder.node("Less", f"{name}/fewer", [found, most], [1], np.bool_)
    builder.add("Where", name, [fewer, found, most], [count], {})
    iota = builder.ints(f"{name}/iota", list(range(rows)))
    real = builder.node("Less", f"{name}/real", [iota, count], [rows], np.bool_)
    zero = builder.ints(f"{name}/zero", [0])
    index = builder.node("Where", f"{name}/index", [real, best, zero], [rows], np.int64)
    target = builder.ints(f"{name}/shape", [rows, 1])
    column = builder.node("Reshape", f"{name}/column", [index, target], [rows, 1])
    zeros = builder.constant(f"{name}/zeros", np.zeros((rows, 2), np.int64))
    builder.add("Concat", name, [zeros, column], [selected], {"axis": 1})
