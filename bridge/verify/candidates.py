"""The judge of a suppression that compares its best candidates only.

A target may say of a suppression that it compares the K best (class, box) pairs (`LoweredNms`,
`candidates`). Its tail is then held to the static model with just those pairs left; whether K was
enough shows where the whole artifact is held to the source.
"""

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bridge import static_nms
from bridge.static_model import tensor_types
from bridge.targets.base import LoweredNms


def limited(model: onnx.ModelProto, nms: Iterable[LoweredNms]) -> onnx.ModelProto | None:
    """The static model with the best pairs of such suppressions only; None if there are none.

    Given    %scores -> StaticNMS
    Result   %scores -> flat -> TopK(K) -> back to where they were, -inf elsewhere -> StaticNMS
    """
    limits = {one.node: one.candidates for one in nms if one.candidates is not None}
    if not limits:
        return None
    judge = onnx.ModelProto()
    judge.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node in judge.graph.node:
        if static_nms.is_call(node) and node.name in limits:
            nodes += _best_pairs(judge.graph, node, limits)
        nodes.append(node)
    del judge.graph.node[:]
    judge.graph.node.extend(nodes)
    return judge


def _best_pairs(
    graph: onnx.GraphProto, node: onnx.NodeProto, limits: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """What leaves the best pairs of a call's scores and hides the others."""
    scores, best = node.input[1], limits[node.name]
    shape = tensor_types(helper.make_model(graph))[scores].shape
    kept = f"{node.name}/{best}_best"
    made = {
        f"{kept}/flat": (TensorProto.FLOAT, [prod(shape)]),
        f"{kept}/values": (TensorProto.FLOAT, [best]),
        f"{kept}/places": (TensorProto.INT64, [best]),
        f"{kept}/hidden": (TensorProto.FLOAT, [prod(shape)]),
        kept: (TensorProto.FLOAT, shape),
    }
    graph.value_info.extend(helper.make_tensor_value_info(x, *kind) for x, kind in made.items())
    constants = {
        f"{kept}/all": np.array([prod(shape)]),
        f"{kept}/most": np.array([best]),
        f"{kept}/nothing": np.full(prod(shape), -np.inf, np.float32),
        f"{kept}/shape": np.array(shape),
    }
    graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
    flat, values, places, hidden, _ = made
    everything, most, nothing, original = constants
    node.input[1] = kept
    return [
        helper.make_node("Reshape", [scores, everything], [flat]),
        helper.make_node("TopK", [flat, most], [values, places]),
        helper.make_node("ScatterElements", [nothing, places, values], [hidden]),
        helper.make_node("Reshape", [hidden, original], [kept]),
    ]
