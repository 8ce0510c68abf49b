"""NonMaxSuppression becomes one StaticNMS call."""

from dataclasses import replace

import numpy as np
from onnx import helper

from bridge import static_nms
from bridge.surgery.static.call import Call, elements
from bridge.surgery.static.counts import minimum
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.integers import Int, Linear, Unknown, hi, of
from bridge.surgery.static.lattice import (
    Group,
    NoRuleError,
    Tensor,
    columns,
    count,
    position_space,
    prefix,
    tagged,
)
from bridge.surgery.static.rows import data, fill, unify


def non_max_suppression(g: Graph, call: Call) -> Tensor:
    """Boxes and scores are unified on N; a masked box has score -inf, which is never selected.

    Given    boxes float32[B, G, 4], scores float32[B, C, G]
    Result   StaticNMS of B * C * min(max, N) rows: int64[P, 3], P the prefix group of the row
             count. Columns: image, class, and the box, a position in G.

    An absent score threshold is -inf; a maximum of 0 (or none) selects nothing.
    """
    boxes, scores = data(g, call.input(0)), data(g, call.input(1))
    (boxes, scores), dim = unify(g, (boxes, 1), (scores, 2))
    if any(axis != 1 for axis, _ in boxes.groups) or any(axis != 2 for axis, _ in scores.groups):
        raise NoRuleError("suppresses for a data-dependent number of images or classes")
    images, classes, _ = scores.shape
    limit = _maximum(g, call, dim if isinstance(dim, Group) else scores.shape[2], images * classes)
    per_class = max(0, min(hi(limit), scores.shape[2]))
    if not per_class or not images * classes:
        return g.constant(np.zeros((0, 3), np.int64))
    threshold = _threshold(g, call, 4, -np.inf)
    if threshold == -np.inf and scores.magnitude is None:
        g.assume(
            f"no score that NonMaxSuppression '{call.node.name}' reads is -inf: it has no score "
            "threshold, and onnxruntime alone would select such a box"
        )
    attributes = {
        "max_output_boxes_per_class": per_class,
        "iou_threshold": _threshold(g, call, 3, 0.0),
        "score_threshold": threshold,
        "center_point_box": call.integer("center_point_box", 0),
        "rows": images * classes * per_class,
    }
    selected, found = g.emit_all(
        static_nms.OP_TYPE,
        [boxes, fill(g, scores, 2, -np.inf)],
        [helper.make_attribute(name, value) for name, value in sorted(attributes.items())],
        2,
        static_nms.DOMAIN,
    )
    bound = count(dim) * (images * classes)
    rows: Int = of(Unknown(found.id, 0, selected.shape[0], (bound,)))
    if isinstance(limit, Linear):
        rows = minimum(g, rows, limit)
    space = columns([None, None, position_space(dim)], 1)
    return replace(
        tagged(selected, (prefix(rows), 3), space=space),
        range=(0, max(images, classes, scores.shape[2]) - 1),
    )


def _maximum(g: Graph, call: Call, dim: int | Group, lists: int) -> Int:
    """The most boxes per image and class; symbolic only where cutting the rows does the same."""
    given = call.optional(2)
    if given is None:
        return 0
    if given.values is None:
        raise _frozen("max_output_boxes_per_class")
    limit = elements(given, "max_output_boxes_per_class")[0]
    if not isinstance(limit, Linear) or lists == 1:
        return limit
    if limit == count(dim):
        return hi(limit)
    raise NoRuleError("selects a number of boxes per class that depends on a number of rows")


def _threshold(g: Graph, call: Call, k: int, absent: float) -> float:
    given = call.optional(k)
    if given is None:
        return absent
    held = g.array(given)
    if held is None:
        raise _frozen(("iou_threshold", "score_threshold")[k - 3])
    return float(held.reshape(-1)[0])


def _frozen(name: str) -> NoRuleError:
    return NoRuleError(
        f"{name} is known at run time only; make it a constant with --freeze INPUT=VALUE, where "
        "INPUT is the model input it is computed from"
    )
