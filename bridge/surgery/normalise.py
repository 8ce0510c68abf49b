"""One spelling for every model: opset 17, IR 8, no functions, real inputs of fixed shape.

Given:   any valid model of opset 7 to the newest, its NMS perhaps inside a function
Result:  the same model as later passes read it; equal to it bit for bit under onnxruntime

Nothing here depends on what the model computes. What it cannot bring into this form is refused by
name: operators of other domains, newer ones without an exact older spelling, inputs whose shape is
free.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import inliner, numpy_helper

from bridge import static_nms
from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import (
    as_declared,
    declared_shape,
    graphs,
    input_shapes_of,
    operator,
    place,
    skeleton,
    spelt,
    with_weights,
)
from bridge.static_model import Finding
from bridge.surgery import opset
from bridge.surgery.opset.scope import OPSET

_ALIAS = "ai.onnx"


def normalise(
    model: onnx.ModelProto,
    *,
    input_shapes: Mapping[str, Sequence[int]],
    freeze: Mapping[str, NDArray[np.generic]],
) -> tuple[onnx.ModelProto, tuple[Finding, ...]]:
    """The model in the one spelling; metadata, doc strings and names of values are kept.

    `input_shapes` fixes free dimensions, `freeze` turns inputs into constants.

    Raises:
        UsageError: a name that is no input, a shape or value that does not fit it.
        UnsupportedModelError: something that has no such spelling, by name.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    findings: list[Finding] = []
    findings.extend(_use_one_domain(result))
    result = _inline_functions(result, findings)
    findings.extend(_drop_constant_inputs(result, freeze))
    findings.extend(_freeze(result, freeze))
    findings.extend(_fix_shapes(result, input_shapes, freeze))
    _refuse(result)
    version = _default_version(result)
    result, roundings = opset.convert(result)
    findings.extend(roundings)
    if version != OPSET:
        what = f"opset {version} written as opset {OPSET}"
        findings.append(Finding(node="", what=what, changed=True))
    if result.ir_version != static_nms.IR_VERSION:
        what = f"IR version {result.ir_version} written as {static_nms.IR_VERSION}"
        findings.append(Finding(node="", what=what, changed=True))
        result.ir_version = static_nms.IR_VERSION
    if _name_nodes(result):
        findings.append(Finding(node="", what="nodes got names of their own", changed=True))
    return result, tuple(findings)


def _default_version(model: onnx.ModelProto) -> int:
    versions = [entry.version for entry in model.opset_import if not entry.domain]
    if len(versions) != 1:
        raise UnsupportedModelError(
            "the model does not say which opset of ONNX it is written in; export it again"
        )
    return int(versions[0])


def _use_one_domain(model: onnx.ModelProto) -> list[Finding]:
    """The default domain may also be spelt out."""
    imports = [model.opset_import, *(function.opset_import for function in model.functions)]
    nodes = [graph.node for graph in graphs(model)]
    spelt_out = [e for entries in (*imports, *nodes) for e in entries if e.domain == _ALIAS]
    for entry in spelt_out:
        entry.ClearField("domain")
    what = f"domain {_ALIAS} written as the default domain"
    return [Finding(node="", what=what, changed=True)] if spelt_out else []


def _inline_functions(model: onnx.ModelProto, findings: list[Finding]) -> onnx.ModelProto:
    if model.functions:
        version = _default_version(model)
        names = []
        for function in model.functions:
            names.append(f"{function.domain}::{function.name}")
            _import_version(function, version)
        _write_defaults(model)
        light = inliner.inline_local_functions(skeleton(model))
        model = with_weights(light, model)
        # The definitions may stay behind, and so do their domains.
        del model.functions[:]
        what = f"functions inlined: {', '.join(names)}"
        findings.append(Finding(node="", what=what, changed=True))
    kept = [entry for entry in model.opset_import if not entry.domain]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def _write_defaults(model: onnx.ModelProto) -> None:
    """Write what calls leave to the defaults of their function; the inliner forgets those."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions}
    for graph in graphs(model):
        for node in graph.node:
            present = {attribute.name for attribute in node.attribute}
            for default in defaults.get((node.domain, node.op_type, node.overload), ()):
                if default.name not in present:
                    node.attribute.append(default)


def _import_version(function: onnx.FunctionProto, version: int) -> None:
    """Let a function import the model's opset, where that changes no meaning.

    The inliner leaves functions of another opset alone.
    """
    for entry in function.opset_import:
        if entry.domain or entry.version == version:
            continue
        if not opset.same_meaning(list(function.node), entry.version, version):
            raise UnsupportedModelError(
                f"function {function.domain}::{function.name} is written in opset {entry.version} "
                f"and the model in opset {version}, which differ for its operators; "
                "export the model with one opset"
            )
        entry.version = version


def _drop_constant_inputs(
    model: onnx.ModelProto, freeze: Mapping[str, NDArray[np.generic]]
) -> list[Finding]:
    """Before IR 4 every initializer had to be listed as an input; nobody means to feed them."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    listed = [value for value in model.graph.input if value.name in initializers]
    dropped = [value for value in listed if value.name not in freeze]
    for value in dropped:
        model.graph.input.remove(value)
    if not dropped:
        return []
    what = f"{len(dropped)} inputs that are initializers are inputs no longer"
    return [Finding(node="", what=what, changed=True)]


