"""Rules for operators that treat the rows of an axis apart: networks run on selected rows."""

from math import prod

from bridge.surgery.static.call import Call, copy, copy_all, elements
from bridge.surgery.static.exactness import single_row
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
    if len(call.node.output) > 1:
        raise NoRuleError("gives more than one result, one of which counts places in memory")
    results = copy_all(g, call.with_inputs(x, *call.inputs[1:]))
    return tuple(tagged(y, (x.dims[0], *y.shape[1:])) for y in results)


def gemm(g: Graph, call: Call) -> Tensor:
    """Rows on axis 0 of A, not transposed."""
    x = data(g, call.input(0))
    if call.integer("transA", 0):
        raise NoRuleError("transposes a data-dependent number of rows")

    def compute(rows: Tensor) -> Tensor:
        return rows_first(g, call.with_inputs(rows, *call.inputs[1:]))[0]

    result = compute(x)
    return tagged(single_row(g, x, 0, result, compute), result.dims)


def matmul(g: Graph, call: Call) -> Tensor:
    """Rows anywhere but on the contracted axis; those of stacked matrices are unified."""
    a, b = data(g, call.input(0)), data(g, call.input(1))
    if isinstance(a.dims[-1], Group) or isinstance(b.dims[max(b.rank - 2, 0)], Group):
        raise NoRuleError("sums over a data-dependent number of rows")
    stacked: list[Dim] = []
    for k in range(-max(a.rank, b.rank), -2):
        if min(a.rank, b.rank) + k >= 0:
            (a, b), dim = unify(g, (a, a.rank + k), (b, b.rank + k))
        else:
            dim = (a if a.rank > b.rank else b).dims[k]
        stacked.append(dim)
    result = copy(g, call.with_inputs(a, b))
    if a.rank > 1 and prod(a.shape[:-1]) == length(rows := a.dims[0]) and isinstance(rows, Group):
        result = single_row(g, a, 0, result, lambda x: copy(g, call.with_inputs(x, b)))
    if b.rank > 1 and isinstance(b.dims[-1], Group):
        result = single_row(g, b, b.rank - 1, result, lambda x: copy(g, call.with_inputs(a, x)))
    return tagged(result, [*stacked, *a.dims[-2:-1], *(b.dims[-1:] if b.rank > 1 else ())])


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
    if y.shape[0] != x.shape[0]:
        raise NoRuleError("resizes a data-dependent number of rows")
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
