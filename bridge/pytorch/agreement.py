"""torch and the exported model on the same inputs: the same detections, or the reason why not."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bridge.errors import InconclusiveError
from bridge.pytorch.exporters import class_by_class_as_exported
from bridge.pytorch.quiet import quiet
from bridge.pytorch.source import Wrapped
from bridge.targets.base import Array
from bridge.verify.golden import Golden
from bridge.verify.rows import Columns, Group, Table, columns, match, table

_SLACK = 8
_LEAST_TOLERANCE = 64 * float(np.finfo(np.float32).eps)
_ANY_NOISE = np.array([1e-3])

Floats = NDArray[np.float64]
Outputs = Mapping[str, Array]


class Definition(StrEnum):
    """Where torch's suppression and ONNX's are different functions; the text says how."""

    REVERSED_CORNERS = (
        "reversed corners: torchvision.ops.nms takes boxes with x1 > x2 or y1 > y2 as they are, "
        "ONNX NonMaxSuppression sorts their corners"
    )
    CLASS_BY_CLASS = (
        "class by class: above 1000 boxes torchvision.ops.batched_nms suppresses each class by "
        "itself, its export always shifts the boxes by class, which rounds their coordinates"
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How torch and onnxruntime compare over all inputs.

    Attributes:
        inputs: sets of inputs that both could run.
        detections: rows that torch returned on them.
        same: of these, rows that onnxruntime returned as well.
        borderline: rows only one of them returned where nothing but rounding decides: torch itself
            gains or loses them with other rounding, their score is the last that is returned, or
            several boxes share it.
        different: rows only one of them returned, for no such reason.
        deviation: worst distance between numbers of the same row, relative to their size.
        noise: what torch deviates from itself with other rounding, float64 among it; `deviation`
            is held to 8 times that.
        reversed_boxes: boxes with reversed corners that torch's suppressions were given.
        definitions: differences of definition that had to be taken out before they agreed.
    """

    inputs: int
    detections: int
    same: int
    borderline: int
    different: int
    deviation: float
    noise: float
    reversed_boxes: int
    definitions: tuple[Definition, ...] = ()


def compare(model: Wrapped, golden: Golden) -> Agreement:
    """Hold onnxruntime's outputs to torch's, as sets of rows.

    Where they differ, torch runs again with ONNX's definition of suppression: if that agrees, the
    definition is what differs, and is named.

    Raises:
        InconclusiveError: torch can run none of the inputs.
    """
    plain = _agreement(model, golden, ())
    if not plain.different:
        return plain
    alone: list[tuple[Definition, ...]] = [(Definition.CLASS_BY_CLASS,)]
    if plain.reversed_boxes:
        alone += [(Definition.REVERSED_CORNERS,), tuple(Definition)]
    for definitions in alone:
        explained = _agreement(model, golden, definitions)
        if not explained.different:
            return explained
    return plain


@dataclass(frozen=True, slots=True)
class _Seen:
    """One set of inputs: what torch made of it, and what it makes of it with other rounding.

    Attributes:
        tied: scores that several boxes had at one suppression; their order is not defined.
    """

    torch: Outputs
    variants: list[Outputs]
    onnx: Outputs
    tied: Floats


def _agreement(model: Wrapped, golden: Golden, definitions: tuple[Definition, ...]) -> Agreement:
    suppressions = _Suppressions(sort=Definition.REVERSED_CORNERS in definitions)
    double: Wrapped = copy.deepcopy(model).double()
    seen: list[_Seen] = []
    failures: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(torch.no_grad())
        if Definition.CLASS_BY_CLASS in definitions:
            stack.enter_context(class_by_class_as_exported())
        stack.enter_context(suppressions)
        for one in golden.sets:
            try:
                seen.append(_run(model, double, one.inputs, one.outputs, suppressions))
            except (RuntimeError, IndexError, ValueError) as error:
                failures.append(f"{one.name}: {error}")
    if not seen:
        raise InconclusiveError(
            f"torch runs the model on none of {len(golden.sets)} inputs ({failures[0]}); "
            "give photos with --images"
        )
    counted = [_counted(group, seen) for group in _groups(seen)]
    return Agreement(
        inputs=len(seen),
        detections=sum(one.detections for one in counted),
        same=sum(one.same for one in counted),
        borderline=sum(one.borderline for one in counted),
        different=sum(one.different for one in counted),
        deviation=max(one.deviation for one in counted),
        noise=max(one.noise for one in counted),
        reversed_boxes=suppressions.reversed,
        definitions=definitions,
    )


def _run(
    model: Wrapped,
    double: Wrapped,
    inputs: Mapping[str, Array],
    onnx: Outputs,
    suppressions: "_Suppressions",
) -> _Seen:
    """Torch as it is, and three times with other rounding.

    The variants: convolutions without oneDNN, the last bit of every input changed, and float64,
    which alone shows an error that every float32 run shares. A model with float32 constants of its
    own may refuse float64, and goes without.
    """
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values()]
    with suppressions.recorded() as tied:
        first = _outputs(model, tensors)
    with torch.backends.mkldnn.flags(enabled=False):
        variants = [_outputs(model, tensors)]
    variants.append(_outputs(model, [_nudged(tensor) for tensor in tensors]))
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        variants.append(_outputs(double, [_double(tensor) for tensor in tensors]))
    return _Seen(first, variants, onnx, np.array(tied))


