"""Random detection heads: what exporters write, in any order, over rows (x [n,4], s [n], i [n])."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ROWS = 24
HUGE = 2**62

type Rows = tuple[str, str, str]
"""Names of boxes float32[n, 4], scores float32[n] and ids int64[n] that share their rows."""

SOURCE: Rows = ("x", "s", "i")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing a head does: to the rows of an earlier step, with a number and a level of its own.

    Attributes:
        back: how many steps back the rows are from; beyond the first step: the inputs.
        number: 0..15, a count or a choice.
        level: 0..1, a threshold.
    """

    kind: str
    back: int
    number: int
    level: float


@dataclass(slots=True)
class Writer:
    """Nodes and constants of a program in the making."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    made: int = 0

    def name(self) -> str:
        """A name that nothing has yet."""
        self.made += 1
        return f"t{self.made}"

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """An initializer."""
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        """int64[k]."""
        return self.constant(list(values))

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(value, np.float32)

    def ops(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node of several outputs."""
        outputs = [self.name() for _ in range(count)]
        self.nodes.append(
            helper.make_node(op_type, inputs, outputs, f"n_{outputs[0]}", **attributes)
        )
        return outputs

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def take(self, rows: Rows, places: str) -> Rows:
        """The rows at those places."""
        x, s, i = (self.op("Gather", tensor, places, axis=0) for tensor in rows)
        return x, s, i

    def each(self, rows: Rows, op_type: str, *inputs: str, **attributes: Any) -> Rows:
        """One operator on all three."""
        x, s, i = (self.op(op_type, tensor, *inputs, **attributes) for tensor in rows)
        return x, s, i

    def where(self, mask: str) -> str:
        """The places at which a mask bool[n] holds."""
        return self.op("Squeeze", self.op("NonZero", mask), self.ints(0))

    def best(self, scores: str, number: str, *, largest: int = 1) -> list[str]:
        """TopK of no more rows than there are."""
        count = self.op("Min", self.op("Shape", scores), number)
        return self.ops("TopK", 2, scores, count, axis=0, largest=largest)

    def suppress(self, boxes: str, scores: str, most: int, overlap: float, *limit: str) -> str:
        """The places that a suppression of one class selects."""
        rows = self.op(
            "NonMaxSuppression",
            self.op("Unsqueeze", boxes, self.ints(0)),
            self.op("Unsqueeze", scores, self.ints(0, 1)),
            self.constant(most),
            self.number(overlap),
            *limit,
        )
        column = self.op("Gather", rows, self.ints(2), axis=1)
        return self.op("Squeeze", column, self.ints(1))


def _mask(w: Writer, rows: Rows, step: Step) -> Rows:
    return w.take(rows, w.where(w.op("Greater", rows[1], w.number(step.level))))


def _mask_of_two(w: Writer, rows: Rows, step: Step) -> Rows:
    far = w.op("ReduceMax", rows[0], axes=[1], keepdims=0)
    mask = w.op(
        "And",
        w.op("Greater", far, w.number(50 * step.level)),
        w.op("Less", rows[2], w.ints(2 * step.number + 1)),
    )
    places = w.op("Transpose", w.op("NonZero", mask), perm=[1, 0])
    return w.each(rows, "GatherND", places)


def _compress(w: Writer, rows: Rows, step: Step) -> Rows:
    mask = w.op("Less", rows[1], w.number(step.level))
    return w.each(rows, "Compress", mask, axis=0)


def _top(w: Writer, rows: Rows, step: Step) -> Rows:
    values, places = w.best(rows[1], w.ints(step.number + 1), largest=step.number % 2)
    ids = w.op("Gather", rows[2], places, axis=0) if step.number % 3 else places
    return w.op("Gather", rows[0], places, axis=0), values, ids


def _sort(w: Writer, rows: Rows, step: Step) -> Rows:
    count = w.op("Shape", rows[1])
    values, places = w.ops("TopK", 2, rows[1], count, axis=0, largest=step.number % 2)
    return w.op("Gather", rows[0], places, axis=0), values, places


