"""Make a detection graph static: an abstract interpretation in one walk.

Every tensor is interpreted as dense data plus what is meant by it: which rows of an axis count
(`lattice.Group`), which small integers are known or symbolic (`integers`), what positions point
into (`lattice.Space`). Each operator has one rule (`table.RULES`); rules reach masked rows through
four verbs only (`rows`: unify, compact, data, fill). Shape inference, folding, control flow and
masks all happen in that walk. Where no rule says what a node means, the model is refused by name.

    lattice   what is known of a tensor        graph     emitting nodes, shapes, constants
    integers  symbolic integers, conditions    groups    axes of data-dependent length
    values    integers followed by element     rows      the four verbs
    facts     bounds that hold for any rows    counts    the smaller of two numbers of rows
    table     operator -> rule                 firsts    slices moved up to what makes rows
    control   If, Loop; sequences              exactness where bits depend on places
    walk      node by node                     outputs, assemble   the way out

A new operator is a function in the module of its family whose docstring states the rule, a line in
`table.RULES`, and a test that says what it must keep and what it must refuse.
"""

from collections.abc import Collection

from onnx import ModelProto, ValueInfoProto, helper

from bridge.errors import UnsupportedModelError
from bridge.static_model import StaticModel
from bridge.surgery.static.assemble import assemble
from bridge.surgery.static.firsts import repeats_work
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import Tensor
from bridge.surgery.static.outputs import Output, counts, findings, finish, require_bound
from bridge.surgery.static.walk import Scope, Walk, walk


def make_static(
    model: ModelProto, *, max_detections: int | None = None, keep: Collection[str] = ()
) -> StaticModel:
    """The same model without data-dependent dimensions and without control flow.

    Given    normalised model: boxes [1, 8400, 4] -> NonMaxSuppression -> .. -> dets [n, 6]
    Result   StaticNMS in its place, dets [K, 6] zero behind num_detections int64[1]

    Args:
        model: opset 17, IR 8, no functions, input dimensions fixed, initializers no inputs; it is
            left alone.
        max_detections: cap on the rows of every padded output.
        keep: names of further tensors to return as outputs, inside taken branches too. Names
            of tensors that the walk did not make are left out.

    Raises:
        UnsupportedModelError: an operator has no static form here, an input a free dimension, or
            an output more than 10,000 possible rows and `max_detections` is None.
    """
    static = _interpreted(model, max_detections, keep, move_slices=True)
    if repeats_work(static.model.graph.node):
        return _interpreted(model, max_detections, keep, move_slices=False)
    return static


def _interpreted(
    model: ModelProto, max_detections: int | None, keep: Collection[str], *, move_slices: bool
) -> StaticModel:
    w = Walk(Graph(tuple(model.opset_import), move_slices))
    scope: Scope = {}
    for proto in model.graph.initializer:
        w.bind(scope, proto.name, w.graph.initializer(proto))
    inputs = {
        value.name: _input(w.graph, value) for value in model.graph.input if value.name not in scope
    }
    for name, tensor in inputs.items():
        w.bind(scope, name, tensor)
    walk(w, model.graph.node, scope)
    named = {value.name: _made(scope, value.name) for value in model.graph.output}
    if max_detections is None:
        for name, tensor in named.items():
            require_bound(name, tensor)
    outputs = [_finished(w, name, tensor, max_detections) for name, tensor in named.items()]
    outputs += [
        _finished(w, name, w.named[name], None)
        for name in keep
        if name in w.named and name not in named
    ]
    added, padded = counts(outputs, inputs)
    results = {output.name: output.tensor for output in outputs}
    for name, number in added.items():
        with w.emitting(name):
            results[name] = w.graph.count(number)
    made_by = {name: node.name for node in model.graph.node for name in node.output}
    return StaticModel(
        model=assemble(model, w, inputs, results),
        source_shapes={output.name: output.source_shape for output in outputs},
        padded=padded,
        counts=tuple(added),
        findings=(*w.findings, *findings(outputs, made_by)),
        assumptions=tuple(w.graph.assumptions),
    )


def _finished(w: Walk, name: str, tensor: Tensor, max_rows: int | None) -> Output:
    with w.emitting(name):
        return finish(w.graph, name, tensor, max_rows)


def _input(g: Graph, value: ValueInfoProto) -> Tensor:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    if kind != "tensor_type" or not tensor.HasField("shape"):
        raise UnsupportedModelError(
            f"input '{value.name}' is a {kind or 'value of unknown type'} without a shape; "
            f"give one with --input-shape {value.name}=..."
        )
    for axis, dim in enumerate(tensor.shape.dim):
        if not dim.HasField("dim_value"):
            raise UnsupportedModelError(
                f"input '{value.name}' has the free dimension '{dim.dim_param}' on axis {axis}; "
                f"fix it with --input-shape {value.name}=..."
            )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return g.input(dtype, [dim.dim_value for dim in tensor.shape.dim])


def _made(scope: Scope, name: str) -> Tensor:
    value = scope.get(name)
    if value is None:
        raise UnsupportedModelError(f"no node makes the output '{name}'")
    if isinstance(value, tuple):
        raise UnsupportedModelError(
            f"output '{name}' is a sequence of tensors; export the model so that it returns tensors"
        )
    return value
