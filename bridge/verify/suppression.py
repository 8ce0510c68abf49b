"""Generated sets for a suppression: where kernels are known to decide unlike onnxruntime.

Every set is a pair `boxes float32[B, N, 4]`, `scores float32[B, C, N]` in the form that the ONNX
operator NonMaxSuppression takes. Each name stands for one way in which a kernel was seen to differ
(ties, `>=` for `>`, zero area, reversed corners, a maximum reached, ...), so a failing name says
where to look. No set holds a NaN coordinate: the operator gives it no meaning.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_PIXELS = 640.0


@dataclass(frozen=True, slots=True)
class SuppressionCase:
    """One set of boxes `float32[B, N, 4]` and scores `float32[B, C, N]`."""

    name: str
    boxes: Floats
    scores: Floats


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the sets are generated for. Boxes are made as corners and turned to centres at the end.

    Attributes:
        limit: the score threshold, or 0 where that is infinite.
    """

    rng: np.random.Generator
    batch: int
    classes: int
    boxes: int
    iou_threshold: np.float32
    score_threshold: np.float32
    limit: np.float32
    max_output: int
    center_point_box: bool


def cases(
    batch: int,
    classes: int,
    boxes: int,
    iou_threshold: float,
    score_threshold: float,
    center_point_box: bool,
    seed: int,
    *,
    max_output_boxes_per_class: int | None = None,
) -> Iterator[SuppressionCase]:
    """Yield the sets in a fixed order; the same arguments give the same bits.

    Args:
        batch: B.
        classes: C.
        boxes: N.
        iou_threshold: of the suppression under test, for sets that stand exactly on it.
        score_threshold: likewise; -inf where there is none.
        center_point_box: boxes come as x centre, y centre, width, height.
        seed: varies every set but its name.
        max_output_boxes_per_class: K, for sets that hold exactly K and more than K; N if None.
    """
    for index, (name, make) in enumerate(_SETS):
        setting = _Setting(
            rng=np.random.default_rng((seed, index)),
            batch=batch,
            classes=classes,
            boxes=boxes,
            iou_threshold=np.float32(iou_threshold),
            score_threshold=np.float32(score_threshold),
            limit=np.float32(score_threshold if np.isfinite(score_threshold) else 0.0),
            max_output=min(max_output_boxes_per_class or boxes, boxes),
            center_point_box=center_point_box,
        )
        made = make(setting)
        if made is not None:
            corners, scores = made
            form = _to_centres(corners) if center_point_box else corners
            yield SuppressionCase(name, form.astype(np.float32), scores.astype(np.float32))


type _Made = tuple[NDArray[np.floating], NDArray[np.floating]] | None


def _random(at: _Setting) -> _Made:
    return _clusters(at, _PIXELS), _scores(at)


def _fractions(at: _Setting) -> _Made:
    return _clusters(at, 1.0), _scores(at)


def _sparse(at: _Setting) -> _Made:
    return _clusters(at, _PIXELS), _scores(at, above=0.02)


def _dense(at: _Setting) -> _Made:
    return _clusters(at, _PIXELS, centres=3), _scores(at, above=1.0)


def _disjoint(at: _Setting) -> _Made:
    return _grid(at), _scores(at, above=1.0)


def _ties(at: _Setting) -> _Made:
    """Four distinct scores only: the lower index must win, whether or not the boxes overlap."""
    return _clusters(at, _PIXELS), _scores(at, levels=4)


def _all_equal(at: _Setting) -> _Made:
    """One box and one score everywhere."""
    corners = np.broadcast_to(np.array([8, 16, 40, 64], np.float32), (at.batch, at.boxes, 4)).copy()
    return corners, np.full(_score_shape(at), at.limit + 0.5)


def _equal_scores_disjoint(at: _Setting) -> _Made:
    return _grid(at), np.full(_score_shape(at), at.limit + 0.5)


def _iou_at_limit(at: _Setting) -> _Made:
    """Pairs whose IoU is the threshold to the bit (kept: only a greater IoU suppresses)."""
    return _pairs(at, at.iou_threshold), _scores(at, above=1.0)


