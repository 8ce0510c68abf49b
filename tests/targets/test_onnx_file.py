"""The ONNX target: plain standard ONNX that onnxruntime loads, nothing of ours left in it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bridge import static_nms
from bridge.errors import LoweringError
from bridge.options import Options
from bridge.static_model import PaddedOutput, Rows, StaticModel
from bridge.targets.onnx_file import ONNX

ROWS = 8


def _static(boxes: int = 10) -> StaticModel:
    call = static_nms.StaticNms("nms", "boxes", "scores", "picked", "n", 5, 0.5, 0.1, False, ROWS)
    graph = helper.make_graph(
        [static_nms.make_node(call)],
        "head",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, boxes, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, boxes]),
        ],
        [
            helper.make_tensor_value_info("picked", TensorProto.INT64, [ROWS, 3]),
            helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
        ],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", static_nms.OPSET)],
        ir_version=static_nms.IR_VERSION,
    )
    static_nms.attach(model)
    padded = PaddedOutput("picked", (Rows(0, "n"),))
    return StaticModel(model, {"picked": (None, 3)}, (padded,), ("n",))


def test_the_file_is_standard_onnx_and_its_ports_say_what_was_padded(tmp_path: Path) -> None:
    lowered = ONNX.lower(_static(), Options(), tmp_path)
    written = onnx.load(lowered.path)
    assert {o.domain for o in written.opset_import} == {""}
    assert not written.functions
    assert lowered.outputs[0].source_shape == (None, 3)
    assert lowered.outputs[0].rows == (Rows(0, "n"),)
    assert lowered.nms[0].boxes == 10
    assert lowered.nms[0].exact


def test_it_runs_and_pads_with_zeros(tmp_path: Path) -> None:
    lowered = ONNX.lower(_static(), Options(), tmp_path)
    corners = np.arange(10, dtype=np.float32).reshape(1, 10, 1) * 10
    boxes = np.concatenate([corners, corners, corners + 5, corners + 5], axis=2)
    scores = np.array([[[0.9, 0.0, 0.8, 0, 0, 0.7, 0, 0, 0, 0]]], np.float32)
    with ONNX.open(lowered.path) as session:
        outputs = session.run({"boxes": boxes, "scores": scores})
    assert outputs["n"].tolist() == [3]
    assert outputs["picked"][:, 2].tolist() == [0, 2, 5, 0, 0, 0, 0, 0]


def test_what_onnxruntime_refuses_is_a_lowering_error(tmp_path: Path) -> None:
    static = _static()
    static.model.graph.output[0].name = "nothing makes this"
    with pytest.raises(LoweringError, match="onnxruntime refuses"):
        ONNX.lower(static, Options(), tmp_path)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    first = ONNX.lower(_static(), Options(), tmp_path).path.read_bytes()
    assert ONNX.lower(_static(), Options(), tmp_path).path.read_bytes() == first
