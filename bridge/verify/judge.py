"""The static model under onnxruntime: whole, and from the network's border on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bridge import static_nms
from bridge.errors import LoweringError, PassError
from bridge.static_model import TensorType, tensor_types
from bridge.static_nms import StaticNms
from bridge.targets.base import Array
from bridge.verify.golden import session_of
from bridge.verify.rounding import EPSILON

# fmt: off
_ROUNDED = frozenset({
    "Atan", "Cos", "Elu", "Erf", "Exp", "Gelu", "HardSwish", "Log", "LogSoftmax", "Mish", "Pow",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Selu", "Sigmoid", "Sin", "Softmax", "Softplus", "Tan", "Tanh",
})
"""Operators whose last bits IEEE 754 leaves open: transcendental, or a sum in any order."""

_NETWORK = frozenset({
    "AveragePool", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "GlobalAveragePool",
    "InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "Resize", "RoiAlign",
})
"""Operators that networks consist of: long sums, one behind the other, in any order."""

_SUMS = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
"""Operators whose further inputs are the weights of sums."""
_MOVING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that give the numbers of their first input in other places."""
_ORDERING = frozenset({"ArgMax", "ArgMin", "Max", "Min", "ReduceMax", "ReduceMin", "TopK"})
"""Operators to which ONNX does not say what a NaN is."""
# fmt: on

ROUNDING = 16 * EPSILON
"""The deviation that an operator whose last bits are open may cause."""


@dataclass(frozen=True, slots=True)
class NmsRun:
    """One suppression of a run: what went in, and the rows int64[count, 3] that came out."""

    call: StaticNms
    boxes: Array
    scores: Array
    selected: Array


@dataclass(frozen=True, slots=True)
class Run:
    """One run: outputs padded as the model pads them, border tensors, and every suppression.

    Attributes:
        defined: no operator was asked to order a NaN, so that ONNX says what comes out.
    """

    outputs: Mapping[str, Array]
    border: Mapping[str, Array]
    nms: tuple[NmsRun, ...]
    defined: bool = True


class Judge:
    """Runs a static model, or the reference of an artifact, and its tail on any border tensors.

    Attributes:
        border: tensors at which the tail begins; the graph inputs where nothing stands before.
        whole_is_tail: nothing stands before the border.
        types: type and shape of every tensor.
        calls: the suppressions, in graph order.
        box_border: the border tensors that boxes are made of and scores are not.
        roots: tensors that are square roots, moved or not.
        holds_network: the tail holds operators that networks consist of.
        tolerance: the deviation that two right implementations of the tail may show where it holds
            no network: 0 if it only moves, compares and calculates.
    """

    def __init__(self, model: onnx.ModelProto, border: Sequence[str]) -> None:
        inputs = [value.name for value in model.graph.input]
        self.types = tensor_types(model)
        self.calls = static_nms.calls(model)
        self.whole_is_tail = not border
        self.border = tuple(border) or tuple(inputs)
        missing = [name for name in self.border if name not in self.types]
        if missing:
            raise LoweringError(
                f"the target names a border tensor {missing[0]!r} that the static model does not "
                "have; please report it with the model"
            )
        self._constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._outputs = [value.name for value in model.graph.output]
        observed = [name for call in self.calls for name in _tensors(call)]
        self._ordered = tuple(
            name
            for node in model.graph.node
            if node.op_type in _ORDERING
            for name in node.input
            if name in self.types and self.types[name].dtype.startswith("float")
        )
        wanted = list(dict.fromkeys([*self._outputs, *self.border, *observed, *self._ordered]))
        self._model = with_outputs(model, wanted, self.types)
        self._whole = _Part(self._model)
        self._unsteady: dict[int, _Part] = {}
        tail = behind(model, self.border, wanted, self.types)
        boxes, scores = (
            _sources(tail, [getattr(call, kind) for call in self.calls])
            for kind in ("boxes", "scores")
        )
        self.box_border = frozenset(self.border) & boxes - scores
        self.roots = _roots(model)
        operators = _float_operators(tail, self.types)
        self.holds_network = bool(operators & _NETWORK)
        self.tolerance = ROUNDING if operators & _ROUNDED else 0.0
        self._tail = self._whole if self.whole_is_tail else _Part(tail)

    def whole(self, feeds: Mapping[str, Array]) -> Run:
        """Run from the inputs, frozen ones left out."""
        return self._run(self._whole.run(feeds), feeds)

    def unsteady(self, feeds: Mapping[str, Array], seed: int) -> Run:
        """Run from the inputs with every weight of a sum moved in its last bit.

        A sum in another order, or on wider registers, is the exact sum of terms that differ in
        their last bits: what this moves is what another implementation may be off by.
        """
        if seed not in self._unsteady:
            self._unsteady[seed] = _Part(_moved_weights(self._model, seed))
        return self._run(self._unsteady[seed].run(feeds), feeds)

    def tail(self, border: Mapping[str, Array]) -> Run:
        """Run what stands behind the border."""
        return self._run(self._tail.run(border), border)

    def _run(self, made: Mapping[str, Array], fed: Mapping[str, Array]) -> Run:
        known = {**self._constants, **fed, **made}
        return Run(
            outputs={name: known[name] for name in self._outputs},
            border={name: known[name] for name in self.border},
            nms=tuple(
                NmsRun(
                    call,
                    known[call.boxes],
                    known[call.scores],
                    known[call.selected][: int(known[call.count].reshape(-1)[0])],
                )
                for call in self.calls
            ),
            defined=not any(np.isnan(known[n]).any() for n in self._ordered if n in known),
        )


