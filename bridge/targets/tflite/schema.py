"""The TFLite file format, as generated into `ai_edge_litert`, and what that code leaves to us.

Source: `tflite/schema/schema.fbs` in LiteRT.
"""

from collections.abc import Mapping
from typing import Any, Final

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated
from flatbuffers import flexbuffers

SIGNATURE: Final = "serving_default"
FILE_IDENTIFIER: Final = b"TFL3"

TYPES: Final[Mapping[str, int]] = {
    "float32": generated.TensorType.FLOAT32,
    "float16": generated.TensorType.FLOAT16,
    "float64": generated.TensorType.FLOAT64,
    "int8": generated.TensorType.INT8,
    "int16": generated.TensorType.INT16,
    "int32": generated.TensorType.INT32,
    "int64": generated.TensorType.INT64,
    "uint8": generated.TensorType.UINT8,
    "uint16": generated.TensorType.UINT16,
    "uint32": generated.TensorType.UINT32,
    "uint64": generated.TensorType.UINT64,
    "bool": generated.TensorType.BOOL,
}

# Options tables whose name is not the operator's own in camel case.
_TABLES: Final[Mapping[str, str]] = {
    "BATCH_MATMUL": "BatchMatMulOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "PADV2": "PadV2Options",
    "REDUCE_ALL": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "SUM": "ReducerOptions",
    "TOPK_V2": "TopKV2Options",
}


class Buffer(generated.BufferT):  # type: ignore[misc]  # the generated schema is untyped
    """A buffer whose bytes start at a multiple of 16, as `force_align` in schema.fbs demands.

    The generated Python code ignores that attribute, and an int64 constant at an address that is
    no multiple of 8 is undefined behaviour in the kernels.
    """

    ALIGNMENT: Final = 16

    def __init__(self, content: bytes | None = None) -> None:
        super().__init__()
        self.content = content

    def Pack(self, builder: Any) -> int:  # noqa: N802 - the name the generated code calls
        """Write the table and give its offset."""
        vector = None
        if self.content is not None:
            size = len(self.content)
            builder.StartVector(1, size, self.ALIGNMENT)
            builder.head = builder.Head() - size
            builder.Bytes[builder.Head() : builder.Head() + size] = self.content
            vector = builder.EndVector()
        generated.BufferStart(builder)
        if vector is not None:
            generated.BufferAddData(builder, vector)
        return int(generated.BufferEnd(builder))


def empty_model() -> Any:
    """A `ModelT` with one empty subgraph; buffer 0 is the empty one, as the format wants."""
    model = generated.ModelT()
    model.version, model.description = 3, b"bridge"
    model.operatorCodes, model.buffers = [], [Buffer()]
    model.metadata, model.signatureDefs = [], []
    graph = generated.SubGraphT()
    graph.name, graph.tensors, graph.operators = b"main", [], []
    graph.inputs, graph.outputs = [], []
    model.subgraphs = [graph]
    return model


def unpack(content: bytes) -> Any:
    """A `ModelT` of a file whose buffers are all `Buffer`, also those behind the flatbuffer."""
    model = generated.ModelT.InitFromPackedBuf(content, 0)
    model.buffers = [Buffer(_content(buffer, content)) for buffer in model.buffers]
    return model


def _content(buffer: Any, file: bytes) -> bytes | None:
    """A buffer's bytes; None where it has none."""
    if buffer.offset and buffer.offset > 1:
        return file[buffer.offset : buffer.offset + buffer.size]
    return None if buffer.data is None else np.asarray(buffer.data, np.uint8).tobytes()


def kind(model: Any, operator: Any) -> str:
    """What an operator of a `ModelT` is called in `BuiltinOperator`; its own name if custom."""
    code = model.operatorCodes[operator.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    if number == generated.BuiltinOperator.CUSTOM:
        return text(code.customCode)
    names = vars(generated.BuiltinOperator).items()
    return next(str(name) for name, value in names if value == number)


def type_name(tensor: Any) -> str:
    """The element type of a `TensorT` as a numpy name."""
    return next(name for name, number in TYPES.items() if number == tensor.type)


def text(value: bytes | str | None) -> str:
    """A name as the generated code has it: bytes where it was read from a file."""
    return value.decode() if isinstance(value, bytes) else (value or "")


def tensor(name: str, shape: tuple[int, ...], dtype: str, buffer: int) -> Any:
    """A `TensorT`; buffer 0 marks one that is computed."""
    result = generated.TensorT()
    result.name, result.shape, result.hasRank = name.encode(), np.asarray(shape, np.int32), True
    result.type, result.buffer = TYPES[dtype], buffer
    return result


def quantization(scale: float, zero: int) -> Any:
    """A `QuantizationParametersT` of one scale for the whole tensor."""
    result = generated.QuantizationParametersT()
    result.scale = np.asarray([scale], np.float32)
    result.zeroPoint = np.asarray([zero], np.int64)
    return result


def operator_code(builtin: int, custom: str, version: int) -> Any:
    """An `OperatorCodeT`. Readers older than its 32-bit field look at the deprecated one."""
    result = generated.OperatorCodeT()
    result.builtinCode, result.deprecatedBuiltinCode = builtin, min(builtin, 127)
    result.version, result.customCode = version, custom.encode() if custom else None
    return result


def options_table(kind: str) -> tuple[int, Any] | None:
    """Number and empty instance of an operator's options table; None where it has none."""
    name = _TABLES.get(kind, kind.title().replace("_", "") + "Options")
    number = getattr(generated.BuiltinOptions, name, None)
    return None if number is None else (number, getattr(generated, f"{name}T")())


def builtin_code(kind: str) -> int:
    """The number of a builtin operator, `STRIDED_SLICE` say."""
    return int(getattr(generated.BuiltinOperator, kind))


def operator(code: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Any:
    """An `OperatorT` without options."""
    result = generated.OperatorT()
    result.opcodeIndex = code
    result.inputs = np.asarray(inputs, np.int32)
    result.outputs = np.asarray(outputs, np.int32)
    return result


def flexbuffer(options: Mapping[str, int | float | bool]) -> bytes:
    """The options of a custom operator."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            builder.Key(key)
            match value:
                case bool():
                    builder.Bool(value)
                case int():
                    builder.Int(value)
                case float():
                    builder.Float(value)
    return bytes(builder.Finish())


def signature(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
    """The `serving_default` signature: name to tensor index, in order."""
    result = generated.SignatureDefT()
    result.signatureKey, result.subgraphIndex = SIGNATURE.encode(), 0
    result.inputs = [_tensor_map(*item) for item in inputs.items()]
    result.outputs = [_tensor_map(*item) for item in outputs.items()]
    return result


def _tensor_map(name: str, index: int) -> Any:
    result = generated.TensorMapT()
    result.name, result.tensorIndex = name.encode(), index
    return result


def pack(model: Any) -> bytes:
    """The bytes of a `ModelT` whose buffers are all `Buffer`."""
    size = sum(len(buffer.content or b"") for buffer in model.buffers)
    builder = flatbuffers.Builder(size + (1 << 16))
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())
