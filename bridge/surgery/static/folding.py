"""Nodes whose inputs are all constant, computed at conversion time by onnxruntime itself.

Its bits are the source's bits, whatever the operator; and it is the fastest evaluator at hand.
"""

from math import prod

import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from bridge.surgery.static.call import Call, copy_all
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import NoRuleError, Tensor
from bridge.surgery.static.operators import RANDOM

_LIMIT = 1 << 20
"""Elements above which a constant is left to run time; the model must not grow."""

_REFUSALS = (
    runtime.Fail,
    runtime.InvalidArgument,
    runtime.InvalidGraph,
    runtime.NotImplemented,
    runtime.RuntimeException,
)

_DEADLY = frozenset({"GatherElements", "TopK"})
"""Without elements these divide by zero in onnxruntime 1.26 and end the process."""

_GROWING = frozenset({"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile"})


def fold(g: Graph, call: Call) -> tuple[Tensor, ...] | None:
    """The results as constants; None where the node is not folded."""
    xs = [x for x in call.inputs if x]
    if not xs or not all(map(g.is_constant, xs)) or call.node.domain or call.op_type in RANDOM:
        return None
    if not _is_small(g, call, xs):
        return None
    names = [f"i{k}" if x else "" for k, x in enumerate(call.inputs)]
    node = helper.make_node(call.op_type, names, [f"o{k}" for k in range(len(call.node.output))])
    node.attribute.extend(call.node.attribute)
    held = [
        numpy_helper.from_array(array, name)
        for name, x in zip(names, call.inputs, strict=True)
        if x is not None and (array := g.array(x)) is not None
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "constant", [], outputs, held)
    model = helper.make_model(graph, opset_imports=list(g.opset_imports), ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, {})
    except _REFUSALS:
        return None  # no kernel, or invalid: what run time makes of it is not decided here
    return tuple(g.constant(result) for result in results)


def _is_small(g: Graph, call: Call, xs: list[Tensor]) -> bool:
    if any(x.dtype.kind not in "fiub" for x in xs) or sum(prod(x.shape) for x in xs) > _LIMIT:
        return False
    if call.op_type in _DEADLY and any(0 in x.shape for x in xs):
        return False
    if call.op_type not in _GROWING:
        return True
    try:
        return prod(copy_all(g, call)[0].shape) <= _LIMIT
    except NoRuleError:
        return False
