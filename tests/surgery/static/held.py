"""A static model held to its source: what every test of a rule goes through."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser

from bridge.errors import UnsupportedModelError
from bridge.static_model import StaticModel, tensor_types
from bridge.surgery.static import make_static
from tests.surgery.judge import assert_equal_bits, compiled

type Feeds = Mapping[str, NDArray[Any]]

ROWS = 12

PRELUDE = """
    half = Constant <value_float = 0.5> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    many = Constant <value_ints = [9223372036854775807]> ()
    all = Constant <value_ints = [-1]> ()
    mask = Greater (s, half)
    places = NonZero (mask)
    k = Squeeze (places, zero)
    b = Gather <axis = 0> (x, k)
    t = Gather <axis = 0> (s, k)
    l = Gather <axis = 0> (i, k)
    n = Shape (k)
    five = Constant <value_ints = [5]> ()
    best = Min (n, five)
    u01 = Sigmoid (t)
    bt, bk = TopK <axis = 0> (u01, best)
    bb = Gather <axis = 0> (b, bk)
    bl = Gather <axis = 0> (l, bk)
"""
"""Rows selected by a mask: k their positions, b t l what lies there (a scattered group of n rows);
and the best five of them: bk bb bt bl (a prefix group; bk are positions in the group before)."""

INPUTS = f"float[{ROWS},4] x, float[{ROWS}] s, int64[{ROWS}] i"


def program(
    body: str, outputs: str, inputs: str = INPUTS, prelude: str = PRELUDE
) -> onnx.ModelProto:
    """A model as ONNX text; its nodes are named by what they write."""
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    model = parser.parse_model(f"{header} g ({inputs}) => ({outputs}) {{ {prelude} {body} }}")
    _name_nodes(model.graph)
    return model


def _name_nodes(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.name = f"n_{node.output[0]}"
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _name_nodes(attribute.g)


def feeds() -> list[Feeds]:
    """Scores above 0.5 select. What is not selected would spoil whatever it reaches.

    None, one, some, all selected; the first or the last row masked; equal scores; as many as the
    best five and fewer.
    """
    rng = np.random.default_rng(3)
    masks = [
        [],
        [7],
        [0, 11],
        [1, 2, 4, 5, 6, 9],
        [3, 4, 5, 8, 10],
        [2, 3, 5, 11],
        range(ROWS),
        range(5, ROWS),
    ]
    return [_feed(rng, list(selected)) for selected in masks]


def with_rows() -> list[Feeds]:
    """The sets that select something.

    onnxruntime 1.26 dies of a division by zero on GatherElements and TopK where another axis than
    theirs has no rows.
    """
    return [given for given in feeds() if (given["s"] > 0.5).any()]


def _feed(rng: np.random.Generator, selected: Sequence[int]) -> Feeds:
    corners = rng.random((ROWS, 2)).astype(np.float32) * 20
    x = np.concatenate([corners, corners + rng.random((ROWS, 2)).astype(np.float32) * 9 + 1], 1)
    s = np.round(rng.random(ROWS).astype(np.float32) * 6) / 16 + np.float32(0.55)
    i = rng.integers(0, ROWS, ROWS)
    masked = [k for k in range(ROWS) if k not in selected]
    x[masked] = rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30], (len(masked), 4))
    s[masked] = rng.choice([np.nan, 0.5, -np.inf, -3, 0.25], len(masked))
    i[masked] = rng.choice([10**12, -(10**12), 99, -99], len(masked))
    return {"x": x.astype(np.float32), "s": s.astype(np.float32), "i": i}


def holds(
    model: onnx.ModelProto,
    sets: Sequence[Feeds] | None = None,
    *,
    max_detections: int | None = None,
    keep: Collection[str] = (),
) -> StaticModel:
    """Convert, and check on every set of inputs that the result means what the source computes.

    The source failing on a set (it reads row 0 of none) says nothing about it; that one set works
    is required.
    """
    before = model.SerializeToString(deterministic=True)
    static = make_static(model, max_detections=max_detections, keep=keep)
    assert model.SerializeToString(deterministic=True) == before
    assert_well_formed(static)
    source, candidate = compiled(model), compiled(static.model)
    compared = 0
    for given in sets if sets is not None else feeds():
        try:
            expected = source(given)
        except Exception:
            continue
        assert_same_rows(static, expected, candidate(given))
        compared += 1
    assert compared
    return static


def assert_same_rows(static: StaticModel, expected: Feeds, got: Feeds) -> None:
    """The first `count` rows are the source's, bit for bit; the count is right; zeros behind."""
    rows = {output.name: output.rows for output in static.padded}
    for name, array in expected.items():
        received = got[name]
        inside = [slice(None)] * array.ndim
        for axis in rows.get(name, ()):
            number = int(got[axis.count][0])
            assert number == min(array.shape[axis.axis], received.shape[axis.axis]), name
            inside[axis.axis] = slice(0, number)
        where = tuple(inside)
        assert_equal_bits(array[where], received[where], name)
        if name in rows:
            rest = received.copy()
            rest[where] = 0
            assert not rest.any(), f"{name} is not zero behind its rows"


def assert_well_formed(static: StaticModel) -> None:
    """Valid ONNX, every dimension fixed, every tensor typed, names once, nothing dead."""
    model = static.model
    onnx.checker.check_model(model, full_check=True)
    types = tensor_types(model)
    names = [name for node in model.graph.node for name in node.output]
    assert len(set(names)) == len(names)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    assert set(names) <= set(types)
    read = {name for node in model.graph.node for name in node.input}
    read |= {value.name for value in model.graph.output}
    assert all(read.intersection(node.output) for node in model.graph.node)
    assert {tensor.name for tensor in model.graph.initializer} <= read
    assert not {"If", "Loop", "NonZero", "NonMaxSuppression"} & set(operators(static))


def operators(static: StaticModel) -> list[str]:
    """The operators of the result in order."""
    return [node.op_type for node in static.model.graph.node]


def refuses(model: onnx.ModelProto, *words: str) -> None:
    """Refused with one message that holds all the words; the node's operator is always named."""
    with pytest.raises(UnsupportedModelError) as caught:
        make_static(model)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
