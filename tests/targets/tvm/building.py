"""Small static models for the tests of this target, built and run the way users' models are."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import compose, helper, numpy_helper, shape_inference

from bridge import static_nms
from bridge.options import Options
from bridge.static_model import StaticModel
from bridge.static_nms import StaticNms
from bridge.targets.base import Lowered, Target
from bridge.targets.tvm import TVM

Array = NDArray[Any]


@dataclass(frozen=True)
class Single:
    """One operator with its inputs: arrays are fed, constants (`held`) are part of the model.

    Attributes:
        arrays: by position; None is an absent input.
        held: positions of the arrays that are constants.
        close: relative to the size of the numbers; 0 demands equal bits.
    """

    name: str
    op_type: str
    arrays: Sequence[Array | np.generic | None]
    held: frozenset[int] = frozenset()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    close: float = 0.0


def static(model: onnx.ModelProto) -> StaticModel:
    """The model as surgery would hand it over: typed throughout, nothing padded."""
    inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return StaticModel(model=inferred, source_shapes={}, padded=(), counts=())


def model_of(singles: Iterable[Single]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """All the operators side by side in one model, and what to feed it."""
    nodes, inputs, outputs, initializers, feeds = [], [], [], [], dict[str, Array]()
    for single in singles:
        names = []
        for position, array in enumerate(single.arrays):
            name = "" if array is None else f"{single.name}.{position}"
            names.append(name)
            if array is None:
                continue
            if position in single.held:
                initializers.append(numpy_helper.from_array(np.asarray(array), name))
                continue
            feeds[name] = np.asarray(array)
            kind = helper.np_dtype_to_tensor_dtype(feeds[name].dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, feeds[name].shape))
        made = [f"{single.name}.out{i}" for i in range(single.outputs)]
        nodes.append(
            helper.make_node(single.op_type, names, made, name=single.name, **single.attributes)
        )
        outputs += made
    graph = helper.make_graph(
        nodes,
        "singles",
        inputs,
        [helper.make_empty_tensor_value_info(x) for x in outputs],
        initializers,
    )
    opsets = [helper.make_opsetid("", static_nms.OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=static_nms.IR_VERSION), feeds


def judge(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Runs a model in onnxruntime, its optimisations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


@contextmanager
def lowered(
    model: onnx.ModelProto, options: Options | None = None, target: Target = TVM
) -> Iterator[Lowered]:
    """The model built for TVM, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield target.lower(static(model), options or Options(), Path(folder))


def build(model: onnx.ModelProto, options: Options | None = None, target: Target = TVM) -> None:
    """Build the model and throw the result away: for what must not come to that."""
    with lowered(model, options, target):
        pass


def nms_model(call: StaticNms, boxes: tuple[int, ...], scores: tuple[int, ...]) -> onnx.ModelProto:
    """A model of one suppression, whose inputs are called `boxes` and `scores`."""
    graph = helper.make_graph(
        [static_nms.make_node(call)],
        "suppression",
        [
            helper.make_tensor_value_info("boxes", onnx.TensorProto.FLOAT, boxes),
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, scores),
        ],
        [
            helper.make_tensor_value_info("selected", onnx.TensorProto.INT64, [call.rows, 3]),
            helper.make_tensor_value_info("count", onnx.TensorProto.INT64, [1]),
        ],
    )
    opsets = [helper.make_opsetid("", static_nms.OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=static_nms.IR_VERSION)
    static_nms.attach(model)
    return model


def merged(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """The models side by side in one, every name of the i-th with `mi_` in front."""
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    for field_ in ("node", "input", "output", "initializer", "value_info"):
        whole.graph.ClearField(field_)
    for index, model in enumerate(models):
        graph = compose.add_prefix_graph(model.graph, f"m{index}_")
        for field_ in ("node", "input", "output", "initializer", "value_info"):
            getattr(whole.graph, field_).extend(getattr(graph, field_))
    return whole
