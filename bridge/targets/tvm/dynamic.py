"""`--tvm-executor vm`: the model as it came, with outputs of as many rows as there are.

Its sessions pad what the virtual machine gives, so that it is fed, read and checked like every
other artifact, and the two executors can be compared.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bridge.errors import LoweringError
from bridge.options import Options
from bridge.targets.base import Array, Port


def prepared(source: onnx.ModelProto, options: Options) -> onnx.ModelProto:
    """A source model with the sizes and constants of the options, and nothing else changed."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    for name, value in options.freeze.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for value in model.graph.input:
        sizes = options.input_shapes.get(value.name, ())
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            dim.dim_value = size
    return model


def note(path: Path, outputs: Sequence[Port]) -> None:
    """Write beside an unpublished library what the manifest will say of its outputs."""
    entries = [
        {
            "name": port.name,
            "dtype": port.dtype,
            "shape": list(port.shape),
            "rows": [{"axis": rows.axis, "count": rows.count} for rows in port.rows],
        }
        for port in outputs
    ]
    beside(path).write_text(json.dumps({"outputs": entries}), encoding="utf-8")


def noted(path: Path) -> Sequence[Mapping[str, Any]]:
    """The outputs that the manifest, or such a note, beside a library describes.

    Raises:
        LoweringError: there is neither.
    """
    try:
        entries: Sequence[Mapping[str, Any]] = json.loads(beside(path).read_bytes())["outputs"]
    except (OSError, ValueError, KeyError) as error:
        raise LoweringError(
            f"{path.name} is for TVM's virtual machine and needs its manifest beside it"
        ) from error
    return entries


def beside(path: Path) -> Path:
    """Where the manifest of an artifact is."""
    return path.with_name(path.name + ".json")


def padded(outputs: Sequence[Mapping[str, Any]], made: Sequence[Array]) -> dict[str, Array]:
    """Outputs with their real rows as the manifest promises them: zeros behind, and counts."""
    result: dict[str, Array] = {}
    for entry, array in zip(outputs, made, strict=False):
        rows = entry["rows"] or []
        whole = np.zeros(entry["shape"], entry["dtype"])
        kept = tuple(slice(0, min(pair)) for pair in zip(whole.shape, array.shape, strict=True))
        whole[kept] = array[kept]
        result[entry["name"]] = whole
        for padding in rows if isinstance(rows, list) else [rows]:
            count = min(array.shape[padding["axis"]], whole.shape[padding["axis"]])
            result.setdefault(padding["count"], np.array([count], np.int64))
    return {entry["name"]: result[entry["name"]] for entry in outputs}