def _iou_above_limit(at: _Setting) -> _Made:
    """Pairs whose IoU is the next float above the threshold (suppressed).

    Above zero the next float is denormal, which a kernel may flush: a small overlap stands for it.
    None where the threshold is 1: nothing overlaps more.
    """
    above = np.nextafter(at.iou_threshold, np.float32(2))
    if above > 1:
        return None
    return _pairs(at, max(above, np.float32(2**-20))), _scores(at, above=1.0)


def _iou_below_limit(at: _Setting) -> _Made:
    """Pairs whose IoU is the last float below the threshold (kept)."""
    below = np.nextafter(at.iou_threshold, np.float32(-1))
    return _pairs(at, below), _scores(at, above=1.0)


def _score_at_limit(at: _Setting) -> _Made:
    """Scores on the threshold (dropped) and one float beside it (kept above, dropped below)."""
    low = np.nextafter(at.limit, np.float32(-np.inf))
    high = np.nextafter(at.limit, np.float32(np.inf))
    scores = at.rng.choice(np.array([low, at.limit, high], np.float32), _score_shape(at))
    return _clusters(at, _PIXELS), scores


def _zero_area(at: _Setting) -> _Made:
    """Points and lines, many of them equal, and boxes of no area inside boxes that have one."""
    corners = _clusters(at, _PIXELS)
    kind = at.rng.integers(0, 4, corners.shape[:2])
    corners[kind == 1, 2] = corners[kind == 1, 0]
    corners[kind == 2, 3] = corners[kind == 2, 1]
    corners[kind == 3, :] = np.float32(32)
    return corners, _scores(at, above=0.7)


def _clipped(at: _Setting) -> _Made:
    """Boxes clipped to an image that many lie outside of, as a decoder leaves them."""
    corners = np.clip(_clusters(at, _PIXELS) - np.float32(300), 0, np.float32(200))
    return corners, _scores(at, above=0.7)


def _reversed(at: _Setting) -> _Made:
    """Corners in any order: the operator takes any two diagonal corners. None in centre form."""
    if at.center_point_box:
        return None
    corners = _clusters(at, _PIXELS)
    for first in (0, 1):
        swap = at.rng.random(corners.shape[:2]) < 0.5
        corners[swap, first], corners[swap, first + 2] = (
            corners[swap, first + 2],
            corners[swap, first],
        )
    return corners, _scores(at)


def _negative_sizes(at: _Setting) -> _Made:
    """Centre form only: a negative width or height overlaps nothing, and is selected like others.

    Source: onnxruntime `non_max_suppression_helper.h`, which sorts corners but not centre boxes.
    """
    if not at.center_point_box:
        return None
    corners = _clusters(at, _PIXELS)
    for first in (0, 1):
        swap = at.rng.random(corners.shape[:2]) < 0.2
        corners[swap, first], corners[swap, first + 2] = (
            corners[swap, first + 2],
            corners[swap, first],
        )
    return corners, _scores(at)


def _nan_scores(at: _Setting) -> _Made:
    """A NaN score is never selected; the first box of every class has one."""
    scores = _scores(at)
    scores[at.rng.random(scores.shape) < 0.2] = np.nan
    scores[:, :, 0] = np.nan
    return _clusters(at, _PIXELS), scores


def _all_nan(at: _Setting) -> _Made:
    return _clusters(at, _PIXELS), np.full(_score_shape(at), np.nan)


def _infinite_scores(at: _Setting) -> _Made:
    scores = _scores(at)
    scores[at.rng.random(scores.shape) < 0.1] = np.inf
    scores[at.rng.random(scores.shape) < 0.1] = -np.inf
    return _clusters(at, _PIXELS), scores


def _logits(at: _Setting) -> _Made:
    """Scores of both signs: below zero they compete like any other."""
    return _clusters(at, _PIXELS), at.rng.normal(at.limit, 3.0, _score_shape(at))


def _negative_scores(at: _Setting) -> _Made:
    return _clusters(at, _PIXELS), -at.rng.random(_score_shape(at)) - np.float32(0.01)


