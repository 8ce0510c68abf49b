"""How far a quantised file finds what the float source finds, and what it costs in precision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from bridge.detection.boxes import BoxColumns
from bridge.errors import UsageError
from bridge.verify.inputs import Photo
from bridge.verify.objects import Objects, pair
from bridge.verify.precision import OPTION, GroundTruth, Picture, average_precision

AP_DROP = 0.01
"""What average precision may fall by where there is ground truth and nobody says otherwise."""

LEAST_MATCHED = 0.5
"""Of all objects that either finds, the share that both must find: below it is another detector.

Networks that stand int8 badly were seen to match 11 of 16 with 3 extra; one whose classes are
shuffled matches by chance what it finds many of.
"""

_LEAST_AP = 0.05
"""Ground truth on which the float source itself is worse was made for something else."""

_FRACTION = 2.0
"""Coordinates that never exceed this are fractions: no detector's boxes are all 2 pixels small."""

_PROBED = 50
"""So many photos tell how outputs and ground truth fit together."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a user asks of a quantised file.

    Attributes:
        truth: what is on the photos.
        names: of the classes by number; none where numbers are categories in their order.
        max_ap_drop: what average precision may fall by; None: `AP_DROP` with ground truth, and no
            limit without.
    """

    truth: GroundTruth | None = None
    names: tuple[str, ...] = ()
    max_ap_drop: float | None = None

    @property
    def limit(self) -> float | None:
        """What average precision is held to; None where nothing was asked."""
        if self.max_ap_drop is None and self.truth is not None:
            return AP_DROP
        return self.max_ap_drop


@dataclass(frozen=True, slots=True)
class Found:
    """One set of inputs: what the float source finds in it, and what the file finds."""

    inputs: str
    threads: int
    generated: bool
    photo: Photo | None
    source: Objects
    file: Objects
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a quantised file finds what the float source finds; of thread counts, the worst.

    Attributes:
        judged_on: which inputs, in words.
        inputs: their names.
        found: the float source's objects there.
        matched: with the file's, one to one: the same class, IoU above 0.5, best score first.
        extra: the file's alone.
        mean_iou: of the matched; None where there are none.
        worst_score: the largest difference of two scores.
        worst_box: the largest difference of two coordinates.
        truth: what average precision is measured against, in words; None where it is not.
        source_ap: the float source's; 1 where its own objects are the truth.
        ap: the file's.
        limit: on the difference of these.
        notes: what was assumed, and what is not shown.
        problems: what breaks a limit.
        boxes: where the graph says that the boxes are.
    """

    judged_on: str
    inputs: tuple[str, ...]
    found: int
    matched: int
    extra: int
    mean_iou: float | None
    worst_score: float
    worst_box: float
    truth: str | None = None
    source_ap: float | None = None
    ap: float | None = None
    limit: float | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    boxes: BoxColumns | None = None

    @property
    def lost(self) -> int:
        """The float source's alone."""
        return self.found - self.matched

    @property
    def ap_drop(self) -> float | None:
        """What average precision fell by."""
        if self.source_ap is None or self.ap is None:
            return None
        return self.source_ap - self.ap

    @property
    def warnings(self) -> tuple[str, ...]:
        """For the manifest: that nothing was held to a limit."""
        if self.limit is not None:
            return ()
        return (
            f"no --max-ap-drop: {self.matched} of {self.found} detections of "
            f"the source matched, {self.extra} extra on {self.judged_on}; nothing was held to "
            "a limit",
        )

    def as_dict(self) -> dict[str, object]:
        """The manifest's entry."""
        boxes = self.boxes
        return {
            "judged_on": self.judged_on,
            "inputs": len(self.inputs),
            "found": self.found,
            "matched": self.matched,
            "lost": self.lost,
            "extra": self.extra,
            "mean_iou": self.mean_iou,
            "worst_score": self.worst_score,
            "worst_box": self.worst_box,
            "truth": self.truth,
            "source_ap": self.source_ap,
            "ap": self.ap,
            "ap_drop": self.ap_drop,
            "limit": self.limit,
            "notes": list(self.notes),
            "boxes": None
            if boxes is None
            else {"output": boxes.output, "columns": boxes.columns, "first": boxes.first},
        }


