"""Rules for operators that treat the rows of an axis apart: networks run on selected rows."""

from bridge.surgery.static.call import Call, copy, copy_all, elements
from bridge.surgery.static.graph import Graph
from bridge.surgery.static.lattice import Dim, Group, NoRuleError, Tensor, count, length, tagged
from bridge.surgery.static.rows import data, in_range, unify


def rows_first(g: Graph, call: Call) -> tuple[Tensor, ...]:
    """Conv, pools, normalisations: rows on axis 0 of the first input only, each on its own."""
    x = data(g, call.input(0))
    _only(x, {0})
    for other in call.inputs[1:]:
        if other is not None:
            _only(other, set())
    results = copy_all(g, call.with_inputs(x, *call.inputs[1:]))
    return tuple(tagged(y, (x.dims[0], *y.shape[1:])) for y in results)


def gemm(g: Graph, call: Call) -> Tensor:
    """Rows on axis 0 of A, not transposed."""
    x = data(g, call.input(0))
    if call.integer("transA", 0):
        raise NoRuleError("transposes a data-dependent number of rows")
    (y,) = rows_first(g, call.with_inputs(x, *call.inputs[1:]))
    return y


def matmul(g: Graph, call: Call) -> Tensor:
    """Rows anywhere but on the contracted axis; those of stacked matrices are unified."""
    a, b = data(g, call.input(0)), data(g, call.input(1))
    contracted = a.dims[-1], b.dims[max(b.rank - 2, 0)]
    if any(isinstance(dim, Group) for dim in contracted):
        raise NoRuleError("sums over a data-dependent number of rows")
    stacked = max(a.rank, b.rank) - 2
    dims: list[Dim] = []
    for k in range(-stacked - 2, -2):
        operands = [(x, x.rank + k) for x in (a, b) if x.rank + k >= 0]
        unified, dim = unify(g, *operands)
        if len(unified) == 2:
            a, b = unified
        elif operands[0][0] is a:
            a = unified[0]
        else:
            b = unified[0]
        dims.append(dim)
    dims += [a.dims[-2]] if a.rank > 1 else []
    dims += [b.dims[-1]] if b.rank > 1 else []
    return tagged(copy(g, call.with_inputs(a, b)), dims)


def roi_align(g: Graph, call: Call) -> Tensor:
    """Boxes and their image numbers are unified; a masked image number is 0, its box harmless."""
    x, rois, images = call.input(0), call.input(1), data(g, call.input(2))
    _only(x, set())
    (rois, images), dim = unify(g, (rois, 0), (images, 0))
    images = in_range(g, images, x.shape[0])
    y = copy(g, call.with_inputs(x, rois, images))
    return tagged(y, (dim, *y.shape[1:]))


def resize(g: Graph, call: Call) -> Tensor:
    """Rows on axis 0, their number unchanged by the sizes or scales."""
    x = data(g, call.input(0))
    _only(x, {0})
    sizes = call.optional(3)
    inputs = [x, *call.inputs[1:]]
    if sizes is not None:
        wanted = elements(sizes, "the size to resize to")
        if wanted[0] != count(x.dims[0]):
            raise NoRuleError("resizes a data-dependent number of rows")
        dense = [length(x.dims[0]), *(n for n in wanted[1:] if isinstance(n, int))]
        if len(dense) != len(wanted):
            raise NoRuleError("resizes to a number of rows")
        inputs[3] = g.int64(*dense)
    y = copy(g, call.with_inputs(*inputs))
    return tagged(y, (x.dims[0], *y.shape[1:]))


def one_hot(g: Graph, call: Call) -> Tensor:
    """The indices are data; one fixed axis comes in."""
    indices = data(g, call.input(0))
    y = copy(g, call.with_inputs(indices, *call.inputs[1:]))
    axis = call.axis(y.rank, -1)
    dims: list[Dim] = list(indices.dims)
    dims.insert(axis, y.shape[axis])
    return tagged(y, dims)


def _only(x: Tensor, allowed: set[int]) -> None:
    if any(axis not in allowed for axis, _ in x.groups):
        raise NoRuleError("has a data-dependent number of rows on an axis it mixes")