def _none(at: _Setting) -> _Made:
    """Every score below the threshold (-inf where there is no threshold)."""
    low = at.limit - np.float32(0.5) if np.isfinite(at.score_threshold) else -np.inf
    return _clusters(at, _PIXELS), np.full(_score_shape(at), low)


def _one(at: _Setting) -> _Made:
    return _grid(at), _exactly(at, 1)


def _one_below_maximum(at: _Setting) -> _Made:
    return _grid(at), _exactly(at, max(at.max_output - 1, 0))


def _exactly_maximum(at: _Setting) -> _Made:
    return _grid(at), _exactly(at, at.max_output)


def _above_maximum(at: _Setting) -> _Made:
    return _grid(at), _exactly(at, min(at.max_output + 1, at.boxes))


def _duplicates_hide_others(at: _Setting) -> _Made:
    """Many copies of one best box, then disjoint ones: a preselection of the best starves here."""
    corners = _grid(at)
    scores = _scores(at, above=1.0)
    copies = at.boxes // 2
    corners[:, :copies] = corners[:, :1]
    scores[:, :, :copies] += np.float32(1.0)
    return corners, scores


def _last_class_only(at: _Setting) -> _Made:
    """One class has all the detections: a kernel that loses a class by its number shows here."""
    scores = _exactly(at, 0)
    scores[:, -1] = _scores(at)[:, -1]
    return _clusters(at, _PIXELS), scores


def _negative_coordinates(at: _Setting) -> _Made:
    return _clusters(at, _PIXELS) - np.float32(1000), _scores(at)


def _huge_coordinates(at: _Setting) -> _Made:
    """Up to 1e15, and some boxes around the origin: sums of coordinates and offsets lose them."""
    corners = _clusters(at, _PIXELS)
    corners[:, ::3] *= np.float32(1e12)
    return corners, _scores(at)


def _mixed_scales(at: _Setting) -> _Made:
    """Sizes from a thousandth to ten thousand within one class."""
    scale = np.float32(10) ** at.rng.integers(-3, 5, (at.batch, at.boxes, 1)).astype(np.float32)
    return _clusters(at, 1.0) * scale, _scores(at)


_SETS: tuple[tuple[str, Callable[[_Setting], _Made]], ...] = (
    ("random", _random),
    ("fractions", _fractions),
    ("sparse", _sparse),
    ("dense", _dense),
    ("disjoint", _disjoint),
    ("ties", _ties),
    ("all_equal", _all_equal),
    ("equal_scores_disjoint", _equal_scores_disjoint),
    ("iou_at_limit", _iou_at_limit),
    ("iou_above_limit", _iou_above_limit),
    ("iou_below_limit", _iou_below_limit),
    ("score_at_limit", _score_at_limit),
    ("zero_area", _zero_area),
    ("clipped", _clipped),
    ("reversed", _reversed),
    ("negative_sizes", _negative_sizes),
    ("nan_scores", _nan_scores),
    ("all_nan", _all_nan),
    ("infinite_scores", _infinite_scores),
    ("logits", _logits),
    ("negative_scores", _negative_scores),
    ("none", _none),
    ("one", _one),
    ("one_below_maximum", _one_below_maximum),
    ("exactly_maximum", _exactly_maximum),
    ("above_maximum", _above_maximum),
    ("duplicates_hide_others", _duplicates_hide_others),
    ("last_class_only", _last_class_only),
    ("negative_coordinates", _negative_coordinates),
    ("huge_coordinates", _huge_coordinates),
    ("mixed_scales", _mixed_scales),
)


def _score_shape(at: _Setting) -> tuple[int, int, int]:
    return at.batch, at.classes, at.boxes


def _scores(at: _Setting, above: float = 0.5, levels: int | None = None) -> Floats:
    """Scores around the limit, a share of them `above` it; `levels` of distinct distances."""
    shape = _score_shape(at)
    distance = (
        at.rng.random(shape)
        if levels is None
        else at.rng.integers(1, levels + 1, shape) / (levels + 1)
    )
    sign = np.where(at.rng.random(shape) < above, 1.0, -1.0)
    return (at.limit + sign * (distance * 0.9 + 0.01)).astype(np.float32)