def agreement(
    seen: Sequence[Found],
    terms: Terms,
    notes: tuple[str, ...] = (),
    *,
    y_first: bool | None = None,
    boxes: BoxColumns | None = None,
) -> Agreement:
    """Match objects and measure average precision.

    Args:
        seen: every set of inputs on every number of threads.
        terms: what is asked.
        notes: to be added to.
        y_first: whether y comes first in the boxes; None where it is not known.
        boxes: where the graph says that the boxes are.

    Raises:
        UsageError: the ground truth does not fit the photos or what the model finds.
        TargetMissingError: pycocotools is needed and not installed.
    """
    counting, words, told = _counting(seen, terms, y_first)
    threads = list(dict.fromkeys(one.threads for one in counting))
    runs = [[one for one in counting if one.threads == number] for number in threads]
    found = sum(len(one.source) for one in runs[0]) if runs else 0
    fit = None
    if terms.truth is not None and found:
        fit = _fitted(terms.truth, runs[0], terms.names, y_first)
        told = (*told, fit.note)
    measured = [
        replace(_measured(run, terms.limit, fit), judged_on=words, notes=(*notes, *told))
        for run in runs
    ]
    worst = max(
        measured,
        key=lambda one: (one.ap_drop or 0.0, -one.matched, one.extra),
        default=Agreement(words, (), 0, 0, 0, None, 0.0, 0.0, limit=terms.limit, notes=told),
    )
    return replace(worst, problems=tuple(_problems(worst)), boxes=boxes)


def _counting(
    seen: Sequence[Found], terms: Terms, y_first: bool | None
) -> tuple[list[Found], str, tuple[str, ...]]:
    """The sets that count: the user's, photos fed in the way in which the source is best.

    That is where its precision is highest, or else where it finds most: it is the source that must
    be right, and nobody says which way is.

    Returns:
        Them, what they are in words, and what is to be noted.
    """
    given = [one for one in seen if not one.generated]
    if not given:
        noise = [one for one in seen if len(one.source)]
        note = (
            "judged on generated noise, which shows little of what a network detects: give "
            "photos or arrays with --images or --inputs"
        )
        return noise, "generated noise", (note,)
    by_way: dict[str, int] = {}
    for one in given:
        if one.photo is not None:
            by_way[one.photo.fed] = by_way.get(one.photo.fed, 0) + len(one.source)
    ways = {name: [one for one in given if _way(one) == name] for name in by_way}
    best = max(by_way.values(), default=0)
    way = next((name for name in by_way if by_way[name] == best), None)
    merit = "detects most"
    if terms.truth is not None and len(ways) > 1:
        precise = {name: _precision(run, terms, y_first) for name, run in ways.items()}
        if max(precise.values()) > 0:
            way, merit = max(precise, key=lambda name: precise[name]), "is most precise"
    counting = [one for one in given if _way(one) in (None, way)]
    photos = len({one.inputs for one in counting if one.photo is not None})
    arrays = len({one.inputs for one in counting if one.photo is None})
    words = [f"{photos} photos ({way})"] if photos else []
    words += [f"{arrays} sets of arrays"] if arrays else []
    note = (
        f"photos were fed as {way}, of {', '.join(by_way)} the way in which the source {merit}; "
        "--mean, --std and --normalize say how it is"
    )
    return counting, " and ".join(words), (note,) if len(by_way) > 1 else ()


def _way(one: Found) -> str | None:
    return None if one.photo is None else one.photo.fed


def _precision(run: Sequence[Found], terms: Terms, y_first: bool | None) -> float:
    """The source's own, however its outputs are read; 0 where it is bad at the ground truth."""
    assert terms.truth is not None
    first = [one for one in run if one.threads == run[0].threads]
    try:
        return _fitted(terms.truth, first, terms.names, y_first).source_ap
    except UsageError:
        return 0.0


