"""Building one TFLite subgraph, operator by operator, without TensorFlow.

A `Builder` only grows: every call appends an operator and gives back the handle of what it makes,
so code that emits reads like the arithmetic it stands for. Shapes are static and known at once;
types are numpy names. Equal constants are stored once, and equal calls give equal bytes.
Source of all formats: `tflite/schema/schema.fbs`, as generated into `ai_edge_litert`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers
from numpy.typing import ArrayLike, NDArray

from bridge.static_model import TensorType
from bridge.targets.tflite.versions import operator_version

SIGNATURE: Final = "serving_default"
DESCRIPTION: Final = b"bridge"
FILE_IDENTIFIER: Final = b"TFL3"

TYPES: Final[Mapping[str, int]] = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "float64": schema.TensorType.FLOAT64,
    "int8": schema.TensorType.INT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "uint8": schema.TensorType.UINT8,
    "uint16": schema.TensorType.UINT16,
    "uint32": schema.TensorType.UINT32,
    "uint64": schema.TensorType.UINT64,
    "bool": schema.TensorType.BOOL,
}

# The options table of each operator whose table is not simply its own name in camel case.
_SHARED_OPTIONS: Final[Mapping[str, str]] = {
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "SUM": "ReducerOptions",
    "MEAN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_ALL": "ReducerOptions",
    "PADV2": "PadV2Options",
    "TOPK_V2": "TopKV2Options",
    "BATCH_MATMUL": "BatchMatMulOptions",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the subgraph that a `Builder` builds."""

    index: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)


class AlignedBuffer(schema.BufferT):  # type: ignore[misc]  # the generated schema is untyped
    """A buffer whose bytes start at a multiple of 16, as `force_align` in schema.fbs demands.

    The generated Python code ignores that attribute, and an int64 constant at an odd address is
    undefined behaviour in the kernels.
    """

    ALIGNMENT: Final = 16

    def Pack(self, builder: Any) -> int:  # noqa: N802 - the name the generated code calls
        """Write the table and give its offset."""
        data = b"" if self.data is None else np.asarray(self.data, np.uint8).tobytes()
        vector = None
        if data:
            builder.StartVector(1, len(data), self.ALIGNMENT)
            builder.head = builder.Head() - len(data)
            builder.Bytes[builder.Head() : builder.Head() + len(data)] = data
            vector = builder.EndVector()
        schema.BufferStart(builder)
        if vector is not None:
            schema.BufferAddData(builder, vector)
        return int(schema.BufferEnd(builder))


def pack(model: Any) -> bytes:
    """The bytes of a schema `ModelT`."""
    size = sum(len(b.data) for b in model.buffers if b.data is not None)
    builder = flatbuffers.Builder(size + (1 << 16))
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())


def new_model() -> Any:
    """A schema `ModelT` with one empty subgraph; buffer 0 is the empty one, as the format wants."""
    model = schema.ModelT()
    model.version, model.description = 3, DESCRIPTION
    model.operatorCodes, model.buffers = [], [AlignedBuffer()]
    model.metadata, model.signatureDefs = [], []
    graph = schema.SubGraphT()
    graph.name, graph.tensors, graph.operators = b"main", [], []
    graph.inputs, graph.outputs = [], []
    model.subgraphs = [graph]
    return model


