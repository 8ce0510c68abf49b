"""Bring the boxes of every suppression into corner form, y first.

Given:   %b float32[1, N, 4] (x, y, width, height about a centre)
         -> StaticNMS <center_point_box = 1>(%b, %s)
Result:  %b -> halves added to and taken from the centre -> float32[1, N, 4] (y1, x1, y2, x2)
         -> StaticNMS <center_point_box = 0>
         %b itself goes on as it was wherever else it is read

Every decision is onnxruntime's own: it too computes x - width / 2 and x + width / 2 in float32, and
the overlap of two boxes does not depend on which axis comes first. A box of negative width or
height never suppresses nor is suppressed there; corners would be put in order, so such a size is
taken for 0, and a box without area does neither.

Declines: boxes that are visibly corners made from a centre already, whatever was declared.
          Whether corners are x or y first no graph can tell, and no suppression needs to know.
Source:   ONNX operator NonMaxSuppression, attribute center_point_box; onnxruntime
          non_max_suppression_helper.h, SuppressByIOU.
"""

import numpy as np
import onnx_graphsurgeon as gs

from bridge.options import BoxLayout, Options
from bridge.static_model import Finding
from bridge.surgery.edit import Builder, Tensor, nms_calls, producer_of, rewire, shape_of
from bridge.surgery.runner import Outcome

_CENTRED = (BoxLayout.CXCYWH, BoxLayout.CYCXHW)


def fix_box_layout(graph: gs.Graph, options: Options) -> Outcome:
    """Corners for every StaticNMS that reads centres, or is declared to be given centres."""
    builder = Builder.of(graph)
    findings: list[Finding] = []
    assumptions: list[str] = []
    made: dict[int, Tensor] = {}
    for node, call in list(nms_calls(graph)):
        boxes, scores = node.inputs
        if not call.center_point_box:
            if options.box_layout not in _CENTRED:
                continue
            if _are_corners(boxes):
                what = f"{boxes.name} already holds corners, not {options.box_layout}"
                findings.append(Finding(node.name, what, changed=False))
                continue
            assumptions.append(
                f"the boxes of NonMaxSuppression '{node.name}' are {options.box_layout}, as "
                "--box-layout says; the node itself says corners, and onnxruntime takes them so"
            )
        if id(boxes) not in made:
            x_first = options.box_layout is not BoxLayout.CYCXHW
            made[id(boxes)] = _corners(builder, boxes, x_first=x_first)
        node.attrs["center_point_box"] = 0
        rewire(node, [made[id(boxes)], scores])
        findings.append(Finding(node.name, "centre and size turned into corners", changed=True))
    builder.done()
    return Outcome(tuple(findings), tuple(assumptions))


def _are_corners(boxes: Tensor) -> bool:
    """Whether the boxes are a difference and a sum of the same two tensors, side by side."""
    joined = producer_of(boxes)
    if joined is None or joined.op != "Concat" or len(joined.inputs) != 2:
        return False
    low, high = (producer_of(tensor) for tensor in joined.inputs)
    if low is None or high is None or (low.op, high.op) != ("Sub", "Add"):
        return False
    return all(one is other for one, other in zip(low.inputs, high.inputs, strict=True))


def _corners(builder: Builder, boxes: Tensor, *, x_first: bool) -> Tensor:
    """float32[B, N, 4] (y1, x1, y2, x2) of centre and size; negative sizes count as 0."""
    name = boxes.name
    *rows, _ = shape_of(boxes)
    half_shape = (*rows, 2)
    order = ([1, 0], [3, 2]) if x_first else ([0, 1], [2, 3])

    def pick(wish: str, columns: list[int]) -> Tensor:
        index = builder.ints(f"{name}/columns", columns)
        return builder.node("Gather", f"{name}/{wish}", [boxes, index], half_shape, axis=len(rows))

    centre, size = pick("centre", order[0]), pick("size", order[1])
    zero = builder.constant(f"{name}/zero", np.array(0, np.float32))
    two = builder.constant(f"{name}/two", np.array(2, np.float32))
    positive = builder.node("Max", f"{name}/positive", [size, zero], half_shape)
    half = builder.node("Div", f"{name}/half", [positive, two], half_shape)
    low = builder.node("Sub", f"{name}/low", [centre, half], half_shape)
    high = builder.node("Add", f"{name}/high", [centre, half], half_shape)
    return builder.node("Concat", f"{name}/corners", [low, high], (*rows, 4), axis=len(rows))
