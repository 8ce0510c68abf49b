"""What surgery hands to a target: a fully static model and what was learnt on the way."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper


@dataclass(frozen=True, slots=True)
class Rows:
    """A padded axis of an output: the first rows are real, `count` (an output) says how many."""

    axis: int
    count: str


@dataclass(frozen=True, slots=True)
class PaddedOutput:
    """An output whose number of rows depended on the data."""

    name: str
    rows: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing done to a node, or seen and declined with the reason (`changed` is False then)."""

    node: str
    what: str
    changed: bool


@dataclass(frozen=True, slots=True)
class StaticModel:
    """The result of surgery.

    Attributes:
        model: IR 8, opset 17 plus the `bridge` domain; no dynamic dimension, no control flow,
            every suppression a StaticNMS call, every tensor in value_info. Its outputs are the
            source's, in order, then the counts. Padded rows are zero.
        source_shapes: the source's output shapes; None marks a data-dependent dimension.
        padded: the outputs that were padded.
        counts: names of the added int64[1] outputs.
        assumptions: sentences for the manifest: under which condition the result equals the source.
        source: the model that all this was made of, for a target that can take it as it is.
    """

    model: onnx.ModelProto
    source_shapes: dict[str, tuple[int | None, ...]]
    padded: tuple[PaddedOutput, ...]
    counts: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    assumptions: tuple[str, ...] = ()
    source: onnx.ModelProto | None = None


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (a numpy name) and static shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


def tensor_types(model: onnx.ModelProto) -> Mapping[str, TensorType]:
    """Type of every input, constant, value and output of a static model's top graph."""
    graph = model.graph
    types = {
        value.name: TensorType(
            np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name,
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
        )
        for values in (graph.input, graph.value_info, graph.output)
        for value in values
    }
    for tensor in graph.initializer:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name
        types[tensor.name] = TensorType(dtype, tuple(tensor.dims))
    return types