def _measured(run: Sequence[Found], limit: float | None, fit: "_Fit | None") -> Agreement:
    """The figures of one number of threads."""
    pairs = [pair(one.source, one.file) for one in run]
    overlap = np.concatenate([np.zeros(0), *(one.overlaps for one in pairs)])
    off = [apart(one, both.rows) for one, both in zip(run, pairs, strict=True)]
    made = Agreement(
        judged_on="",
        inputs=tuple(one.inputs for one in run),
        found=sum(len(one.source) for one in run),
        matched=len(overlap),
        extra=sum(len(one.file) for one in run) - len(overlap),
        mean_iou=float(overlap.mean()) if len(overlap) else None,
        worst_box=max((box for box, _ in off), default=0.0),
        worst_score=max((score for _, score in off), default=0.0),
        limit=limit,
    )
    if limit is None or not made.found:
        return made
    if fit is not None:
        truth = [fit.truth.pictures[_file(one)] for one in fit.on(run)]
        file = [fit.picture(one, one.file) for one in fit.on(run)]
        words = f"ground truth of {len(truth)} photos"
        return replace(
            made, truth=words, source_ap=fit.source_ap, ap=average_precision(truth, file).mean
        )
    ap = average_precision(*_own(run)).mean
    return replace(made, truth="the source's own detections", source_ap=1.0, ap=ap)


def apart(one: Found, rows: NDArray[np.int64]) -> tuple[float, float]:
    """The largest difference of a coordinate, and of a score."""
    source, file = rows.T
    boxes = np.abs(one.source.boxes[source] - one.file.boxes[file])
    scores = np.abs(one.source.scores[source] - one.file.scores[file])
    return float(boxes.max(initial=0)), float(scores.max(initial=0))


def _own(run: Sequence[Found]) -> tuple[list[Picture], list[Picture]]:
    """The source's objects as the truth, and the file's; equal labels are equal classes."""
    parts = [labels for one in run for labels in (one.source.labels, one.file.labels)]
    _, numbers = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
    classes = np.split(numbers.astype(np.int64), np.cumsum([len(one) for one in parts])[:-1])
    pairs = list(zip(run, classes[::2], classes[1::2], strict=True))
    return (
        [Picture(one.source.boxes, source) for one, source, _ in pairs],
        [Picture(one.file.boxes, file, one.file.scores) for one, _, file in pairs],
    )


def _problems(one: Agreement) -> Iterator[str]:
    drop, limit = one.ap_drop, one.limit
    if drop is not None and limit is not None:
        if drop > limit:
            yield (
                f"average precision falls by {drop:.4f}, from {one.source_ap:.4f} to "
                f"{one.ap:.4f} ({one.truth}), and --max-ap-drop allows {limit:g}: "
                f"{one.matched} of {one.found} detections matched, {one.extra} extra"
            )
    elif one.matched < LEAST_MATCHED * (one.found + one.extra) and one.found:
        yield (
            f"{one.matched} of {one.found} detections of the source matched on "
            f"{one.judged_on}, {one.extra} extra: both find less than half of what either finds, "
            "which is another detector"
        )


# Ground truth ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fit:
    """How objects in outputs become pictures that ground truth can be held to.

    Attributes:
        turn: y comes first in the boxes.
        fractions: boxes are fractions of the picture; otherwise pixels of the input.
        column: of the labels, the one of the class; None: all are of the one category.
        numbers: class numbers to places in the categories.
    """

    truth: GroundTruth
    turn: bool
    fractions: bool
    column: int | None
    numbers: dict[int, int]
    note: str = ""
    source_ap: float = 0.0

    def on(self, run: Sequence[Found]) -> list[Found]:
        """The photos that there is ground truth of."""
        return [one for one in run if one.photo is not None and _file(one) in self.truth.pictures]

    def picture(self, one: Found, objects: Objects) -> Picture:
        """Objects in pixels of the photo."""
        photo = one.photo
        assert photo is not None
        turned = objects.turned() if self.turn else objects
        width, height = photo.sizes[0]
        unit = (1, 1) if self.fractions else (photo.width, photo.height)
        labels: NDArray[np.int64] = np.zeros(len(objects), np.int64)
        if self.column is not None:
            given = objects.labels[:, self.column].tolist()
            labels = np.array([self.numbers.get(number, -1) for number in given], np.int64)
        scale = np.array([width / unit[0], height / unit[1]] * 2)
        return Picture(turned.boxes * scale, labels, turned.scores)


