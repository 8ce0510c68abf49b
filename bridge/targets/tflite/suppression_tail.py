"""What becomes of a suppression's rows: which tensors have one row for each of them, and why.

The rows of `selected` reach the outputs through operators that treat every row alike. A tensor
behind them that has one row for each row of `selected`, made of that row alone (and of whether it
counts), is a *row tensor*.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge.static_model import TensorType, tensor_types
from bridge.static_nms import StaticNms
from bridge.targets.tflite.suppression_copies import Addresses, Copies

# fmt: off
ELEMENTWISE: Final = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not",
    "Or", "Pow", "Reciprocal", "Round", "Sigmoid", "Sqrt", "Sub", "Where", "Xor",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Limit:
    """A node that gives the smaller of the count and a constant."""

    node: onnx.NodeProto
    most: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The readers of one suppression, all of which are understood.

    Attributes:
        rows: the row tensors, `selected` among them.
        masks: row tensors that say which rows count.
        counts: how many do, under all its names.
        leaves: Gather and GatherND nodes that fetch the rows of something else.
        sorts: TopK nodes over rows.
        picks: Gather nodes that take rows in the order of such a TopK.
        firsts: Slice nodes that take the first rows.
        limits: smaller numbers of rows that count.
        outputs: row tensors and counts that are outputs of the graph.
    """

    call: StaticNms
    rows: frozenset[str]
    masks: frozenset[str]
    counts: frozenset[str]
    leaves: tuple[onnx.NodeProto, ...]
    sorts: tuple[onnx.NodeProto, ...]
    picks: tuple[onnx.NodeProto, ...]
    firsts: tuple[onnx.NodeProto, ...]
    limits: tuple[Limit, ...]
    outputs: frozenset[str]


def follow(model: onnx.ModelProto, call: StaticNms) -> Tail | None:
    """The readers of a call; None when one of them is not understood."""
    walk = _Walk(call, tensor_types(model), {t.name: t for t in model.graph.initializer})
    for node in model.graph.node:
        if not walk.step(node):
            return None
    named = {value.name for value in model.graph.output}
    if named & walk.positions:
        return None
    return Tail(
        call=call,
        rows=frozenset(walk.rows),
        masks=frozenset(walk.masks),
        counts=frozenset(walk.counts),
        leaves=tuple(walk.leaves),
        sorts=tuple(walk.sorts),
        picks=tuple(walk.picks),
        firsts=tuple(walk.firsts),
        limits=tuple(walk.limits),
        outputs=frozenset(named & (walk.rows | walk.counts)),
    )


