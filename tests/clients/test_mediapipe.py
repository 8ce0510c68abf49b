"""MediaPipe Tasks' ObjectDetector loads our files and finds what onnxruntime finds."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image

from bridge.completion import Completion, completed
from bridge.heads import HeadOptions
from bridge.model import load
from bridge.options import (
    BoxUnits,
    NmsForm,
    Normalization,
    Options,
    Outputs,
    Quantization,
    Quantize,
)
from bridge.pipeline import Checks, convert
from bridge.preprocess import ChannelOrder, InputDtype, InputLayout, PreprocessOptions
from tests.clients.environment import FOLDER, PYTHON, lines_of, needs_clients
from tests.shared import SHARED, needs_shared

pytestmark = [needs_shared, needs_clients]

COLLAGE = SHARED / "photos" / "collage_a.jpg"
COCO = FOLDER / "coco_names.txt"


@dataclass(frozen=True)
class Case:
    """A headless model of the shared ones, fed bytes that the graph normalises.

    Attributes:
        found: labels on the collage and how often, as models/README.md has them.
    """

    file: str
    head: str
    size: tuple[int, int]
    found: Mapping[str, int]
    preprocess: PreprocessOptions
    overrides: tuple[str, ...] = ()
    score: float | None = None

    def completion(self, preprocess: PreprocessOptions) -> Completion:
        options = HeadOptions(score_threshold=self.score, overrides=self.overrides)
        return Completion(self.head, options, preprocess, BoxUnits.FRACTIONS)


ULTRAFACE = PreprocessOptions(InputDtype.UINT8, (127,), (128,))
FACES: dict[str, Any] = {"size": (320, 240), "found": {"face": 6}, "preprocess": ULTRAFACE}
CASES = {
    "ultraface-rfb": Case(
        "ultraface-rfb-320.onnx",
        "boxes",
        overrides=("box.units=fractions", "background=first"),
        score=0.7,
        **FACES,
    ),
    "ultraface-slim": Case("ultraface-slim-320-raw.onnx", "ssd", **FACES),
    "yolox-nano": Case(
        "yolox-nano-416.onnx",
        "yolox",
        size=(416, 416),
        found={"person": 5, "cat": 1, "cup": 1, "tie": 1, "dining table": 1},
        preprocess=PreprocessOptions(InputDtype.UINT8, channel_order=ChannelOrder.BGR),
    ),
}
FORMS = {
    "v4": Options(nms=NmsForm.V4, outputs=Outputs.DETECTIONS),
    "postprocess": Options(nms=NmsForm.POSTPROCESS),
}
WAYS = [
    pytest.param(
        case, form, id=f"{case}-{form}", marks=() if case == "ultraface-rfb" else pytest.mark.slow
    )
    for case in CASES
    for form in FORMS
]


@dataclass(frozen=True)
class Found:
    """Detections by falling score; boxes are left, top, right, bottom in pixels of the photo."""

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: list[str] = field(default_factory=list)


def _mediapipe(model: Path, photo: Path) -> Found:
    (told,) = lines_of([PYTHON, FOLDER / "mediapipe_detect.py", model, "0.3", photo])
    rows = told["detections"]
    return Found(
        np.array([row["box"] for row in rows], np.float64).reshape(-1, 4),
        np.array([row["score"] for row in rows], np.float64),
        [row["label"] for row in rows],
    )


def _onnxruntime(case: Case, photo: Path) -> Found:
    """What the completed model finds, in onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        completion = case.completion(replace(case.preprocess, input_layout=InputLayout.NHWC))
        source, _, _ = completed(
            load(SHARED / "models" / case.file), completion, Options(), Path(folder)
        )
    session = onnxruntime.InferenceSession(
        source.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pixels = np.asarray(Image.open(photo).convert("RGB"))
    outputs = dict(
        zip(
            (output.name for output in session.get_outputs()),
            session.run(None, {session.get_inputs()[0].name: pixels[None]}),
            strict=True,
        )
    )
    names = _labels(case).read_text(encoding="utf-8").split("\n")
    height, width = pixels.shape[:2]
    boxes = np.asarray(outputs["boxes"], np.float64) * [width, height, width, height]
    labels = [names[number] for number in np.asarray(outputs["classes"])]
    return Found(boxes, np.asarray(outputs["scores"], np.float64), labels)


def _labels(case: Case) -> Path:
    return COCO if case.head == "yolox" else FOLDER / "face_names.txt"


def _converted(case: Case, options: Options, folder: Path) -> Path:
    result = convert(
        SHARED / "models" / case.file,
        "tflite",
        folder / "model.tflite",
        replace(options, labels=_labels(case)),
        completion=case.completion(case.preprocess),
        checks=Checks(images=(COLLAGE,)),
    )
    result.check()
    assert result.path is not None
    return result.path


@pytest.mark.parametrize(("case", "form"), WAYS)
def test_mediapipe_finds_what_onnxruntime_finds(case: str, form: str, tmp_path: Path) -> None:
    """On a photo of the input's size, where MediaPipe resizes nothing: the same numbers."""
    subject = CASES[case]
    model = _converted(subject, FORMS[form], tmp_path)
    photo = tmp_path / "photo.png"
    Image.open(COLLAGE).convert("RGB").resize(subject.size).save(photo)
    expected, found = _onnxruntime(subject, photo), _mediapipe(model, photo)
    assert len(expected.labels) >= 5
    assert found.labels == expected.labels
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    # MediaPipe tells whole pixels, of corner and size: each is cut off.
    low, high = np.clip(expected.boxes, 0, None) - 2, expected.boxes + 1e-3
    assert (found.boxes >= low).all()
    assert (found.boxes <= np.maximum(high, 0)).all()

    # On the photo as it is, MediaPipe's own resizing in front.
    labels = _mediapipe(model, COLLAGE).labels
    assert {label: labels.count(label) for label in labels} == subject.found


@pytest.mark.slow
def test_a_float_input_is_normalised_as_the_metadata_say(tmp_path: Path) -> None:
    """In the graph or by MediaPipe, which does `(x - mean) / std` itself: it comes to the same."""
    case, found = CASES["ultraface-slim"], []
    outside = Normalization((127.0,), (128.0,))
    inside = replace(case.preprocess, input_dtype=InputDtype.FLOAT32)
    for name, preprocess, normalization in (
        ("graph", inside, Normalization()),
        ("outside", PreprocessOptions(), outside),
    ):
        folder = tmp_path / name
        folder.mkdir()
        options = replace(FORMS["v4"], normalization=normalization)
        model = _converted(replace(case, preprocess=preprocess), options, folder)
        found.append(_mediapipe(model, COLLAGE))
    inside_found, outside_found = found
    assert inside_found.labels == outside_found.labels == ["face"] * 6
    np.testing.assert_array_equal(inside_found.boxes, outside_found.boxes)
    np.testing.assert_allclose(inside_found.scores, outside_found.scores, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("narrow", [Quantize.WEIGHTS, Quantize.FP16])
def test_a_narrow_network_finds_the_same_faces(narrow: Quantize, form: str, tmp_path: Path) -> None:
    options = replace(FORMS[form], quantization=Quantization(narrow))
    case = CASES["ultraface-rfb"]
    labels = _mediapipe(_converted(case, options, tmp_path), COLLAGE).labels
    assert {label: labels.count(label) for label in labels} == case.found


@pytest.mark.slow
def test_the_command_of_the_documentation(tmp_path: Path) -> None:
    text = (FOLDER.parents[1] / "docs" / "apps.md").read_text(encoding="utf-8")
    block = text[text.index("    bridge run ") :].split("\n\n")[0]
    files = {
        "yolox.onnx": str(SHARED / "models" / "yolox-nano-416.onnx"),
        "yolox.tflite": str(tmp_path / "yolox.tflite"),
        "coco.txt": str(COCO),
        "photos": str(SHARED / "photos"),
    }
    words = [files.get(word, word) for word in block.replace("\\\n", " ").split()]
    assert words[:2] == ["bridge", "run"]
    command = [sys.executable, "-m", "bridge.run", *words[2:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout
    labels = _mediapipe(tmp_path / "yolox.tflite", COLLAGE).labels
    assert {label: labels.count(label) for label in labels} == CASES["yolox-nano"].found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"outputs": None}, "UINT8 or FLOAT32, found INT64"),
        ({"labels": None, "box_units": None}, "Metadata"),
    ],
    ids=["the model's own outputs", "no metadata"],
)
def test_what_mediapipe_refuses(changes: Mapping[str, Any], refusal: str, tmp_path: Path) -> None:
    """Why there is `--outputs detections`, and why a file gets metadata."""
    case = CASES["ultraface-slim"]
    completion = case.completion(case.preprocess)
    options = replace(FORMS["v4"], **{"labels": _labels(case), **changes})
    if "box_units" in changes:
        completion = replace(completion, box_units=None)
    result = convert(
        SHARED / "models" / case.file,
        "tflite",
        tmp_path / "model.tflite",
        options,
        completion=completion,
        checks=Checks(skip=True),
    )
    assert result.path is not None
    (told,) = lines_of([PYTHON, FOLDER / "mediapipe_detect.py", result.path, "0.3", COLLAGE])
    assert refusal in told["refused"]
