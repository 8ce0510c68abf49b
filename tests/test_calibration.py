"""What a network may be calibrated with, and what is refused by name before it does harm."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from bridge import calibration, surgery
from bridge.errors import UsageError
from bridge.model import Source, load
from bridge.options import Normalization, Options, Qdq, Quantization, Quantize
from bridge.static_model import StaticModel

SHAPES = Path(__file__).resolve().parents[1] / "examples" / "shapes.onnx"
SCENES = SHAPES.parent / "scenes"
FRACTIONS = Normalization(std=(255.0,))


@pytest.fixture(scope="module", name="model")
def shapes() -> tuple[Source, StaticModel]:
    source = load(SHAPES)
    return source, surgery.run(source.model, Options()).static


def asked(given: Path, normalization: Normalization | None = FRACTIONS, **more: object) -> Options:
    quantization = Quantization(Quantize.INT8, given)
    return replace(
        Options(normalization=normalization, quantization=quantization),
        **more,  # type: ignore[arg-type]  # by name
    )


def noisy(folder: Path, count: int) -> Path:
    """A folder of pictures that say nothing."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 255, (40, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


# Options that go together, or do not


@pytest.mark.parametrize(
    ("quantization", "to"),
    [
        (Quantization(), "tvm"),
        (Quantization(python=Path("python")), "tflite"),
        (Quantization(Quantize.WEIGHTS, keep_float=("a",)), "tflite"),
        (Quantization(Quantize.FP16), "tflite"),
        (Quantization(Quantize.DYNAMIC), "tflite"),
        (Quantization(Quantize.DYNAMIC, Path("photos"), python=Path("python")), "tflite"),
        (Quantization(Quantize.INT8, Path("photos"), report=Path("report.json")), "tflite"),
    ],
)
def test_what_goes_together_passes(quantization: Quantization, to: str) -> None:
    calibration.check(Options(quantization=quantization), to)