def _exactly(at: _Setting, count: int) -> Floats:
    """Scores with `count` boxes of every class above the limit, the others below."""
    order = at.rng.permuted(np.broadcast_to(np.arange(at.boxes), _score_shape(at)), axis=-1)
    distance = (order + 1) / (at.boxes + 1)
    return np.where(order < count, at.limit + distance, at.limit - distance).astype(np.float32)


def _clusters(at: _Setting, extent: float, centres: int | None = None) -> Floats:
    """Corner boxes `float32[B, N, 4]` in groups that overlap in every degree."""
    groups = centres or max(at.boxes // 6, 1)
    middle = at.rng.random((at.batch, groups, 2)) * extent * 0.8 + extent * 0.1
    size = (at.rng.random((at.batch, groups, 2)) * 0.15 + 0.05) * extent
    member = at.rng.integers(0, groups, (at.batch, at.boxes))[..., None]
    middle = np.take_along_axis(middle, member, 1)
    size = np.take_along_axis(size, member, 1)
    middle = middle + at.rng.normal(0, 0.15, middle.shape) * size
    size = size * at.rng.uniform(0.7, 1.3, size.shape)
    return np.concatenate([middle - size / 2, middle + size / 2], -1).astype(np.float32)


def _grid(at: _Setting) -> Floats:
    """Corner boxes `float32[B, N, 4]`, no two of which touch."""
    width = int(np.ceil(np.sqrt(at.boxes)))
    index = np.arange(at.boxes)
    corner = np.stack([index // width, index % width], -1).astype(np.float32) * 4
    corners = np.concatenate([corner, corner + 3], -1)
    return np.broadcast_to(corners, (at.batch, at.boxes, 4)).copy()


def _pairs(at: _Setting, iou: np.float32) -> Floats:
    """Neighbours 2i and 2i + 1 have exactly this IoU in float32; pairs do not touch each other."""
    inner, outer = _lengths(np.clip(iou, np.float32(0), None))
    corners = np.zeros((at.batch, at.boxes, 4), np.float32)
    row = (np.arange(at.boxes) // 2 * 2).astype(np.float32)
    corners[..., 0] = row
    corners[..., 2] = row + 1
    corners[..., 3] = outer
    # An IoU of zero has no inner box: the second one touches the first from the right instead.
    corners[:, 1::2, 1] = 0 if inner else outer
    corners[:, 1::2, 3] = inner or 2 * outer
    return corners


def _lengths(iou: np.float32) -> tuple[np.float32, np.float32]:
    """Lengths (inner, outer) of two boxes of width 1, one inside the other, with this IoU.

    Small integers where the quotient allows (then nothing but the quotient rounds); else lengths
    between 1 and 2 for which the operator's own arithmetic gives the wanted float.

    Source: onnxruntime `non_max_suppression_helper.h`, SuppressByIOU.
    """
    share = Fraction(float(iou)).limit_denominator(1 << 12)
    if np.float32(share.numerator) / np.float32(share.denominator) == iou:
        return np.float32(share.numerator), np.float32(share.denominator)
    outer = (1 + np.arange(4096, dtype=np.float32) / 4096)[:, None]
    nearest = outer * iou
    inner = nearest + np.arange(-4, 5, dtype=np.float32) * np.spacing(nearest)
    # The inner box must be the inner one, and adding and taking it away must not change the sum.
    union = outer + inner - inner
    found = np.argwhere((inner / union == iou) & (union == outer) & (inner <= outer))
    if not len(found):
        raise ValueError(f"no pair of boxes has the IoU {iou!r} in float32")
    row, column = found[0]
    return inner[row, column], outer[row, 0]


def _to_centres(corners: NDArray[np.floating]) -> NDArray[np.floating]:
    """Corners `[..., 4]` as x centre, y centre, width, height (the corners being x first)."""
    low, high = corners[..., :2], corners[..., 2:]
    return np.concatenate([(low + high) / 2, high - low], -1)
