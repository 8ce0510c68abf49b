"""Several TFLite flatbuffers into one, bound by tensor name.

The checks caught every fault of a converted part before an interpreter did: shape and type at
every border, nothing made twice, every tensor that is read is made or constant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as generated

from bridge.errors import LoweringError
from bridge.targets.tflite import schema

CUSTOM: Final = generated.BuiltinOperator.CUSTOM
ALLOWED: Final = "TFLite_Detection_PostProcess"


@dataclass(frozen=True, slots=True)
class Part:
    """A flatbuffer of one subgraph.

    Attributes:
        names: what its inputs and outputs are called in the whole, where that differs.
    """

    content: bytes
    names: Mapping[str, str] = field(default_factory=dict)


def link(parts: Sequence[Part], inputs: Sequence[str], outputs: Mapping[str, str]) -> bytes:
    """One flatbuffer of several parts, in the order in which they run.

    An input of a part that an earlier part makes, or that is an input of an earlier part, is the
    same tensor.

    Args:
        parts: the flatbuffers.
        inputs: the inputs of the whole, in order.
        outputs: name of each output of the whole to the tensor it is, in order.

    Raises:
        LoweringError: the parts do not fit, with the tensor and both types, or one holds a custom
            operator that no interpreter has, by name.
    """
    linker = _Linker()
    for number, part in enumerate(parts):
        linker.add(part, number)
    return linker.finish(inputs, outputs)


class _Linker:
    """The whole while it grows."""

    def __init__(self) -> None:
        self.model = schema.empty_model()
        self.graph = self.model.subgraphs[0]
        self.codes: dict[tuple[int, str, int], int] = {}
        self.known: dict[str, int] = {}

    def add(self, part: Part, number: int) -> None:
        """Append a part."""
        model = schema.unpack(part.content)
        if len(model.subgraphs) != 1:
            raise LoweringError(f"part {number} has {len(model.subgraphs)} subgraphs, not one")
        graph = model.subgraphs[0]
        contents = [buffer.content for buffer in model.buffers]
        positions = self._tensors(graph, part, number, contents)
        codes = [self._code(code) for code in model.operatorCodes]
        for operator in graph.operators or ():
            operator.opcodeIndex = codes[operator.opcodeIndex]
            for key in ("inputs", "outputs", "intermediates"):
                indices = getattr(operator, key)
                if indices is not None:
                    moved = [-1 if i < 0 else positions[i] for i in indices]
                    setattr(operator, key, np.asarray(moved, np.int32))
            self.graph.operators.append(operator)

    def _tensors(
        self, graph: Any, part: Part, number: int, contents: Sequence[bytes | None]
    ) -> dict[int, int]:
        inputs, edges = set(graph.inputs), {*graph.inputs, *graph.outputs}
        made = {int(i) for operator in graph.operators or () for i in operator.outputs}
        positions: dict[int, int] = {}
        buffers: dict[int, int] = {}
        for index, tensor in enumerate(graph.tensors):
            name = schema.text(tensor.name)
            public = part.names.get(name, name)
            if index in inputs and public in self.known:
                self._fit(tensor, self.graph.tensors[self.known[public]], public, number)
                positions[index] = self.known[public]
                continue
            if index in edges:
                if public in self.known:
                    raise LoweringError(f"part {number} makes {public} a second time")
                self.known[public] = len(self.graph.tensors)
            tensor.name = (public if index in edges else f"{number}/{name}").encode()
            content = contents[tensor.buffer]
            if content is None and 0 in _shape(tensor) and index not in made | inputs:
                # A constant of no elements (the shape of a scalar, as RESHAPE reads it), which
                # without a buffer would not count as one.
                content = b""
            tensor.buffer = self._buffer(content, tensor.buffer, buffers)
            positions[index] = len(self.graph.tensors)
            self.graph.tensors.append(tensor)
        return positions

    def _buffer(self, content: bytes | None, number: int, buffers: dict[int, int]) -> int:
        """The number in the whole of a part's buffer, stored once; 0 for a computed tensor."""
        if content is None:
            return 0
        if number not in buffers:
            self.model.buffers.append(schema.Buffer(content))
            buffers[number] = len(self.model.buffers) - 1
        return buffers[number]

    def _fit(self, wanted: Any, there: Any, name: str, number: int) -> None:
        if (_shape(wanted), wanted.type) != (_shape(there), there.type):
            raise LoweringError(
                f"part {number} reads {name} as {_described(wanted)}, it is {_described(there)}"
            )

    def _code(self, code: Any) -> int:
        key = (_builtin(code), schema.text(code.customCode), int(code.version))
        if key[0] == CUSTOM and key[1] != ALLOWED:
            raise LoweringError(
                f"onnx2tf wrote the custom operator {key[1]}, which no interpreter has; replace "
                "the operator it stands for in the model"
            )
        if key not in self.codes:
            self.model.operatorCodes.append(schema.operator_code(*key))
            self.codes[key] = len(self.model.operatorCodes) - 1
        return self.codes[key]

    def finish(self, inputs: Sequence[str], outputs: Mapping[str, str]) -> bytes:
        """Name the ends, check the inside, pack."""
        missing = [name for name in (*inputs, *outputs.values()) if name not in self.known]
        if missing:
            raise LoweringError(f"no part has the tensors {', '.join(missing)}")
        first = {name: self.known[name] for name in inputs}
        last = {name: self.known[tensor] for name, tensor in outputs.items()}
        self._check(set(first.values()))
        for name, index in last.items():
            self.graph.tensors[index].name = name.encode()
        self.graph.inputs = np.asarray(list(first.values()), np.int32)
        self.graph.outputs = np.asarray(list(last.values()), np.int32)
        self.model.signatureDefs = [schema.signature(first, last)]
        return schema.pack(self.model)

    def _check(self, made: set[int]) -> None:
        for operator in self.graph.operators:
            for index in (i for i in operator.inputs if i >= 0):
                tensor = self.graph.tensors[index]
                if index not in made and tensor.buffer == 0:
                    raise LoweringError(
                        f"{schema.text(tensor.name)} is read, and no operator makes it"
                    )
            if doubled := made.intersection(operator.outputs):
                name = schema.text(self.graph.tensors[min(doubled)].name)
                raise LoweringError(f"{name} is made by two operators")
            made.update(int(i) for i in operator.outputs)


def _builtin(code: Any) -> int:
    return int(max(code.builtinCode, code.deprecatedBuiltinCode))


def _shape(tensor: Any) -> list[int]:
    return [] if tensor.shape is None else [int(size) for size in tensor.shape]


def _described(tensor: Any) -> str:
    names = {number: name for name, number in schema.TYPES.items()}
    return f"{names.get(tensor.type, tensor.type)}{_shape(tensor)}"