@pytest.mark.parametrize(
    ("quantization", "to", "said"),
    [
        (Quantization(Quantize.WEIGHTS), "onnx", "only --to tflite"),
        (Quantization(Quantize.INT8, Path("photos")), "tvm", "only --to tflite"),
        (Quantization(Quantize.INT8), "tflite", "give --calibrate DIR"),
        (Quantization(Quantize.WEIGHTS, Path("photos")), "tflite", "weights needs no data"),
        (Quantization(Quantize.FP16, Path("photos")), "tflite", "fp16 needs no data"),
        (Quantization(Quantize.FP16, python=Path("p")), "tflite", "no second interpreter"),
        (Quantization(Quantize.WEIGHTS, report=Path("r")), "tflite", "arithmetic in float32"),
        (Quantization(Quantize.DYNAMIC, report=Path("r")), "tflite", "give --calibrate"),
        (Quantization(Quantize.INT8, Path("p"), report=Path("no/r")), "tflite", "is not there"),
        (Quantization(calibrate=Path("photos")), "tflite", "give --quantize"),
        (Quantization(keep_float=("a",)), "onnx", "give --quantize"),
        (Quantization(report=Path("r")), "tflite", "give --quantize"),
    ],
)
def test_what_does_not_is_refused(quantization: Quantization, to: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        calibration.check(Options(quantization=quantization), to)


def test_integer_kernels_are_a_matter_of_tflite() -> None:
    calibration.check(Options(qdq=Qdq.FLOAT), "tflite")
    with pytest.raises(UsageError, match="--qdq float: only --to tflite"):
        calibration.check(Options(qdq=Qdq.FLOAT), "onnx")


# Data that can be used


def test_nothing_is_done_where_nothing_is_given(
    model: tuple[Source, StaticModel], tmp_path: Path
) -> None:
    options = Options()
    found = calibration.calibration(*model, options, tmp_path)
    assert found.options is options
    assert not any(tmp_path.iterdir())


def test_photos_are_fed_as_the_application_will(
    model: tuple[Source, StaticModel], tmp_path: Path
) -> None:
    found = calibration.calibration(*model, asked(SCENES), tmp_path)
    path = found.options.quantization.calibrate
    assert path is not None
    with np.load(path) as stored:
        sets = [stored[f"images/{i}"] for i in range(len(stored.files))]
    photos = sorted(SCENES.iterdir())
    assert len(sets) == len([p for p in photos if p.suffix in (".png", ".jpg")])
    assert sets[0].shape == (1, 3, 160, 160)
    assert 0.5 < max(float(one.max()) for one in sets) <= 1
    assert f"{len(sets)} of {len(sets)} photos" in found.assumptions[0]
    assert "0..255" not in found.assumptions[0]


def test_bytes_are_an_assumption_where_nothing_is_said(
    model: tuple[Source, StaticModel], tmp_path: Path
) -> None:
    found = calibration.calibration(*model, asked(SCENES, None), tmp_path)
    assert "fed as bytes 0..255" in found.assumptions[0]


def test_an_npz_of_several_sets(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    first = calibration.calibration(*model, asked(SCENES), tmp_path)
    given = tmp_path / "mine.npz"
    with np.load(first.options.quantization.calibrate or "") as stored:
        np.savez(given, images=np.stack([stored[name] for name in stored.files]))
        count = len(stored.files)
    again = calibration.calibration(*model, asked(given), tmp_path)
    assert again.assumptions == (f"calibrated on {count} sets of mine.npz",)
    first_content = (tmp_path / "calibration.npz").read_bytes()
    calibration.calibration(*model, asked(SCENES), tmp_path)
    assert (tmp_path / "calibration.npz").read_bytes() == first_content


def test_few_pictures_are_warned_of(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for photo in sorted(p for p in SCENES.iterdir() if p.suffix == ".png")[:2]:
        (folder / photo.name).write_bytes(photo.read_bytes())
    found = calibration.calibration(*model, asked(folder), tmp_path)
    assert "2 sets are few" in found.warnings[0]


def test_judging_on_the_same_pictures_is_warned_of(tmp_path: Path) -> None:
    """Also on copies; other pictures, and files that are none, are no matter of this."""
    given, others = noisy(tmp_path / "given", 3), noisy(tmp_path / "others", 4)
    (others / "0.png").unlink()
    Image.new("RGB", (8, 8), "red").save(others / "1.png")
    options = asked(given)
    (warning,) = calibration.judged_too(options, [others])
    assert warning.startswith("1 of 3 --images, first 2.png, are among --calibrate")
    assert not calibration.judged_too(options, [])
    assert not calibration.judged_too(options, [others / "1.png", tmp_path / "missing.png"])
    assert not calibration.judged_too(asked(tmp_path / "sets.npz"), [others])


def test_many_pictures_are_read_evenly(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    folder = noisy(tmp_path / "many", calibration.MOST + 30)
    source = sorted(p for p in SCENES.iterdir() if p.suffix == ".png")[0]
    (folder / "0.png").write_bytes(source.read_bytes())
    found = calibration.calibration(*model, asked(folder), tmp_path)
    assert f"{calibration.MOST} of {calibration.MOST + 30} photos" in found.assumptions[0]


# Data that cannot


def refused(model: tuple[Source, StaticModel], options: Options, tmp_path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        calibration.calibration(*model, options, tmp_path)
    assert "--calibrate" in str(caught.value)
    return str(caught.value)


def test_a_folder_that_is_not_there(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    assert "there is no such" in refused(model, asked(tmp_path / "nothing"), tmp_path)


def test_a_folder_without_photos(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "no photo in this folder" in refused(model, asked(folder), tmp_path)
    (folder / "note.txt").write_text("no photo", encoding="utf-8")
    assert "no photo in this folder" in refused(model, asked(folder), tmp_path)


def test_a_photo_that_is_none(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "broken.jpg").write_bytes(b"not a photo")
    said = refused(model, asked(folder), tmp_path)
    assert "broken.jpg" in said
    assert "cannot be read as a photo" in said


def test_a_file_of_another_kind(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    path = tmp_path / "sets.txt"
    path.write_text("1 2 3", encoding="utf-8")
    assert "give a folder of photos or an .npz" in refused(model, asked(path), tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:, :, :80], "shape"),
        (lambda x: x * np.float32(np.nan), "NaN"),
        (lambda x: x * np.float32(0), "of one colour"),
        (lambda x: x.astype(np.complex64), "not numbers"),
        (lambda x: x[np.newaxis][:0], "nothing in it"),
    ],
)
def test_arrays_that_cannot_be_right(
    model: tuple[Source, StaticModel],
    tmp_path: Path,
    change: Callable[[NDArray[np.float32]], NDArray[np.generic]],
    said: str,
) -> None:
    x = np.random.default_rng(1).random((1, 3, 160, 160)).astype(np.float32)
    path = tmp_path / "wrong.npz"
    np.savez(path, images=change(x))
    assert said in refused(model, asked(path), tmp_path)


def test_arrays_of_another_name(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, pictures=np.zeros((1, 3, 160, 160), np.float32))
    assert "'pictures'; there are 'images'" in refused(model, asked(path), tmp_path)


def test_black_photos(model: tuple[Source, StaticModel], tmp_path: Path) -> None:
    folder = tmp_path / "black"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (50, 40)).save(folder / f"{number}.png")
    assert "every picture is of one colour" in refused(model, asked(folder), tmp_path)


def test_a_black_photo_among_others_is_warned_of(
    model: tuple[Source, StaticModel], tmp_path: Path
) -> None:
    folder = tmp_path / "one-black"
    folder.mkdir()
    for photo in (p for p in SCENES.iterdir() if p.suffix == ".png"):
        (folder / photo.name).write_bytes(photo.read_bytes())
    Image.new("RGB", (50, 40)).save(folder / "zz-black.png")
    found = calibration.calibration(*model, asked(folder), tmp_path)
    assert any("1 pictures are of one colour, first zz-black" in one for one in found.warnings)


def test_pictures_in_which_nothing_is_found(
    model: tuple[Source, StaticModel], tmp_path: Path
) -> None:
    folder = tmp_path / "grey"
    folder.mkdir()
    for number in range(9):
        picture = Image.new("RGB", (160, 160), (118, 118, 118))
        picture.putpixel((number, 3), (119, 118, 118))
        picture.save(folder / f"{number}.png")
    said = refused(model, asked(folder), tmp_path)
    assert "detects nothing in any of 9 sets" in said
    assert "--mean, --std" in said


def test_a_model_without_suppression_has_nothing_to_detect(tmp_path: Path) -> None:
    text = "(float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), path)
    source = load(path)
    static = surgery.run(source.model, Options()).static
    folder = noisy(tmp_path / "noise", 9)
    assert not calibration.calibration(source, static, asked(folder), tmp_path).warnings
