"""The network by onnx2tf 2.6.9, backend `flatbuffer_direct`: float32, no TensorFlow.

onnx2tf is given a copy that holds nothing it gets wrong: plain names, no operator that means
nothing, one flat output: it loses outputs that share a tensor, and drops a Transpose in front of an
output of rank 3.
"""

import contextlib
import gc
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as generated
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge.errors import LoweringError
from bridge.options import Qdq
from bridge.static_model import TensorType
from bridge.targets.tflite.cut import Cut
from bridge.targets.tflite.fake_quantisation import as_float
from bridge.targets.tflite.layers import Layer, layers, tensors
from bridge.targets.tflite.qdq import Grid, grids, integer_layers, stripped
from bridge.targets.tflite.resize import written_out
from bridge.targets.tflite.silence import quiet

OUTPUT: Final = "network"
OPSET: Final = 17
IR_VERSION: Final = 8


@dataclass(frozen=True, slots=True)
class Network:
    """A converted network.

    Attributes:
        content: the flatbuffer; one output, `network`: all border tensors flat, end to end.
        inputs: tensor of the static model to its name in the flatbuffer, `input_0` and so on.
        border: the tensors of the static model that the output holds, in order.
        sizes: the number of elements of each.
        layers: its operators, in order.
        grids: of the tensors that were quantised in the model, by their name in the flatbuffer;
            the content is float32 all the same, and without that rounding. None: it was not
            quantised, or rounds as onnxruntime does.
    """

    content: bytes
    inputs: Mapping[str, str]
    border: tuple[str, ...]
    sizes: tuple[int, ...]
    layers: tuple[Layer, ...]
    grids: Mapping[str, Grid] | None = None


def convert(
    cut: Cut,
    model: onnx.ModelProto,
    types: Mapping[str, TensorType],
    nhwc: frozenset[str],
    qdq: Qdq = Qdq.INTEGER,
) -> Network:
    """Convert the middle part of a cut model.

    Args:
        cut: of `model`.
        model: the static model; only read.
        types: of all its tensors.
        nhwc: the inputs to be taken as NHWC where the model has NCHW.
        qdq: what becomes of a model that is quantised.

    Raises:
        LoweringError: onnx2tf refuses the network.
        UnsupportedModelError: it is quantised in a way that no kernel has.
    """
    made = {name for node in cut.network for name in node.output}
    border = tuple(name for name in cut.border if name in made)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = model.graph.node
    integers = qdq is Qdq.INTEGER and bool(integer_layers(nodes, constants))
    on_grid = grids(nodes, constants) if integers else {}
    copy = _Copy.of(cut, border, constants, types, integers=integers)
    kept = [copy.inputs[name] for name in cut.network_inputs if name not in nhwc]
    content = _run_onnx2tf(copy, kept)
    operators = layers(content, copy.model.graph.node, copy.originals)
    sizes = tuple(prod(types[name].shape) for name in border)
    copied = {copy.names[name]: grid for name, grid in on_grid.items() if name in copy.names}
    known = tensors(content, copy.model.graph.node)
    found = {name: copied[tensor] for name, tensor in known.items() if tensor in copied}
    return Network(content, copy.inputs, border, sizes, operators, found if integers else None)


# The copy


