"""What a golden check feeds: seeded noise, photos, and the user's own arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from bridge.errors import UsageError
from bridge.model import Array, InputKind, Source, as_declared, seeded_inputs
from bridge.options import Normalization, Options

SEED = 7

_PHOTO_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


@dataclass(frozen=True, slots=True)
class Photo:
    """What of a set of inputs was a photo.

    Attributes:
        files: names without folders, one for each image of the batch.
        sizes: width and height of each.
        width, height: of the input that they were stretched to.
        fed: the name of the `Preprocessing`.
    """

    files: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    width: int
    height: int
    fed: str


@dataclass(frozen=True, slots=True)
class InputSet:
    """One set of inputs by name, in the source's layout, frozen inputs left out.

    Attributes:
        generated: it is noise, not a photo or the user's own numbers.
        photo: None where it is none.
    """

    name: str
    arrays: Mapping[str, Array]
    generated: bool = False
    photo: Photo | None = None


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a photo becomes numbers: `(x - mean) / std` per channel on RGB 0..255."""

    name: str
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


BYTES = Preprocessing("0..255")
FRACTIONS = Preprocessing("0..1", std=(255.0, 255.0, 255.0))
NORMALISED = Preprocessing("normalised", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
"""The mean and deviation of ImageNet, which most detectors that normalise were trained with."""

GUESSES = (BYTES, FRACTIONS, NORMALISED)
"""What a float input gets where nobody says what it wants."""


def as_fed(normalization: Normalization) -> Preprocessing:
    """What an application feeds that does this to its bytes."""
    mean, std = (tuple((numbers * 3)[:3]) for numbers in (normalization.mean, normalization.std))
    return Preprocessing("as fed", (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


def input_sets(
    source: Source,
    options: Options,
    images: Sequence[Path] = (),
    inputs: Path | None = None,
    *,
    preprocessing: Sequence[Preprocessing] = GUESSES,
    seed: int = SEED,
) -> tuple[InputSet, ...]:
    """Seeded noise of every kind, then the photos, then the arrays of an `.npz` file.

    A photo is stretched (bilinear) to the height and width of the one 4-D input that has 3 (or 1)
    channels, NCHW or NHWC, as RGB (or grey). A float input gets it once in each `preprocessing`,
    since a model does not say which it wants; a uint8 input gets the bytes. Further inputs take
    the first noise. A batch of B takes B photos in a row.

    Raises:
        UsageError: a file cannot be read, does not fit, or no input is an image.
    """
    noise = seeded_inputs(
        source.model,
        seed=seed,
        input_shapes=options.input_shapes,
        freeze=options.freeze,
    )
    generated = [
        InputSet(f"noise ({kind})", _unfrozen(arrays, options), generated=True)
        for kind, arrays in zip(InputKind, noise, strict=True)
    ]
    sets = list(generated)
    if images:
        photos = _photos(photo_files(images, "--images"), "--images")
        sets += _photo_sets(photos, generated[0].arrays, preprocessing, "--images")
    if inputs is not None:
        sets += _npz_sets(inputs, source, generated[0].arrays, options, "--inputs")
    return tuple(sets)


def given_sets(
    source: Source,
    options: Options,
    given: Path | Sequence[Path],
    preprocessing: Preprocessing,
    *,
    option: str,
) -> tuple[InputSet, ...]:
    """What a user gives under one option: the arrays of an `.npz` file, or photos.

    As `input_sets` reads them, each photo once.

    Args:
        source: the model.
        options: as for the conversion.
        given: the `.npz` file, or files of photos.
        preprocessing: how a float input gets a photo.
        option: for messages.

    Raises:
        UsageError: a file cannot be read, does not fit, or no input is an image.
    """
    (noise,) = seeded_inputs(
        source.model,
        seed=SEED,
        kinds=(InputKind.UNIFORM,),
        input_shapes=options.input_shapes,
        freeze=options.freeze,
    )
    arrays = _unfrozen(noise, options)
    if isinstance(given, Path):
        return tuple(_npz_sets(given, source, arrays, options, option))
    return tuple(_photo_sets(_photos(given, option), arrays, (preprocessing,), option))


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an `.npz` file, pickles refused.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        # numpy leaves the file open where it cannot read it.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        # numpy raises what its zip and header readers do: ValueError, BadZipFile, EOFError, ...
        raise UsageError(f"{path} is not an .npz file of plain arrays: {error}") from error


def _unfrozen(arrays: Mapping[str, Array], options: Options) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if name not in options.freeze}


def photo_files(paths: Sequence[Path], option: str) -> list[Path]:
    """The files that are given, and the photos in the folders that are given, by name.

    Raises:
        UsageError: no photo in a folder.
    """
    files: list[Path] = []
    for path in paths:
        inside = (
            sorted(p for p in path.iterdir() if p.suffix.lower() in _PHOTO_SUFFIXES)
            if path.is_dir()
            else [path]
        )
        if not inside:
            raise UsageError(f"{option} {path}: no photo in this folder ({_suffixes()})")
        files += inside
    return files


def _photos(files: Sequence[Path], option: str) -> list[tuple[str, Image.Image]]:
    photos: list[tuple[str, Image.Image]] = []
    for file in files:
        try:
            with Image.open(file) as image:
                image.load()
                photos.append((file.name, image))
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise UsageError(f"{option} {file}: cannot be read as a photo: {error}") from error
    return photos


def _suffixes() -> str:
    return ", ".join(sorted(_PHOTO_SUFFIXES))


@dataclass(frozen=True, slots=True)
class _ImageInput:
    name: str
    batch: int
    height: int
    width: int
    channels: int
    channels_first: bool
    dtype: np.dtype[np.generic]


def _image_input(arrays: Mapping[str, Array], option: str) -> _ImageInput:
    found = []
    for name, array in arrays.items():
        if array.ndim != 4 or array.dtype.name not in ("float32", "float16", "float64", "uint8"):
            continue
        for channels in (3, 1):
            if array.shape[1] == channels:
                batch, _, height, width = array.shape
                found.append(_ImageInput(name, batch, height, width, channels, True, array.dtype))
                break
            if array.shape[3] == channels:
                batch, height, width, _ = array.shape
                found.append(_ImageInput(name, batch, height, width, channels, False, array.dtype))
                break
    if len(found) != 1:
        inputs = ", ".join(f"{n!r} {a.dtype.name}{list(a.shape)}" for n, a in arrays.items())
        raise UsageError(
            f"{option}: {'no' if not found else 'more than one'} input is an image "
            f"(4-D, 3 channels or 1) among {inputs}; give arrays with "
            f"{'--inputs' if option == '--images' else f'{option} FILE.npz'}"
        )
    return found[0]


def _photo_sets(
    photos: Sequence[tuple[str, Image.Image]],
    arrays: Mapping[str, Array],
    preprocessing: Sequence[Preprocessing],
    option: str,
) -> Iterator[InputSet]:
    image = _image_input(arrays, option)
    stretched = [_stretch(photo, image) for _, photo in photos]
    variants = (BYTES,) if image.dtype == np.uint8 else preprocessing
    for index, (name, _) in enumerate(photos):
        members = [(index + offset) % len(photos) for offset in range(image.batch)]
        for variant in variants:
            batch = np.stack([_numbers(stretched[m], variant, image) for m in members])
            laid = batch.transpose(0, 3, 1, 2) if image.channels_first else batch
            filled = {**arrays, image.name: np.ascontiguousarray(laid).astype(image.dtype)}
            photo = Photo(
                files=tuple(photos[m][0] for m in members),
                sizes=tuple(photos[m][1].size for m in members),
                width=image.width,
                height=image.height,
                fed=variant.name,
            )
            yield InputSet(f"{name} ({variant.name})", filled, photo=photo)


def _stretch(photo: Image.Image, image: _ImageInput) -> NDArray[np.uint8]:
    mode = "RGB" if image.channels == 3 else "L"
    size = (image.width, image.height)
    pixels = np.asarray(photo.convert(mode).resize(size, Image.Resampling.BILINEAR), np.uint8)
    return pixels.reshape(image.height, image.width, image.channels)


def _numbers(
    pixels: NDArray[np.uint8], preprocessing: Preprocessing, image: _ImageInput
) -> NDArray[np.float32]:
    mean = np.array(preprocessing.mean[: image.channels], np.float32)
    std = np.array(preprocessing.std[: image.channels], np.float32)
    numbers: NDArray[np.float32] = (pixels.astype(np.float32) - mean) / std
    return numbers


def _npz_sets(
    path: Path, source: Source, arrays: Mapping[str, Array], options: Options, option: str
) -> Iterator[InputSet]:
    """The sets of an `.npz` file: an array per input, called as the input.

    Several sets: arrays called `<input>/0`, `<input>/1`, ...; or a leading axis that the input
    does not have.
    """
    declared = {value.name: value for value in source.model.graph.input}
    found: dict[str, dict[int, Array]] = {}
    for key, array in read_npz(path).items():
        name, number = _input_of(key, arrays, f"{option} {path}", options)
        if array.dtype.kind not in "biuf":
            raise UsageError(f"{option} {path}: {key!r} holds {array.dtype}, not numbers")
        column = found.setdefault(name, {})
        if number is not None:
            column[number] = array
        elif array.ndim == arrays[name].ndim + 1:
            column.update(enumerate(array))
        else:
            column[0] = array
    columns = {name: [column[i] for i in sorted(column)] for name, column in found.items()}
    missing = sorted(set(arrays) - set(columns))
    if missing:
        raise UsageError(f"{option} {path}: no array for input {missing[0]!r}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise UsageError(f"{option} {path}: the inputs have different numbers of sets: {lengths}")
    for index in range(next(iter(lengths.values()))):
        try:
            made = {name: as_declared(declared[name], columns[name][index]) for name in arrays}
        except UsageError as error:
            raise UsageError(f"{option} {path}: {error}") from None
        for name, array in made.items():
            if array.shape != arrays[name].shape:
                raise UsageError(
                    f"{option} {path}: {name!r} has shape {list(array.shape)}, and the model is "
                    f"converted for {list(arrays[name].shape)}"
                )
        yield InputSet(f"{path.name} {index}", made)


def _input_of(
    key: str, arrays: Mapping[str, Array], given: str, options: Options
) -> tuple[str, int | None]:
    """Input that a key of an `.npz` file stands for, and the number of its set."""
    if key in arrays:
        return key, None
    name, _, number = key.rpartition("/")
    if name in arrays and number.isdecimal():
        return name, int(number)
    if key in options.freeze or name in options.freeze:
        raise UsageError(f"{given}: {key!r} is frozen with --freeze; leave it out")
    known = ", ".join(map(repr, arrays))
    raise UsageError(f"{given}: no input is called {key!r}; there are {known}")
