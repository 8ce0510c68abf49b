"""TFLite Model Metadata: what an application that knows nothing but the file has to know.

How pixels become numbers (NormalizationOptions), which output is what, where left, top, right and
bottom stand in a box (BoundingBoxProperties), and the names of the classes, which lie behind the
model as a ZIP archive. MediaPipe Tasks loads no detector without it.

It is attached to the finished file before anything is checked: what is verified is what ships.
"""

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as generated

from bridge.detection import Role
from bridge.errors import PassError, UsageError
from bridge.options import BoxUnits, Normalization, Options
from bridge.targets.base import Port
from bridge.targets.tflite import metadata_schema, schema, tables
from bridge.targets.tflite.form import Form
from bridge.targets.tflite.metadata_schema import BoxType, ColorSpace, Coordinates, FileType

LABELS: Final = "labels.txt"
_MOST_LABEL_BYTES: Final = 1 << 20
_STAMP: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest date of an archive's entry: same labels, same bytes."""

_COLORS: Final[Mapping[int, ColorSpace]] = {1: ColorSpace.GRAYSCALE, 3: ColorSpace.RGB}

_DETECTIONS: Final = (Role.BOXES, Role.CLASSES, Role.SCORES, Role.COUNT)
"""The outputs of a detector as applications of TFLite_Detection_PostProcess expect them."""

_DESCRIPTIONS: Final[Mapping[Role, tuple[str, str]]] = {
    Role.BOXES: ("location", "The boxes of the detections"),
    Role.CLASSES: ("category", "The class number of each detection"),
    Role.SCORES: ("score", "The score of each detection"),
    Role.COUNT: ("number of detections", "How many rows of the other outputs are detections"),
}
"""Names as readers of detectors know them, and texts for people."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is attached.

    Attributes:
        document: in the words of `metadata_schema`.
        files: by name in the archive.
        missing: why MediaPipe Tasks will not load a detector with it; None where it will.
    """

    document: tables.Document
    files: Mapping[str, bytes]
    missing: str | None


def describe(inputs: tuple[Port, ...], form: Form, options: Options) -> Metadata | None:
    """The metadata of a file; None where too little is known and nobody asked for labels.

    Without `--labels` a file gets metadata if it is complete: one image whose normalisation is
    known and four outputs of detections whose boxes are known to be fractions.

    Raises:
        UsageError: the label file cannot be used, or no output holds classes.
    """
    missing = next(_missing(inputs, form, options), None)
    if options.labels is None and missing is not None:
        return None
    files = {}
    if options.labels is not None:
        names = read_labels(options.labels)
        _check(options.labels, names, form)
        files[LABELS] = "".join(f"{name}\n" for name in names).encode()
    document = {
        "name": "Detector",
        "description": "Finds objects in an image; boxes, scores and classes",
        "subgraph_metadata": [
            {
                "input_tensor_metadata": [_input(port, options.normalization) for port in inputs],
                "output_tensor_metadata": [_output(port, form, options) for port in form.outputs],
            }
        ],
        "min_parser_version": metadata_schema.LEAST_PARSER,
    }
    return Metadata(document, files, missing)


def attach(content: bytes, metadata: Metadata) -> bytes:
    """A file with its metadata inside and the associated files behind it.

    The archive stands last and its entries are stored, not compressed, as the format wants.
    """
    model = generated.ModelT.InitFromPackedBuf(content, 0)
    if any(buffer.offset > 1 for buffer in model.buffers):
        raise PassError("a linked file keeps constants behind the FlatBuffer, where labels go")
    model.buffers = [
        schema.Buffer(None if one.data is None else np.asarray(one.data, np.uint8).tobytes())
        for one in model.buffers
    ]
    packed = tables.pack(
        metadata_schema.SCHEMA,
        metadata_schema.ROOT,
        metadata.document,
        metadata_schema.IDENTIFIER,
    )
    model.buffers.append(schema.Buffer(packed))
    entry = generated.MetadataT()
    entry.name, entry.buffer = metadata_schema.NAME.encode(), len(model.buffers) - 1
    model.metadata = [entry]
    stream = io.BytesIO()
    stream.write(schema.pack(model))
    if metadata.files:
        with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as archive:
            for name, file in metadata.files.items():
                archive.writestr(zipfile.ZipInfo(name, _STAMP), file)
    return stream.getvalue()


