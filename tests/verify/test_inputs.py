"""What is fed: photos, arrays and noise, in the source's layout and types."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from bridge.errors import UsageError
from bridge.model import Array, Source, load
from bridge.options import Normalization, Options
from bridge.verify.inputs import (
    BYTES,
    FRACTIONS,
    NORMALISED,
    InputSet,
    as_fed,
    input_sets,
)


def _source(folder: Path, *inputs: str) -> Source:
    names = [text.split()[-1] for text in inputs]
    nodes = "\n".join(f"y{i} = Identity({name})" for i, name in enumerate(names))
    outputs = ", ".join(f"{text.rsplit(' ', 1)[0]} y{i}" for i, text in enumerate(inputs))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({", ".join(inputs)}) => ({outputs}) {{ {nodes} }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return load(folder / "m.onnx")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two photos: the left half red and the right half blue, and all grey."""
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20, 0], pixels[:, 20:, 2] = 200, 100
    Image.fromarray(pixels).save(folder / "b_halves.png")
    Image.new("L", (8, 8), 51).save(folder / "a_grey.PNG")
    (folder / "notes.txt").write_text("not a photo")
    return folder


def _given(sets: tuple[InputSet, ...]) -> dict[str, Mapping[str, Array]]:
    return {one.name: one.arrays for one in sets if not one.generated}


def test_noise_comes_first_and_is_the_same_every_time(tmp_path: Path) -> None:
    source = _source(tmp_path, "float[1, 3, 4, 6] images")
    first, again = (input_sets(source, Options()) for _ in range(2))
    assert [one.name for one in first] == [
        f"noise ({kind})" for kind in ("uniform", "normal", "bytes", "large", "zeros")
    ]
    assert all(one.generated for one in first)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.arrays["images"], two.arrays["images"])
    other = input_sets(source, Options(), seed=8)
    assert (first[0].arrays["images"] != other[0].arrays["images"]).any()


def test_a_photo_is_stretched_and_fed_in_each_scaling(tmp_path: Path, photos: Path) -> None:
    source = _source(tmp_path, "float[1, 3, 4, 6] images", "int64[2] more")
    sets = input_sets(source, Options(), [photos])
    given = _given(sets)
    assert list(given) == [
        f"{photo} ({kind})"
        for photo in ("a_grey.PNG", "b_halves.png")
        for kind in ("0..255", "0..1", "normalised")
    ]
    image = given["b_halves.png (0..255)"]["images"]
    assert image.dtype == np.float32
    assert image.shape == (1, 3, 4, 6)
    np.testing.assert_array_equal(image[0, :, 0, 0], [200, 0, 0])
    np.testing.assert_array_equal(image[0, :, 3, 5], [0, 0, 100])
    grey = given["a_grey.PNG (0..1)"]["images"].astype(np.float64)
    np.testing.assert_allclose(grey, 51 / 255, rtol=1e-6)
    mean, std = np.array(NORMALISED.mean), np.array(NORMALISED.std)
    np.testing.assert_allclose(
        given["b_halves.png (normalised)"]["images"].astype(np.float64)[0, :, 0, 0],
        (np.array([200, 0, 0]) - mean) / std,
        rtol=1e-5,
    )
    np.testing.assert_array_equal(given["a_grey.PNG (0..1)"]["more"], sets[0].arrays["more"])


def test_a_photo_tells_its_file_and_size(tmp_path: Path, photos: Path) -> None:
    source = _source(tmp_path, "float[2, 3, 4, 6] images")
    way = as_fed(Normalization((1.0, 2.0, 3.0), (4.0,)))
    assert (way.mean, way.std) == ((1.0, 2.0, 3.0), (4.0, 4.0, 4.0))
    noise, *_, one = input_sets(source, Options(), [photos], preprocessing=[way])
    assert noise.photo is None
    assert one.photo is not None
    assert one.photo.files == ("b_halves.png", "a_grey.PNG")
    for file, size in zip(one.photo.files, one.photo.sizes, strict=True):
        with Image.open(photos / file) as image:
            assert image.size == size
    assert (one.photo.width, one.photo.height, one.photo.fed) == (6, 4, "as fed")


def test_layout_and_type_are_the_inputs_own(tmp_path: Path, photos: Path) -> None:
    source = _source(tmp_path, "uint8[1, 4, 6, 3] images")
    given = _given(input_sets(source, Options(), [photos]))
    assert list(given) == ["a_grey.PNG (0..255)", "b_halves.png (0..255)"]
    image = given["b_halves.png (0..255)"]["images"]
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image[0, 0, 0], [200, 0, 0])
    grey = _given(input_sets(_source(tmp_path, "float[1, 1, 4, 6] images"), Options(), [photos]))
    assert grey["a_grey.PNG (0..255)"]["images"].shape == (1, 1, 4, 6)


