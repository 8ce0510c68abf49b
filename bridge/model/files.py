"""ONNX files in and out: read what cannot be trusted, write whole files or none."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from onnx import TensorProto, helper, numpy_helper

from bridge.errors import UnsupportedModelError, UsageError
from bridge.model.graphs import graphs, operator, place, skeleton, subgraphs

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
    _check_texts(model, path)
    tensors = tuple(_tensors(model))
    _load_external_data(tensors, path)
    for tensor in tensors:
        _check_tensor(tensor, path)
    try:
        onnx.checker.check_model(skeleton(model))
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


def _check_texts(model: onnx.ModelProto, path: Path) -> None:
    """Names must be text and element types known: protobuf hands on what is neither."""
    texts = [model.producer_name, model.producer_version, model.domain, model.doc_string]
    texts += [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    for graph in graphs(model):
        texts += [graph.name, graph.doc_string]
        for node in graph.node:
            texts += [node.name, node.op_type, node.domain, node.doc_string]
            texts += [*node.input, *node.output]
            texts += [text for a in node.attribute for text in (a.name, a.ref_attr_name)]
        if isinstance(graph, onnx.FunctionProto):
            texts += [*graph.input, *graph.output, *graph.attribute]
            continue
        texts += [tensor.name for tensor in graph.initializer]
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            texts += [value.name, *(dim.dim_param for dim in kind.shape.dim)]
            if kind.elem_type not in TensorProto.DataType.values():
                raise UnsupportedModelError(
                    f"{value.name!r} of {path} has element type {kind.elem_type}, which ONNX does "
                    "not know; export or copy the model again"
                )
    for text in texts:
        if isinstance(text, bytes):  # how protobuf gives a string that is not UTF-8
            raise UnsupportedModelError(
                f"a name in {path} is not text: {text!r}; export or copy the model again"
            )


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
