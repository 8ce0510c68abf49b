"""ONNX files in and out: read what cannot be trusted, write whole files or none, make up inputs."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bridge.errors import UnsupportedModelError, UsageError

Array = NDArray[np.generic]

MAX_BYTES = 2**31 - 1
"""What one protobuf message may hold, weights included."""

MAX_NODES = 1_000_000
"""Nodes of a model once its functions are expanded; a few nested calls can stand for more."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model as it was read: the judge of every artifact, never changed.

    Attributes:
        digest: sha256 of the file, hexadecimal. External data is not part of it.
        model: the model with its external data loaded into it.
    """

    path: Path
    digest: str
    model: onnx.ModelProto


def load(path: str | os.PathLike[str]) -> Source:
    """Read a model and its external data, which must lie in the model's own folder.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        UnsupportedModelError: it is not a valid ONNX model, or larger than protobuf allows.
    """
    path = Path(path)
    data = _read(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        model.Clear()
    if not model.ir_version or not model.HasField("graph"):
        raise UnsupportedModelError(
            f"{path} is not an ONNX model, or only a part of one: "
            f"it is {len(data)} bytes that do not hold a ModelProto; export or copy it again"
        )
    tensors = tuple(_tensors(model))
    _load_external_data(tensors, path)
    for tensor in tensors:
        _check_tensor(tensor, path)
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise UnsupportedModelError(
            f"{path} is not valid ONNX: {' '.join(str(error).split())}"
        ) from error
    _check_functions(model, path)
    return Source(path, digest(data), model)


def digest(data: bytes) -> str:
    """Sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def serialise(model: onnx.ModelProto) -> bytes:
    """The model as bytes, always the same for equal models.

    Raises:
        UnsupportedModelError: larger than one protobuf message may be.
    """
    size = model.ByteSize()
    if size > MAX_BYTES:
        raise UnsupportedModelError(
            f"the model is {size} bytes large and a protobuf message holds {MAX_BYTES}; "
            "export it with smaller weights (float16)"
        )
    return bytes(model.SerializeToString(deterministic=True))


def save(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write the model: the file is there whole or not at all.

    Raises:
        UsageError: the folder is missing or cannot be written.
    """
    write_whole(Path(path), serialise(model))


def write_whole(path: Path, data: bytes) -> None:
    """Write under a temporary name in the same folder, then rename.

    Raises:
        UsageError: the folder is missing or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the .onnx file in it")
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UnsupportedModelError(
                f"{path} is {size} bytes large and a protobuf message holds {MAX_BYTES}; "
                "it cannot be an ONNX model without external data"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read {path}: {reason}") from error


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The main graph, every function, and every graph in an attribute of their nodes."""
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            pending.extend(subgraphs(node))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies a node owns: branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def operator(node: onnx.NodeProto) -> str:
    """The operator as messages spell it: `TopK`, `TRT::EfficientNMS_TRT`."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def place(node: onnx.NodeProto) -> str:
    """Where a node is, for messages; unnamed nodes go by what they write."""
    return node.name or f"that writes {next(filter(None, node.output), '(nothing)')}"


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    for graph in graphs(model):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def _load_external_data(tensors: Iterable[TensorProto], path: Path) -> None:
    external = [t for t in tensors if t.data_location == TensorProto.EXTERNAL]
    total = sum(_nbytes(tensor, path) for tensor in external)
    if total > MAX_BYTES:
        raise UnsupportedModelError(
            f"{path} has {total} bytes of external data; bridge handles models up to {MAX_BYTES} "
            "bytes, weights included: export it with smaller weights (float16)"
        )
    for tensor in external:
        tensor.raw_data = _external_bytes(tensor, path)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _external_bytes(tensor: TensorProto, path: Path) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = _external_file(entries.get("location", ""), tensor.name, path)
    needed = _nbytes(tensor, path)
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", needed))
    except ValueError:
        offset = length = -1
    if offset < 0 or length != needed or offset + length > file.stat().st_size:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} of {path} needs {needed} bytes, but its external data names "
            f"offset {entries.get('offset', 0)} and length {entries.get('length', needed)} "
            f"in {file.name} of {file.stat().st_size} bytes; copy model and data again"
        )
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def _external_file(location: str, tensor: str, path: Path) -> Path:
    """The data file, which is a regular file below the model's folder once links are followed."""
    where = f"external data {location!r} of tensor {tensor!r}"
    relative = PurePosixPath(location)
    parts = (*relative.parts, *PureWindowsPath(location).parts)
    absolute = relative.is_absolute() or PureWindowsPath(location).anchor
    if not location or "\0" in location or absolute or ".." in parts:
        raise UnsupportedModelError(
            f"{where} is not a file below the folder of {path}; refused: a model may read nothing "
            "else. Save it again with a relative location"
        )
    folder = path.parent.resolve()
    file = (folder / relative).resolve()
    if not file.is_relative_to(folder):
        raise UnsupportedModelError(
            f"{where} is a link that leaves the folder of {path}; refused: a model may read "
            "nothing else. Copy the data file itself beside the model"
        )
    if not file.is_file():
        raise UnsupportedModelError(
            f"{where} is missing: {path} needs the file {location} beside it; copy it there"
        )
    return file