def test_a_batch_takes_photos_in_a_row(tmp_path: Path, photos: Path) -> None:
    source = _source(tmp_path, "float[3, 3, 4, 6] images")
    given = _given(input_sets(source, Options(), [photos], preprocessing=[BYTES]))
    batch = given["b_halves.png (0..255)"]["images"]
    np.testing.assert_array_equal(batch[:, 0, 0, 0], [200, 51, 200])


def test_single_files_and_symbolic_sizes(tmp_path: Path, photos: Path) -> None:
    source = _source(tmp_path, "float[n, 3, h, w] images")
    options = Options(input_shapes={"images": (1, 3, 4, 6)})
    sets = input_sets(source, options, [photos / "b_halves.png"], preprocessing=[FRACTIONS])
    assert _given(sets)["b_halves.png (0..1)"]["images"].shape == (1, 3, 4, 6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["float[1, 5, 7] x"], r"no input is an image.*'x' float32\[1, 5, 7\]"),
        (["float[1, 3, 4, 4] x", "float[1, 3, 4, 4] y"], "more than one input is an image"),
        (["int32[1, 3, 4, 4] x"], "no input is an image"),
    ],
)
def test_photos_need_one_image_input(
    tmp_path: Path, photos: Path, inputs: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        input_sets(_source(tmp_path, *inputs), Options(), [photos])


def test_what_is_no_photo_is_refused_by_name(tmp_path: Path, photos: Path) -> None:
    source = _source(tmp_path, "float[1, 3, 4, 6] images")
    for path in (photos / "notes.txt", photos / "missing.png"):
        with pytest.raises(UsageError, match=path.name):
            input_sets(source, Options(), [path])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="no photo"):
        input_sets(source, Options(), [empty])


def _arrays(folder: Path, **arrays: Array) -> Path:
    path = folder / "in.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]  # the stub takes **kwds for allow_pickle
    return path


def test_arrays_are_taken_by_name(tmp_path: Path) -> None:
    source = _source(tmp_path, "float[2, 2] a", "int64[3] b")
    path = _arrays(tmp_path, a=np.eye(2, dtype=np.float32), b=np.arange(3))
    given = _given(input_sets(source, Options(), inputs=path))
    assert list(given) == ["in.npz 0"]
    np.testing.assert_array_equal(given["in.npz 0"]["b"], [0, 1, 2])


def test_several_sets_are_numbered_or_stacked(tmp_path: Path) -> None:
    source = _source(tmp_path, "float[2, 2] a", "int64[3] b")
    stacked = np.stack([np.full((2, 2), i, np.float32) for i in range(12)])
    numbered = {f"b/{i}": np.full(3, i) for i in range(12)}
    given = _given(input_sets(source, Options(), inputs=_arrays(tmp_path, a=stacked, **numbered)))
    assert len(given) == 12
    for i in range(12):
        assert given[f"in.npz {i}"]["a"][0, 0] == given[f"in.npz {i}"]["b"][0] == i


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.eye(2, dtype=np.float32)}, "no array for input 'b'"),
        ({"a": np.eye(2), "b": np.arange(3), "c": np.eye(2)}, "no input is called 'c'"),
        ({"a": np.eye(3, dtype=np.float32), "b": np.arange(3)}, "'a'"),
        ({"a": np.zeros((2, 2, 2), np.float32), "b": np.arange(3)}, "different numbers of sets"),
        ({"a": np.eye(2), "b": np.array([0.5, 1, 2])}, "'b'.*cannot hold"),
        ({"a": np.eye(2), "b": np.array(["x", "y", "z"])}, "'b'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, arrays: dict[str, Array], message: str
) -> None:
    source = _source(tmp_path, "float[2, 2] a", "int64[3] b")
    with pytest.raises(UsageError, match=message):
        input_sets(source, Options(), inputs=_arrays(tmp_path, **arrays))


def test_frozen_inputs_are_left_out_and_may_not_be_given(tmp_path: Path) -> None:
    source = _source(tmp_path, "float[2, 2] a", "float limit")
    options = Options(freeze={"limit": np.array(0.5)})
    assert all(set(one.arrays) == {"a"} for one in input_sets(source, options))
    path = _arrays(tmp_path, a=np.eye(2), limit=np.array(0.5))
    with pytest.raises(UsageError, match="'limit' is frozen"):
        input_sets(source, options, inputs=path)


def test_pickles_and_other_files_are_refused(tmp_path: Path) -> None:
    source = _source(tmp_path, "float[2, 2] a")
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, a=np.array([{"a": 1}], dtype=object))
    other = tmp_path / "other.npz"
    other.write_bytes(b"not a zip")
    for path in (pickled, other, tmp_path / "missing.npz", tmp_path):
        with pytest.raises(UsageError, match=path.name):
            input_sets(source, Options(), inputs=path)
