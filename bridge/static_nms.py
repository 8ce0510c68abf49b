"""`bridge::StaticNMS`: a suppression with a fixed number of rows, as a model-local ONNX function.

    StaticNMS(boxes float32[B, N, 4], scores float32[B, C, N])
        -> selected int64[rows, 3], count int64[1]

The first `count` rows are what ONNX NonMaxSuppression gives, in its order (image, class, falling
score); later rows are zero. A result of more than `rows` rows is cut. Every input that
NonMaxSuppression may omit became an attribute, so a reader never has to know the defaults: absent
`max_output_boxes_per_class` is 0 (nothing), absent `iou_threshold` is 0.0 (any overlap suppresses),
absent `score_threshold` is -inf (a score of exactly -inf is then dropped, where ONNX keeps it).

The body is standard ONNX at opset 17, so onnxruntime runs a model that holds such calls.
Source: ONNX operator NonMaxSuppression-11.
"""

from dataclasses import dataclass

import onnx
from onnx import helper, inliner, parser

DOMAIN = "bridge"
OP_TYPE = "StaticNMS"
VERSION = 1
OPSET = 17
IR_VERSION = 8

_BODY = """
<domain: "bridge", opset_import: ["" : 17]>
StaticNMS <max_output_boxes_per_class, iou_threshold, score_threshold, center_point_box, rows>
    (boxes, scores) => (selected, count)
{
  limit = Constant <value_int: int = @max_output_boxes_per_class> ()
  iou = Constant <value_float: float = @iou_threshold> ()
  score = Constant <value_float: float = @score_threshold> ()
  found = NonMaxSuppression <center_point_box: int = @center_point_box>
      (boxes, scores, limit, iou, score)
  all_rows = Shape <start = 0, end = 1> (found)
  rows = Constant <value_int: int = @rows> ()
  count = Min (all_rows, rows)
  missing = Sub (rows, all_rows)
  zero = Constant <value_ints = [0]> ()
  zero_zero = Constant <value_ints = [0, 0]> ()
  pads = Concat <axis = 0> (zero_zero, missing, zero)
  padded = Pad (found, pads)
  rows_1 = Unsqueeze (rows, zero)
  three = Constant <value_ints = [3]> ()
  shape = Concat <axis = 0> (rows_1, three)
  selected = Reshape (padded, shape)
}
"""
# The closing Reshape moves nothing: it is what lets shape inference see [rows, 3].


@dataclass(frozen=True, slots=True)
class StaticNms:
    """One call of the function: tensor names and attributes."""

    name: str
    boxes: str
    scores: str
    selected: str
    count: str
    max_output_boxes_per_class: int
    iou_threshold: float
    score_threshold: float
    center_point_box: bool
    rows: int


def function() -> onnx.FunctionProto:
    """The function's definition, its nodes named so that inlining keeps names unique."""
    proto = parser.parse_function(_BODY)
    for node in proto.node:
        node.name = f"{OP_TYPE}/{node.output[0]}"
    return proto


def make_node(call: StaticNms) -> onnx.NodeProto:
    """The node for a call. The model that takes it needs `attach`."""
    return helper.make_node(
        OP_TYPE,
        [call.boxes, call.scores],
        [call.selected, call.count],
        name=call.name,
        domain=DOMAIN,
        max_output_boxes_per_class=call.max_output_boxes_per_class,
        iou_threshold=call.iou_threshold,
        score_threshold=call.score_threshold,
        center_point_box=int(call.center_point_box),
        rows=call.rows,
    )


def is_call(node: onnx.NodeProto) -> bool:
    """Whether the node calls StaticNMS."""
    return node.domain == DOMAIN and node.op_type == OP_TYPE


def read_node(node: onnx.NodeProto) -> StaticNms:
    """The call that a StaticNMS node stands for."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return StaticNms(
        name=node.name,
        boxes=node.input[0],
        scores=node.input[1],
        selected=node.output[0],
        count=node.output[1],
        max_output_boxes_per_class=attributes["max_output_boxes_per_class"],
        iou_threshold=attributes["iou_threshold"],
        score_threshold=attributes["score_threshold"],
        center_point_box=bool(attributes["center_point_box"]),
        rows=attributes["rows"],
    )


def calls(model: onnx.ModelProto) -> tuple[StaticNms, ...]:
    """Every call in the top graph, in graph order."""
    return tuple(read_node(node) for node in model.graph.node if is_call(node))


def attach(model: onnx.ModelProto) -> None:
    """Add the function and its domain to a model whose graph calls it, in place; idempotent."""
    if not any(f.domain == DOMAIN and f.name == OP_TYPE for f in model.functions):
        model.functions.append(function())
    if not any(o.domain == DOMAIN for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    model.ir_version = max(model.ir_version, IR_VERSION)


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model as plain standard ONNX; the argument is left alone."""
    plain = inliner.inline_local_functions(model)
    # The inliner leaves the domain behind, and a reader without it would refuse the model.
    kept = [o for o in plain.opset_import if o.domain != DOMAIN]
    del plain.opset_import[:]
    plain.opset_import.extend(kept)
    return plain
