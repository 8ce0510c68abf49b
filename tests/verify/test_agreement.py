"""What a quantised file finds beside the float source, and how ground truth is held to both."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bridge.errors import UsageError
from bridge.verify.agreement import AP_DROP, Agreement, Found, Terms, agreement
from bridge.verify.inputs import Photo
from bridge.verify.objects import Objects
from bridge.verify.precision import GroundTruth, Picture

SIZE = (640, 480)
INPUT = (160, 120)
IDS = (3, 7, 12)
NAMES = ("cat", "dog", "cup")


def _objects(seed: int, rows: int = 6) -> Objects:
    """Objects apart from each other, in pixels of the input, x first."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(12)[:rows]
    low = np.stack([cells % 4 * 40 + 2, cells // 4 * 40 + 4], axis=1).astype(np.float64)
    boxes = np.hstack([low, low + 12 + rng.random((rows, 2)) * 20])
    scores = np.sort(rng.uniform(0.3, 1, rows))[::-1]
    return Objects(boxes, scores, rng.integers(0, 3, (rows, 1)))


def _photo(name: str, fed: str = "as fed") -> Photo:
    return Photo((name,), (SIZE,), *INPUT, fed)


def _found(
    seed: int,
    file: Objects | None = None,
    *,
    name: str = "",
    fed: str = "as fed",
    threads: int = 1,
) -> Found:
    source = _objects(seed)
    name = name or f"{seed}.jpg"
    photo = _photo(name, fed)
    return Found(f"{name} ({fed})", threads, False, photo, source, source if file is None else file)


def _picture(objects: Objects) -> Picture:
    scale = np.array([SIZE[0] / INPUT[0], SIZE[1] / INPUT[1]] * 2)
    return Picture(objects.boxes * scale, objects.labels[:, 0])


def _truth(*seeds: int) -> GroundTruth:
    pictures = {f"{seed}.jpg": _picture(_objects(seed)) for seed in seeds}
    return GroundTruth(Path("truth.json"), pictures, IDS, NAMES)


def _without(objects: Objects, row: int) -> Objects:
    kept = np.arange(len(objects)) != row
    return Objects(objects.boxes[kept], objects.scores[kept], objects.labels[kept])


def _relabelled(objects: Objects) -> Objects:
    return replace(objects, labels=(objects.labels + 1) % 3)


# Counting


def test_the_same_objects_are_all_matched() -> None:
    told = agreement([_found(0), _found(1)], Terms())
    assert (told.found, told.matched, told.lost, told.extra) == (12, 12, 0, 0)
    assert told.mean_iou == 1.0
    assert told.worst_score == told.worst_box == 0.0
    assert not told.problems
    assert told.ap is None
    assert "12 of 12 detections" in told.warnings[0]


def test_lost_extra_and_moved_are_told_apart() -> None:
    source = _objects(0)
    file = replace(_without(source, 2), scores=_without(source, 2).scores - 0.125)
    file = replace(file, boxes=file.boxes + np.array([0.5, 0, 0.5, 0]))
    more = Objects(
        np.vstack([file.boxes, [[500, 500, 510, 510]]]),
        np.append(file.scores, 0.1),
        np.vstack([file.labels, [[0]]]),
    )
    told = agreement([_found(0, more)], Terms())
    assert (told.matched, told.lost, told.extra) == (5, 1, 1)
    assert told.worst_score == pytest.approx(0.125)
    assert told.worst_box == pytest.approx(0.5)
    assert told.mean_iou is not None
    assert 0.9 < told.mean_iou < 1


def test_the_worst_number_of_threads_is_told() -> None:
    runs = [_found(0), _found(0, _without(_objects(0), 0), threads=4)]
    assert agreement(runs, Terms()).matched == 5
    assert agreement(runs, Terms(max_ap_drop=0.0)).problems


def test_below_half_it_is_another_detector() -> None:
    three = _objects(0)
    for row in (5, 4, 3):
        three = _without(three, row)
    assert not agreement([_found(0, three)], Terms()).problems
    assert "another detector" in agreement([_found(0, _without(three, 0))], Terms()).problems[0]
    assert (
        "another detector" in agreement([_found(0, _relabelled(_objects(0)))], Terms()).problems[0]
    )


def test_photos_count_in_the_way_in_which_the_source_finds_most() -> None:
    none = _without(_without(_objects(0), 0), 0)
    poor = replace(_found(0, fed="0..1"), source=none, file=none)
    told = agreement([poor, _found(0, fed="0..255")], Terms())
    assert told.inputs == ("0.jpg (0..255)",)
    assert told.judged_on == "1 photos (0..255)"
    assert "0..1" in told.notes[0]


def test_noise_counts_only_where_there_is_nothing_else() -> None:
    noise = replace(_found(3, _relabelled(_objects(3))), generated=True, photo=None)
    assert agreement([noise, _found(0)], Terms()).found == 6
    told = agreement([noise], Terms())
    assert told.found == 6
    assert "generated noise" in told.notes[0]
    empty = replace(noise, source=Objects(np.zeros((0, 4)), np.zeros(0), np.zeros((0, 1), int)))
    assert agreement([empty], Terms()).found == 0


# Precision against the source's own


def test_a_limit_holds_precision_to_the_sources_own_detections() -> None:
    whole = agreement([_found(0), _found(1)], Terms(max_ap_drop=0.0))
    assert (whole.source_ap, whole.ap, whole.ap_drop) == (1.0, 1.0, 0.0)
    assert not whole.problems
    assert not whole.warnings
    runs = [_found(0, _without(_objects(0), 0)), _found(1)]
    drop = agreement(runs, Terms(max_ap_drop=1.0)).ap_drop
    assert drop is not None
    assert 0 < drop < 0.5
    assert not agreement(runs, Terms(max_ap_drop=drop)).problems
    problem = agreement(runs, Terms(max_ap_drop=drop * 0.9)).problems[0]
    assert "average precision falls by" in problem
    assert "--max-ap-drop" in problem


# Ground truth


def _held(runs: Sequence[Found], truth: GroundTruth, **more: object) -> Agreement:
    return agreement(runs, Terms(truth), **more)  # type: ignore[arg-type]  # keywords of few types


def test_ground_truth_is_held_to_both_with_a_limit_by_default() -> None:
    told = _held([_found(0), _found(1)], _truth(0, 1))
    assert told.limit == AP_DROP
    assert told.source_ap == told.ap == 1.0
    assert told.truth == "ground truth of 2 photos"
    assert "x before y, in pixels" in told.notes[-1]
    assert not told.problems
    worse = _held([_found(0, _without(_objects(0), 0)), _found(1)], _truth(0, 1))
    assert worse.problems


def test_ground_truth_tells_how_photos_are_fed() -> None:
    """What finds more is not what is right."""
    many = _objects(7, 12)
    wrong = replace(_found(0, fed="0..255"), source=many, file=many)
    told = _held([wrong, _found(0, fed="0..1")], _truth(0))
    assert told.judged_on == "1 photos (0..1)"
    assert "the way in which the source is most precise" in told.notes[0]
    with pytest.raises(UsageError, match="not what it was made for"):
        _held([wrong, replace(wrong, photo=_photo("0.jpg", "0..1"))], _truth(0))


def test_a_file_may_be_better_than_its_source() -> None:
    source = _without(_objects(0), 0)
    told = _held([replace(_found(0, _objects(0)), source=source)], _truth(0))
    assert told.ap_drop is not None
    assert told.ap_drop < 0
    assert not told.problems


def test_only_photos_that_are_known_count_for_precision() -> None:
    told = _held([_found(0), _found(1, _relabelled(_objects(1)))], _truth(0))
    assert told.ap == 1.0
    assert told.matched == 6


def _as(change: str, objects: Objects) -> Objects:
    match change:
        case "turned":
            return objects.turned()
        case "fractions":
            return replace(objects, boxes=objects.boxes / np.array([*INPUT, *INPUT]))
        case "ids":
            return replace(objects, labels=np.array(IDS)[objects.labels])
        case "batch":
            return replace(objects, labels=np.hstack([0 * objects.labels, objects.labels]))
    return objects


@pytest.mark.parametrize("change", ["none", "turned", "fractions", "ids", "batch"])
def test_outputs_are_read_as_fits_the_truth_best(change: str) -> None:
    runs = [
        replace(_found(seed), source=_as(change, _objects(seed)), file=_as(change, _objects(seed)))
        for seed in (0, 1)
    ]
    assert _held(runs, _truth(0, 1)).ap == 1.0


def test_where_the_order_of_axes_is_known_no_other_is_tried() -> None:
    assert _held([_found(0)], _truth(0), y_first=False).ap == 1.0
    with pytest.raises(UsageError, match="not what it was made for"):
        _held([_found(0)], _truth(0), y_first=True)


def test_labels_name_the_categories() -> None:
    names = ("cup", "background", "cat", "dog")
    numbers = np.array([names.index(name) for name in NAMES])
    renamed = replace(_objects(0), labels=numbers[_objects(0).labels])
    runs = [replace(_found(0), source=renamed, file=renamed)]
    assert agreement(runs, Terms(_truth(0), names)).ap == 1.0
    with pytest.raises(UsageError, match="none of its categories"):
        agreement(runs, Terms(_truth(0), ("bird", "car")))


def test_ground_truth_that_does_not_fit_is_refused() -> None:
    far = replace(_objects(0), boxes=_objects(0).boxes + 1000)
    with pytest.raises(UsageError, match=r"nothing of any of the --images; it knows 5\.jpg"):
        _held([_found(0)], _truth(5))
    with pytest.raises(UsageError, match="not what it was made for"):
        _held([_found(0)], replace(_truth(0), pictures={"0.jpg": _picture(_relabelled(far))}))
    empty = Picture(np.zeros((0, 4)), np.zeros(0, np.int64))
    with pytest.raises(UsageError, match="there is nothing on any"):
        _held([_found(0)], replace(_truth(0), pictures={"0.jpg": empty}))
    two = Photo(("0.jpg", "1.jpg"), (SIZE, SIZE), *INPUT, "as fed")
    with pytest.raises(UsageError, match="several photos at once"):
        _held([replace(_found(0), photo=two)], _truth(0))
    with pytest.raises(UsageError, match=r"two of the --images are called 0\.jpg"):
        _held([_found(0), _found(0)], _truth(0))
    plain = replace(_objects(0), labels=np.zeros((6, 0), np.int64))
    with pytest.raises(UsageError, match="no classes"):
        _held([replace(_found(0), source=plain, file=plain)], _truth(0))


def test_one_category_needs_no_classes() -> None:
    plain = replace(_objects(0), labels=np.zeros((6, 0), np.int64))
    picture = replace(_picture(_objects(0)), labels=np.zeros(6, np.int64))
    truth = GroundTruth(Path("t.json"), {"0.jpg": picture}, (1,), ("face",))
    assert _held([replace(_found(0), source=plain, file=plain)], truth).ap == 1.0
