"""One ONNX node or small graph through the emitter and LiteRT, and through onnxruntime."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from bridge.static_model import tensor_types
from bridge.static_nms import StaticNms
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.operators import Emitter

Array = NDArray[np.generic]


def node_model(
    node: onnx.NodeProto, feeds: Mapping[str, Array], constants: Mapping[str, Array]
) -> onnx.ModelProto:
    """A model of one node; what `constants` names is an initializer, the rest inputs."""
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def onnxruntime_outputs(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What the judge says, graph optimisations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def no_suppression(
    builder: Builder, call: StaticNms, boxes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    """For graphs that hold no StaticNMS."""
    raise AssertionError(f"{call.name}: {builder} {boxes} {scores}")


def emitted(model: onnx.ModelProto) -> bytes:
    """The whole graph as a flatbuffer."""
    builder = Builder()
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    emitter = Emitter(builder, tensor_types(model), constants, no_suppression)
    for value in model.graph.input:
        emitter.input(value.name)
    emitter.emit(model.graph.node)
    for value in model.graph.output:
        builder.output(value.name, emitter.tensor(value.name))
    return builder.pack()


def litert_outputs(
    content: bytes, feeds: Mapping[str, Array], names: Sequence[str], threads: int = 1
) -> list[Array]:
    """What the file gives, by the names of its signature."""
    interpreter = Interpreter(model_content=content, num_threads=threads)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("serving_default")
    outputs = runner(**feeds)
    return [outputs[name] for name in names]


def both(
    node: onnx.NodeProto, feeds: Mapping[str, Array], constants: Mapping[str, Array] | None = None
) -> list[tuple[Array, Array]]:
    """Each output of a node as LiteRT and as onnxruntime give it."""
    model = node_model(node, feeds, constants or {})
    names = [value.name for value in model.graph.output]
    found = litert_outputs(emitted(model), feeds, names)
    return list(zip(found, onnxruntime_outputs(model, feeds), strict=True))


def ulps(a: Array, b: Array) -> NDArray[np.int64]:
    """The distance of each two finite float32 numbers, in representable ones."""
    ordered = []
    for array in (a, b):
        bits = np.asarray(array, np.float32).view(np.int32).astype(np.int64)
        ordered.append(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))
    return np.asarray(np.abs(ordered[0] - ordered[1]), np.int64)