def _freeze(model: onnx.ModelProto, freeze: Mapping[str, NDArray[np.generic]]) -> Iterator[Finding]:
    for name, given in freeze.items():
        value = next((value for value in model.graph.input if value.name == name), None)
        if value is None:
            known = ", ".join(value.name for value in model.graph.input)
            raise UsageError(f"--freeze {name}: the model has no such input; it has {known}")
        array = as_declared(value, given)
        for tensor in model.graph.initializer:
            if tensor.name == name:
                model.graph.initializer.remove(tensor)
                break
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        model.graph.input.remove(value)
        shown = array.tolist() if array.size <= 8 else f"{array.dtype}{list(array.shape)}"
        yield Finding(node="", what=f"input {name} frozen at {shown}", changed=True)


def _fix_shapes(
    model: onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]],
    freeze: Mapping[str, NDArray[np.generic]],
) -> list[Finding]:
    for name in input_shapes:
        if name in freeze:
            raise UsageError(f"--input-shape {name}: the input is frozen, so it has a shape")
    findings = []
    shapes = input_shapes_of(model.graph.input, input_shapes)
    for value in model.graph.input:
        _require_fixed(value, shapes[value.name])
        shape = value.type.tensor_type.shape
        fixed = [dim.dim_value if dim.HasField("dim_value") else None for dim in shape.dim]
        if fixed != list(shapes[value.name] or ()):
            what = f"input {value.name} has shape {spelt(shapes[value.name])}"
            findings.append(Finding(node="", what=what, changed=True))
        del shape.dim[:]
        for size in shapes[value.name] or ():
            shape.dim.add(dim_value=size)
        value.type.tensor_type.shape.SetInParent()
    if findings or freeze:
        _forget_shapes(model)
    return findings


def _require_fixed(value: onnx.ValueInfoProto, shape: tuple[int | None, ...] | None) -> None:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value")
        raise UnsupportedModelError(
            f"input {value.name!r} is a {kind}, not a tensor; export the model with tensors"
        )
    if shape is None or None in shape:
        example = ",".join("<size>" if dim is None else str(dim) for dim in shape or ())
        raise UnsupportedModelError(
            f"input {value.name!r} is {spelt(declared_shape(value))}, and every size must be "
            f"fixed: give --input-shape {value.name}={example or '...'}"
        )


def _forget_shapes(model: onnx.ModelProto) -> None:
    """Drop stored shapes: they were those of the free inputs and would contradict the real ones."""
    for graph in graphs(model):
        if isinstance(graph, onnx.GraphProto):
            del graph.value_info[:]
            for value in graph.output:
                for dim in value.type.tensor_type.shape.dim:
                    dim.Clear()


def _refuse(model: onnx.ModelProto) -> None:
    for graph in graphs(model):
        for node in graph.node:
            if node.domain:
                raise UnsupportedModelError(
                    f"operator {operator(node)} (node {place(node)}) is not a standard ONNX "
                    "operator, so nothing says what it computes; export the model with standard "
                    "operators (NonMaxSuppression for a suppression)"
                )
        if isinstance(graph, onnx.GraphProto) and graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedModelError(
                f"initializer {name!r} is sparse; export the model with dense initializers"
            )


def _name_nodes(model: onnx.ModelProto) -> bool:
    """Give every node a name of its own: onnxruntime and reports need it."""
    used = {node.name for graph in graphs(model) for node in graph.node}
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    for graph in graphs(model):
        for node in graph.node:
            if not node.name or node.name in seen:
                node.name = _free_name(node.name or node.op_type, used, numbers)
                used.add(node.name)
            seen.add(node.name)
    return bool(numbers)


def _free_name(stem: str, used: set[str], numbers: dict[str, int]) -> str:
    """Counting goes on where it stopped for the stem, so a thousand nodes stay linear."""
    while True:
        numbers[stem] = numbers.get(stem, 0) + 1
        name = f"{stem}_{numbers[stem]}"
        if name not in used:
            return name