@dataclass(frozen=True, slots=True)
class _Copy:
    """The network as onnx2tf gets it: nodes `n0`, `n1`, ..., tensors `t0`, `t1`, ...

    Attributes:
        originals: the node of the static model that each node of the copy comes from; those of
            the copy that lay the output flat come last, and from none.
        names: tensors of the static model to those of the copy.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, str]
    originals: Sequence[onnx.NodeProto]
    names: Mapping[str, str]

    @classmethod
    def of(
        cls,
        parts: Cut,
        border: Sequence[str],
        constants: Mapping[str, onnx.TensorProto],
        types: Mapping[str, TensorType],
        *,
        integers: bool,
    ) -> "_Copy":
        """Write the copy; pairs of quantisation are left out where integer kernels will be made."""
        shapes = {name: type_.shape for name, type_ in types.items()}
        nodes, inputs = parts.network, parts.network_inputs
        if integers:
            nodes = tuple(stripped(nodes, constants))
        floats, numbers = as_float(nodes, constants, {x: len(s) for x, s in shapes.items()})
        originals, positions = written_out(floats, constants, shapes)
        writer = _Writer(constants, types, {**numbers, **positions})
        named = {name: f"input_{i}" for i, name in enumerate(inputs)}
        writer.names.update(named)
        for node in originals:
            writer.add(node)
        writer.flatten(border)
        graph = helper.make_graph(
            writer.nodes,
            "network",
            [_value(named[name], types[name]) for name in inputs],
            [_value(OUTPUT, TensorType("float32", (sum(writer.sizes(border)),)))],
            list(writer.initializers.values()),
            value_info=list(writer.values.values()),
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return cls(model, named, writer.originals, writer.names)


@dataclass(slots=True)
class _Writer:
    """Copies nodes under plain names, past those that mean nothing."""

    constants: Mapping[str, onnx.TensorProto]
    types: Mapping[str, TensorType]
    extra: Mapping[str, NDArray[Any]]
    names: dict[str, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    originals: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    values: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)

    def add(self, node: onnx.NodeProto) -> None:
        """Copy one node."""
        if self._means_nothing(node):
            # onnx2tf loses a tensor that is aliased and an output, and makes an unloadable
            # ONNX_CONCAT of a Concat of one.
            self.names[node.output[0]] = self._read(node.input[0])
            return
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"n{len(self.nodes)}"
        copy.doc_string = ""
        copy.input[:] = [self._read(name) if name else "" for name in node.input]
        copy.output[:] = [self._made(name) if name else "" for name in node.output]
        self.nodes.append(copy)
        self.originals.append(node)

    def _means_nothing(self, node: onnx.NodeProto) -> bool:
        if node.op_type in ("Concat", "Max", "Min", "Sum") and len(node.input) == 1:
            return True
        same = self.types.get(node.input[0]) if node.input else None
        moves = node.op_type in ("Identity", "Cast", "Reshape", "Flatten", "Expand", "Dropout")
        return moves and same is not None and same == self.types.get(node.output[0])

    def _made(self, name: str) -> str:
        self.names[name] = f"t{len(self.names)}"
        type_ = self.types.get(name)
        if type_ is not None and type_.dtype == "float32":
            self.values[name] = _value(self.names[name], type_)
        return self.names[name]

    def _read(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = f"t{len(self.names)}"
            array = self.extra.get(name)
            tensor = onnx.TensorProto()
            tensor.CopyFrom(
                self.constants[name] if array is None else numpy_helper.from_array(array)
            )
            tensor.name = self.names[name]
            self.initializers[name] = tensor
        return self.names[name]

    def sizes(self, border: Sequence[str]) -> list[int]:
        """Number of elements of each border tensor."""
        return [prod(self.types[name].shape) for name in border]

    def flatten(self, border: Sequence[str]) -> None:
        """Lay the border tensors end to end: nothing is left to alias, lose or transpose."""
        flat: list[str] = []
        for name, size in zip(border, self.sizes(border), strict=True):
            shape = numpy_helper.from_array(np.array([size]), f"{OUTPUT}_shape_{len(flat)}")
            self.initializers[shape.name] = shape
            target = f"{OUTPUT}_part_{len(flat)}" if len(border) > 1 else OUTPUT
            self._append(helper.make_node("Reshape", [self._read(name), shape.name], [target]))
            flat.append(target)
        if len(flat) > 1:
            self._append(helper.make_node("Concat", flat, [OUTPUT], axis=0))

    def _append(self, node: onnx.NodeProto) -> None:
        node.name = f"n{len(self.nodes)}"
        self.nodes.append(node)


def _value(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(type_.dtype))
    return helper.make_tensor_value_info(name, element, type_.shape)


# The conversion


def _run_onnx2tf(copy: _Copy, kept: Sequence[str]) -> bytes:
    """Convert in a temporary folder; only the float32 file is read back."""
    with tempfile.TemporaryDirectory(prefix="bridge-network-") as folder:
        # onnx2tf compiles its own copy of this module anew for every folder that has none.
        module = f"from {generated.__name__} import *\n"
        (Path(folder) / "schema_generated.py").write_text(module, encoding="utf-8")
        try:
            with quiet(), _collector_paused():
                _export(
                    onnx_graph=copy.model,
                    output_folder_path=folder,
                    output_file_name="network",
                    keep_shape_absolutely_input_names=list(kept) or None,
                    flatbuffer_direct_show_progress=False,
                )
        except (Exception, SystemExit) as error:
            raise _refusal(error, copy.originals) from error
        return (Path(folder) / "network_float32.tflite").read_bytes()


def _export(**options: object) -> None:
    # Not onnx2tf.convert: that simplifies three times what surgery folded already, writes its
    # input file anew, and on an unknown operator tries again with custom operators allowed.
    from onnx2tf.tflite_builder import export_tflite_model_flatbuffer_direct

    export: Callable[..., object] = export_tflite_model_flatbuffer_direct
    export(**options)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection: onnx2tf copies its graph over and over, and a fifth of it is that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refusal(error: BaseException, originals: Sequence[onnx.NodeProto]) -> LoweringError:
    """What onnx2tf said, with the names of the model in place of the copy's."""
    text = " ".join(str(error).split())
    blamed = [originals[int(n)] for n in re.findall(r"\bn(\d+)\b", text) if int(n) < len(originals)]
    where = ""
    if blamed:
        node = blamed[0]
        where = f" at {node.op_type} (domain {node.domain or 'ai.onnx'}, node '{node.name}')"
    return LoweringError(
        f"onnx2tf refuses the network{where}: {text[:500]}; replace that operator in the model, "
        "or convert to onnx or tvm"
    )
