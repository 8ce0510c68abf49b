"""Static models as ONNX text, and one pass run over them as the runner runs it."""

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from bridge import static_nms
from bridge.options import Options
from bridge.surgery import runner
from bridge.surgery.runner import Pass, PassReport


def static_model(inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    """A model with every constant an initializer and every shape written down.

    Nodes are named by what they write.
    """
    opsets = '"" : 17, "bridge" : 1'
    model = parser.parse_model(
        f"<ir_version: 8, opset_import: [{opsets}]> g ({inputs}) => ({outputs}) {{ {body} }}"
    )
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    for node in constants:
        (attribute,) = node.attribute
        kind = np.float32 if "float" in attribute.name else np.int64
        value = helper.get_attribute_value(attribute)
        array = numpy_helper.to_array(value) if attribute.HasField("t") else np.array(value, kind)
        model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        model.graph.node.remove(node)
    for node in model.graph.node:
        node.name = f"n_{node.output[0]}"
    if any(static_nms.is_call(node) for node in model.graph.node):
        static_nms.attach(model)
    typed: onnx.ModelProto = onnx.shape_inference.infer_shapes(
        model, check_type=True, strict_mode=True, data_prop=True
    )
    return typed


def apply(
    step: Pass, model: onnx.ModelProto, options: Options | None = None
) -> tuple[onnx.ModelProto, PassReport, tuple[str, ...]]:
    """The pass's result, held to what every pass owes."""
    options = options or Options()
    before = model.SerializeToString(deterministic=True)
    result, (report,), assumptions = runner.edit(model, options, (step,))
    assert model.SerializeToString(deterministic=True) == before
    assert report.changed == (result is not model)
    onnx.checker.check_model(result, full_check=True)
    again, (repeated,), _ = runner.edit(result, options, (step,))
    assert not repeated.changed, repeated.findings
    assert again is result
    return result, report, assumptions


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators in graph order."""
    return [node.op_type for node in model.graph.node]