def _suppress(w: Writer, rows: Rows, step: Step) -> Rows:
    limit = [w.number(0.2)] if step.number % 2 else []
    most = 5 if step.number % 3 else HUGE
    kept = w.suppress(rows[0], rows[1], most, 0.1 + step.level / 2, *limit)
    x, s, i = w.take(rows, kept)
    return x, s, kept if step.number % 5 == 0 else i


def _by_class(w: Writer, rows: Rows, step: Step) -> Rows:
    """The coordinate trick of batched_nms."""
    far = w.op("Add", w.op("ReduceMax", rows[0], keepdims=0), w.number(1))
    classes = w.op("Cast", w.op("Mod", rows[2], w.ints(3)), to=TensorProto.FLOAT)
    offset = w.op("Unsqueeze", w.op("Mul", classes, far), w.ints(1))
    kept = w.suppress(w.op("Add", rows[0], offset), rows[1], HUGE, step.level)
    return w.take(rows, kept)


def _guarded(w: Writer, rows: Rows, step: Step) -> Rows:
    """A suppression behind an If for no rows at all."""
    inner = Writer(made=10_000 * (w.made + 1))
    kept = inner.suppress(rows[0], rows[1], HUGE, 0.1 + step.level / 2)
    # Branches hold no initializers of their own here: constants stay outside, as exporters have it.
    w.constants += inner.constants
    result = helper.make_tensor_value_info(kept, TensorProto.INT64, ["k"])
    full = helper.make_graph(inner.nodes, "full", [], [result])
    nothing = numpy_helper.from_array(np.zeros(0, np.int64), f"{kept}_none")
    constant = helper.make_node("Constant", [], [nothing.name], f"n_{nothing.name}", value=nothing)
    out = helper.make_tensor_value_info(nothing.name, TensorProto.INT64, [0])
    empty = helper.make_graph([constant], "empty", [], [out])
    size = w.op("ReduceProd", w.op("Shape", rows[0]), keepdims=0)
    none = w.op("Equal", size, w.constant(0))
    if step.number % 2:
        none, full, empty = w.op("Not", none), empty, full
    return w.take(rows, w.op("If", none, then_branch=empty, else_branch=full))


def _first(w: Writer, rows: Rows, step: Step) -> Rows:
    return w.each(rows, "Slice", w.ints(0), w.ints(step.number + 1), w.ints(0))


