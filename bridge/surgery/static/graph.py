"""The static graph while it is built: constants, nodes, and the shape of everything, dense.

Nodes are emitted here and nowhere else. An equal node (operator, inputs, attributes) is emitted
once: exporters write one NonZero per tensor they index, and the identity of groups and counts
rests on equal things being one tensor. Each node is inferred alone, from dense input shapes and
small constants; no shape but those of the graph inputs is read from the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from bridge import static_nms
from bridge.surgery.static.integers import Int, Linear
from bridge.surgery.static.lattice import Group, NoRuleError, Tensor, Values
from bridge.surgery.static.operators import RANDOM

VALUES_LIMIT = 512
"""Elements up to which the values of a tensor are followed; shapes have a handful."""

_INFERENCE_LIMIT = 1024
_FLOAT_LIMIT = 1 << 16


Array = NDArray[Any]


@dataclass(slots=True)
class Graph:
    """The nodes and constants emitted so far.

    Attributes:
        opset_imports: of the source; what nodes are inferred by.
        nodes: in an order that can be run; tensor names are ids.
        moves_slices: whether a slice of first rows moves up to what makes the rows.
        replaces: id to that of the longer tensor whose first rows it holds.
        layouts: per count, the scattered group whose selection introduced it.
        assumptions: sentences on when the static graph equals its source.
    """

    opset_imports: tuple[onnx.OperatorSetIdProto, ...]
    moves_slices: bool = True
    replaces: dict[str, str] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    layouts: dict[Int, Group] = field(default_factory=dict)
    assumptions: dict[str, None] = field(default_factory=dict)
    _tensors: dict[str, Tensor] = field(default_factory=dict)
    _constants: dict[str, Array | TensorProto] = field(default_factory=dict)
    _emitted: dict[tuple[object, ...], tuple[Tensor, ...]] = field(default_factory=dict)
    _inferred: dict[tuple[object, ...], tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]] = field(
        default_factory=dict
    )
    _makers: dict[str, NodeProto] = field(default_factory=dict)
    _shared: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    # Constants

    def input(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """A graph input."""
        return self._new(dtype, tuple(shape))

    def constant(self, value: ArrayLike, dtype: np.dtype[Any] | type | None = None) -> Tensor:
        """A constant; the same one for equal contents."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._shared:
            tensor = self._new(array.dtype, array.shape)
            self._constants[tensor.id] = array
            self._shared[key] = self._described(tensor, array)
        return self._shared[key]

    def int64(self, *values: int) -> Tensor:
        """A constant int64 vector."""
        return self.constant(np.array(values, np.int64))

    def initializer(self, proto: TensorProto) -> Tensor:
        """A constant of the source. Large ones are never decoded, only referred to."""
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(proto.data_type))
        if proto.data_type != TensorProto.STRING and prod(proto.dims) <= _INFERENCE_LIMIT:
            return self.constant(numpy_helper.to_array(proto))
        tensor = self._new(dtype, tuple(proto.dims))
        self._constants[tensor.id] = proto
        if dtype.kind in "iu" or (dtype.kind == "f" and prod(proto.dims) <= _FLOAT_LIMIT):
            return self._described(tensor, numpy_helper.to_array(proto))
        return tensor

    def _described(self, tensor: Tensor, array: Array) -> Tensor:
        values = bounds = magnitude = None
        if array.dtype.kind in "iub" and array.size <= VALUES_LIMIT:
            values = array.astype(object)
        if array.dtype.kind in "iu" and array.size:
            bounds = (int(array.min()), int(array.max()))
        if array.dtype.kind == "f" and array.size and np.isfinite(array).all():
            magnitude = float(np.abs(array).max())
        return replace(tensor, values=values, range=bounds, magnitude=magnitude)

    def is_constant(self, x: Tensor) -> bool:
        """Whether the tensor is the same in every run: also as to which of its rows are meant."""
        return x.id in self._constants and not x.groups and x.space is None

    def array(self, x: Tensor) -> Array | None:
        """The contents of a constant, None for anything else."""
        held = self._constants[x.id] if self.is_constant(x) else None
        return numpy_helper.to_array(held) if isinstance(held, TensorProto) else held

    def proto(self, name: str) -> TensorProto | Array | None:
        """What a constant was made from, by id."""
        return self._constants.get(name)

    # Nodes

    def emit(self, op_type: str, inputs: Sequence[Tensor | None], **attributes: object) -> Tensor:
        """The one output of a standard node, its dimensions dense."""
        protos = [helper.make_attribute(k, v) for k, v in sorted(attributes.items())]
        return self.emit_all(op_type, inputs, protos, 1)[0]

    def emit_all(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        attributes: Sequence[AttributeProto],
        outputs: int,
        domain: str = "",
    ) -> tuple[Tensor, ...]:
        """The outputs of a node, their dimensions dense.

        Raises:
            NoRuleError: the operator is unknown, or its output shape is not implied by the dense
                shapes and constants it reads.
        """
        names = [x.id if x else "" for x in inputs]
        written = tuple(sorted(a.SerializeToString(deterministic=True) for a in attributes))
        key = (domain, op_type, tuple(names), written, outputs)
        if key in self._emitted and op_type not in RANDOM:
            return self._emitted[key]
        types = self._types(op_type, domain, inputs, attributes, written, outputs)
        results = tuple(self._new(dtype, shape) for dtype, shape in types)
        node = NodeProto(op_type=op_type, domain=domain, input=names)
        node.output.extend(result.id for result in results)
        node.attribute.extend(attributes)
        self.nodes.append(node)
        self._makers.update(dict.fromkeys(node.output, node))
        self._emitted[key] = results
        return results

    def _new(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
        tensor = Tensor(f"t{len(self._tensors)}", np.dtype(dtype), shape)
        self._tensors[tensor.id] = tensor
        return tensor

    def maker(self, x: Tensor) -> tuple[NodeProto, int] | None:
        """The node that makes a tensor and which of its outputs it is; None for inputs."""
        node = self._makers.get(x.id)
        return None if node is None else (node, list(node.output).index(x.id))

    def tensor(self, name: str) -> Tensor:
        """Type and dense shape of what was emitted under an id."""
        return self._tensors[name]

    def _types(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[Tensor | None],
        attributes: Sequence[AttributeProto],
        written: tuple[bytes, ...],
        outputs: int,
    ) -> tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]:
        if domain == static_nms.DOMAIN:
            rows = next(a.i for a in attributes if a.name == "rows")
            return ((np.dtype(np.int64), (rows, 3)), (np.dtype(np.int64), (1,)))
        known = [self._small(x) for x in inputs]
        key = (
            domain, op_type, written, outputs,
            tuple((x.dtype, x.shape) if x else None for x in inputs),
            tuple(None if a is None else a.tobytes() for a in known),
        )  # fmt: skip
        if key not in self._inferred:
            self._inferred[key] = self._infer(op_type, domain, inputs, known, attributes, outputs)
        return self._inferred[key]

    def _small(self, x: Tensor | None) -> Array | None:
        held = self._constants.get(x.id) if x else None
        return held if isinstance(held, np.ndarray) and held.size <= _INFERENCE_LIMIT else None

    def _infer(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[Tensor | None],
        known: Sequence[Array | None],
        attributes: Sequence[AttributeProto],
        outputs: int,
    ) -> tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]:
        version = next((o.version for o in self.opset_imports if o.domain == domain), None)
        if version is None or not defs.has(op_type, version, domain):
            raise NoRuleError(
                "not a standard ONNX operator, so nothing is known of its result; "
                "export the model with standard operators instead"
            )
        schema = defs.get_schema(op_type, version, domain)
        names = [f"i{k}" if x else "" for k, x in enumerate(inputs)]
        node = NodeProto(op_type=op_type, domain=domain, input=names)
        node.output.extend(f"o{k}" for k in range(outputs))
        node.attribute.extend(attributes)
        types = {n: _type_proto(x) for n, x in zip(names, inputs, strict=True) if x}
        data = {
            n: numpy_helper.from_array(a, n)
            for n, a in zip(names, known, strict=True)
            if a is not None
        }
        try:
            found = infer_node_outputs(
                schema, node, types, data, opset_imports=list(self.opset_imports), ir_version=8
            )
        except InferenceError as error:
            raise NoRuleError(
                f"invalid for inputs {[x.shape for x in inputs if x]}: {error}"
            ) from (error)
        return tuple(_dense(found.get(name)) for name in node.output)

    def assume(self, sentence: str) -> None:
        """Note under which condition the static graph equals its source; once per sentence."""
        self.assumptions.setdefault(sentence)

    # Integers

    def count(self, x: Int) -> Tensor:
        """The int64[1] tensor that holds an integer at run time."""
        if not isinstance(x, Linear):
            return self.int64(x)
        terms = [
            self._tensors[unknown.tensor]
            if factor == 1
            else self.emit("Mul", [self._tensors[unknown.tensor], self.int64(factor)])
            for unknown, factor in x.terms
        ]
        if x.constant:
            terms.append(self.int64(x.constant))
        if len(terms) < 3:
            return terms[0] if len(terms) == 1 else self.emit("Add", terms)
        joined = self.emit("Concat", terms, axis=0)
        return self.emit("ReduceSum", [joined, self.int64(0)], keepdims=1)

    def element(self, x: Tensor, index: int) -> Tensor:
        """One element of a dense integer or bool tensor, as int64[1]; `index` counts row-major."""
        flat = x if x.rank == 1 else self.emit("Reshape", [x, self.int64(-1)])
        if flat.dtype != np.int64:
            flat = self.emit("Cast", [flat], to=TensorProto.INT64)
        return self.emit("Gather", [flat, self.int64(index)], axis=0)

    def followed(self, x: Tensor, values: Values | None) -> Tensor:
        """`x` with its elements known, where they are few enough to be followed."""
        small = values is not None and values.size <= VALUES_LIMIT and values.shape == x.dims
        return replace(x, values=values) if small else x


def _type_proto(x: Tensor) -> TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)


def _dense(proto: TypeProto | None) -> tuple[np.dtype[Any], tuple[int, ...]]:
    kind = proto.WhichOneof("value") if proto else None
    if proto is None or kind != "tensor_type":
        raise NoRuleError(f"makes {kind or 'a result of unknown type'}, which has no static form")
    tensor = proto.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        raise NoRuleError(
            "the shape of its result is not implied by constants; "
            "fix the model's inputs with --input-shape or --freeze"
        )
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return dtype, tuple(d.dim_value for d in tensor.shape.dim)