class _Part:
    """A model under onnxruntime that is fed by name and gives every output by name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        # onnxruntime refuses a graph without nodes, which a tail is where the border is the output.
        self._session = None
        if not model.graph.node:
            return
        try:
            self._session = session_of(model.SerializeToString())
        except Exception as error:
            raise PassError(
                f"onnxruntime refuses the static model: {' '.join(str(error).split())}; please "
                "report it with the source model"
            ) from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._session is None:
            return {}
        values = self._session.run(self._outputs, {name: feeds[name] for name in self._inputs})
        return dict(zip(self._outputs, map(np.asarray, values), strict=True))


def _moved_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    summed = {name for node in model.graph.node if node.op_type in _SUMS for name in node.input[1:]}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in summed and tensor.data_type == onnx.TensorProto.FLOAT:
            weights = numpy_helper.to_array(tensor).astype(np.float64)
            weights *= 1 + np.finfo(np.float32).eps * rng.uniform(-1, 1, weights.shape)
            tensor.CopyFrom(numpy_helper.from_array(weights.astype(np.float32), tensor.name))
    return copy


def _sources(model: onnx.ModelProto, names: Sequence[str]) -> frozenset[str]:
    """The graph inputs that the named tensors are made of."""
    makers = {name: node for node in model.graph.node for name in node.output}
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending.extend(makers[name].input if name in makers else ())
    return frozenset(seen & {value.name for value in model.graph.input})


def _roots(model: onnx.ModelProto) -> frozenset[str]:
    """Tensors that hold square roots and nothing else."""
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Sqrt" or (node.op_type in _MOVING and node.input[0] in found):
            found |= set(node.output)
    return frozenset(found)


def _float_operators(model: onnx.ModelProto, types: Mapping[str, TensorType]) -> frozenset[str]:
    """The operators that make floats."""
    return frozenset(
        node.op_type for node in model.graph.node if types[node.output[0]].dtype.startswith("float")
    )


def _tensors(call: StaticNms) -> tuple[str, ...]:
    return call.boxes, call.scores, call.selected, call.count


def _value(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return helper.make_tensor_value_info(name, element, kind.shape)


def with_outputs(
    model: onnx.ModelProto, names: Sequence[str], types: Mapping[str, TensorType]
) -> onnx.ModelProto:
    """The model with further tensors as outputs, as far as nodes make them."""
    made = {name for node in model.graph.node for name in node.output}
    present = {value.name for value in model.graph.output}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(
        _value(name, types[name]) for name in names if name in made and name not in present
    )
    return copy


def behind(
    model: onnx.ModelProto,
    border: Sequence[str],
    names: Sequence[str],
    types: Mapping[str, TensorType],
) -> onnx.ModelProto:
    """What makes the named tensors, from the border tensors on.

    A named tensor that stands before the border, or on it, is left out. Graph inputs that the tail
    reads past the border stay inputs.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    needed, read = set[int](), set[str]()
    pending = [output.name for output in model.graph.output]
    while pending:
        name = pending.pop()
        node = makers.get(name)
        if name in read:
            continue
        read.add(name)
        if name not in border and node is not None and id(node) not in needed:
            needed.add(id(node))
            pending.extend(filter(None, node.input))
    nodes = [node for node in model.graph.node if id(node) in needed]
    made = {name for node in nodes for name in node.output}
    inputs = [value.name for value in model.graph.input if value.name in read]
    graph = helper.make_graph(
        nodes,
        model.graph.name or "tail",
        [_value(name, types[name]) for name in dict.fromkeys([*border, *inputs])],
        [_value(name, types[name]) for name in names if name in made and name not in border],
        [t for t in model.graph.initializer if t.name in read and t.name not in border],
    )
    return helper.make_model(
        graph,
        functions=model.functions,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
