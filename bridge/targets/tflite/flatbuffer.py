"""Building one TFLite subgraph, operator by operator, without TensorFlow.

A `Builder` only grows: every call appends an operator and gives back the handle of what it makes,
so code that emits reads like the arithmetic it stands for. Shapes are static and known at once;
types are numpy names. Equal calls give equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bridge.static_model import TensorType
from bridge.targets.tflite import schema
from bridge.targets.tflite.versions import operator_version


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


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a uint8 tensor holds: `(q - zero) * scale`, in float32."""

    scale: float
    zero: int


@dataclass(frozen=True, slots=True)
class _Operator:
    """What an operator computes, by value: equal ones compute the same."""

    kind: str
    version: int
    inputs: tuple[Tensor, ...]
    results: tuple[TensorType, ...]
    options: tuple[tuple[str, object], ...] = ()
    custom: bytes | None = None
    grid: Grid | None = None


_SCALED: Final = frozenset({"ADD", "CAST", "DIV", "MUL", "SUB"})
"""With constant scalars, these do not mind the order of axes."""


class Builder:
    """An append-only builder of a model with one subgraph.

    An operator asked for twice on the same tensors is emitted once, and neither an operator nor a
    constant that no output depends on is written.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._operators: dict[_Operator, tuple[Tensor, ...]] = {}
        self._makers: dict[Tensor, _Operator] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes, Grid | None], Tensor] = {}
        self._values: dict[Tensor, NDArray[Any]] = {}
        self._grids: dict[Tensor, Grid] = {}
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    # Tensors

    def _tensor(self, name: str, type_: TensorType) -> Tensor:
        if type_.dtype not in schema.TYPES:
            raise TypeError(f"{name}: TFLite has no element type {type_.dtype}")
        tensor = Tensor(len(self._names), tuple(int(d) for d in type_.shape), type_.dtype)
        self._names.append(name)
        return tensor

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A new input of the subgraph."""
        self._inputs[name] = self._tensor(name, TensorType(dtype, tuple(shape)))
        return self._inputs[name]

    def constant(
        self, value: ArrayLike, dtype: str | None = None, *, grid: Grid | None = None
    ) -> Tensor:
        """A tensor of this value, stored once however often it is asked for.

        Args:
            value: what it holds; of a quantised tensor, the whole numbers.
            dtype: of the tensor, where it is not the value's own.
            grid: what those stand for; None for a tensor that is not quantised.
        """
        array = np.asarray(value, dtype)
        key = (array.dtype.name, array.shape, array.tobytes(), grid)
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            tensor = self._tensor(name, TensorType(array.dtype.name, array.shape))
            self._constants[key] = tensor
            self._values[tensor] = array
            if grid is not None:
                self._grids[tensor] = grid
        return self._constants[key]

    def value(self, tensor: Tensor) -> NDArray[Any] | None:
        """What a constant holds; None for a tensor computed at run time."""
        return self._values.get(tensor)

    def output(self, name: str, tensor: Tensor) -> None:
        """Make a tensor an output of the subgraph, under this name.

        A tensor that is an input, a constant or an output already is copied: a signature binds one
        name to one tensor, and an interpreter may overwrite what is shared.
        """
        if tensor.size == 0 and tensor in self._values:
            tensor = self._computed_empty(tensor)
        taken = {*self._inputs.values(), *self._outputs.values(), *self._values}
        while tensor in taken:
            tensor = self._reshape(tensor, tensor.shape)
        self._names[tensor.index] = name
        self._outputs[name] = tensor

    def _computed_empty(self, tensor: Tensor) -> Tensor:
        """A tensor of no elements made at run time: an interpreter cannot give back a constant."""
        shape = [max(size, 1) for size in tensor.shape]
        return self.slice(
            self.constant(np.zeros(shape, tensor.dtype)), [0] * tensor.rank, tensor.shape
        )

    # Operators

    def emit(
        self, kind: str, inputs: Sequence[Tensor], results: Sequence[TensorType], **options: object
    ) -> tuple[Tensor, ...]:
        """Append a builtin operator.

        Args:
            kind: its name in `BuiltinOperator`, say `STRIDED_SLICE`.
            inputs: what it reads, in the kernel's order.
            results: type of each tensor it makes.
            options: fields of its options table in schema.fbs, in the generated code's spelling;
                vectors as tuples.
        """
        version = operator_version(kind, inputs, results, options)
        fields = tuple(options.items())
        return self._append(_Operator(kind, version, tuple(inputs), tuple(results), fields))

    def custom(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        results: Sequence[TensorType],
        options: Mapping[str, int | float | bool],
    ) -> tuple[Tensor, ...]:
        """Append a custom operator, its options a flexbuffer map."""
        custom = schema.flexbuffer(options)
        return self._append(_Operator(kind, 1, tuple(inputs), tuple(results), custom=custom))

    def _append(self, operator: _Operator) -> tuple[Tensor, ...]:
        if operator not in self._operators:
            name = f"{operator.kind.lower()}_{len(self._operators)}"
            made = tuple(
                self._tensor(f"{name}_{i}" if i else name, type_)
                for i, type_ in enumerate(operator.results)
            )
            self._operators[operator] = made
            self._makers.update(dict.fromkeys(made, operator))
            if operator.grid is not None:
                self._grids.update(dict.fromkeys(made, operator.grid))
        return self._operators[operator]

    def op(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        dtype: str | None = None,
        **options: object,
    ) -> Tensor:
        """`emit` for an operator of one result; its type is the first input's unless given."""
        type_ = TensorType(dtype or inputs[0].dtype, tuple(int(d) for d in shape))
        return self.emit(kind, inputs, [type_], **options)[0]

    # Common operators

    def quantize(self, x: Tensor, grid: Grid) -> Tensor:
        """QUANTIZE to uint8, to the nearest number of the grid, what lies between to the even one.

        Kernels and delegates round halves each in their own way: none are left for them here.
        """
        scale = self.constant(np.float32(grid.scale))
        steps = self.unary("ROUND", self.binary("DIV", x, scale))
        exact = self.binary("MUL", steps, scale)
        version = operator_version("QUANTIZE", [exact], [TensorType("uint8", x.shape)], {})
        results = (TensorType("uint8", x.shape),)
        return self._append(_Operator("QUANTIZE", version, (exact,), results, grid=grid))[0]

    def _reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        new_shape = tuple(int(d) for d in shape)
        inputs = [x, self.constant(new_shape, "int32")]
        return self.op("RESHAPE", inputs, new_shape, newShape=new_shape)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """RESHAPE; `x` itself when it has that shape already. No -1: shapes are known."""
        if prod(shape) != x.size:
            raise ValueError(f"reshape of {x.shape} to {tuple(shape)}")
        if (value := self._values.get(x)) is not None:
            return self.constant(value.reshape(shape))
        maker = self._makers.get(x)
        # A reshape of a reshape is a reshape of what stood before.
        source = maker.inputs[0] if maker is not None and maker.kind == "RESHAPE" else x
        for same in (x, source):
            if tuple(shape) == same.shape:
                return same
        return self._reshape(source, shape)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """CAST as the kernel does it (`static_cast`); `x` itself when it has that type already."""
        if dtype == x.dtype:
            return x
        maker = self._makers.get(x)
        widened = maker is not None and maker.kind == "CAST" and x.dtype == "int64"
        if maker is not None and widened and maker.inputs[0].dtype == dtype == "int32":
            return maker.inputs[0]
        number = schema.TYPES
        options = {"inDataType": number[x.dtype], "outDataType": number[dtype]}
        return self.emit("CAST", [x], [TensorType(dtype, x.shape)], **options)[0]

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
        limits = [self.constant(list(limit), "int32") for limit in (begin, size)]
        return self.op("SLICE", [x, *limits], size)

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
        return self.op("CONCATENATION", parts, shape, axis=axis)

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """TRANSPOSE, a RESHAPE where only axes of one element move, or what it undoes."""
        if (undone := self._undone(x, tuple(permutation))) is not None:
            return undone
        shape = [x.shape[axis] for axis in permutation]
        moving = [axis for axis in permutation if x.shape[axis] != 1]
        if moving == sorted(moving):
            return self.reshape(x, shape)
        return self.op("TRANSPOSE", [x, self.constant(list(permutation), "int32")], shape)

    def _undone(self, x: Tensor, permutation: tuple[int, ...]) -> Tensor | None:
        """What transposing `x` gives if it was transposed the other way, scaled or cast since."""
        maker = self._makers.get(x)
        if maker is None:
            return None
        if maker.kind == "TRANSPOSE":
            before = self._values[maker.inputs[1]]
            undone = all(before[axis] == place for place, axis in enumerate(permutation))
            return maker.inputs[0] if undone else None
        scalars = all(operand in self._values and operand.size == 1 for operand in maker.inputs[1:])
        if maker.kind not in _SCALED or not scalars:
            return None
        inner = self._undone(maker.inputs[0], permutation)
        if inner is None:
            return None
        result = TensorType(x.dtype, inner.shape)
        inputs = (inner, *maker.inputs[1:])
        return self._append(replace(maker, inputs=inputs, results=(result,)))[0]

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
        results = [TensorType(x.dtype, shape), TensorType("int32", shape)]
        values, indices = self.emit("TOPK_V2", [x, self.constant(k, "int32")], results)
        return values, indices

    # The result

    def live(self) -> Mapping[_Operator, tuple[Tensor, ...]]:
        """The operators some output depends on, in order, and what they make."""
        needed = set(self._outputs.values())
        kept = []
        for operator, made in reversed(self._operators.items()):
            if needed.intersection(made):
                kept.append((operator, made))
                needed.update(operator.inputs)
        return dict(reversed(kept))

    def pack(self) -> bytes:
        """The file's bytes, with a `serving_default` signature of the given names."""
        model, live = schema.empty_model(), self.live()
        graph = model.subgraphs[0]
        positions: dict[Tensor, int] = {}

        def place(tensors: Sequence[Tensor]) -> tuple[int, ...]:
            for tensor in tensors:
                if tensor not in positions:
                    positions[tensor] = len(graph.tensors)
                    graph.tensors.append(self._pack_tensor(tensor, model.buffers))
            return tuple(positions[tensor] for tensor in tensors)

        place(list(self._inputs.values()))
        codes: dict[tuple[str, int], int] = {}
        for operator, made in live.items():
            code = codes.setdefault((operator.kind, operator.version), len(codes))
            if code == len(model.operatorCodes):
                model.operatorCodes.append(_operator_code(operator))
            packed = schema.operator(code, place(operator.inputs), place(made))
            _set_options(packed, operator)
            graph.operators.append(packed)
        inputs = {name: positions[tensor] for name, tensor in self._inputs.items()}
        outputs = {name: positions[tensor] for name, tensor in self._outputs.items()}
        graph.inputs = np.asarray(list(inputs.values()), np.int32)
        graph.outputs = np.asarray(list(outputs.values()), np.int32)
        model.signatureDefs = [schema.signature(inputs, outputs)]
        return schema.pack(model)

    def _pack_tensor(self, tensor: Tensor, buffers: list[schema.Buffer]) -> Any:
        buffer, value = 0, self._values.get(tensor)
        if value is not None:
            buffers.append(schema.Buffer(value.tobytes()))
            buffer = len(buffers) - 1
        packed = schema.tensor(self._names[tensor.index], tensor.shape, tensor.dtype, buffer)
        if (grid := self._grids.get(tensor)) is not None:
            packed.quantization = schema.quantization(grid.scale, grid.zero)
        return packed


def _operator_code(operator: _Operator) -> Any:
    if operator.custom is None:
        return schema.operator_code(schema.builtin_code(operator.kind), "", operator.version)
    return schema.operator_code(schema.builtin_code("CUSTOM"), operator.kind, operator.version)


def _set_options(packed: Any, operator: _Operator) -> None:
    """Fill the options of a schema `OperatorT`."""
    if operator.custom is not None:
        packed.customOptions = np.frombuffer(operator.custom, np.uint8)
        return
    if (table := schema.options_table(operator.kind)) is None:
        return
    number, options = table
    for field, value in operator.options:
        if not hasattr(options, field):
            raise TypeError(f"the options of {operator.kind} have no field {field}")
        setattr(options, field, np.asarray(value, np.int32) if isinstance(value, tuple) else value)
    packed.builtinOptionsType, packed.builtinOptions = number, options