def _nudged(tensor: Tensor) -> Tensor:
    return torch.nextafter(tensor, 2 * tensor + 1) if tensor.is_floating_point() else tensor


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _outputs(model: Wrapped, tensors: Sequence[Tensor]) -> Outputs:
    return {name: tensor.numpy() for name, tensor in model.named(*tensors).items()}


def _groups(seen: Sequence[_Seen]) -> list[Group]:
    """Outputs with the same number of rows in every run are rows of one table."""
    lengths: dict[tuple[int, ...], dict[str, int | None]] = {}
    for name in seen[0].torch:
        runs = [run[name] for one in seen for run in (one.torch, one.onnx, *one.variants)]
        key = tuple(len(array) if array.ndim else 1 for array in runs)
        lengths.setdefault(key, {})[name] = 0
    return [Group(axes, count="rows") for axes in lengths.values()]


def _counted(group: Group, seen: Sequence[_Seen]) -> Agreement:
    expected = [_table(group, one.torch) for one in seen]
    kinds = columns(expected)
    noise = 0.0
    unstable: list[list[Table]] = []
    for one, rows in zip(seen, expected, strict=True):
        flips: list[Table] = []
        for variant in (_table(group, outputs) for outputs in one.variants):
            matching = match(rows, variant, kinds, _ANY_NOISE)
            noise = max(noise, matching.deviation)
            flips += [_only(rows, matching.lost), _only(variant, matching.extra)]
        unstable.append(flips)
    limits = np.array([max(_SLACK * noise, _LEAST_TOLERANCE)])
    same = borderline = different = 0
    deviation = 0.0
    for one, rows, flips in zip(seen, expected, unstable, strict=True):
        found = _table(group, one.onnx)
        matching = match(rows, found, kinds, limits)
        same += len(matching.pairs)
        deviation = max(deviation, matching.deviation)
        for alone in (_only(rows, matching.lost), _only(found, matching.extra)):
            excused = sum(
                _among(row, flips, kinds, limits)
                or _at_the_cut(row, rows, limits)
                or _holds(row, one.tied, limits)
                for row in _each(alone)
            )
            borderline += excused
            different += len(alone) - excused
    return Agreement(
        inputs=len(seen),
        detections=sum(map(len, expected)),
        same=same,
        borderline=borderline,
        different=different,
        deviation=deviation,
        noise=noise,
        reversed_boxes=0,
    )


def _table(group: Group, outputs: Outputs) -> Table:
    return table(group, {name: np.atleast_1d(outputs[name]) for name in group.axes})


def _only(rows: Table, indices: Sequence[int]) -> Table:
    chosen = list(indices)
    return Table(rows.exact[chosen], rows.values[chosen], rows.widths)


def _each(rows: Table) -> list[Table]:
    return [_only(rows, [i]) for i in range(len(rows))]


def _among(row: Table, tables: Sequence[Table], kinds: Columns, limits: Floats) -> bool:
    """Whether torch itself gains or loses this row with other rounding."""
    return any(len(match(row, other, kinds, limits).pairs) == 1 for other in tables)


def _at_the_cut(row: Table, rows: Table, limits: Floats) -> bool:
    """Whether its score is the least that is returned, so a limit passes through it.

    A score is a float of its own in each row.
    """
    start = 0
    for width in row.widths:
        if width == 1 and len(rows):
            least = float(rows.values[:, start].min())
            if abs(float(row.values[0, start]) - least) <= limits[0] * abs(least):
                return True
        start += width
    return False


def _holds(row: Table, tied: Floats, limits: Floats) -> bool:
    """Whether one of its numbers is a score that several boxes shared."""
    apart = np.abs(row.values.reshape(-1, 1) - tied)
    return bool((apart <= limits[0] * np.abs(tied)).any())


class _Suppressions(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own gap
    """Watches every torchvision.ops.nms; `sort` sorts the corners of its boxes, as ONNX does.

    Attributes:
        reversed: boxes with reversed corners in the recorded runs.
    """

    def __init__(self, *, sort: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own gap
        self.sort = sort
        self.reversed = 0
        self._tied: list[float] | None = None

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[float]]:
        """Count inside, and collect the scores that several boxes have at one suppression."""
        self._tied = []
        try:
            yield self._tied
        finally:
            self._tied = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.ops.torchvision.nms.default:
            boxes, scores, limit = args
            low, high = boxes[:, :2], boxes[:, 2:]
            if self._tied is not None:
                self.reversed += int((low > high).any(1).sum())
                values, counts = np.unique(scores.numpy(), return_counts=True)
                self._tied += values[counts > 1].tolist()
            if self.sort:
                args = (torch.cat([low.minimum(high), low.maximum(high)], 1), scores, limit)
        return func(*args, **(kwargs or {}))