def _file(one: Found) -> str:
    return one.photo.files[0] if one.photo is not None else ""


def _fitted(
    truth: GroundTruth, run: Sequence[Found], names: tuple[str, ...], y_first: bool | None
) -> _Fit:
    """How outputs are to be read so that the float source's precision is best.

    No graph tells whether x or y comes first, nor whether classes are numbered as categories come
    or by their ids; that a source is right is what a quantised file is held to.

    Raises:
        UsageError: nothing is known of the photos, or the source is bad at it however it is read.
    """
    probe = _Fit(truth, turn=False, fractions=True, column=None, numbers={})
    photos = probe.on(run)
    _check_photos(truth, run, photos)
    largest = max((np.abs(one.source.boxes).max(initial=0) for one in photos), default=0.0)
    columns: list[int | None] = [*range(photos[0].source.labels.shape[1])]
    if not columns and len(truth.categories) == 1:
        columns = [None]
    if not columns:
        raise UsageError(
            f"{OPTION} {truth.path} has {len(truth.categories)} categories, and the outputs hold "
            "no classes"
        )
    turns = (False, True) if y_first is None else (y_first,)
    candidates = [
        replace(probe, turn=turn, fractions=bool(largest <= _FRACTION), column=column, numbers=kind)
        for turn, column, kind in product(turns, columns, _numberings(truth, names))
    ]
    best = max(candidates, key=lambda fit: _source_ap(fit, photos[:_PROBED]))
    ap = _source_ap(best, photos)
    if ap < _LEAST_AP:
        raise UsageError(
            f"{OPTION} {truth.path}: the source itself has an average precision of {ap:.4f} "
            f"on {len(photos)} photos, so this is not what it was made for, or it is fed or "
            "numbered otherwise: classes are numbered as categories come by id (--labels names "
            "them), boxes are x, y, width, height in pixels of the photo, and --mean, --std, "
            "--normalize and --channel-order say how photos are fed"
        )
    order = "y before x" if best.turn else "x before y"
    unit = "fractions" if best.fractions else "pixels of the input"
    note = f"held to ground truth, boxes are {order}, in {unit}"
    return replace(best, source_ap=ap, note=note)


def _check_photos(truth: GroundTruth, run: Sequence[Found], photos: Sequence[Found]) -> None:
    if any(one.photo is not None and len(one.photo.files) > 1 for one in run):
        raise UsageError(
            f"{OPTION}: the model takes several photos at once, and which detection is of which "
            "is not read; convert it for one with --input-shape, or leave the option out"
        )
    if not photos:
        known = ", ".join(sorted(truth.pictures)[:3])
        raise UsageError(
            f"{OPTION} {truth.path}: it says nothing of any of the --images; it knows {known}"
        )
    files = [_file(one) for one in run if one.photo is not None]
    if twice := sorted({file for file in files if files.count(file) > 1}):
        raise UsageError(f"{OPTION}: two of the --images are called {twice[0]}; rename one")
    if not any(len(truth.pictures[_file(one)].boxes) for one in photos):
        raise UsageError(f"{OPTION} {truth.path}: there is nothing on any of the --images")


def _numberings(truth: GroundTruth, names: tuple[str, ...]) -> list[dict[int, int]]:
    """Class numbers to places in the categories, in every way that may be meant."""
    places = range(len(truth.categories))
    if not names:
        in_order = dict(zip(places, places, strict=True))
        by_id = dict(zip(truth.ids, places, strict=True))
        return [in_order, by_id] if in_order != by_id else [in_order]
    known = {name: place for place, name in enumerate(truth.categories)}
    numbers = {number: known[name] for number, name in enumerate(names) if name in known}
    if not numbers:
        raise UsageError(
            f"{OPTION} {truth.path}: none of its categories ({', '.join(truth.categories[:3])}) is "
            f"in --labels ({', '.join(names[:3])})"
        )
    return [numbers]


def _source_ap(fit: _Fit, photos: Sequence[Found]) -> float:
    return average_precision(
        [fit.truth.pictures[_file(one)] for one in photos],
        [fit.picture(one, one.source) for one in photos],
    ).mean
