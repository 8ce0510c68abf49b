"""Writing nodes: names that are new to the model, and constants shared where they are equal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper


@dataclass(slots=True)
class Nodes:
    """Nodes and constants under construction; `prefix` starts no name of the model."""

    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    _names: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def add(
        self,
        op_type: str,
        inputs: Sequence[str],
        *,
        output: str | None = None,
        **attributes: Any,
    ) -> str:
        """Append a node of opset 17 with one output; the name of that output."""
        name = self._new(op_type)
        output = output or name
        node = helper.make_node(op_type, list(inputs), [output], name=f"{name}_node", **attributes)
        self.nodes.append(node)
        return output

    def add_topk(self, data: str, k: str, *, values: str | None = None) -> tuple[str, str]:
        """Append a TopK along the last axis: names of the values, largest first, and indices."""
        name = self._new("TopK")
        outputs = (values or f"{name}_values", f"{name}_indices")
        node = helper.make_node("TopK", [data, k], outputs, name=f"{name}_node", axis=-1)
        self.nodes.append(node)
        return outputs

    def constant(self, value: ArrayLike, dtype: str | None = None) -> str:
        """The name of an initializer that holds the value, in its own type unless one is given."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._names:
            name = self._new("constant")
            self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
            self._names[key] = name
        return self._names[key]

    def integers(self, *values: int) -> str:
        """The name of an initializer int64[len(values)]."""
        return self.constant(np.asarray(values, np.int64))

    def scalar(self, value: float) -> str:
        """The name of an initializer float32[]."""
        return self.constant(np.asarray(value, np.float32))

    def slice(self, data: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Append a Slice along one axis."""
        steps = [] if step == 1 else [self.integers(step)]
        inputs = [self.integers(start), self.integers(stop), self.integers(axis), *steps]
        return self.add("Slice", [data, *inputs])

    def reshape(self, data: str, *shape: int) -> str:
        """Append a Reshape."""
        return self.add("Reshape", [data, self.integers(*shape)])

    def _new(self, stem: str) -> str:
        return f"{self.prefix}/{stem}_{len(self.nodes) + len(self.constants)}"
