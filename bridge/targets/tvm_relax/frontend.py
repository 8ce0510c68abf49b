"""A static ONNX model as a function of a Relax module, one node at a time.

TVM's own converters are used where they give what onnxruntime gives, as the sweep over single
operators tells (`tests/targets/tvm_relax`); `converters` has the others. What a converter makes is
compared with the types that ONNX declares, so that none can change a shape or a type unnoticed.
"""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from bridge import static_nms
from bridge.static_model import TensorType, tensor_types
from bridge.targets.tvm.node import Node, Operand
from bridge.targets.tvm.reason import reason
from bridge.targets.tvm_relax.converters import CONVERTERS, EXACT, constant

_ABSENT = TensorType("", ())

Stock = Callable[[Any, onnx.NodeProto, Sequence[Any]], Any]


def variables(model: onnx.ModelProto) -> dict[str, Any]:
    """A variable for every input of the model, by name."""
    types = tensor_types(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    return {
        name: relax.Var(
            f"input_{i}", relax.TensorType(shape=types[name].shape, dtype=types[name].dtype)
        )
        for i, name in enumerate(names)
    }


def add_function(builder: Any, name: str, model: onnx.ModelProto, *, exact: bool) -> Any:
    """Add a function that takes the model's inputs and gives a tuple of its outputs.

    Args:
        builder: a `relax.BlockBuilder`.
        name: of the function.
        model: opset 17, no control flow, every tensor typed, suppressions as StaticNMS calls.
        exact: whether its floats are held to onnxruntime's bits, so that no product may be fused
            with an addition behind it.

    Returns:
        The function's global variable.

    Raises:
        UnsupportedModelError: an operator has no exact lowering; the message names it.
    """
    types, given = tensor_types(model), variables(model)
    values = {key: Operand(variable, types[key]) for key, variable in given.items()}
    for tensor in model.graph.initializer:
        values[tensor.name] = _known(numpy_helper.to_array(tensor))
    stock = _stock()
    with builder.function(name, list(given.values())):
        with builder.dataflow():
            for node in model.graph.node:
                values.update(_convert(builder, node, values, types, stock, exact=exact))
            results = [values[value.name].expr for value in model.graph.output]
            made = builder.emit_output(relax.Tuple(results))
        return builder.emit_func_output(made)


def _convert(
    builder: Any,
    proto: onnx.NodeProto,
    values: Mapping[str, Operand],
    types: Mapping[str, TensorType],
    stock: Stock,
    *,
    exact: bool,
) -> dict[str, Operand]:
    """The outputs of one node."""
    if proto.op_type == "Constant" and not proto.domain:
        (attribute,) = proto.attribute
        value = helper.get_attribute_value(attribute)
        array = numpy_helper.to_array(value) if attribute.name == "value" else np.asarray(value)
        return {proto.output[0]: _known(array.astype(types[proto.output[0]].dtype))}
    node = _node(proto, values, types)
    if proto.domain not in ("", "ai.onnx") and not static_nms.is_call(proto):
        raise node.refusal("only the standard domain is known")
    ours = CONVERTERS.get(proto.op_type) or (EXACT.get(proto.op_type) if exact else None)
    made = None if ours is None else ours(builder, node)
    if made is None:
        inputs = [None if operand is None else operand.expr for operand in node.operands]
        made = _by_tvm(builder, node, proto, inputs, stock)
    parts = _parts(builder, made)
    if len(parts) < len(node.outputs):
        raise node.refusal(f"{len(node.outputs)} outputs where {len(parts)} are known")
    result = {}
    for part, output, wanted in zip(parts, proto.output, node.outputs, strict=False):
        if output:
            _check_type(node, part, wanted)
            result[output] = _operand(part, wanted)
    return result


def _node(
    proto: onnx.NodeProto, values: Mapping[str, Operand], types: Mapping[str, TensorType]
) -> Node:
    return Node(
        proto.name or f"{proto.op_type} that gives {proto.output[0]}",
        proto.op_type,
        tuple(values[name] if name else None for name in proto.input),
        tuple(types.get(name, _ABSENT) for name in proto.output),
        {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute},
    )


def _stock() -> Stock:
    """TVM's own converters."""
    converters = onnx_frontend._get_convert_map()
    importer = onnx_frontend.ONNXGraphImporter({}, {})

    def convert(builder: Any, proto: onnx.NodeProto, inputs: Sequence[Any]) -> Any:
        attributes = importer._parse_attr(proto.attribute)
        attributes["tvm_custom"] = {"name": proto.name, "num_outputs": len(proto.output)}
        given = onnx_frontend.onnx_input()
        for expr in inputs:
            given.append(expr)
        function = converters[proto.op_type].get_converter(static_nms.OPSET)
        return function(builder, given, attributes, [{}, {}])

    return convert


def _by_tvm(
    builder: Any, node: Node, proto: onnx.NodeProto, inputs: Sequence[Any], stock: Stock
) -> Any:
    try:
        # Some print what they complain of.
        with contextlib.redirect_stdout(io.StringIO()):
            return builder.normalize(stock(builder, proto, inputs))
    except KeyError:
        raise node.refusal("no converter is known for it") from None
    except Exception as error:
        raise node.refusal(reason(error)) from error


def _parts(builder: Any, made: Any) -> list[Any]:
    """What was made as variables, one for each output."""
    if isinstance(made, tuple | list):
        return [builder.emit(part) for part in made]
    if isinstance(made, relax.Tuple):
        return [builder.emit(part) for part in made.fields]
    if isinstance(made.ty, relax.TupleType):
        whole = builder.emit(made)
        count = len(made.ty.fields)
        return [builder.emit(relax.TupleGetItem(whole, index)) for index in range(count)]
    return [made if _value(made) is not None else builder.emit(made)]


def _operand(expr: Any, type_: TensorType) -> Operand:
    value = _value(expr)
    return Operand(expr, type_) if value is None else _known(value)


def _value(expr: Any) -> Any:
    return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None


def _known(array: Any) -> Operand:
    value = np.asarray(array)
    return Operand(constant(value), TensorType(value.dtype.name, value.shape), value)


def _check_type(node: Node, expr: Any, wanted: TensorType) -> None:
    if wanted == _ABSENT:
        return
    found = expr.ty
    shape = tuple(int(dim.value) for dim in found.shape) if found.shape is not None else None
    if shape != wanted.shape or str(found.dtype) != wanted.dtype:
        raise node.refusal(
            f"TVM makes {found.dtype}{list(shape or ())} of it, ONNX declares "
            f"{wanted.dtype}{list(wanted.shape)}"
        )
