"""Resize as Gather and a weighted sum: where each element comes from is known at conversion time.

RESIZE_NEAREST_NEIGHBOR has two ways to round of the sixteen that ONNX allows, and neither
RESIZE_ operator knows a scale that is not the ratio of the sizes; onnx2tf writes the others as one
of those, a pixel off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge.errors import LoweringError

Floats = NDArray[np.float32]
Constants = dict[str, NDArray[Any]]

# coordinate_transformation_mode and nearest_mode that RESIZE_NEAREST_NEIGHBOR has.
_KERNEL: Final = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")}
_HALF: Final = np.float32(0.5)

# Source: ONNX Resize-13, attributes coordinate_transformation_mode and nearest_mode; x is the
# position in the output, computed in float32 as onnxruntime does.
_COORDINATES: Final[Mapping[str, Callable[[Floats, np.float32, int, int], Floats]]] = {
    "asymmetric": lambda x, scale, size, made: x / scale,
    "half_pixel": lambda x, scale, size, made: (x + _HALF) / scale - _HALF,
    "pytorch_half_pixel": lambda x, scale, size, made: (
        (x + _HALF) / scale - _HALF if made > 1 else np.zeros_like(x)
    ),
    "align_corners": lambda x, scale, size, made: (
        x * np.float32(size - 1) / np.float32(made - 1) if made > 1 else np.zeros_like(x)
    ),
}
_ROUNDING: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: np.floor(x + _HALF),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class _Resize:
    """What a Resize does, axis by axis.

    Attributes:
        scales: of the axes that change.
    """

    node: onnx.NodeProto
    mode: str
    coordinates: str
    rounding: str
    source: tuple[int, ...]
    target: tuple[int, ...]
    scales: Mapping[int, np.float32]

    @classmethod
    def of(
        cls,
        node: onnx.NodeProto,
        constants: Mapping[str, onnx.TensorProto],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> "_Resize":
        """Read a node of opset 13 to 17."""
        given: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        text = {key: value.decode() for key, value in given.items() if isinstance(value, bytes)}
        source, target = shapes[node.input[0]], shapes[node.output[0]]
        scales = node.input[2] if len(node.input) > 2 else ""
        factors = numpy_helper.to_array(constants[scales]) if scales else np.zeros(0, np.float32)
        if not factors.size:
            factors = np.asarray(target, np.float32) / np.asarray(source, np.float32)
        return cls(
            node,
            text.get("mode", "nearest"),
            text.get("coordinate_transformation_mode", "half_pixel"),
            text.get("nearest_mode", "round_prefer_floor"),
            source,
            target,
            {a: np.float32(factors[a]) for a, n in enumerate(source) if n != target[a]},
        )

    @property
    def is_for_kernel(self) -> bool:
        """Whether onnx2tf and the kernel get it right.

        Raises:
            LoweringError: neither they do, nor anything here.
        """
        fits = all(scale * self.source[a] == self.target[a] for a, scale in self.scales.items())
        if self.mode not in ("nearest", "linear") or self.coordinates not in _COORDINATES:
            if not fits:
                raise LoweringError(
                    f"Resize (domain ai.onnx, node '{self.node.name}'): mode {self.mode} with "
                    f"{self.coordinates} and scales that are not the ratio of the sizes "
                    f"{list(self.source)} and {list(self.target)} has no TFLite lowering; give "
                    "the operator sizes in place of scales"
                )
            return True
        if self.mode == "linear":
            single = any(self.target[axis] == 1 for axis in self.scales)
            return fits and not (single and self.coordinates == "pytorch_half_pixel")
        # By a whole factor the kernel's own arithmetic cannot miss.
        whole = all(scale.is_integer() for scale in self.scales.values())
        return fits and whole and (self.coordinates, self.rounding) in _KERNEL

    def places(self, axis: int) -> Floats:
        """Where along an axis of the input each element of the output lies."""
        size, made = self.source[axis], self.target[axis]
        compute = _COORDINATES[self.coordinates]
        return compute(np.arange(made, dtype=np.float32), self.scales[axis], size, made)


def written_out(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[list[onnx.NodeProto], Constants]:
    """Nodes without a Resize that a kernel would do otherwise, and the constants they read besides.

    Given    x [1, 8, 16, 16] -> Resize(nearest, half_pixel, floor) -> y [1, 8, 24, 24]
    Result   x -> Gather(axis=2) -> Gather(axis=3) -> y
    """
    written: list[onnx.NodeProto] = []
    extra: Constants = {}
    for node in nodes:
        resize = _Resize.of(node, constants, shapes) if node.op_type == "Resize" else None
        if resize is None or resize.is_for_kernel:
            written.append(node)
        else:
            writer = _Writer(resize, extra)
            written.extend(writer.nodes())
    return written, extra


@dataclass(slots=True)
class _Writer:
    """Writes one Resize, one axis after the other."""

    resize: _Resize
    extra: Constants
    count: int = field(default=0)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """All nodes; the last one makes the output."""
        read, made = self.resize.node.input[0], list(self.resize.scales)
        for axis in made:
            target = self.resize.node.output[0] if axis == made[-1] else self._name()
            along = self._nearest if self.resize.mode == "nearest" else self._linear
            yield from along(axis, read, target)
            read = target

    def _name(self) -> str:
        self.count += 1
        return f"{self.resize.node.output[0]}/resize/{self.count}"

    def _constant(self, value: NDArray[Any]) -> str:
        name = self._name()
        self.extra[name] = value
        return name

    def _node(
        self, op_type: str, inputs: list[str], output: str, axis: int | None = None
    ) -> onnx.NodeProto:
        node = helper.make_node(op_type, inputs, [output], self.resize.node.name)
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
        return node

    def _nearest(self, axis: int, read: str, target: str) -> Iterator[onnx.NodeProto]:
        rounded = _ROUNDING[self.resize.rounding](self.resize.places(axis))
        positions = np.clip(rounded, 0, self.resize.source[axis] - 1).astype(np.int64)
        yield self._node("Gather", [read, self._constant(positions)], target, axis)

    def _linear(self, axis: int, read: str, target: str) -> Iterator[onnx.NodeProto]:
        last = self.resize.source[axis] - 1
        places = np.clip(self.resize.places(axis), 0, last)
        low = np.floor(places).astype(np.int64)
        share = (places - low).astype(np.float32)
        shape = [-1] + [1] * (len(self.resize.source) - 1 - axis)
        parts = []
        for positions, weights in ((low, 1 - share), (np.minimum(low + 1, last), share)):
            taken, weighted = self._name(), self._name()
            yield self._node("Gather", [read, self._constant(positions)], taken, axis)
            factor = self._constant(weights.astype(np.float32).reshape(shape))
            yield self._node("Mul", [taken, factor], weighted)
            parts.append(weighted)
        yield self._node("Add", parts, target)