def _nbytes(tensor: TensorProto, path: Path) -> int:
    """Bytes of the tensor's elements, packed as raw_data packs them."""
    try:
        bits = _bits(tensor.data_type)
    except KeyError:
        bits = 0
    if not bits or any(dim < 0 for dim in tensor.dims):
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} of {path} has element type {tensor.data_type} and shape "
            f"{list(tensor.dims)}, which no tensor can have"
        )
    elements: int = math.prod(tensor.dims)
    return (elements * bits + 7) // 8


def _bits(data_type: int) -> int:
    if data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return 4
    if data_type in (TensorProto.INT2, TensorProto.UINT2):
        return 2
    bits: int = helper.tensor_dtype_to_np_dtype(data_type).itemsize * 8
    return bits


def _check_tensor(tensor: TensorProto, path: Path) -> None:
    """Sizes must agree, else any later reader of the tensor stumbles over it."""
    if tensor.HasField("raw_data"):
        held, needed = len(tensor.raw_data), _nbytes(tensor, path)
        if held != needed:
            raise UnsupportedModelError(
                f"tensor {tensor.name!r} of {path} has shape {list(tensor.dims)} and so needs "
                f"{needed} bytes, but holds {held}; export or copy it again"
            )
        return
    try:
        numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} of {path} does not hold what it declares "
            f"(shape {list(tensor.dims)}, type {tensor.data_type}): {error}"
        ) from error


def _check_functions(model: onnx.ModelProto, path: Path) -> None:
    """Calls must end, and not stand for more nodes than can be handled.

    onnx and onnxruntime follow calls without a limit of their own.
    """
    bodies = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(graph: onnx.GraphProto | onnx.FunctionProto, callers: tuple[str, ...]) -> int:
        total = len(graph.node)
        for node in graph.node:
            for body in subgraphs(node):
                total += size(body, callers)
            key = (node.domain, node.op_type, node.overload)
            if key in bodies:
                if operator(node) in callers:
                    raise UnsupportedModelError(
                        f"function {operator(node)} of {path} calls itself "
                        f"(node {place(node)}); ONNX functions may not recur"
                    )
                if key not in sizes:
                    sizes[key] = size(bodies[key], (*callers, operator(node)))
                total += sizes[key]
        if total > MAX_NODES:
            raise UnsupportedModelError(
                f"{path} holds more than {MAX_NODES} nodes once its functions are expanded"
            )
        return total

    size(model.graph, ())
    for function in model.functions:
        size(function, (f"{function.domain}::{function.name}",))