def read_labels(path: Path) -> tuple[str, ...]:
    """The names of the classes, one a line; empty lines at the end do not count.

    Raises:
        UsageError: the file cannot be read, is no UTF-8 text, or is empty.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_LABEL_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--labels {path}: cannot read it: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--labels {path}: byte {error.start} is not UTF-8; save it as UTF-8 text"
        ) from error
    if "\0" in text or len(content) > _MOST_LABEL_BYTES:
        raise UsageError(f"--labels {path}: this is no text file; give a class name on each line")
    names = [line.strip() for line in text.split("\n")]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UsageError(f"--labels {path} is empty; give a class name on each line")
    return tuple(names)


def _check(path: Path, names: tuple[str, ...], form: Form) -> None:
    meaning = form.meaning
    if Role.CLASSES not in meaning.roles.values():
        outputs = ", ".join(port.name for port in form.outputs)
        raise UsageError(
            f"--labels {path}: none of the outputs ({outputs}) holds class numbers alone; convert "
            "with --outputs detections or --nms postprocess"
        )
    if meaning.classes is not None and len(names) < meaning.classes:
        raise UsageError(
            f"--labels {path} has {len(names)} lines, and class numbers go up to "
            f"{meaning.classes - 1}: give at least {meaning.classes}, the name of class 0 first"
        )


def _missing(inputs: tuple[Port, ...], form: Form, options: Options) -> Iterator[str]:
    """What MediaPipe's object detector would miss."""
    if tuple(form.meaning.roles.get(port.name) for port in form.outputs) != _DETECTIONS:
        yield "the outputs are not the four of a detector (--outputs detections)"
    if len(inputs) != 1 or not _is_image(inputs[0]):
        yield "the input is not one image of float32 or uint8 [1, height, width, 3]"
    elif inputs[0].dtype == "float32" and options.normalization is None:
        yield "how RGB bytes become the float32 input is unknown (--mean, --std; 0 and 1 for none)"
    elif inputs[0].dtype == "float32" and _per_channel(options.normalization):
        yield "it has one mean and one std for all channels (--normalize graph)"
    if options.box_units is not BoxUnits.FRACTIONS:
        yield "the boxes are not known to be fractions of the image (--box-units fractions)"
    if form.meaning.corners is None:
        yield "where left and top stand in a box is unknown (--box-layout)"


def _is_image(port: Port) -> bool:
    return len(port.shape) == 4 and port.shape[3] in _COLORS and port.dtype in ("float32", "uint8")


def _input(port: Port, normalization: Normalization | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": port.name}
    if not _is_image(port):
        return found
    _, height, width, channels = port.shape
    size = {"width": width, "height": height}
    image = {"color_space": _COLORS[channels], "default_size": size}
    found["description"] = f"The image, resized to {width} x {height}"
    found["content"] = {"content_properties": ("ImageProperties", image)}
    if port.dtype == "float32" and normalization is not None:
        mean, std = (list(numbers) for numbers in _once(normalization))
        found["process_units"] = [{"options": ("NormalizationOptions", {"mean": mean, "std": std})}]
        found["stats"] = {
            "max": [(255 - m) / s for m, s in _pairs(mean, std)],
            "min": [-m / s for m, s in _pairs(mean, std)],
        }
    elif port.dtype == "uint8":
        found["stats"] = {"max": [255.0], "min": [0.0]}
    return found


def _per_channel(normalization: Normalization | None) -> bool:
    return normalization is not None and any(len(numbers) > 1 for numbers in _once(normalization))


def _once(normalization: Normalization) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std, as one number each where all channels have the same."""
    mean, std = normalization.mean, normalization.std
    return mean[:1] if len({*mean}) == 1 else mean, std[:1] if len({*std}) == 1 else std


def _pairs(mean: list[float], std: list[float]) -> Iterator[tuple[float, float]]:
    """Mean and standard deviation of each channel; either may be one number for all."""
    channels = max(len(mean), len(std))
    for channel in range(channels):
        yield mean[channel % len(mean)], std[channel % len(std)]


def _output(port: Port, form: Form, options: Options) -> dict[str, Any]:
    role = form.meaning.roles.get(port.name)
    name, text = (port.name, "") if role is None else _DESCRIPTIONS.get(role, (port.name, ""))
    found: dict[str, Any] = {"name": name, "description": text}
    if role is Role.BOXES and form.meaning.corners is not None and options.box_units is not None:
        ratio = options.box_units is BoxUnits.FRACTIONS
        box = {
            "index": list(form.meaning.corners),
            "type": BoxType.BOUNDARIES,
            "coordinate_type": Coordinates.RATIO if ratio else Coordinates.PIXEL,
        }
        found["content"] = {"content_properties": ("BoundingBoxProperties", box)}
    elif role is not None:
        found["content"] = {"content_properties": ("FeatureProperties", {})}
    if role is Role.CLASSES and options.labels is not None:
        label = {"name": LABELS, "description": "Class names", "type": FileType.TENSOR_VALUE_LABELS}
        found["associated_files"] = [label]
    return found
