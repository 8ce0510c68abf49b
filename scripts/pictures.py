"""Photos that are judged, others that are calibrated on, and how a detector is fed with them."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PACKAGE = "skimage"
"""scikit-image, whose wheel holds free photos. Nothing of it is imported."""
OTHERS = (
    *("motorcycle_left.png", "motorcycle_right.png", "rocket.jpg", "camera.png"),
    *("retina.jpg", "ihc.png", "hubble_deep_field.jpg"),
)
"""Those of its photos that are no photo of shared/photos, nor a texture or a page of text."""
FACES = "lfw_subset.npy"
"""float64[200, 25, 25] from 0 to 1: 100 faces, then 100 pieces without one."""
CROPS = 3
_SMALLEST_CROP = 0.35
_SHEETS = 4
_FACES_ON_A_SHEET = (4, 5)
_FACE = 96

Image8 = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Feeding:
    """How a picture becomes a float32 image input [1, 3, height, width].

    Attributes:
        keep_aspect: it is scaled to fit and pasted top left on grey 114, else stretched.
        bgr: the channels are turned.
        mean: subtracted, per channel of the network.
        std: divided by after it.
    """

    width: int
    height: int
    keep_aspect: bool = False
    bgr: bool = False
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, picture: Image.Image) -> Floats:
        """The array that is fed for a picture."""
        pixels = self._fit(picture.convert("RGB"))
        ordered = pixels[..., ::-1] if self.bgr else pixels
        normal = (ordered - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normal.transpose(2, 0, 1)[None], np.float32)

    def _fit(self, picture: Image.Image) -> Floats:
        size = (self.width, self.height)
        if not self.keep_aspect:
            return np.asarray(picture.resize(size, Image.Resampling.BILINEAR), np.float32)
        factor = min(self.width / picture.width, self.height / picture.height)
        small = (round(picture.width * factor), round(picture.height * factor))
        canvas = np.full((self.height, self.width, 3), 114, np.float32)
        resized = picture.resize(small, Image.Resampling.BILINEAR)
        canvas[: small[1], : small[0]] = np.asarray(resized, np.float32)
        return canvas


def photos(folder: Path) -> list[Image.Image]:
    """The photos of a folder, in the order of their names."""
    return [_opened(path) for path in sorted(folder.glob("*.jpg"))]


def missing() -> str | None:
    """Why there is nothing to calibrate on; None where there is."""
    if find_spec(PACKAGE) is None:
        return "scikit-image, whose photos int8 is calibrated on, is not installed (make setup)"
    return None


def others() -> list[Image.Image]:
    """Photos and sheets of faces from scikit-image's wheel, and crops of them: always the same."""
    folder = _folder()
    whole = [_opened(folder / name) for name in OTHERS] + list(_sheets(folder / FACES))
    rng = np.random.default_rng(0)
    return [*whole, *(_crop(one, rng) for one in whole for _ in range(CROPS))]


def _folder() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(missing())
    return Path(spec.origin).parent / "data"


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def _sheets(path: Path) -> Iterator[Image.Image]:
    """Pictures full of faces, every one another face."""
    rows, columns = _FACES_ON_A_SHEET
    faces = (np.load(path, allow_pickle=False)[:100] * 255).astype(np.uint8)
    for number in range(_SHEETS):
        sheet = Image.new("RGB", (2 * columns * _FACE, 2 * rows * _FACE), (90, 110, 130))
        for place in range(rows * columns):
            face = Image.fromarray(faces[number * rows * columns + place])
            row, column = divmod(place, columns)
            at = ((2 * column + number % 2) * _FACE, (2 * row + number // 2) * _FACE)
            sheet.paste(face.resize((_FACE, _FACE), Image.Resampling.BICUBIC), at)
        yield sheet


def _crop(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A part of a picture, mirrored half of the time."""
    width, height = (
        round(side * rng.uniform(_SMALLEST_CROP, 1.0)) for side in (picture.width, picture.height)
    )
    left = int(rng.integers(0, picture.width - width + 1))
    top = int(rng.integers(0, picture.height - height + 1))
    part = picture.crop((left, top, left + width, top + height))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part
