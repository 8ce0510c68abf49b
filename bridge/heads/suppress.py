"""From decoded candidates to the kept ones: one NonMaxSuppression, and the best rows of it.

Given:  boxes float32[1, N, 4], scores float32[1, C, N] or [1, N, C], extras float32[1, N, E]
Result: boxes float32[n, 4], scores float32[n] falling, classes int64[n], extras float32[n, E] and
        num_detections int64[1], which is n: what is found, `max_detections` at most. Equal scores:
        lower class, then lower row.

Among candidates of one class the suppression's own order is the result's. Among several a stable
TopK follows it. With `pre_nms_top_k` only the best candidates, by their best class, come that far:
whatever is returned above the score of the last of them is what the full set would give, for a
greedy suppression looks only at better candidates. (Equal scores of one class are then taken in the
order of their rows' best classes.)
"""

from dataclasses import dataclass

import numpy as np

from bridge.heads.build import Decoded
from bridge.heads.describe import Suppression
from bridge.model.nodes import Nodes

BOXES, SCORES, CLASSES, EXTRAS = "boxes", "scores", "classes", "extras"
NUM_DETECTIONS = "num_detections"
OUTPUTS = (BOXES, SCORES, CLASSES, EXTRAS, NUM_DETECTIONS)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """What meets the suppression.

    Attributes:
        boxes: float32[1, K, 4].
        scores: float32[1, 1, K] where one score per box counts, else float32[1, C, K].
        by_class: scores of all classes, [1, C, K] or [1, K, C]; only their order counts.
        class_axis: of `by_class`.
        origin: int64[K] rows in the full set, None where this is the full set.
    """

    boxes: str
    scores: str
    by_class: str
    class_axis: int
    origin: str | None


def suppress(decoded: Decoded, rule: Suppression, nodes: Nodes) -> tuple[str, ...]:
    """Append the suppression; the names of the outputs in order."""
    one_score = decoded.classes == 1 or rule.class_agnostic
    candidates = _candidates(decoded, rule, nodes, one_score=one_score)
    selected = nodes.add(
        "NonMaxSuppression",
        [
            candidates.boxes,
            candidates.scores,
            nodes.integers(rule.max_detections),
            nodes.constant(np.asarray([rule.iou_threshold], np.float32)),
            nodes.constant(np.asarray([rule.score_threshold], np.float32)),
        ],
    )
    if one_score:
        rows = _in_order(decoded, candidates, selected, nodes)
    else:
        rows = _best(candidates, selected, rule.max_detections, nodes)
    boxes = nodes.add("Squeeze", [candidates.boxes, nodes.integers(0)])
    nodes.add("Gather", [boxes, rows], output=BOXES, axis=0)
    outputs: tuple[str, ...] = (BOXES, SCORES, CLASSES)
    if decoded.extras is not None:
        origin = rows
        if candidates.origin is not None:
            origin = nodes.add("Gather", [candidates.origin, rows], axis=0)
        extras = nodes.add("Squeeze", [decoded.extras, nodes.integers(0)])
        nodes.add("Gather", [extras, origin], output=EXTRAS, axis=0)
        outputs = (*outputs, EXTRAS)
    nodes.add("Shape", [SCORES], output=NUM_DETECTIONS)
    return (*outputs, NUM_DETECTIONS)


def _candidates(
    decoded: Decoded, rule: Suppression, nodes: Nodes, *, one_score: bool
) -> _Candidates:
    axis, kept = decoded.class_axis, min(rule.pre_nms_top_k or decoded.rows, decoded.rows)
    boxes, by_class, origin = decoded.boxes, decoded.scores, None
    cut = kept < decoded.rows
    best = None
    if one_score or cut:
        best = _best_class(decoded, nodes)
    if best is not None and cut:
        best, ranked = nodes.add_topk(best, nodes.integers(kept))
        origin = nodes.reshape(ranked, kept)
        boxes = nodes.add("Gather", [boxes, origin], axis=1)
        if decoded.classes > 1:
            by_class = nodes.add("Gather", [by_class, origin], axis=3 - axis)
    if best is not None and one_score:
        scores = _activate(nodes, nodes.reshape(best, 1, 1, kept), decoded.last)
    else:
        scores = _activate(nodes, by_class, decoded.last)
        if axis == 2:
            scores = nodes.add("Transpose", [scores], perm=[0, 2, 1])
    return _Candidates(boxes, scores, by_class, axis, origin)


def _best_class(decoded: Decoded, nodes: Nodes) -> str:
    """float32[1, N]: the best score of each row, before the last operator."""
    if decoded.classes == 1:
        return nodes.reshape(decoded.scores, 1, decoded.rows)
    return nodes.add("ReduceMax", [decoded.scores], axes=[decoded.class_axis], keepdims=0)


def _activate(nodes: Nodes, tensor: str, operator: str | None) -> str:
    return tensor if operator is None else nodes.add(operator, [tensor])


def _in_order(decoded: Decoded, candidates: _Candidates, selected: str, nodes: Nodes) -> str:
    """One score per box: the suppression's order is already that of falling scores."""
    rows = nodes.add("Gather", [selected, _index(nodes, 2)], axis=1)
    nodes.add("GatherND", [candidates.scores, selected], output=SCORES)
    if decoded.classes == 1:
        nodes.add("Gather", [selected, _index(nodes, 1)], output=CLASSES, axis=1)
        return rows
    row_axis = 2 - candidates.class_axis
    by_class = nodes.add("Squeeze", [candidates.by_class, nodes.integers(0)])
    kept = nodes.add("Gather", [by_class, rows], axis=row_axis)
    nodes.add("ArgMax", [kept], output=CLASSES, axis=1 - row_axis, keepdims=0)
    return rows


def _best(candidates: _Candidates, selected: str, limit: int, nodes: Nodes) -> str:
    """A score per class: the best rows of all classes together."""
    kept = nodes.add("GatherND", [candidates.scores, selected])
    found = nodes.add("Min", [nodes.add("Shape", [kept]), nodes.integers(limit)])
    order = nodes.add_topk(kept, found, values=SCORES)[1]
    best = nodes.add("Gather", [selected, order], axis=0)
    nodes.add("Gather", [best, _index(nodes, 1)], output=CLASSES, axis=1)
    return nodes.add("Gather", [best, _index(nodes, 2)], axis=1)


def _index(nodes: Nodes, value: int) -> str:
    return nodes.constant(np.asarray(value, np.int64))
