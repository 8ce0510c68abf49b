"""One StaticNMS through LiteRT and through onnxruntime."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bridge import static_nms
from bridge.static_nms import StaticNms
from bridge.targets.base import LoweredNms
from bridge.targets.tflite import suppression
from bridge.targets.tflite.flatbuffer import Builder
from tests.targets.tflite.emitting import onnxruntime_outputs

Floats = NDArray[np.float32]
Selected = tuple[NDArray[np.int64], int]
Suppression = Callable[[Floats, Floats], Selected]

UNLIMITED = 2**63 - 1


def call(
    images: int = 1,
    classes: int = 1,
    boxes: int = 50,
    limit: int = 10,
    iou: float = 0.5,
    score: float = 0.25,
    *,
    center: bool = False,
    rows: int | None = None,
) -> StaticNms:
    """A call whose rows hold the whole result, unless said otherwise."""
    bound = max(images * classes * min(limit, boxes), 1)
    thresholds = float(np.float32(iou)), float(np.float32(score))
    return StaticNms(
        "nms", "boxes", "scores", "selected", "count", limit, *thresholds, center, rows or bound
    )


def model(call: StaticNms, images: int, classes: int, boxes: int) -> onnx.ModelProto:
    """A model that is nothing but the call."""
    graph = helper.make_graph(
        [static_nms.make_node(call)],
        "suppression",
        [
            helper.make_tensor_value_info(call.boxes, TensorProto.FLOAT, [images, boxes, 4]),
            helper.make_tensor_value_info(call.scores, TensorProto.FLOAT, [images, classes, boxes]),
        ],
        [
            helper.make_tensor_value_info(call.selected, TensorProto.INT64, [call.rows, 3]),
            helper.make_tensor_value_info(call.count, TensorProto.INT64, [1]),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    static_nms.attach(made)
    return made


def onnx_suppression(call: StaticNms, images: int, classes: int, boxes: int) -> Suppression:
    """The function's own body under onnxruntime."""
    plain = static_nms.inline(model(call, images, classes, boxes))

    def run(corners: Floats, scores: Floats) -> Selected:
        selected, count = onnxruntime_outputs(plain, {"boxes": corners, "scores": scores})
        return selected.astype(np.int64), int(count[0])

    return run


def emitted(call: StaticNms, images: int, classes: int, boxes: int) -> tuple[Builder, LoweredNms]:
    """What the lowering emits for the call."""
    builder = Builder()
    corners = builder.input("boxes", [images, boxes, 4], "float32")
    scores = builder.input("scores", [images, classes, boxes], "float32")
    selected, count, lowered = suppression.emit(builder, call, corners, scores)
    builder.output("selected", selected)
    builder.output("count", count)
    return builder, lowered


def litert_suppression(content: bytes, threads: int = 1) -> Suppression:
    """A file of `emitted` under LiteRT."""
    interpreter = Interpreter(model_content=content, num_threads=threads)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("serving_default")

    def run(corners: Floats, scores: Floats) -> Selected:
        outputs: Mapping[str, NDArray[np.int64]] = runner(boxes=corners, scores=scores)
        return outputs["selected"], int(outputs["count"][0])

    return run
