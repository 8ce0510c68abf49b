"""Which version of an operator a call needs.

An interpreter that is too old for a call must refuse it by version instead of misreading it.
Source: `GetBuiltinOperatorVersion` in LiteRT's `tflite/tools/versioning/op_version.cc`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

_INT8: Final = {"int8": 2}
_INT8_16: Final = {"int8": 2, "int16": 3}

# Operator to the version for the type of what it reads; 1 where nothing is said.
_BY_TYPE: Final[Mapping[str, Mapping[str, int]]] = {
    "ABS": {"int32": 5, "int16": 4, "int8": 2},
    "ADD": {"int64": 4, "int8": 2, "int16": 5},
    "ARG_MAX": {"bool": 3, "int8": 2},
    "ARG_MIN": {"bool": 3, "int8": 2},
    "CONCATENATION": {"uint32": 4, "int16": 3, "int8": 2},
    "DEQUANTIZE": {"int16": 3, "float16": 3, "int8": 2},
    "EQUAL": {"int16": 4, "int8": 2},
    "EXP": {"int8": 2, "int16": 2},
    "FLOOR_DIV": {"float32": 2, "int8": 3, "int16": 3},
    "FLOOR_MOD": {"int8": 2, "int16": 2},
    "GATHER": {"int16": 4, "bool": 3, "int8": 2},
    "GATHER_ND": {"bool": 5, "int16": 3},
    "GREATER": _INT8,
    "GREATER_EQUAL": _INT8_16,
    "LESS": _INT8_16,
    "LESS_EQUAL": _INT8,
    "LOG": {"int8": 2, "int16": 2},
    "LOGISTIC": _INT8_16,
    "MAXIMUM": {"int16": 4, "int8": 2},
    "MEAN": _INT8_16,
    "MINIMUM": {"int16": 4, "int8": 2},
    "MUL": {"int64": 5, "int16": 7, "uint32": 7, "int8": 2},
    "NOT_EQUAL": _INT8,
    "PADV2": {"bool": 5, "int16": 3, "int8": 2},
    "RANGE": {"int64": 2},
    "REDUCE_MAX": _INT8_16,
    "REDUCE_MIN": _INT8_16,
    "REDUCE_PROD": {"int8": 2, "int16": 2},
    "RELU": {"int8": 2, "int16": 3},
    "REVERSE_V2": {"bool": 2, "int8": 3},
    "SIGN": {"int32": 2},
    "SLICE": {"uint32": 6, "int16": 4, "int8": 2},
    "SOFTMAX": _INT8_16,
    "STRIDED_SLICE": {"uint32": 7, "bool": 3, "int8": 2},
    "SUB": {"int64": 4, "int8": 2, "int16": 5},
    "SUM": _INT8,
    "TANH": _INT8_16,
    "TILE": {"int8": 3},
    "TOPK_V2": {"int16": 3, "int8": 2},
    "TRANSPOSE": {"int16": 5, "bool": 3, "int8": 2},
    "BROADCAST_TO": {"int8": 3, "int16": 3},
}

# Version 1 of this operator had another number and was withdrawn.
_LOWEST: Final[Mapping[str, int]] = {"BROADCAST_TO": 2}

# Rank above which a higher version is needed, and that version.
_BY_RANK: Final[Mapping[str, Sequence[tuple[int, int]]]] = {
    "TRANSPOSE": ((5, 6), (4, 4)),
    "SLICE": ((4, 5),),
    "STRIDED_SLICE": ((4, 4),),
    "PADV2": ((4, 4),),
}
_BY_BROADCAST_RANK: Final[Mapping[str, int]] = {"MAXIMUM": 3, "MINIMUM": 3, "SUB": 3, "DIV": 2}

# A CAST is as new as the newer of its two types.
_CAST: Final[Mapping[str, int]] = {"float16": 5, "float64": 5, "uint16": 4, "int8": 3, "uint32": 2}


class Typed(Protocol):
    """What is asked of an operand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its static shape."""

    @property
    def dtype(self) -> str:
        """Its element type, a numpy name."""


def operator_version(
    kind: str, inputs: Sequence[Typed], outputs: Sequence[Typed], options: Mapping[str, object]
) -> int:
    """The lowest version of the operator that a reader must know to run this call."""
    if not inputs:
        return 1
    data, rank = inputs[0], max(len(x.shape) for x in inputs)
    found = [_LOWEST.get(kind, 1), _BY_TYPE.get(kind, {}).get(data.dtype, 1)]
    found += [version for above, version in _BY_RANK.get(kind, ()) if len(data.shape) > above]
    if rank > 4 and len(inputs) > 1 and inputs[0].shape != inputs[1].shape:
        found.append(_BY_BROADCAST_RANK.get(kind, 1))
    if kind == "GATHER" and options.get("batchDims"):
        found.append(5)
    if kind == "CAST":
        found += [_CAST.get(x.dtype, 1) for x in (data, outputs[0])]
    if kind == "FULLY_CONNECTED" and len(inputs) == 2:
        found.append(6)
    return max(found)
