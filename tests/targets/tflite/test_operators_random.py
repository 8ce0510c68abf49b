"""Shapes nobody thought of: axes of one element, ranks up to six, any permutation and broadcast."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite
from onnx import helper

from tests.targets.tflite.emitting import Array, both

SIZES = st.sampled_from([1, 1, 2, 3])
FEW = settings(max_examples=60, deadline=None, derandomize=True)


def numbers(shape: Sequence[int], seed: int) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(tuple(shape)), np.float32)


@composite
def broadcast_shapes(draw: DrawFn, count: int) -> list[tuple[int, ...]]:
    full = draw(st.lists(SIZES, max_size=6))
    shapes = []
    for _ in range(count):
        kept = full[draw(st.integers(0, len(full))) :]
        shapes.append(tuple(1 if draw(st.booleans()) else size for size in kept))
    return shapes


@FEW
@given(st.sampled_from(["Add", "Div", "Max", "Less", "Equal"]), broadcast_shapes(2))
def test_two_operands_broadcast(op: str, shapes: list[tuple[int, ...]]) -> None:
    feeds = {
        name: numbers(shape, i) for i, (name, shape) in enumerate(zip("ab", shapes, strict=True))
    }
    for found, expected in both(helper.make_node(op, ["a", "b"], ["y"]), feeds):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


@FEW
@given(broadcast_shapes(3))
def test_where_broadcasts(shapes: list[tuple[int, ...]]) -> None:
    condition, yes, no = (numbers(shape, i) for i, shape in enumerate(shapes))
    feeds = {"c": np.asarray(condition > 0), "a": yes, "b": no}  # type: ignore[operator]  # floats
    for found, expected in both(helper.make_node("Where", ["c", "a", "b"], ["y"]), feeds):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


@FEW
@given(
    st.lists(SIZES, min_size=1, max_size=7).flatmap(
        lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
    )
)
def test_any_permutation(case: tuple[list[int], list[int]]) -> None:
    shape, permutation = case
    if sum(size > 1 for size in shape) > 6:
        return
    node = helper.make_node("Transpose", ["x"], ["y"], perm=permutation)
    for found, expected in both(node, {"x": numbers(shape, 0)}):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


LIMIT = st.integers(-9, 9)


@FEW
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(
        st.tuples(LIMIT, LIMIT, st.sampled_from([-3, -2, -1, 1, 2, 3])), min_size=4, max_size=4
    ),
)
def test_any_slice(shape: list[int], limits: list[tuple[int, int, int]]) -> None:
    x = numbers(shape, 0)
    axes = range(len(shape))
    starts, ends, steps = (np.array([limits[a][k] for a in axes]) for k in range(3))
    parts = {"s": starts, "e": ends, "a": np.array(axes), "p": steps}
    node = helper.make_node("Slice", ["x", *parts], ["y"])
    if 0 in _sliced_shape(shape, limits):
        # No TFLite tensor is empty.
        return
    for found, expected in both(node, {"x": x}, parts):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def _sliced_shape(shape: list[int], limits: list[tuple[int, int, int]]) -> list[int]:
    sizes = []
    for size, (start, end, step) in zip(shape, limits, strict=False):
        start, end = (limit + size if limit < 0 else limit for limit in (start, end))
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first = min(max(start, 0), high)
        sizes.append(len(range(first, min(max(end, low), high), step)))
    return sizes