class InputKind(StrEnum):
    """A way to make up the inputs of a golden run.

    Images take the numbers as they are; box inputs become plausible boxes of another scale in
    each kind, and score inputs numbers that are all different (in `zeros`: all equal).
    """

    UNIFORM = "uniform"
    NORMAL = "normal"
    BYTES = "bytes"
    LARGE = "large"
    ZEROS = "zeros"


def seeded_inputs(
    model: onnx.ModelProto,
    *,
    seed: int,
    kinds: Sequence[InputKind] = tuple(InputKind),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array] | None = None,
) -> tuple[dict[str, Array], ...]:
    """One set of inputs for the source model per kind, the same ones for the same seed.

    Where the model holds a NonMaxSuppression, a float input of shape [.., N, 4] and rank 2 or 3
    is taken for boxes, and the other float inputs of rank 3 or less beside it for scores.

    `input_shapes` holds the shapes of inputs with symbolic dimensions, `freeze` values that are
    passed on in the declared type and shape.

    Raises:
        UsageError: an input has symbolic dimensions and no shape was given, or a frozen value
            does not fit.
    """
    freeze = freeze or {}
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [
        value
        for value in model.graph.input
        if value.name not in initializers or value.name in freeze
    ]
    made_up = [value for value in inputs if value.name not in freeze]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, dims in input_shapes_of(made_up, input_shapes or {}).items():
        shapes[name] = tuple(dim for dim in dims or () if dim is not None)
        if dims is None or len(shapes[name]) != len(dims):
            declared = next(spelt(declared_shape(v)) for v in inputs if v.name == name)
            raise UsageError(f"input {name!r} is {declared}; fix it with --input-shape {name}=...")
    suppresses = any(
        node.op_type == "NonMaxSuppression" for graph in graphs(model) for node in graph.node
    )
    boxes = {
        name
        for name, shape in shapes.items()
        if suppresses and len(shape) in (2, 3) and shape[-1] == 4
    }

    def make(value: onnx.ValueInfoProto, kind: InputKind, rng: np.random.Generator) -> Array:
        shape = shapes[value.name]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind != "f":
            return _integers(rng, kind, shape, dtype)
        if value.name in boxes:
            return _boxes(rng, kind, shape).astype(dtype)
        if boxes and len(shape) <= 3:
            return _scores(rng, kind, shape).astype(dtype)
        return np.asarray(_noise(rng, kind, shape), dtype)

    made = []
    for number, kind in enumerate(kinds):
        rng = np.random.default_rng([seed, number])
        made.append(
            {
                value.name: as_declared(value, freeze[value.name])
                if value.name in freeze
                else make(value, kind, rng)
                for value in inputs
            }
        )
    return tuple(made)


def input_shapes_of(
    inputs: Sequence[onnx.ValueInfoProto], given: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int | None, ...] | None]:
    """The shape of every input once the given ones are fixed; None where it is still free.

    A symbol that a given shape fixes has that size in every input that uses it.

    Raises:
        UsageError: a given shape contradicts what is declared, or another given one.
    """
    declared = {value.name: declared_shape(value) for value in inputs}
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        option = f"--input-shape {name}={','.join(map(str, shape))}"
        if name not in declared:
            known = ", ".join(declared)
            raise UsageError(f"{option}: the model has no such input; it has {known}")
        dims = declared[name] or (None,) * len(shape)
        if len(dims) != len(shape) or any(size < 1 for size in shape):
            raise UsageError(f"{option} is not {len(dims)} sizes of at least 1: {spelt(dims)}")
        for dim, size in zip(dims, shape, strict=True):
            fixed = symbols.setdefault(dim, size) if isinstance(dim, str) else dim
            if fixed not in (None, size):
                raise UsageError(f"{option} contradicts the model, where it is {spelt(dims)}")
        declared[name] = tuple(shape)
    return {
        name: None
        if dims is None
        else tuple(symbols.get(dim) if isinstance(dim, str) else dim for dim in dims)
        for name, dims in declared.items()
    }


