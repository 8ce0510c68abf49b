"""Box coordinates as pixels of the network input, or as fractions of its width and height.

Given:  %boxes float32[n, 4] (pixels)
Result: %boxes/as_given -> Div [width, height, width, height] -> %boxes float32[n, 4] (fractions)

Standard ONNX at the outputs only: what a suppression compares stays as it is, and onnxruntime
judges the result like any other model. No graph tells what its coordinates count: that is declared.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bridge.detection.boxes import BoxColumns, box_columns
from bridge.detection.spec import Provenance, Role
from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import graphs, subgraphs
from bridge.options import BoxLayout, BoxUnits
from bridge.surgery.normalise import normalise

_CHANNELS = (1, 3, 4)
_Y_FIRST = (BoxLayout.YXYX, BoxLayout.CYCXHW)


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A model whose boxes count what was asked for, and what was taken for granted."""

    model: onnx.ModelProto
    assumptions: tuple[str, ...]


def rescale(
    model: onnx.ModelProto,
    wanted: BoxUnits,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    layout: BoxLayout | None,
    known: bool = False,
) -> Rescaled:
    """The model with its boxes in the other unit; the argument is left alone.

    Args:
        model: its boxes count pixels where fractions are wanted, and fractions where pixels are.
        wanted: what they shall count.
        shapes: of inputs, where the model leaves them open.
        layout: the order of a box's numbers; None: as the graph tells, else x before y.
        known: that the boxes count the other unit is a fact, and no assumption.

    Raises:
        UsageError: the image input or its size is not known.
        UnsupportedModelError: the boxes are not to be found in the outputs.
    """
    width, height = _image_size(model, wanted, shapes)
    # Fixed shapes tell how wide a table is; the model itself is rewritten later, with the others.
    fixed, _ = normalise(model, input_shapes=shapes, freeze={})
    found, order = _boxes(fixed, wanted, layout)
    y_first = order in _Y_FIRST
    sides = (height, width) * 2 if y_first else (width, height) * 2
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for boxes in found:
        factors = np.ones(boxes.columns, np.float32)
        factors[boxes.first : boxes.first + 4] = sides
        _scale(result, boxes.output, "Div" if wanted is BoxUnits.FRACTIONS else "Mul", factors)
    onnx.checker.check_model(result)
    outputs = ", ".join(repr(boxes.output) for boxes in found)
    given = BoxUnits.PIXELS if wanted is BoxUnits.FRACTIONS else BoxUnits.FRACTIONS
    told = [
        f"the boxes in output {outputs} count {given} of an image of {width} x {height}, and "
        f"became {wanted}"
        + ("" if known else ": what they count no graph tells, --box-units takes it for granted")
    ]
    if order is None and width != height:
        told.append(
            "x stands before y in a box: no graph tells which axis comes first; --box-layout says "
            "otherwise"
        )
    return Rescaled(result, tuple(told))


def _boxes(
    fixed: onnx.ModelProto, wanted: BoxUnits, declared: BoxLayout | None
) -> tuple[tuple[BoxColumns, ...], BoxLayout | None]:
    """The boxes, and the order of their numbers where it is known."""
    spec, found = box_columns(fixed)
    outputs = ", ".join(value.name for value in spec.outputs)
    if not spec.sites:
        raise UnsupportedModelError(
            f"--box-units {wanted}: the model has no NonMaxSuppression, so no output ({outputs}) "
            "can be told to be boxes; give --head"
        )
    hidden = [
        value.name
        for value in spec.outputs
        if value.role is Role.DETECTIONS and value.name not in {boxes.output for boxes in found}
    ]
    if hidden or not found:
        where = ", ".join(hidden) or outputs
        raise UnsupportedModelError(
            f"--box-units {wanted}: which columns of {where} are boxes cannot be told from the "
            "graph; leave the option out, and scale them in the application"
        )
    layouts = {
        site.layout.order for site in spec.sites if site.layout.provenance is not Provenance.UNKNOWN
    }
    inferred = layouts.pop() if len(layouts) == 1 else None
    return found, declared or inferred


def _image_size(
    model: onnx.ModelProto, wanted: BoxUnits, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int]:
    """Width and height of the one image."""
    weights = {tensor.name for tensor in model.graph.initializer}
    images = []
    for value in model.graph.input:
        dims: tuple[int, ...] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        dims = shapes.get(value.name, dims)
        if value.name not in weights and len(dims) == 4:
            images.append((value.name, dims))
    if len(images) != 1:
        names = ", ".join(name for name, _ in images) or "none"
        raise UsageError(
            f"--box-units {wanted}: boxes are measured in the one image that goes in, and the "
            f"inputs of four dimensions are: {names}"
        )
    name, dims = images[0]
    if dims[1] in _CHANNELS:
        height, width = dims[2:]
    elif dims[3] in _CHANNELS:
        height, width = dims[1:3]
    else:
        raise UsageError(
            f"--box-units {wanted}: input {name!r} {list(dims)} has no axis of 1, 3 or 4 channels"
        )
    if not (height and width):
        raise UsageError(
            f"--box-units {wanted}: the size of input {name!r} is open; fix it with --input-shape "
            f"{name}=1,3,HEIGHT,WIDTH"
        )
    return width, height


def _scale(
    model: onnx.ModelProto, output: str, operator: str, factors: NDArray[np.float32]
) -> None:
    """Put the operator between what made an output and the output's name."""
    before = _free(model, f"{output}/as_given")
    _rename(model.graph, output, before)
    constant = _free(model, f"{output}/factors")
    dtype = next(v for v in model.graph.output if v.name == output).type.tensor_type.elem_type
    array = factors.astype(helper.tensor_dtype_to_np_dtype(dtype))
    model.graph.node.append(
        helper.make_node(
            "Constant", [], [constant], name=constant, value=numpy_helper.from_array(array)
        )
    )
    model.graph.node.append(
        helper.make_node(operator, [before, constant], [output], name=f"{output}/{operator}")
    )


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Call a tensor otherwise, also in bodies that read it; a function has names of its own."""
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new
        for body in subgraphs(node):
            _rename(body, old, new)
            for value in body.output:
                if value.name == old:
                    value.name = new


def _free(model: onnx.ModelProto, name: str) -> str:
    """The name, lengthened until nothing in the model has it."""
    taken = {
        used
        for graph in graphs(model)
        for node in graph.node
        for used in (*node.input, *node.output)
    }
    while name in taken:
        name += "_"
    return name