def _behind(w: Writer, rows: Rows, step: Step) -> Rows:
    return w.each(rows, "Slice", w.ints(step.number // 3 + 1), w.ints(HUGE), w.ints(0))


def _all_but_last(w: Writer, rows: Rows, step: Step) -> Rows:
    return w.each(rows, "Slice", w.ints(0), w.ints(-(step.number // 3) - 1), w.ints(0))


def _clamped_slice(w: Writer, rows: Rows, step: Step) -> Rows:
    less = w.op("Sub", w.op("Shape", rows[1]), w.ints(step.number // 2 + 1))
    return w.each(rows, "Slice", w.ints(0), w.op("Max", less, w.ints(0)), w.ints(0))


def _reversed(w: Writer, rows: Rows, step: Step) -> Rows:
    del step
    return w.each(rows, "Slice", w.ints(-1), w.ints(-HUGE), w.ints(0), w.ints(-1))


def _with_inputs(w: Writer, rows: Rows, step: Step) -> Rows:
    """The rows, all rows, and the rows again."""
    del step
    x, s, i = (
        w.op("Concat", tensor, source, tensor, axis=0)
        for tensor, source in zip(rows, SOURCE, strict=True)
    )
    return x, s, i


def _with_one_more(w: Writer, rows: Rows, step: Step) -> Rows:
    return (
        w.op("Concat", rows[0], w.constant(np.full((1, 4), 0.5), np.float32), axis=0),
        w.op("Concat", rows[1], w.constant([step.level], np.float32), axis=0),
        w.op("Concat", rows[2], w.ints(step.number), axis=0),
    )


def _positions(w: Writer, rows: Rows, step: Step) -> Rows:
    """Positions as data."""
    places = w.where(w.op("Greater", rows[1], w.number(step.level)))
    x, s, _ = w.take(rows, places)
    moved = w.op("Mul", w.op("Cast", places, to=TensorProto.FLOAT), w.number(0.01))
    return x, w.op("Add", s, moved), places


def _numbered(w: Writer, rows: Rows, step: Step) -> Rows:
    del step
    count = w.op("Squeeze", w.op("Shape", rows[1]), w.ints(0))
    numbers = w.op("Range", w.constant(0), count, w.constant(1))
    moved = w.op("Cast", w.op("Unsqueeze", numbers, w.ints(1)), to=TensorProto.FLOAT)
    return w.op("Add", rows[0], moved), rows[1], numbers


def _by_count(w: Writer, rows: Rows, step: Step) -> Rows:
    """Counts as data."""
    count = w.op("Shape", rows[1])
    factor = w.op("Mul", w.op("Cast", count, to=TensorProto.FLOAT), w.number(step.level / 50))
    stretched = w.op("Mul", rows[0], w.op("Add", factor, w.number(1)))
    return stretched, rows[1], w.op("Add", rows[2], count)


def _doubled(w: Writer, rows: Rows, step: Step) -> Rows:
    """Two rows of each: [n, 4] as [2n, 2], and two scores a row."""
    del step
    halves = w.op("Reshape", rows[0], w.ints(-1, 2))
    other = w.op("Mul", rows[1], w.number(0.7))
    pairs = [w.op("Unsqueeze", tensor, w.ints(1)) for tensor in (rows[1], other)]
    scores = w.op("Reshape", w.op("Concat", *pairs, axis=1), w.ints(-1))
    shape = w.op("Concat", w.op("Shape", rows[2]), w.ints(2), axis=0)
    ids = w.op("Expand", w.op("Unsqueeze", rows[2], w.ints(1)), shape)
    return (
        w.op("Concat", halves, halves, axis=1),
        scores,
        w.op("Reshape", ids, w.ints(-1)),
    )


def _scattered(w: Writer, rows: Rows, step: Step) -> Rows:
    places = w.where(w.op("Greater", rows[1], w.number(step.level)))
    base = _filled(w, rows)
    updates = w.op("Mul", w.op("Gather", rows[1], places), w.number(0.9))
    return rows[0], w.op("ScatterElements", base, places, updates, axis=0), rows[2]


def _scattered_best(w: Writer, rows: Rows, step: Step) -> Rows:
    values, places = w.best(rows[1], w.ints(step.number // 2 + 1))
    column = w.op("Unsqueeze", places, w.ints(1))
    boxes = w.op("Mul", w.op("Gather", rows[0], places, axis=0), w.number(1.1))
    return (
        w.op("ScatterND", rows[0], column, boxes),
        w.op("ScatterND", _filled(w, rows), column, w.op("Mul", values, w.number(0.9))),
        rows[2],
    )


def _scattered_kept(w: Writer, rows: Rows, step: Step) -> Rows:
    """Writes through a suppression that returns fewer rows than it may: index 0 is a real row."""
    kept = w.suppress(rows[0], rows[1], 20, 0.1 + step.level / 2, w.number(0.25))
    updates = w.op("Mul", w.op("Gather", rows[1], kept), w.number(0.5))
    return rows[0], w.op("ScatterElements", rows[1], kept, updates, axis=0), rows[2]


def _filled(w: Writer, rows: Rows) -> str:
    value = numpy_helper.from_array(np.array([0.3], np.float32))
    return w.op("ConstantOfShape", w.op("Shape", rows[1]), value=value)


def _of_two_axes(w: Writer, rows: Rows, step: Step) -> Rows:
    """NonZero of rank 2, as multi-label heads have it."""
    factors = w.constant([1, 0.8, 0.4], np.float32)
    table = w.op("Mul", w.op("Unsqueeze", rows[1], w.ints(1)), factors)
    places = w.op("NonZero", w.op("Greater", table, w.number(step.level)))
    row, column = w.ops("Split", 2, places, w.ints(1, 1), axis=0)
    row, column = (w.op("Squeeze", tensor, w.ints(0)) for tensor in (row, column))
    scores = w.op("GatherND", table, w.op("Transpose", places, perm=[1, 0]))
    return w.op("Gather", rows[0], row, axis=0), scores, row if step.number % 2 else column


def _against_each_other(w: Writer, rows: Rows, step: Step) -> Rows:
    """[n, n], reduced again."""
    del step
    one, other = (w.op("Unsqueeze", rows[1], w.ints(axis)) for axis in (1, 0))
    apart = w.op("ReduceMax", w.op("Abs", w.op("Sub", one, other)), axes=[1], keepdims=0)
    factor = w.op("Add", apart, w.number(0.2))
    return rows[0], w.op("Mul", rows[1], factor), rows[2]


def _summed(w: Writer, rows: Rows, step: Step) -> Rows:
    total = w.op("ReduceSum", rows[2], w.ints(0), keepdims=1)
    least = w.op("ReduceMin", rows[2], keepdims=1)
    running = w.op("CumSum", rows[2], w.constant(0))
    chosen = (total, least)[step.number % 2]
    return rows[0], rows[1], w.op("Sub", running, chosen)


def _out_of_range(w: Writer, rows: Rows, step: Step) -> Rows:
    """Places that only the selected rows keep legal."""
    del step
    legal = w.op("And", w.op("Less", rows[2], w.ints(8)), w.op("Greater", rows[2], w.ints(-1)))
    _, _, ids = w.take(rows, w.where(legal))
    far = w.op("Mul", ids, w.ints(3))
    scores = w.op("GatherND", "s", w.op("Unsqueeze", far, w.ints(1)))
    return w.op("Gather", "x", far, axis=0), scores, far


KINDS: Mapping[str, Callable[[Writer, Rows, Step], Rows]] = {
    function.__name__.strip("_"): function
    for function in (
        _mask, _mask_of_two, _compress, _top, _sort, _suppress, _by_class, _guarded, _first,
        _behind, _all_but_last, _clamped_slice, _reversed, _with_inputs, _with_one_more,
        _positions, _numbered, _by_count, _doubled, _scattered, _scattered_best, _scattered_kept,
        _of_two_axes, _against_each_other, _summed, _out_of_range,
    )
}  # fmt: skip


def steps() -> st.SearchStrategy[list[Step]]:
    """Two to six steps."""
    step = st.builds(
        Step,
        kind=st.sampled_from(sorted(KINDS)),
        back=st.integers(1, 3),
        number=st.integers(0, 15),
        level=st.sampled_from([0.05, 0.2, 0.3, 0.5, 0.7, 0.9]),
    )
    return st.lists(step, min_size=2, max_size=6)


def program(of: list[Step]) -> onnx.ModelProto:
    """The head: its outputs are the rows of the last three steps."""
    writer = Writer()
    made: list[Rows] = [SOURCE]
    for step in of:
        rows = made[max(0, len(made) - step.back)]
        made.append(KINDS[step.kind](writer, rows, step))
    outputs = []
    for number, rows in enumerate(made[1:][-3:]):
        for tensor, kind, shape in zip(rows, "xsi", _shapes(number), strict=True):
            if tensor in SOURCE:
                continue
            name = f"{kind}{number}"
            writer.nodes.append(helper.make_node("Identity", [tensor], [name], f"n_{name}"))
            element = TensorProto.INT64 if kind == "i" else TensorProto.FLOAT
            outputs.append(helper.make_tensor_value_info(name, element, shape))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, 4]),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, [ROWS]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [ROWS]),
    ]
    graph = helper.make_graph(writer.nodes, "head", inputs, outputs, writer.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _shapes(number: int) -> tuple[list[str | int], list[str | int], list[str | int]]:
    return [f"n{number}", 4], [f"n{number}"], [f"n{number}"]


def feeds() -> Iterator[dict[str, NDArray[Any]]]:
    """Scores all different, or with ties; most of them high, low, or too low for anything."""
    for seed, (factor, levels) in enumerate(((1, 0), (1, 6), (0.3, 0), (0.04, 0))):
        rng = np.random.default_rng(1000 + seed)
        centre, size = rng.random((ROWS, 2)) * 50, rng.random((ROWS, 2)) * 15 + 2
        scores = rng.permutation(ROWS) / ROWS
        if levels:
            scores = np.round(scores * levels) / levels
        yield {
            "x": np.concatenate([centre - size / 2, centre + size / 2], 1).astype(np.float32),
            "s": (scores * factor).astype(np.float32),
            "i": rng.integers(0, 20, ROWS),
        }