def declared_shape(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """Per dimension its size, its symbol, or None; None where not even the rank is known."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    # Some exporters write -1 for a free dimension.
    return tuple(
        int(d.dim_value)
        if d.HasField("dim_value") and d.dim_value >= 0
        else str(d.dim_param) or None
        for d in kind.shape.dim
    )


def spelt(dims: Sequence[int | str | None] | None) -> str:
    """A shape as messages spell it: `[1, 3, height, ?]`."""
    if dims is None:
        return "of unknown rank"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def as_declared(value: onnx.ValueInfoProto, array: Array) -> Array:
    """The array in the element type and shape that the input declares, its numbers unchanged.

    A single number fits every shape of one element.

    Raises:
        UsageError: it does not fit; says what the input takes.
    """
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    dims = declared_shape(value)
    declared = f"{dtype}{spelt(dims)}"
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    exact = np.array_equal(cast, array, equal_nan=array.dtype.kind == "f")
    if not exact and not (dtype.kind == "f" and array.dtype.kind in "fiu"):
        raise UsageError(f"input {value.name!r} is {declared} and cannot hold {array.tolist()}")
    if dims is None:
        return cast
    if len(dims) != array.ndim and array.size == 1:
        cast = cast.reshape([1] * len(dims))
    fits = cast.ndim == len(dims) and all(
        size == d or not isinstance(d, int) for d, size in zip(dims, cast.shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"input {value.name!r} is {declared} and cannot take a value of shape "
            f"{list(array.shape)}"
        )
    return cast


def _noise(
    rng: np.random.Generator, kind: InputKind, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    match kind:
        case InputKind.UNIFORM:
            return rng.random(shape)
        case InputKind.NORMAL:
            return rng.standard_normal(shape)
        case InputKind.BYTES:
            return np.floor(rng.random(shape) * 256)
        case InputKind.LARGE:
            return rng.standard_normal(shape) * 10
        case InputKind.ZEROS:
            return np.zeros(shape)


def _integers(
    rng: np.random.Generator, kind: InputKind, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> Array:
    """Bytes of an image, truth values, or small numbers that are legal as class indices."""
    if kind is InputKind.ZEROS:
        return np.zeros(shape, dtype)
    bound = 256 if dtype == np.uint8 else 2 if dtype == np.bool_ else 5
    return rng.integers(0, bound, shape).astype(dtype)


def _boxes(
    rng: np.random.Generator, kind: InputKind, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Boxes in clusters, so that some overlap much, some little and some not at all.

    Corners, but in `normal` centre and size, which read as corners are reversed ones.
    """
    if kind is InputKind.ZEROS:
        return np.zeros(shape)
    scale = {InputKind.UNIFORM: 1.0, InputKind.LARGE: 640.0}.get(kind, 256.0)
    rows = shape[:-1]
    clusters = rng.random((max(1, math.prod(rows) // 4), 4))
    chosen = clusters[rng.integers(0, len(clusters), rows)]
    centre = chosen[..., :2] + rng.normal(0, 0.02, (*rows, 2))
    size = (0.05 + 0.2 * chosen[..., 2:]) * rng.uniform(0.8, 1.25, (*rows, 2))
    if kind is InputKind.NORMAL:
        return np.concatenate([centre, size], axis=-1) * scale
    return np.concatenate([centre - size / 2, centre + size / 2], axis=-1) * scale


def _scores(
    rng: np.random.Generator, kind: InputKind, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Different numbers in 0..1; in `normal` logits, in `large` mostly confident ones."""
    if kind is InputKind.ZEROS:
        return np.zeros(shape)
    size = math.prod(shape)
    scores = ((rng.permutation(size) + 0.5) / max(1, size)).reshape(shape)
    if kind is InputKind.NORMAL:
        return np.log(scores / (1 - scores))
    return np.sqrt(scores) if kind is InputKind.LARGE else scores
