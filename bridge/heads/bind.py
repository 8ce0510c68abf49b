"""Which output of a model is which output of a head, and how many rows and classes that gives."""

import fnmatch
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from bridge.errors import UsageError
from bridge.heads.describe import CLASSES, REST, Background, Head, Layout, Output
from bridge.heads.priors import Level, levels

MAX_ASSIGNMENTS = 10_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output of the network; None marks a dimension that is not static."""

    name: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """One output of the head and the tensors that hold it.

    Attributes:
        tensors: one per level, or one with the rows of all.
        sizes: of the layout's letters, per tensor.
        columns: role and size, in order.
    """

    output: Output
    layout: Layout
    tensors: tuple[Tensor, ...]
    sizes: tuple[Mapping[str, int], ...]
    columns: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A head on a model.

    Attributes:
        image: (width, height) of the network input.
        levels: empty where the head needs no cells.
        classes: without the background; None where no output counts them.
        rows: candidates.
    """

    image: tuple[int, int]
    levels: tuple[Level, ...]
    classes: int | None
    outputs: tuple[Bound, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class _Option:
    """Tensors that could be one output of the head."""

    output: Output
    layout: Layout
    tensors: tuple[Tensor, ...]
    sizes: tuple[Mapping[str, int], ...]
    columns: int
    rows: int
    rank: tuple[int, int, int]


def bind(head: Head, model: onnx.ModelProto) -> Binding:
    """Find the tensors of a head among the outputs of a model.

    Raises:
        UsageError: they are not there, or several could be meant; says what was looked for.
    """
    tensors = float_outputs(model)
    image = head.input_size or image_size(model)
    failures: list[str] = []
    for strides in head.strides or ((),):
        found = levels(head, strides, image)
        options = [tuple(_options(output, found, tensors)) for output in head.outputs]
        if not all(options):
            failures.append(_missing(head, found, options))
            continue
        binding = _choose(head, image, found, options)
        if isinstance(binding, Binding):
            return binding
        failures.append(binding)
    shown = ", ".join(f"{t.name} {_shape(t.shape)}" for t in tensors) or "none of type float32"
    raise UsageError(
        f"head {head.name} does not fit the outputs of the model ({shown}): "
        f"{'; '.join(dict.fromkeys(failures))}. Say what differs with --head-option, or write a "
        "head file (docs/heads.md)"
    )


def float_outputs(model: onnx.ModelProto) -> tuple[Tensor, ...]:
    """The float32 and float16 outputs of a model."""
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    return tuple(
        Tensor(value.name, _dims(value))
        for value in model.graph.output
        if value.type.tensor_type.elem_type in floats
    )


def image_size(model: onnx.ModelProto) -> tuple[int, int]:
    """(width, height) of the model's only image input, channels first or last.

    Raises:
        UsageError: no such input, several, or its size is symbolic.
    """
    initializers = {tensor.name for tensor in model.graph.initializer}
    shapes = {
        value.name: _dims(value)
        for value in model.graph.input
        if value.name not in initializers and len(value.type.tensor_type.shape.dim) == 4
    }
    if len(shapes) != 1:
        raise UsageError(
            f"the model has {len(shapes)} inputs of four dimensions ({', '.join(shapes) or '-'}), "
            "so the size of its image is not known: --head-option input_size=[WIDTH,HEIGHT]"
        )
    ((name, shape),) = shapes.items()
    height, width = shape[1:3] if shape[3] in (1, 3, 4) and shape[1] not in (1, 3) else shape[2:4]
    if not width or not height:
        raise UsageError(
            f"input {name!r} has shape {_shape(shape)}; fix it with --input-shape {name}=1,3,H,W"
        )
    return width, height


def _dims(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)


def _shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _options(
    output: Output, found: Sequence[Level], tensors: Sequence[Tensor]
) -> Iterator[_Option]:
    for number, layout in enumerate(output.layouts):
        groups = [tuple(found)] if "N" in layout.letters else []
        if "H" in layout.letters or len(found) > 1:
            yield from _of_layout(output, layout, number, [(level,) for level in found], tensors)
        if groups:
            yield from _of_layout(output, layout, number, groups, tensors)


def _of_layout(
    output: Output,
    layout: Layout,
    number: int,
    groups: Sequence[tuple[Level, ...]],
    tensors: Sequence[Tensor],
) -> Iterator[_Option]:
    """Options where each group of levels is one tensor; the n-th fitting tensor of each."""
    fitting = [
        [
            (tensor, sizes, named)
            for tensor in tensors
            if (named := _named(output, tensor.name, group, index)) is not None
            if (sizes := _fit(layout, tensor.shape, group)) is not None
        ]
        for index, group in enumerate(groups)
    ]
    for columns in dict.fromkeys(sizes["C"] for _, sizes, _ in fitting[0]):
        alike = [[one for one in of_group if one[1]["C"] == columns] for of_group in fitting]
        for chosen in zip(*alike, strict=False):
            rows = sum(_rows(sizes) for _, sizes, _ in chosen)
            label = output.label.lower()
            rank = (
                sum(named for _, _, named in chosen),
                sum(label not in tensor.name.lower() for tensor, _, _ in chosen),
                # Fewer rows than columns: more likely the layout the other way round.
                2 * number + (rows < columns),
            )
            chosen_tensors, chosen_sizes = (
                tuple(t for t, _, _ in chosen),
                tuple(s for _, s, _ in chosen),
            )
            yield _Option(output, layout, chosen_tensors, chosen_sizes, columns, rows, rank)


def _named(output: Output, name: str, group: Sequence[Level], index: int) -> int | None:
    """The place of the first pattern that the name fits; None where it fits none."""
    stride = f"{group[0].stride:g}" if len(group) == 1 else "*"
    level = str(index) if len(group) == 1 else "*"
    for place, pattern in enumerate(output.names):
        filled = pattern.replace("{stride}", stride).replace("{level}", level)
        if filled == name or fnmatch.fnmatchcase(name, filled):
            return place
    return None if output.names else 0


def _fit(
    layout: Layout, shape: Sequence[int | None], group: Sequence[Level]
) -> dict[str, int] | None:
    """Sizes of the letters of a tensor read in a layout; None where it cannot be read so."""
    sizes = _known(layout, group)
    if sizes is None or len(shape) != len(layout.axes):
        return None
    for axis, dim in zip(layout.axes, shape, strict=True):
        open_letters = [letter for letter in axis if letter not in sizes]
        known = math.prod(sizes[letter] for letter in axis if letter in sizes)
        if not dim or len(open_letters) > 1 or dim % known:
            return None
        if open_letters:
            sizes[open_letters[0]] = dim // known
        elif dim != known:
            return None
    return {"C": 1} | sizes


def _rows(sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[letter] for letter in "NHWA" if letter in sizes)


def _known(layout: Layout, group: Sequence[Level]) -> dict[str, int] | None:
    """Sizes of the letters that the cells decide."""
    sizes = {"1": 1}
    if not group:
        return None if "H" in layout.letters else sizes
    anchors = {level.anchors for level in group}
    if "A" in layout.letters:
        if len(anchors) != 1:
            return None
        sizes["A"] = min(anchors)
    elif "H" in layout.letters and anchors != {1}:
        return None
    if "N" in layout.letters:
        sizes["N"] = sum(level.rows for level in group) // sizes.get("A", 1)
    else:
        sizes |= {"H": group[0].height, "W": group[0].width}
    return sizes


def _choose(
    head: Head,
    image: tuple[int, int],
    found: tuple[Level, ...],
    options: Sequence[Sequence[_Option]],
) -> Binding | str:
    """The best assignment of tensors to outputs, or why there is none."""
    best: list[tuple[tuple[int, ...], Binding]] = []
    why = "the same output would be used twice"
    for chosen in itertools.islice(itertools.product(*options), MAX_ASSIGNMENTS):
        used = [tensor.name for option in chosen for tensor in option.tensors]
        if len(set(used)) != len(used):
            continue
        rows = {option.rows for option in chosen}
        if len(rows) > 1:
            why = f"the outputs have different numbers of rows ({', '.join(map(str, rows))})"
            continue
        solved = _solve(head, chosen)
        if isinstance(solved, str):
            why = solved
            continue
        classes, columns = solved
        bound = tuple(
            Bound(o.output, o.layout, o.tensors, o.sizes, c)
            for o, c in zip(chosen, columns, strict=True)
        )
        rank = tuple(map(sum, zip(*(option.rank for option in chosen), strict=True)))
        best.append((rank, Binding(image, found, classes, bound, min(rows))))
    if not best:
        return why
    best.sort(key=lambda item: item[0])
    alike = [binding for rank, binding in best if rank == best[0][0]]
    if len(alike) > 1:
        one, other = (
            ", ".join(f"{b.output.label}={b.tensors[0].name}" for b in binding.outputs)
            for binding in alike[:2]
        )
        label = head.outputs[0].label
        return f"{one} and {other} fit equally; say which: --head-option outputs.{label}.name=..."
    return best[0][1]


def _solve(
    head: Head, chosen: Sequence[_Option]
) -> tuple[int | None, tuple[tuple[tuple[str, int], ...], ...]] | str:
    """The number of classes and the columns of each output, or why they do not add up."""
    background = head.score.background is not Background.NONE
    classes = head.classes
    # An output that also holds a rest of any size says nothing about the classes.
    for option in sorted(chosen, key=lambda o: any(n == REST for _, n in o.output.columns)):
        counts = [n for _, n in option.output.columns]
        if classes is None and CLASSES in counts:
            fixed = sum(n for n in counts if isinstance(n, int))
            classes = (option.columns - fixed) // counts.count(CLASSES) - background
    wanted = {CLASSES: 0 if classes is None else classes + background}
    if (
        CLASSES in {n for o in chosen for _, n in o.output.columns}
        and not wanted[CLASSES] > background
    ):
        return "too few columns for a class"
    solved = []
    for option in chosen:
        columns = _columns(option, wanted)
        if columns is None:
            needs = " + ".join(f"{n} {role}" for role, n in option.output.columns)
            return (
                f"{option.tensors[0].name} has {option.columns} columns where "
                f"{option.output.label} has {needs}"
                + (f" with {classes} classes" if classes is not None else "")
            )
        solved.append(columns)
    return classes, tuple(solved)


def _columns(option: _Option, wanted: Mapping[str, int]) -> tuple[tuple[str, int], ...] | None:
    sizes = [
        (role, n if isinstance(n, int) else wanted.get(n, 0)) for role, n in option.output.columns
    ]
    left = option.columns - sum(size for _, size in sizes)
    has_rest = any(n == REST for _, n in option.output.columns)
    if left < 0 or (left and not has_rest):
        return None
    return tuple(
        (role, left if n == REST else size)
        for (role, size), (_, n) in zip(sizes, option.output.columns, strict=True)
    )


def _missing(head: Head, found: Sequence[Level], options: Sequence[Sequence[_Option]]) -> str:
    """Which outputs of the head no tensor could be."""
    absent = [o for o, fitting in zip(head.outputs, options, strict=True) if not fitting]
    wanted = ", ".join(
        f"{o.label} as {' or '.join(f'{layout.text!r}' for layout in o.layouts)}"
        + (f" named {' or '.join(o.names)}" if o.names else "")
        for o in absent
    )
    cells = " + ".join(str(level.rows) for level in found)
    strides = ", ".join(f"{level.stride:g}" for level in found)
    rows = f" with {cells} rows (strides {strides})" if found else ""
    return f"found no output for {wanted}{rows}"
