"""Every headless model in the shared folder, completed and run under onnxruntime."""

from dataclasses import replace

import numpy as np
import pytest

from bridge.heads import complete
from tests.heads.models import CASES, PHOTOS, Case, photo, runner, stated_best, stated_counts
from tests.heads.numpy_decode import DECODERS, detect
from tests.shared import needs_shared

pytestmark = needs_shared
by_file = pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)


@by_file
def test_finds_what_the_readme_lists(case: Case) -> None:
    completed = runner(complete(case.load(), case.head, case.options))
    counts = {}
    best = stated_best(case.file)
    assert best
    for name in PHOTOS:
        image, scale = photo(case, name)
        found = completed(image)
        counts[name] = int(found["num_detections"][0])
        for row, (label, score, box) in enumerate(best.get(name, [])):
            assert found["classes"][row] == label
            assert found["scores"][row] == pytest.approx(score, abs=0.02)
            assert found["boxes"][row] * (scale * 2) == pytest.approx(box, abs=2)
    assert tuple(counts.values()) == stated_counts(case.file)


@by_file
@pytest.mark.parametrize(
    ("score", "photos"), [(None, PHOTOS), (0.02, ("collage_a",))], ids=["as stated", "many"]
)
def test_equals_a_decode_in_numpy(case: Case, score: float | None, photos: tuple[str, ...]) -> None:
    """A low threshold brings in boxes by the hundred that suppress each other."""
    threshold = case.score if score is None else score
    options = replace(case.options, score_threshold=threshold)
    completed, original = runner(complete(case.load(), case.head, options)), runner(case.load())
    total = 0
    for name in photos:
        image, _ = photo(case, name)
        expected = detect(DECODERS[case.file](original(image)), threshold, case.iou)
        found = completed(image)
        assert len(found["scores"]) == len(expected.scores)
        np.testing.assert_array_equal(found["classes"], expected.classes)
        np.testing.assert_allclose(found["scores"], expected.scores, atol=2e-6)
        np.testing.assert_allclose(found["boxes"], expected.boxes, atol=2e-3)
        if expected.extras is not None:
            np.testing.assert_allclose(found["extras"], expected.extras, atol=2e-3)
        total += len(expected.scores)
    assert total >= (7 if score is None else 20)


@by_file
def test_says_the_type_of_every_output(case: Case) -> None:
    completed = runner(complete(case.load(), case.head, case.options))
    found = completed(photo(case, "collage_a")[0])
    rows = len(found["scores"])
    extras = {"extras": ((rows, 10), "float32")} if case.head == "yunet" else {}
    assert {name: (array.shape, array.dtype.name) for name, array in found.items()} == {
        "boxes": ((rows, 4), "float32"),
        "scores": ((rows,), "float32"),
        "classes": ((rows,), "int64"),
        **extras,
        "num_detections": ((1,), "int64"),
    }


@by_file
def test_nothing_found_is_no_rows(case: Case) -> None:
    completed = runner(complete(case.load(), case.head, case.options))
    found = completed(np.zeros_like(photo(case, "cat")[0]))
    assert [len(found[name]) for name in ("boxes", "scores", "classes")] == [0, 0, 0]
    assert found["num_detections"].tolist() == [0]


def test_further_columns_can_be_left_out() -> None:
    (case,) = (case for case in CASES if case.head == "yunet")
    image, _ = photo(case, "collage_a")
    whole = runner(complete(case.load(), case.head, case.options))(image)
    without = runner(complete(case.load(), case.head, replace(case.options, extras=False)))(image)
    assert set(whole) - set(without) == {"extras"}
    for name, array in without.items():
        np.testing.assert_array_equal(array, whole[name])


@by_file
def test_the_same_bytes_every_time(case: Case) -> None:
    first, second = (complete(case.load(), case.head, case.options) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )
