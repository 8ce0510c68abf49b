"""Inputs for golden runs, made up from a seed."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from bridge.errors import UsageError
from bridge.model.graphs import graphs
from bridge.model.shapes import Array, as_declared, declared_shape, input_shapes_of, spelt


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
    shapes = _shapes([v for v in inputs if v.name not in freeze], input_shapes or {})
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

    frozen = {v.name: as_declared(v, freeze[v.name]) for v in inputs if v.name in freeze}
    made = []
    for number, kind in enumerate(kinds):
        rng = np.random.default_rng([seed, number])
        made.append(
            {v.name: frozen[v.name] if v.name in frozen else make(v, kind, rng) for v in inputs}
        )
    return tuple(made)


def _shapes(
    inputs: Sequence[onnx.ValueInfoProto], given: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for value, dims in zip(inputs, input_shapes_of(inputs, given).values(), strict=True):
        fixed = tuple(dim for dim in dims or () if dim is not None)
        if dims is None or len(fixed) != len(dims):
            raise UsageError(
                f"input {value.name!r} is {spelt(declared_shape(value))}; fix it with "
                f"--input-shape {value.name}=..."
            )
        shapes[value.name] = fixed
    return shapes


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
