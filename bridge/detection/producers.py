"""Who makes what in a static model."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import NodeProto, helper, numpy_helper

from bridge.model import Array
from bridge.static_model import TensorType, tensor_types


@dataclass(frozen=True, slots=True)
class Producers:
    """Who makes what in a static model."""

    nodes: Mapping[str, NodeProto]
    constants: Mapping[str, Array]
    types: Mapping[str, TensorType]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "Producers":
        """Read off the top graph; a static model has no other."""
        graph = model.graph
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        nodes = {name: node for node in graph.node for name in node.output if name}
        return cls(nodes, constants, tensor_types(model))

    def shape(self, name: str) -> tuple[int, ...]:
        """The static shape of a tensor."""
        return self.types[name].shape

    def made_by(self, name: str, *op_types: str) -> NodeProto | None:
        """The node that makes a tensor, if it is one of these operators."""
        node = self.nodes.get(name)
        if node is None or node.domain or node.op_type not in op_types:
            return None
        return node

    def attribute[T](self, node: NodeProto, name: str, default: T) -> T:
        """An attribute's value, or the default."""
        for attribute in node.attribute:
            if attribute.name == name:
                value: T = helper.get_attribute_value(attribute)
                return value
        return default
