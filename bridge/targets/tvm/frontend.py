"""A static ONNX model as a relay function, one node at a time.

Every node is converted by itself: its operands are fresh variables of the types that ONNX declares,
what the converter makes is typed alone, compared with the types that ONNX declares for the outputs,
and only then joined to the rest. So importing takes time linear in the nodes, and no converter can
change a shape or a type unnoticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relay

from bridge import static_nms
from bridge.errors import UnsupportedModelError
from bridge.static_model import TensorType, tensor_types
from bridge.targets.tvm import operators
from bridge.targets.tvm.converters import CONVERTERS
from bridge.targets.tvm.converters.node import constant
from bridge.targets.tvm.node import Node, Operand

_ABSENT = TensorType("", ())


@dataclass(frozen=True, slots=True)
class Imported:
    """A relay module whose outputs are the model's, in order, then the tensors asked for.

    Attributes:
        inputs: variable of the module's function to name of the model's input. A name of the model
            may be anything, and clash with what relay calls its parameters.
    """

    module: Any
    inputs: Mapping[str, str]


def import_model(model: onnx.ModelProto, also: tuple[str, ...] = ()) -> Imported:
    """Make relay of a static model.

    Args:
        model: opset 17, no control flow, every tensor typed, suppressions as StaticNMS calls.
        also: tensors of nodes that become further outputs, behind the model's own; each is one
            tensor in memory that all its readers read.

    Raises:
        UnsupportedModelError: an operator has no exact lowering; the message names it.
    """
    graph = model.graph
    types = tensor_types(model)
    values: dict[str, Operand] = {
        tensor.name: _known(numpy_helper.to_array(tensor)) for tensor in graph.initializer
    }
    inputs: dict[str, str] = {}
    for value in graph.input:
        if value.name not in values:
            variable = f"input_{len(inputs)}"
            inputs[variable] = value.name
            values[value.name] = Operand(_variable(variable, types[value.name]), types[value.name])
    for node in graph.node:
        made = _convert(node, values, types)
        for name in set(made) & set(also):
            made[name] = Operand(operators.border(made[name].expr), made[name].type)
        values.update(made)
    results = [values[name].expr for name in (*(o.name for o in graph.output), *also)]
    function = relay.Function([values[name].expr for name in inputs.values()], relay.Tuple(results))
    return Imported(tvm.IRModule.from_expr(function), inputs)


def _convert(
    proto: onnx.NodeProto, values: Mapping[str, Operand], types: Mapping[str, TensorType]
) -> dict[str, Operand]:
    """The outputs of one node, joined to what stands above it."""
    if proto.op_type == "Constant" and not proto.domain:
        return {proto.output[0]: _known(_constant_value(proto))}
    _check_known(proto, values, types)
    local, bindings = _operands(proto, values)
    node = Node(
        proto.name or f"{proto.op_type} that gives {proto.output[0]}",
        proto.op_type,
        local,
        tuple(types.get(name, _ABSENT) for name in proto.output),
        {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute},
    )
    made = CONVERTERS[proto.op_type](node)
    together = relay.Tuple(list(made) if isinstance(made, tuple) else [made])
    _check_types(node, together)
    if local and all(operand is None or operand.value is not None for operand in local):
        folded = relay.transform.FoldConstantExpr(together, tvm.IRModule())
        if all(isinstance(part, relay.Constant) for part in folded.fields):
            known = [_known(part.data.numpy()) for part in folded.fields]
            return dict(zip(proto.output, known, strict=False))
    joined = relay.bind(together, bindings)
    return {
        name: Operand(joined.fields[index], types[name])
        for index, name in enumerate(proto.output)
        if name
    }


def _check_known(
    proto: onnx.NodeProto, values: Mapping[str, Operand], types: Mapping[str, TensorType]
) -> None:
    """Refuse, by name, a node that no converter can take."""
    if proto.domain not in ("", "ai.onnx") and not static_nms.is_call(proto):
        raise _refusal(proto, "only the standard domain is known")
    if proto.op_type not in CONVERTERS:
        raise _refusal(proto, "no converter is known for it")
    for name in filter(None, (*proto.output, *proto.input)):
        if name not in types and name not in values:
            raise _refusal(proto, f"tensor {name!r} has no type")
        if name in values and values[name].value is not None:
            continue
        if 0 in types[name].shape:
            raise _refusal(proto, f"tensor {name!r} {list(types[name].shape)} has no elements")


def _operands(
    proto: onnx.NodeProto, values: Mapping[str, Operand]
) -> tuple[tuple[Operand | None, ...], dict[Any, Any]]:
    """The inputs as variables of their own, and what each variable stands for."""
    local: list[Operand | None] = []
    bindings: dict[Any, Any] = {}
    for index, name in enumerate(proto.input):
        if not name:
            local.append(None)
            continue
        operand = values[name]
        if operand.value is None:
            variable = _variable(f"operand_{index}", operand.type)
            bindings[variable] = operand.expr
            operand = Operand(variable, operand.type)
        local.append(operand)
    return tuple(local), bindings


def _check_types(node: Node, together: Any) -> None:
    """Compare what relay makes of the outputs with what ONNX declares.

    Raises:
        UnsupportedModelError: they differ.
    """
    if len(together.fields) < len(node.outputs):
        raise node.refusal(f"{len(node.outputs)} outputs where {len(together.fields)} are known")
    module = relay.transform.InferType()(tvm.IRModule.from_expr(together))
    types = module["main"].body.checked_type.fields
    for found, wanted in zip(types, node.outputs, strict=False):
        if wanted == _ABSENT:
            continue
        shape = tuple(int(dim) if isinstance(dim, tvm.tir.IntImm) else None for dim in found.shape)
        if shape != wanted.shape or found.dtype != wanted.dtype:
            raise node.refusal(
                f"relay makes {found.dtype}{list(shape)} of it, ONNX declares "
                f"{wanted.dtype}{list(wanted.shape)}"
            )


def _variable(name: str, type_: TensorType) -> Any:
    return relay.var(name, shape=type_.shape, dtype=type_.dtype)


def _known(value: Any) -> Operand:
    array = np.asarray(value)
    return Operand(constant(array), TensorType(array.dtype.name, array.shape), array)


def _constant_value(proto: onnx.NodeProto) -> Any:
    (attribute,) = proto.attribute
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(value)
    kinds = {"value_float": "float32", "value_floats": "float32"}
    kinds |= {"value_int": "int64", "value_ints": "int64"}
    if attribute.name not in kinds:
        raise _refusal(proto, f"attribute {attribute.name}")
    return np.array(value, kinds[attribute.name])


def _refusal(proto: onnx.NodeProto, reason: str) -> UnsupportedModelError:
    domain = proto.domain or "ai.onnx"
    return UnsupportedModelError(
        f"node {proto.name!r}: operator {domain}::{proto.op_type} has no exact lowering to TVM: "
        f"{reason}; rewrite that part of the model, or convert with --to onnx or tflite"
    )