@dataclass(slots=True)
class _Walk:
    call: StaticNms
    types: Mapping[str, TensorType]
    constants: Mapping[str, onnx.TensorProto]
    rows: set[str] = field(default_factory=set)
    masks: set[str] = field(default_factory=set)
    counts: set[str] = field(default_factory=set)
    positions: set[str] = field(default_factory=set)
    fewer: dict[str, tuple[int, str]] = field(default_factory=dict)
    leaves: list[onnx.NodeProto] = field(default_factory=list)
    sorts: list[onnx.NodeProto] = field(default_factory=list)
    picks: list[onnx.NodeProto] = field(default_factory=list)
    firsts: list[onnx.NodeProto] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows.add(self.call.selected)
        self.counts.add(self.call.count)

    def step(self, node: onnx.NodeProto) -> bool:
        """Take the node in; False when it reads rows in a way that is not understood."""
        read = set(node.input)
        if read & self.positions:
            return self._pick(node)
        if read & (self.fewer.keys() | self.counts):
            return self._count(node)
        if not read & self.rows:
            return True
        if node.op_type == "TopK":
            return self._sort(node)
        if node.op_type == "Slice" and self._is_first(node):
            self.firsts.append(node)
            return True
        if not self._is_rowwise(node):
            return False
        self.rows.update(node.output)
        return True

    def _value(self, name: str) -> NDArray[Any] | None:
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _pick(self, node: onnx.NodeProto) -> bool:
        data, indices = node.input[0], node.input[1]
        right = node.op_type == "Gather" and not _attribute(node, "axis", 0)
        self.picks.append(node)
        return right and data in self.rows and indices in self.positions

    def _count(self, node: onnx.NodeProto) -> bool:
        """A mask of the rows that count, or the smaller of their number and a constant."""
        counts = self.counts
        if node.op_type == "Identity":
            counts.update(node.output)
            return True
        if node.op_type == "Less":
            other = next((name for name in node.input if name not in counts), "")
            value = self._value(other)
            if value is None:
                return False
            if value.size == 1:
                self.fewer[node.output[0]] = (int(value.reshape(-1)[0]), node.input[0])
                return True
            iota = np.arange(self.call.rows)
            if node.input[1] not in counts or not np.array_equal(value, iota):
                return False
            self.masks.add(node.output[0])
            self.rows.add(node.output[0])
            return True
        if node.op_type == "Where" and node.input[0] in self.fewer:
            most, smaller = self.fewer[node.input[0]]
            other = next((name for name in node.input[1:] if name not in counts), "")
            value = self._value(other)
            if node.input[1] != smaller or value is None or value.reshape(-1).tolist() != [most]:
                return False
            self.limits.append(Limit(node, most))
            return True
        return False

    def _sort(self, node: onnx.NodeProto) -> bool:
        """The largest first, over the rows of one column."""
        k = self._value(node.input[1])
        right = (
            k is not None
            and self.types[node.input[0]].shape == (self.call.rows,)
            and _attribute(node, "largest", 1)
            and _attribute(node, "sorted", 1)
        )
        self.sorts.append(node)
        self.positions.add(node.output[1])
        return bool(right)

    def _is_first(self, node: onnx.NodeProto) -> bool:
        """Slice [0:k] of the rows, k constant."""
        starts, ends, axes, steps = (
            None if len(node.input) <= i or not node.input[i] else self._value(node.input[i])
            for i in (1, 2, 3, 4)
        )
        return (
            starts is not None
            and ends is not None
            and starts.tolist() == [0]
            and (axes is None or axes.tolist() == [0])
            and (steps is None or steps.tolist() == [1])
            and ends[0] > 0
        )

    def _is_rowwise(self, node: onnx.NodeProto) -> bool:
        """Whether row r of every result is made of row r of the row tensors read."""
        rows, call = self.rows, self.call
        results = [self.types[name].shape for name in node.output if name]
        if any(not shape or shape[0] != call.rows for shape in results):
            return False
        match node.op_type:
            case "Gather" | "GatherND" if node.input[0] not in rows:
                if _attribute(node, "axis", 0) or _attribute(node, "batch_dims", 0):
                    return False
                self.leaves.append(node)
                return True
            case "Gather":
                return node.input[1] not in rows and _attribute(node, "axis", 0) != 0
            case "Slice":
                axes = self._value(node.input[3]) if len(node.input) > 3 else None
                return axes is not None and 0 not in axes and -len(self._shape(node)) not in axes
            case "Split":
                return _attribute(node, "axis", 0) not in (0, -len(self._shape(node)))
            case "Concat":
                axis = _attribute(node, "axis", 0)
                return axis not in (0, -len(results[0])) and rows.issuperset(node.input)
            case "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten":
                return True
            case operator if operator in ELEMENTWISE:
                return all(self._aligned(name, len(results[0])) for name in node.input if name)
        return False

    def _shape(self, node: onnx.NodeProto) -> tuple[int, ...]:
        return self.types[node.input[0]].shape

    def _aligned(self, name: str, rank: int) -> bool:
        """Whether an operand meets each row with its own row, or all rows with the same numbers."""
        shape = self.types[name].shape
        if name in self.rows:
            return len(shape) == rank
        return len(shape) < rank or shape[0] == 1


def copied(model: onnx.ModelProto, tail: Tail, name: str, copies: Copies) -> Addresses | None:
    """Of what a row tensor's rows are copies, for every row that `selected` could hold.

    Args:
        model: the static model.
        tail: of one of its calls.
        name: a row tensor.
        copies: of the same model.

    Returns:
        int64[B * C * N, ...], image, class and box in this order; None where the row tensor
        is more than a copy.
    """
    way = _Way.to(model, tail, name, copies)
    if not way.leaves or way.computes:
        return None
    data = {node.input[0]: copies.addresses(node.input[0]) for node in way.leaves}
    return _for_every_row(way, tail, name, copies, data)


