"""Metadata of a TFLite file: when it is written, what it says, and what is refused."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from bridge import surgery
from bridge.errors import UsageError
from bridge.options import BoxLayout, BoxUnits, NmsForm, Normalization, Options
from bridge.targets.base import Lowered
from bridge.targets.tflite import TFLITE, metadata
from bridge.targets.tflite.contents import Contents, read

THREE_CLASSES = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[1,3,8,10] image) => (float[n,4] boxes, float[n] scores, int64[n] classes)
<float[4,3,1,1] w = {CORNERS}, float[3,3,1,1] v = {0.004,0,0,0,0.004,0,0,0,0.004},
 int64[3] flat = {1, 4, 80}, int64[3] by_class = {1, 3, 80},
 int64[1] limit = {5}, float[1] iou = {0.5}, float[1] score = {0.25}, int64[1] zero = {0},
 int64 class_column = {1}, int64 box_column = {2}>
{
  corners = Conv (image, w)
  logits = Conv (image, v)
  laid = Reshape (corners, flat)
  all = Transpose <perm = [0, 2, 1]> (laid)
  probable = Reshape (logits, by_class)
  rows = NonMaxSuppression (all, probable, limit, iou, score)
  classes = Gather <axis = 1> (rows, class_column)
  box = Gather <axis = 1> (rows, box_column)
  plain = Squeeze (all, zero)
  boxes = Gather <axis = 0> (plain, box)
  scores = GatherND (probable, rows)
}
"""

NO_CLASSES = THREE_CLASSES.replace(", int64[n] classes)", ")")
BYTES = Options(normalization=Normalization(), box_units=BoxUnits.FRACTIONS)


def _model(text: str = THREE_CLASSES) -> onnx.ModelProto:
    corners = ",".join(f"{0.001 * (i + 1):.3f}" for i in range(12))
    return parser.parse_model(text.replace("CORNERS", corners))


def _lower(folder: Path, options: Options, text: str = THREE_CLASSES) -> Lowered:
    operated = surgery.run(_model(text), options)
    return TFLITE.lower(operated.static, options, folder)


def _read(folder: Path, options: Options, text: str = THREE_CLASSES) -> Contents:
    return read(_lower(folder, options, text).path)


def _options(**changes: Any) -> Options:
    fields: dict[str, Any] = {
        "nms": NmsForm.POSTPROCESS,
        "normalization": Normalization((127.0,), (128.0,)),
        "box_units": BoxUnits.FRACTIONS,
        "box_layout": BoxLayout.XYXY,
    }
    return Options(**{**fields, **changes})


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("cat\ndog\nÅl\n", encoding="utf-8")
    return path


# No metadata where somebody would be told half of it.


@pytest.mark.parametrize(
    "changes",
    [
        {"nms": NmsForm.V4},
        {"normalization": None},
        {"box_units": None},
        {"box_units": BoxUnits.PIXELS},
        {"keep_nchw": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_without_labels_half_of_it_is_not_written(
    changes: Mapping[str, Any], tmp_path: Path
) -> None:
    assert _read(tmp_path, _options(**changes)).notes is None


def test_what_is_complete_is_written_without_being_asked(tmp_path: Path) -> None:
    lowered = _lower(tmp_path, _options())
    notes = read(lowered.path).notes
    assert notes is not None
    assert lowered.warnings == ()
    (image,) = notes.inputs
    assert (image.color_space, image.size) == ("RGB", (10, 8))
    assert (image.mean, image.std) == ((127.0,), (128.0,))
    boxes = notes.outputs[0]
    assert (boxes.name, boxes.corners, boxes.coordinates) == ("location", (1, 0, 3, 2), "RATIO")
    assert [note.name for note in notes.outputs[1:]] == [
        "category",
        "score",
        "number of detections",
    ]
    assert notes.labels == {}
    assert notes.min_parser_version == "1.0.0"


@pytest.mark.parametrize("form", [NmsForm.V4, NmsForm.POSTPROCESS])
def test_labels_lie_in_the_archive_and_belong_to_the_classes(
    form: NmsForm, tmp_path: Path, names: Path
) -> None:
    lowered = _lower(tmp_path, _options(nms=form, labels=names))
    with zipfile.ZipFile(lowered.path) as archive:
        (entry,) = archive.infolist()
        assert (entry.filename, entry.compress_type) == ("labels.txt", zipfile.ZIP_STORED)
        assert archive.read(entry).decode() == "cat\ndog\nÅl\n"
    found = read(lowered.path)
    assert found.notes is not None
    assert found.notes.labels == {"labels.txt": ("cat", "dog", "Ål")}
    labelled = [
        tensor.name
        for tensor, note in zip(found.outputs, found.notes.outputs, strict=True)
        if note.labels
    ]
    assert labelled == (["classes"] if form is NmsForm.V4 else ["detection_classes"])


def test_a_file_runs_as_it_did_without_metadata(tmp_path: Path, names: Path) -> None:
    image = np.random.default_rng(0).uniform(0, 255, (1, 8, 10, 3)).astype(np.float32)
    results = []
    for folder, options in (("plain", _options(box_units=None)), ("told", _options(labels=names))):
        (tmp_path / folder).mkdir()
        lowered = _lower(tmp_path / folder, options)
        with TFLITE.open(lowered.path) as session:
            results.append(session.run({"image": image}))
    plain, told = results
    assert plain.keys() == told.keys()
    assert plain["num_detections"].any()
    for name, array in plain.items():
        np.testing.assert_array_equal(array, told[name])


def test_same_model_same_labels_same_bytes(tmp_path: Path, names: Path) -> None:
    files = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        files.append(_lower(tmp_path / folder, _options(labels=names)).path.read_bytes())
    assert files[0] == files[1]


def test_who_asks_for_labels_hears_what_is_missing(tmp_path: Path, names: Path) -> None:
    lowered = _lower(tmp_path, _options(labels=names, normalization=None))
    (warning,) = lowered.warnings
    assert "--mean, --std" in warning


# Refused.


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read it: No such file"),
        (b"", "is empty"),
        (b"\n\n  \n", "is empty"),
        (b"cat\nd\xf6g\nfox\n", "byte 5 is not UTF-8"),
        (b"PK\3\4\0\0", "no text file"),
        (b"cat\n" * 300_000, "no text file"),
        (b"cat\ndog\n", "has 2 lines, and class numbers go up to 2: give at least 3"),
    ],
)
@pytest.mark.parametrize("form", [NmsForm.V4, NmsForm.POSTPROCESS])
def test_a_label_file_that_cannot_be_used(
    content: bytes | None, complaint: str, form: NmsForm, tmp_path: Path
) -> None:
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        _lower(tmp_path, _options(nms=form, labels=path))


def test_labels_need_an_output_of_classes(tmp_path: Path, names: Path) -> None:
    with pytest.raises(UsageError, match=r"none of the outputs \(boxes, scores, num_detections\)"):
        _lower(tmp_path, _options(nms=NmsForm.V4, labels=names), NO_CLASSES)


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfcat\r\n\r\ndog\r\n\r\n", b"cat\n\ndog", b"cat \n\n dog\n\n\n"]
)
def test_what_editors_do_to_a_label_file_does_not_count(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes(content)
    assert metadata.read_labels(path) == ("cat", "", "dog")
