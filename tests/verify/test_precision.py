"""Average precision as COCO defines it, and what is taken as ground truth."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge.errors import TargetMissingError, UsageError
from bridge.verify.precision import Picture, average_precision, read_ground_truth


def _picture(*boxes: tuple[float, float, float, float], scores: tuple[float, ...] = ()) -> Picture:
    return Picture(
        np.array(boxes, np.float64).reshape(-1, 4),
        np.arange(len(boxes), dtype=np.int64) % 2,
        np.array(scores or np.linspace(0.9, 0.5, len(boxes))),
    )


A, B = (10.0, 10.0, 30.0, 40.0), (50.0, 20.0, 90.0, 60.0)
FAR = (200.0, 200.0, 220.0, 230.0)


def test_the_truth_itself_is_perfect() -> None:
    truth = [_picture(A, B), _picture(), _picture(B)]
    assert average_precision(truth, truth).mean == 1.0


def test_a_class_that_is_not_found_costs_its_share() -> None:
    assert average_precision([_picture(A, B)], [_picture(A)]).mean == pytest.approx(0.5)


def test_what_nobody_drew_costs_precision_by_its_score() -> None:
    """Of two detections of one class the better is wrong: precision 1/2 at every recall."""
    found = Picture(np.array([FAR, A]), np.zeros(2, np.int64), np.array([0.9, 0.8]))
    assert average_precision([_picture(A)], [found]).mean == pytest.approx(0.5)
    found = Picture(np.array([FAR, A]), np.zeros(2, np.int64), np.array([0.7, 0.8]))
    assert average_precision([_picture(A)], [found]).mean == 1.0


def test_a_box_counts_up_to_its_overlap() -> None:
    """Half a box too wide: IoU 2/3, which is enough at 0.50, 0.55, 0.60 and 0.65 of ten."""
    precision = average_precision([_picture(A)], [_picture((10, 10, 40, 40))])
    assert precision.at_50 == 1.0
    assert precision.mean == pytest.approx(0.4)


def test_nothing_found_or_nothing_there_is_no_precision() -> None:
    for truth, found in ((_picture(A), _picture()), (_picture(), _picture(A))):
        assert average_precision([truth], [found]).mean == 0.0


def test_more_than_a_hundred_detections_count() -> None:
    boxes = [(20.0 * i, 0.0, 20.0 * i + 10, 10.0) for i in range(300)]
    many = Picture(np.array(boxes), np.zeros(300, np.int64), np.linspace(0.9, 0.1, 300))
    assert average_precision([many], [many]).mean == 1.0


def test_a_crowd_is_neither_missed_nor_wrong() -> None:
    truth = Picture(np.array([A, B]), np.zeros(2, np.int64), crowd=np.array([False, True]))
    one = Picture(np.array([A]), np.zeros(1, np.int64), np.array([0.9]))
    both = Picture(np.array([A, B]), np.zeros(2, np.int64), np.array([0.8, 0.9]))
    assert average_precision([truth], [one]).mean == 1.0
    assert average_precision([truth], [both]).mean == 1.0


def test_classes_that_do_not_count_and_numbers_that_are_none_are_left_out() -> None:
    boxes = np.array([A, A, (np.nan, 0, 1, 1)])
    found = Picture(boxes, np.array([0, -1, 0]), np.array([0.5, 0.9, 0.9]))
    assert average_precision([_picture(A)], [found]).mean == 1.0


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(TargetMissingError, match="pycocotools"):
        average_precision([_picture(A)], [_picture(A)])


# Ground truth ---------------------------------------------------------------------------------


def _document() -> dict[str, Any]:
    return {
        "images": [{"id": 7, "file_name": "val/a.jpg"}, {"id": 9, "file_name": "b.jpg"}],
        "categories": [{"id": 40, "name": "cat"}, {"id": 3, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 40, "bbox": [1, 2, 3, 4], "iscrowd": 1},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [5, 6, 7, 8]},
        ],
    }


def test_ground_truth_is_read_by_file_name_and_category(tmp_path: Path) -> None:
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(_document()))
    truth = read_ground_truth(path)
    assert truth.ids == (3, 40)
    assert truth.categories == ("dog", "cat")
    assert set(truth.pictures) == {"a.jpg", "b.jpg"}
    assert not len(truth.pictures["b.jpg"].boxes)
    one = truth.pictures["a.jpg"]
    np.testing.assert_array_equal(one.boxes, [[1, 2, 4, 6], [5, 6, 12, 14]])
    assert one.labels.tolist() == [1, 0]
    assert one.crowd.tolist() == [True, False]


type Spoil = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("annotations"),
        lambda d: d.pop("images"),
        lambda d: d.pop("categories"),
        lambda d: d["annotations"][0].pop("bbox"),
        lambda d: d["annotations"][0].update(bbox=[1, 2, 3]),
        lambda d: d["annotations"][0].update(bbox=[1, 2, -3, 4]),
        lambda d: d["annotations"][0].update(bbox=[1, 2, float("nan"), 4]),
        lambda d: d["annotations"][0].update(bbox="none"),
        lambda d: d["annotations"][0].update(category_id=5),
        lambda d: d["annotations"][0].update(image_id=5),
        lambda d: d["images"].append({"id": 10, "file_name": "other/a.jpg"}),
        lambda d: d.update(images=3),
    ],
)
def test_what_is_no_ground_truth_is_refused_by_name(tmp_path: Path, spoil: Spoil) -> None:
    document = _document()
    spoil(document)
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"--ground-truth .*truth\.json"):
        read_ground_truth(path)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_what_is_no_json_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "truth.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"--ground-truth .*truth\.json"):
        read_ground_truth(path)
