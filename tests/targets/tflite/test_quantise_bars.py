"""What quantised files may lose, held on real detectors by the script that measures it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bridge.options import Quantize
from bridge.targets.tflite import quantise_process
from scripts import pictures
from scripts.average_precision import Detections
from scripts.measure_quantised import (
    MOST_LOST,
    SCENES,
    Agreement,
    Measured,
    agreement,
    detectors,
    failures,
    measure,
    table,
)
from tests.shared import SHARED, needs_shared

MISSING = quantise_process.missing(None) or pictures.missing()
needs_both = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def found(*rows: tuple[float, int, float]) -> Detections:
    """Boxes 10 wide from x on, with their labels and scores."""
    return Detections(
        np.array([[x, 0, x + 10, 10] for x, _, _ in rows], np.float32).reshape(-1, 4),
        np.array([score for _, _, score in rows], np.float32),
        np.array([label for _, label, _ in rows], np.int64),
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((0, 1, 0.9), (50, 2, 0.5)), (2, 0, 0)),
        (((50, 2, 0.5), (0, 1, 0.9)), (2, 0, 0)),
        (((3, 1, 0.9), (50, 2, 0.5)), (2, 0, 0)),
        (((4, 1, 0.9), (50, 2, 0.5)), (1, 1, 1)),
        (((0, 2, 0.9), (50, 2, 0.5)), (1, 1, 1)),
        (((0, 1, 0.9), (0, 1, 0.8), (50, 2, 0.5)), (2, 0, 1)),
        ((), (0, 2, 0)),
    ],
)
def test_an_object_is_found_again_by_class_and_overlap(
    rows: tuple[tuple[float, int, float], ...], expected: tuple[int, int, int]
) -> None:
    right = found((0, 1, 0.9), (50, 2, 0.5))
    told = agreement([right], [found(*rows)])
    assert (told.matched, told.lost, told.extra) == expected


def test_pictures_are_matched_one_by_one() -> None:
    one, none = found((0, 1, 0.9)), found()
    assert agreement([one, none], [none, one]) == Agreement(0, 1, 1, 0.0)
    assert agreement([one], [found((0, 1, 0.7))]).score == pytest.approx(0.2)


def row(form: Quantize, lost: int, precision: float | None, name: str = "yolox-nano") -> Measured:
    return Measured(name, form, 1, None, 1.0, Agreement(16 - lost, lost, 0, 0.0), precision)


def test_what_is_lost_is_told() -> None:
    kept = [
        row(Quantize.NONE, 0, 0.69),
        row(Quantize.INT8, 1, 0.681),
        row(Quantize.WEIGHTS, 0, 0.6),
        row(Quantize.INT8, 9, None, "rtmdet-nano"),
    ]
    assert failures(kept) == []
    assert "| yolox-nano | int8 | 1 | - | 1.00 | 15 | 1 | 0 |" in table(kept)
    assert len(failures([row(Quantize.INT8, 2, None)])) == 1
    assert len(failures([row(Quantize.WEIGHTS, 1, None)])) == 1
    assert len(failures([row(Quantize.NONE, 0, 0.69), row(Quantize.INT8, 0, 0.679)])) == 1


@pytest.mark.skipif(pictures.missing() is not None, reason=str(pictures.missing()))
@needs_shared
def test_calibration_has_none_of_the_judged_photos() -> None:
    def small(picture: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.asarray(picture.convert("L").resize((16, 16)), np.float64)

    judged = [small(picture) for picture in pictures.photos(SHARED / "photos")]
    assert len(judged) == 5
    again = pictures.others()
    for first, second in zip(pictures.others(), again, strict=True):
        assert first.tobytes() == second.tobytes()
    assert min(np.abs(small(one) - photo).mean() for one in again for photo in judged) > 10


@needs_both
@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("shapes", (Quantize.WEIGHTS, Quantize.DYNAMIC, Quantize.INT8, Quantize.FP16)),
        ("yolox-nano", (Quantize.WEIGHTS, Quantize.INT8)),
    ],
)
def test_quantised_detectors_lose_no_more_than_they_may(
    name: str, forms: tuple[Quantize, ...], tmp_path: Path
) -> None:
    detector = next(one for one in detectors(SHARED / "models") if one.name == name)
    rows = measure(detector, (Quantize.NONE, *forms), SHARED / "photos", SCENES, tmp_path)
    assert failures(rows) == []
    exact, *narrow = rows
    assert exact.agreement.lost == exact.agreement.extra == 0
    assert all(one.size < exact.size and one.narrow is not None for one in narrow)
    if detector.feeding is not None:
        assert exact.agreement.matched == 16
        assert any((name, form) in MOST_LOST for form in forms)
    else:
        assert exact.precision is not None
        assert exact.precision > 0.6
