"""What inputs declare, and what a user may give for them."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from bridge.errors import UsageError

Array = NDArray[np.generic]


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
        wrong = array[cast != array]
        numbers = wrong[:3].tolist()
        raise UsageError(f"input {value.name!r} is {declared} and cannot hold {numbers}")
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