def numbered(model: onnx.ModelProto, tail: Tail, name: str, copies: Copies) -> Addresses | None:
    """What a row tensor holds that is made of image, class and box numbers alone; else None.

    Returns:
        int64[B * C * N, ...], as in `copied`.
    """
    way = _Way.to(model, tail, name, copies)
    if way.leaves or not copies.types[name].dtype.startswith("int"):
        return None
    return _for_every_row(way, tail, name, copies, {})


@dataclass(frozen=True, slots=True)
class _Way:
    """The nodes between `selected` and a row tensor.

    Attributes:
        leaves: those that fetch something.
        computes: what is fetched is more than moved, or fetches something else in its turn.
        complete: it reads nothing but constants, `selected`, its count, and what is fetched.
    """

    nodes: tuple[onnx.NodeProto, ...]
    leaves: tuple[onnx.NodeProto, ...]
    computes: bool
    complete: bool

    @classmethod
    def to(cls, model: onnx.ModelProto, tail: Tail, name: str, copies: Copies) -> "_Way":
        """The way to a row tensor."""
        fetching = {node.output[0] for node in tail.leaves}
        needed, seen, complete = [], {tail.call.selected, tail.call.count}, True
        pending = [name]
        while pending:
            tensor = pending.pop()
            if tensor in seen or tensor in copies.constants or not tensor:
                continue
            node = copies.makers.get(tensor)
            if node is None or tensor not in tail.rows:
                complete = False
                continue
            seen.update(node.output)
            needed.append(node)
            pending += [node.input[1]] if tensor in fetching else node.input
        order = {id(node): position for position, node in enumerate(model.graph.node)}
        needed.sort(key=lambda node: order[id(node)])
        carried, computes = set[str](), False
        for node in needed:
            if node.output[0] in fetching:
                computes |= node.input[1] in carried
                carried.update(node.output)
            elif carried.intersection(node.input):
                computes |= node.op_type in ELEMENTWISE - {"Identity"}
                carried.update(node.output)
        leaves = tuple(node for node in needed if node.output[0] in fetching)
        return cls(tuple(needed), leaves, computes, complete)


def _for_every_row(
    way: _Way, tail: Tail, name: str, copies: Copies, data: Mapping[str, Addresses]
) -> Addresses | None:
    """Run a way for every row that `selected` could hold, integers in place of what is fetched."""
    if not way.complete:
        return None
    call, types = tail.call, copies.types
    read = {x for node in way.nodes for x in node.input}
    given = [x for x in (call.selected, call.count) if x in read or x == name]
    graph = helper.make_graph(
        [*way.nodes, helper.make_node("Identity", [name], ["bridge/found"])],
        "rows",
        [helper.make_tensor_value_info(x, onnx.TensorProto.INT64, types[x].shape) for x in given],
        [helper.make_empty_tensor_value_info("bridge/found")],
        [
            *(numpy_helper.from_array(array, x) for x, array in data.items()),
            *(copies.constants[x] for x in sorted(read & copies.constants.keys() - data.keys())),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", copies.opset)])
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    shape = types[call.scores].shape
    every = np.stack(np.unravel_index(np.arange(prod(shape)), shape), 1).astype(np.int64)
    found = []
    for first in range(0, len(every), call.rows):
        real = every[first : first + call.rows]
        chunk = np.zeros((call.rows, 3), np.int64)
        chunk[: len(real)] = real
        feeds = {call.selected: chunk, call.count: np.array([call.rows], np.int64)}
        try:
            made = session.run(None, {x: feeds[x] for x in given})[0]
        except Exception:
            # An address outside of what it points into: onnxruntime has no error class for that.
            return None
        found.append(np.asarray(made, np.int64)[: len(real)])
    return np.concatenate(found, dtype=np.int64)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)