def signature(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
    """The `serving_default` signature: name to tensor index, in order."""
    result = schema.SignatureDefT()
    result.signatureKey, result.subgraphIndex = SIGNATURE.encode(), 0
    result.inputs = [_tensor_map(*item) for item in inputs.items()]
    result.outputs = [_tensor_map(*item) for item in outputs.items()]
    return result


def _tensor_map(name: str, index: int) -> Any:
    result = schema.TensorMapT()
    result.name, result.tensorIndex = name.encode(), index
    return result


class Builder:
    """An append-only builder of a model with one subgraph."""

    def __init__(self) -> None:
        self._model = new_model()
        self._graph = self._model.subgraphs[0]
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self._values: dict[int, NDArray[np.generic]] = {}
        self._codes: dict[tuple[int, str, int], int] = {}
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    # Tensors

    def _tensor(self, name: str, type_: TensorType, buffer: int = 0) -> Tensor:
        tensor = schema.TensorT()
        tensor.name, tensor.shape = name.encode(), np.asarray(type_.shape, np.int32)
        tensor.type, tensor.buffer, tensor.hasRank = TYPES[type_.dtype], buffer, True
        self._graph.tensors.append(tensor)
        return Tensor(len(self._graph.tensors) - 1, tuple(type_.shape), type_.dtype)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A new input of the subgraph."""
        tensor = self._tensor(name, TensorType(dtype, tuple(shape)))
        self._inputs[name] = tensor
        return tensor

    def constant(self, value: ArrayLike, dtype: str | None = None) -> Tensor:
        """A tensor of this value, stored once however often it is asked for."""
        array = np.asarray(value, dtype)
        # Not ascontiguousarray: that would turn a scalar into a vector of one.
        data, name = array.tobytes(), array.dtype.name
        key = (name, array.shape, data)
        if key not in self._constants:
            buffer = AlignedBuffer()
            buffer.data = np.frombuffer(data, np.uint8)
            self._model.buffers.append(buffer)
            tensor = self._tensor(
                f"constant_{len(self._constants)}",
                TensorType(name, array.shape),
                len(self._model.buffers) - 1,
            )
            self._constants[key] = tensor
            self._values[tensor.index] = array
        return self._constants[key]

    def value(self, tensor: Tensor) -> NDArray[np.generic] | None:
        """What a constant holds; None for a tensor computed at run time."""
        return self._values.get(tensor.index)

    def output(self, name: str, tensor: Tensor) -> None:
        """Make a tensor an output of the subgraph, under this name.

        A tensor that is an input, a constant or an output already is copied: TFLite binds one name
        to one tensor, and an interpreter may free or overwrite a shared one.
        """
        taken = {other.index for named in (self._inputs, self._outputs) for other in named.values()}
        if tensor.index in taken or tensor.index in self._values:
            tensor = self.copy(tensor)
        self._graph.tensors[tensor.index].name = name.encode()
        self._outputs[name] = tensor

    # Operators

    def emit(
        self, kind: str, inputs: Sequence[Tensor], outputs: Sequence[TensorType], **options: object
    ) -> tuple[Tensor, ...]:
        """Append a builtin operator.

        Args:
            kind: its name in `BuiltinOperator`, say `STRIDED_SLICE`.
            inputs: what it reads, in the kernel's order.
            outputs: type of each tensor it makes.
            options: fields of its options table in schema.fbs, in the generated code's spelling.
        """
        operator = schema.OperatorT()
        table = _SHARED_OPTIONS.get(kind, kind.title().replace("_", "") + "Options")
        if (options_type := _options_type(table)) is not None:
            operator.builtinOptionsType, operator.builtinOptions = options_type
            for field, value in options.items():
                if not hasattr(operator.builtinOptions, field):
                    raise TypeError(f"{table} has no field {field}")
                setattr(operator.builtinOptions, field, value)
        version = operator_version(kind, inputs, outputs, options)
        operator.opcodeIndex = self._code(getattr(schema.BuiltinOperator, kind), "", version)
        return self._append(operator, kind, inputs, outputs)

    def custom(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[TensorType],
        options: Mapping[str, int | float | bool],
    ) -> tuple[Tensor, ...]:
        """Append a custom operator, its options a flexbuffer map."""
        flexbuffer = flexbuffers.Builder()
        with flexbuffer.Map():
            for key, value in options.items():
                flexbuffer.Key(key)
                match value:
                    case bool():
                        flexbuffer.Bool(value)
                    case int():
                        flexbuffer.Int(value)
                    case float():
                        flexbuffer.Float(value)
        operator = schema.OperatorT()
        operator.customOptions = np.frombuffer(bytes(flexbuffer.Finish()), np.uint8)
        operator.opcodeIndex = self._code(schema.BuiltinOperator.CUSTOM, kind, 1)
        return self._append(operator, kind, inputs, outputs)

    def _append(
        self, operator: Any, kind: str, inputs: Sequence[Tensor], outputs: Sequence[TensorType]
    ) -> tuple[Tensor, ...]:
        at = len(self._graph.operators)
        made = tuple(
            self._tensor(f"{kind.lower()}_{at}" + (f"_{i}" if i else ""), type_)
            for i, type_ in enumerate(outputs)
        )
        operator.inputs = np.asarray([t.index for t in inputs], np.int32)
        operator.outputs = np.asarray([t.index for t in made], np.int32)
        self._graph.operators.append(operator)
        return made

    def _code(self, builtin: int, custom: str, version: int) -> int:
        key = (builtin, custom, version)
        if key not in self._codes:
            code = schema.OperatorCodeT()
            # Readers older than the 32-bit field look at the deprecated one, which holds 127 then.
            code.builtinCode, code.deprecatedBuiltinCode = builtin, min(builtin, 127)
            code.version = version
            code.customCode = custom.encode() if custom else None
            self._model.operatorCodes.append(code)
            self._codes[key] = len(self._model.operatorCodes) - 1
        return self._codes[key]

    def op(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        dtype: str | None = None,
        **options: object,
    ) -> Tensor:
        """`emit` for an operator of one output; its type is the first input's unless given."""
        type_ = TensorType(dtype or inputs[0].dtype, tuple(int(d) for d in shape))
        return self.emit(kind, inputs, [type_], **options)[0]

    # Common operators

    def copy(self, x: Tensor) -> Tensor:
        """The same values in a tensor of its own."""
        shape = np.asarray(x.shape, np.int32)
        return self.op("RESHAPE", [x, self.constant(shape)], x.shape, newShape=shape)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` itself when it has that shape already. No -1: shapes are known."""
        if tuple(shape) == x.shape:
            return x
        if prod(shape) != x.size:
            raise ValueError(f"reshape of {x.shape} to {tuple(shape)}")
        target = np.asarray(shape, np.int32)
        return self.op("RESHAPE", [x, self.constant(target)], shape, newShape=target)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """CAST as the kernel does it (`static_cast`); `x` itself when it has that type already."""
        if dtype == x.dtype:
            return x
        types = {"inDataType": TYPES[x.dtype], "outDataType": TYPES[dtype]}
        return self.op("CAST", [x], x.shape, dtype, **types)

    def unary(self, kind: str, x: Tensor) -> Tensor:
        """An elementwise operator of one input that keeps the type."""
        return self.op(kind, [x], x.shape)

    def binary(self, kind: str, a: Tensor, b: Tensor) -> Tensor:
        """An elementwise operator of two inputs that keeps the type; shapes broadcast."""
        return self.op(kind, [a, b], np.broadcast_shapes(a.shape, b.shape))

    def compare(self, kind: str, a: Tensor, b: Tensor) -> Tensor:
        """An elementwise operator of two inputs that gives bool; shapes broadcast."""
        return self.op(kind, [a, b], np.broadcast_shapes(a.shape, b.shape), "bool")

    def select(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        """SELECT_V2: what is not selected, NaN included, leaves no trace."""
        shape = np.broadcast_shapes(condition.shape, yes.shape, no.shape)
        return self.op("SELECT_V2", [condition, yes, no], shape, yes.dtype)

    def gather(self, x: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0) -> Tensor:
        """GATHER. Indices are int32 or int64 and never negative: the kernel refuses those."""
        shape = x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1 :]
        return self.op("GATHER", [x, indices], shape, axis=axis, batchDims=batch_dims)

    def gather_nd(self, x: Tensor, indices: Tensor) -> Tensor:
        """GATHER_ND. Indices are never negative."""
        shape = indices.shape[:-1] + x.shape[indices.shape[-1] :]
        return self.op("GATHER_ND", [x, indices], shape)

    def slice(self, x: Tensor, begin: Sequence[int], size: Sequence[int]) -> Tensor:
        """SLICE; `x` itself when it is all of it."""
        if tuple(size) == x.shape:
            return x
        ends = [self.constant(list(v), "int32") for v in (begin, size)]
        return self.op("SLICE", [x, *ends], size)

    def slice_axis(self, x: Tensor, axis: int, begin: int, size: int) -> Tensor:
        """SLICE along one axis."""
        begins, sizes = [0] * x.rank, list(x.shape)
        begins[axis], sizes[axis] = begin, size
        return self.slice(x, begins, sizes)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """CONCATENATION; a single part is itself."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        axis %= len(shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.op("CONCATENATION", parts, shape, axis=axis, fusedActivationFunction=0)

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """TRANSPOSE; `x` itself when nothing moves."""
        if list(permutation) == list(range(x.rank)):
            return x
        shape = [x.shape[axis] for axis in permutation]
        return self.op("TRANSPOSE", [x, self.constant(list(permutation), "int32")], shape)

    def broadcast_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """BROADCAST_TO; `x` itself when it has that shape already."""
        if tuple(shape) == x.shape:
            return x
        return self.op("BROADCAST_TO", [x, self.constant(list(shape), "int32")], shape)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], *, keep: bool = False) -> Tensor:
        """SUM, MEAN, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD, REDUCE_ANY or REDUCE_ALL."""
        gone = {axis % x.rank for axis in axes}
        shape = [1 if a in gone else d for a, d in enumerate(x.shape) if keep or a not in gone]
        return self.op(kind, [x, self.constant(sorted(gone), "int32")], shape, keepDims=keep)

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """TOPK_V2 along the last axis: values and int32 indices; equal values by lower index."""
        shape = (*x.shape[:-1], k)
        outputs = [TensorType(x.dtype, shape), TensorType("int32", shape)]
        values, indices = self.emit("TOPK_V2", [x, self.constant(k, "int32")], outputs)
        return values, indices

    # The result

    @property
    def operators(self) -> int:
        """How many operators have been emitted."""
        return len(self._graph.operators)

    def pack(self) -> bytes:
        """The file's bytes, with a `serving_default` signature of the given names."""
        inputs = {name: tensor.index for name, tensor in self._inputs.items()}
        outputs = {name: tensor.index for name, tensor in self._outputs.items()}
        self._graph.inputs = np.asarray(list(inputs.values()), np.int32)
        self._graph.outputs = np.asarray(list(outputs.values()), np.int32)
        self._model.signatureDefs = [signature(inputs, outputs)]
        return pack(self._model)


def _options_type(table: str) -> tuple[int, Any] | None:
    """The number and an empty instance of an options table; None where the format has none."""
    number = getattr(schema.BuiltinOptions, table, None)
    return None if number is None else (number, getattr(schema, f"{table}T")())
