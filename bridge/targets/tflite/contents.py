"""What is in a TFLite file, ours or anybody's, read off its bytes; nothing of it is executed."""

import io
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ai_edge_litert import schema_py_generated as generated
from flatbuffers import flexbuffers

from bridge.errors import UnsupportedModelError, UsageError
from bridge.targets.tflite import metadata_schema, model_schema, tables
from bridge.targets.tflite.metadata_schema import ColorSpace, Coordinates, FileType

_CUSTOM: Final = generated.BuiltinOperator.CUSTOM
_SUPPRESSIONS: Final = frozenset(
    {"NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "TFLite_Detection_PostProcess"}
)
_OPTIONS: Final = (
    "max_detections", "max_classes_per_detection", "detections_per_class", "num_classes",
    "use_regular_nms", "nms_score_threshold", "nms_iou_threshold",
    "y_scale", "x_scale", "h_scale", "w_scale",
)  # fmt: skip
"""Of TFLite_Detection_PostProcess, as `detection_postprocess.cc` reads them."""

_LETTERS: Final[Mapping[str, str]] = {"float16": "e", "float32": "f", "int32": "i"}

_MOST_LABEL_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Quantized:
    """How whole numbers stand for real ones: `(q - zero_point) * scale`.

    Attributes:
        axis: along which scales differ; None where there is one.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; -1 in the shape marks a size that the application may set."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    quantized: Quantized | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """A way to call the file by names: from each name to the tensor's own."""

    key: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Operator:
    """Operators of one kind.

    Attributes:
        custom: not one of TFLite's own.
    """

    name: str
    count: int
    custom: bool


@dataclass(frozen=True, slots=True)
class Share:
    """Tensors of one element type.

    Attributes:
        tensors: all of them.
        constants: those with a buffer, of `constant_bytes` together.
        quantized: those with a scale, `per_channel` of them with several.
    """

    dtype: str
    tensors: int
    constants: int
    constant_bytes: int
    quantized: int
    per_channel: int


@dataclass(frozen=True, slots=True)
class Suppression:
    """An operator that suppresses boxes.

    Attributes:
        settings: limits that are constants, or the options of the custom operator.
    """

    operator: str
    boxes: tuple[int, ...]
    scores: tuple[int, ...]
    settings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TensorNote:
    """What the metadata says of one input or output.

    Attributes:
        size: width and height of an image.
        mean, std: `(x - mean) / std` is done to RGB 0..255 by the application.
        corners: which columns of a box are left, top, right and bottom.
        coordinates: RATIO or PIXEL.
        labels: file in the archive that names classes, or the places on an axis.
    """

    name: str
    description: str
    color_space: str | None = None
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    corners: tuple[int, ...] = ()
    coordinates: str | None = None
    labels: str | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """The TFLite Model Metadata.

    Attributes:
        labels: the lines of every label file that is in the archive.
        absent: label files that are named and not in the archive.
    """

    name: str
    description: str
    min_parser_version: str
    inputs: tuple[TensorNote, ...]
    outputs: tuple[TensorNote, ...]
    labels: Mapping[str, tuple[str, ...]]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """All that is told of a file.

    Attributes:
        subgraphs: how many; inputs, outputs are the first one's, the rest counts all.
        notes: None where there is no metadata.
    """

    description: str
    subgraphs: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    signatures: tuple[Signature, ...]
    operators: tuple[Operator, ...]
    shares: tuple[Share, ...]
    suppressions: tuple[Suppression, ...]
    notes: Notes | None


def read(path: Path) -> Contents:
    """What is in a file.

    Raises:
        UsageError: the file cannot be read.
        UnsupportedModelError: it is not a TFLite file, or a broken one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        model = tables.unpack(
            model_schema.SCHEMA, model_schema.ROOT, content, model_schema.IDENTIFIER
        )
        return _Reader(model, content).contents()
    except tables.BrokenFileError as error:
        raise UnsupportedModelError(f"{path} is not a usable TFLite file: {error}") from error


@dataclass(slots=True)
class _Reader:
    model: tables.Document
    content: bytes
    buffers: Sequence[tables.Document] = field(init=False)
    graphs: Sequence[tables.Document] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = self.model.get("buffers", [])
        self.graphs = self.model.get("subgraphs", [])

    def contents(self) -> Contents:
        """All of it."""
        if not self.graphs:
            raise tables.BrokenFileError("it holds no subgraph")
        first = self.graphs[0]
        return Contents(
            description=self.model.get("description", ""),
            subgraphs=len(self.graphs),
            inputs=tuple(self._tensors(first, first.get("inputs", []))),
            outputs=tuple(self._tensors(first, first.get("outputs", []))),
            signatures=tuple(map(self._signature, self.model.get("signature_defs", []))),
            operators=self._operators(),
            shares=tuple(self._shares()),
            suppressions=tuple(self._suppressions()),
            notes=self._notes(),
        )

    def _tensors(self, graph: tables.Document, indices: Sequence[int]) -> Iterator[Tensor]:
        for index in indices:
            yield _tensor(_at(graph.get("tensors", []), index, "tensor"))

    def _signature(self, entry: tables.Document) -> Signature:
        graph = _at(self.graphs, entry.get("subgraph_index", 0), "subgraph")

        def names(side: str) -> dict[str, str]:
            maps = entry.get(side, [])
            found = self._tensors(graph, [one.get("tensor_index", 0) for one in maps])
            return {
                one.get("name", ""): tensor.name for one, tensor in zip(maps, found, strict=True)
            }

        return Signature(entry.get("signature_key", ""), names("inputs"), names("outputs"))

    def _kind(self, operator: tables.Document) -> tuple[str, bool]:
        """The name of an operator, and whether it is a custom one."""
        codes = self.model.get("operator_codes", [])
        code = _at(codes, operator.get("opcode_index", 0), "operator code")
        number = max(code.get("builtin_code", 0), code.get("deprecated_builtin_code", 0))
        if number == _CUSTOM:
            return code.get("custom_code", "(no name)"), True
        return _BUILTINS.get(number, f"(builtin {number})"), False

    def _each(self) -> Iterator[tuple[tables.Document, tables.Document]]:
        """Every operator, and the subgraph it is in."""
        for graph in self.graphs:
            for operator in graph.get("operators", []):
                yield graph, operator

    def _operators(self) -> tuple[Operator, ...]:
        counts = Counter(self._kind(operator) for _, operator in self._each())
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return tuple(Operator(name, count, custom) for (name, custom), count in ordered)

    def _shares(self) -> Iterator[Share]:
        by_type: dict[str, list[tuple[tables.Document, int | None]]] = {}
        for graph in self.graphs:
            for tensor in graph.get("tensors", []):
                size = self._size(tensor.get("buffer", 0))
                by_type.setdefault(_dtype(tensor), []).append((tensor, size))
        for dtype, found in sorted(by_type.items()):
            scales = [len(t.get("quantization", {}).get("scale", [])) for t, _ in found]
            sizes = [size for _, size in found if size is not None]
            yield Share(
                dtype=dtype,
                tensors=len(found),
                constants=len(sizes),
                constant_bytes=sum(sizes),
                quantized=sum(count > 0 for count in scales),
                per_channel=sum(count > 1 for count in scales),
            )

    def _buffer(self, number: int) -> memoryview | None:
        """What a buffer holds, also where it lies behind the FlatBuffer; None for nothing."""
        buffer = _at(self.buffers, number, "buffer")
        offset, size = buffer.get("offset", 0), buffer.get("size", 0)
        if offset > 1:
            if offset + size > len(self.content):
                raise tables.BrokenFileError(f"buffer {number} ends behind the file")
            return memoryview(self.content)[offset : offset + size]
        found: memoryview | None = buffer.get("data")
        return found

    def _size(self, number: int) -> int | None:
        found = None if number == 0 else self._buffer(number)
        return None if found is None else len(found)

    # Suppressions

    def _suppressions(self) -> Iterator[Suppression]:
        for graph, operator in self._each():
            kind, custom = self._kind(operator)
            if kind not in _SUPPRESSIONS:
                continue
            inputs = operator.get("inputs", [])
            boxes, scores = (
                _tensor(_at(graph.get("tensors", []), _at(inputs, i, "input"), "tensor"))
                for i in (0, 1)
            )
            settings = (
                _options(operator.get("custom_options"))
                if custom
                else self._limits(graph, inputs[2:5])
            )
            yield Suppression(kind, boxes.shape, scores.shape, settings)

    def _limits(self, graph: tables.Document, inputs: Sequence[int]) -> dict[str, float]:
        """The scalars of NON_MAX_SUPPRESSION, as far as they are constants."""
        found: dict[str, float] = {}
        names = ("max_output_size", "iou_threshold", "score_threshold")
        for name, index in zip(names, inputs, strict=False):
            number = self._scalar(graph, index)
            if number is not None:
                found[name] = number
        return found

    def _scalar(self, graph: tables.Document, index: int) -> float | None:
        """The number that a tensor is, or that is widened into it."""
        for operator in graph.get("operators", []):
            if index in operator.get("outputs", []) and self._kind(operator)[0] == "DEQUANTIZE":
                index = _at(operator.get("inputs", []), 0, "input")
                break
        tensor = _at(graph.get("tensors", []), index, "tensor")
        letter = _LETTERS.get(_dtype(tensor))
        buffer = tensor.get("buffer", 0)
        content = self._buffer(buffer) if buffer else None
        if letter is None or content is None or len(content) != struct.calcsize(letter):
            return None
        number: float = struct.unpack(f"<{letter}", content)[0]
        return number

    # Metadata

    def _notes(self) -> Notes | None:
        entry = next(
            (e for e in self.model.get("metadata", []) if e.get("name") == metadata_schema.NAME),
            None,
        )
        if entry is None:
            return None
        content = self._buffer(entry.get("buffer", 0))
        document = tables.unpack(
            metadata_schema.SCHEMA,
            metadata_schema.ROOT,
            b"" if content is None else bytes(content),
            metadata_schema.IDENTIFIER,
        )
        graph: tables.Document = next(iter(document.get("subgraph_metadata", [])), {})
        inputs = tuple(map(_note, graph.get("input_tensor_metadata", [])))
        outputs = tuple(map(_note, graph.get("output_tensor_metadata", [])))
        named = list(dict.fromkeys(note.labels for note in (*inputs, *outputs) if note.labels))
        labels = _archived(self.content, named)
        return Notes(
            name=document.get("name", ""),
            description=document.get("description", ""),
            min_parser_version=document.get("min_parser_version", ""),
            inputs=inputs,
            outputs=outputs,
            labels=labels,
            absent=tuple(name for name in named if name not in labels),
        )


def _at(rows: Sequence[Any], index: int, what: str) -> Any:
    if not 0 <= index < len(rows):
        raise tables.BrokenFileError(f"it refers to {what} {index} of {len(rows)}")
    return rows[index]


def _names(enumeration: type) -> dict[int, str]:
    return {number: name for name, number in vars(enumeration).items() if isinstance(number, int)}


_BUILTINS: Final[Mapping[int, str]] = _names(generated.BuiltinOperator)
_TYPES: Final[Mapping[int, str]] = _names(generated.TensorType)


def _dtype(tensor: tables.Document) -> str:
    number = tensor.get("type", 0)
    return _TYPES.get(number, f"(type {number})").lower()


def _tensor(tensor: tables.Document) -> Tensor:
    quantization = tensor.get("quantization", {})
    scale = tuple(quantization.get("scale", []))
    axis = quantization.get("quantized_dimension", 0) if len(scale) > 1 else None
    points = tuple(quantization.get("zero_point", []))
    return Tensor(
        name=tensor.get("name", ""),
        dtype=_dtype(tensor),
        shape=tuple(tensor.get("shape_signature") or tensor.get("shape", [])),
        quantized=Quantized(scale, points, axis) if scale else None,
    )


def _options(content: memoryview | None) -> dict[str, float]:
    """The options of TFLite_Detection_PostProcess; of a broken map, what can be read."""
    found: dict[str, float] = {}
    if content is None:
        return found
    for name in _OPTIONS:
        try:
            value = flexbuffers.GetRoot(bytearray(content)).AsMap[name]
            number = value.AsFloat if value.IsFloat else value.AsInt
        except Exception:  # whatever a broken map of an untrusted file does
            continue
        found[name] = number
    return found


def _note(entry: tables.Document) -> TensorNote:
    kind, properties = entry.get("content", {}).get("content_properties", ("", {}))
    size = properties.get("default_size") if kind == "ImageProperties" else None
    boxes = properties if kind == "BoundingBoxProperties" else None
    norms: list[tables.Document] = [
        unit["options"][1] for unit in entry.get("process_units", []) if "options" in unit
    ]
    norm = norms[0] if norms else {}
    kinds = (FileType.TENSOR_VALUE_LABELS, FileType.TENSOR_AXIS_LABELS)
    labels = [f for f in entry.get("associated_files", []) if f.get("type", 0) in kinds]
    return TensorNote(
        name=entry.get("name", ""),
        description=entry.get("description", ""),
        color_space=_enum(ColorSpace, properties.get("color_space", 0))
        if kind == "ImageProperties"
        else None,
        size=None if size is None else (size.get("width", 0), size.get("height", 0)),
        mean=tuple(norm.get("mean", [])),
        std=tuple(norm.get("std", [])),
        corners=() if boxes is None else tuple(boxes.get("index", [])),
        coordinates=None if boxes is None else _enum(Coordinates, boxes.get("coordinate_type", 0)),
        labels=labels[0].get("name") if labels else None,
    )


def _enum(kind: type[ColorSpace] | type[Coordinates], number: int) -> str:
    return kind(number).name if number in list(kind) else f"({number})"


def _archived(content: bytes, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The lines of files in the archive behind the model; what cannot be read is left out."""
    found: dict[str, tuple[str, ...]] = {}
    if not names:
        return found
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in names:
                if name in archive.namelist():
                    with archive.open(name) as file:
                        text = file.read(_MOST_LABEL_BYTES).decode(errors="replace")
                    found[name] = tuple(text.rstrip("\n").split("\n"))
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, EOFError):
        return found
    return found
