"""What `--nms postprocess` makes of a detector, decided once for the artifact and its reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NoReturn

import numpy as np
import onnx
from onnx import helper

from bridge import static_nms
from bridge.detection.classes import RecoveredClasses, recover
from bridge.errors import PassError, UnsupportedModelError
from bridge.options import Options
from bridge.static_model import StaticModel, TensorType
from bridge.static_nms import StaticNms
from bridge.targets.tflite.postprocess_geometry import SWAPPED, Geometry
from bridge.targets.tflite.postprocess_roles import (
    NoRoleError,
    Part,
    Role,
    Roles,
    Source,
    box_order,
    roles,
)
from bridge.targets.tflite.suppression_copies import Copies
from bridge.targets.tflite.suppression_narrow import narrow
from bridge.targets.tflite.suppression_tail import Tail, follow

_IN_ORDER: Final = (0, 1, 2, 3)
_CENTERS: Final = tuple(tuple(4 + i for i in order) for order in (_IN_ORDER, SWAPPED))


@dataclass(frozen=True, slots=True)
class Plan:
    """A detector that qualifies.

    Attributes:
        model: the static model, rows that nobody reads left out.
        recovered: the classes that the suppression hides in moved boxes.
        order: which corner each column of the returned boxes is: in order or axes exchanged.
        work: nodes from fetched rows to the parts, in order: what the source does behind the NMS.
        read: tensors made in front of the suppression that `work` reads.
    """

    model: onnx.ModelProto
    tail: Tail
    copies: Copies
    geometry: Geometry
    recovered: RecoveredClasses | None
    roles: Roles
    order: tuple[int, ...]
    work: tuple[onnx.NodeProto, ...]
    read: tuple[str, ...]

    @property
    def call(self) -> StaticNms:
        """The suppression."""
        return self.tail.call

    @property
    def classes(self) -> int:
        """C."""
        known = self.types[self.call.scores].shape[1]
        return known if self.recovered is None else self.recovered.count

    @property
    def boxes(self) -> int:
        """N."""
        return self.types[self.call.scores].shape[2]

    @property
    def per_class(self) -> int:
        """How many detections of a class can matter."""
        return min(self.call.max_output_boxes_per_class, self.boxes, self.call.rows)

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Type of every tensor of `model`."""
        return self.copies.types

    @property
    def returns_x_first(self) -> bool:
        """Whether boxes are x first where the source returns them."""
        return self.geometry.x_first != (self.order[0] == 1)

    def part(self, role: Role) -> Part | None:
        """Where a role is to be had, unless it is the detections' own."""
        part = self.roles.one(role)
        return None if part is None or self._is_raw(part) else part

    def _is_raw(self, part: Part) -> bool:
        """Whether a part is fetched as it lies there."""
        if part.tensor in self.roles.classes:
            return np.array_equal(self.roles.classes[part.tensor], np.arange(self.classes))
        columns = self.roles.leaves.get(part.tensor)
        if columns is None:
            return False
        if part.role is Role.CLASS:
            return self.recovered is not None and self.recovered.first == 0
        chosen = columns if part.columns is None else [columns[i] for i in part.columns]
        indices = tuple(column.index for column in chosen)
        return part.role is Role.SCORE or indices in (_IN_ORDER, SWAPPED, *_CENTERS)

    def presets(self) -> tuple[str, ...]:
        """Tensors behind the suppression that `work` or a part reads and does not make."""
        read = {name for node in self.work for name in node.input}
        read |= {part.tensor for role in Role if (part := self.part(role)) is not None}
        given = [*self.roles.leaves, *self.roles.classes, *sorted(self.tail.counts)]
        return tuple(name for name in given if name in read)

    def is_behind(self, name: str) -> bool:
        """Whether a tensor stands behind the suppression."""
        return name in self.tail.rows or name in self.tail.counts

    def front(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The model in front of the suppression, with these tensors as its outputs."""
        needed, kept = set(outputs), []
        for node in reversed(self.model.graph.node):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(node.input)
        front = onnx.ModelProto()
        front.CopyFrom(self.model)
        infos = {value.name: value for value in self.model.graph.value_info}
        made = [name for node in reversed(kept) for name in node.output if name not in outputs]
        del front.graph.node[:], front.graph.output[:], front.graph.value_info[:]
        front.graph.node.extend(reversed(kept))
        front.graph.value_info.extend(infos[name] for name in made if name in infos)
        for name in outputs:
            element = helper.np_dtype_to_tensor_dtype(np.dtype(self.types[name].dtype))
            shape = self.types[name].shape
            front.graph.output.append(helper.make_tensor_value_info(name, element, shape))
        return front


class UnfitError(Exception):
    """Why a static model is not the detector of one image whose outputs are told apart."""


def plan(static: StaticModel, options: Options) -> Plan:
    """Find out whether and how a static model qualifies.

    Raises:
        UnsupportedModelError: it does not.
    """
    narrowed = narrow(static.model)
    try:
        call = only_call(narrowed.model)
        _check(call, Copies.of(narrowed.model), call.name in narrowed.best_first)
        return look(narrowed.model, call, options)
    except UnfitError as error:
        raise UnsupportedModelError(
            f"--nms postprocess, TFLite_Detection_PostProcess, cannot end this model: {error}; use "
            "--nms v4"
        ) from error


def look(model: onnx.ModelProto, call: StaticNms, options: Options) -> Plan:
    """What the outputs of a detector are made of, whatever its suppression becomes.

    Raises:
        UnfitError: they cannot be told apart.
    """
    copies = Copies.of(model)
    if copies.types[call.scores].shape[0] != 1:
        _refuse(call, f"it suppresses in {copies.types[call.scores].shape[0]} images, not one")
    tail = follow(model, call)
    if tail is None:
        _refuse(call, "what stands behind it is not done row by row")
    found = recover(model, call)
    recovered = found if isinstance(found, RecoveredClasses) else None
    boxes = call.boxes if recovered is None else recovered.boxes
    geometry = Geometry.of(copies, boxes, options.box_layout)
    ids = None if recovered is None else copies.addresses(recovered.ids).reshape(-1)
    source = Source(geometry.fetched, copies.addresses(call.scores)[0], ids)
    try:
        outputs = roles(model, tail, copies, source)
    except NoRoleError as error:
        _refuse(call, str(error))
    work, read = _work(model, tail, copies, outputs)
    order = _order(call, copies, outputs, work)
    return Plan(model, tail, copies, geometry, recovered, outputs, order, work, read)


def only_call(model: onnx.ModelProto) -> StaticNms:
    """The suppression of a model that has one.

    Raises:
        UnfitError: it has none, or several.
    """
    calls = static_nms.calls(model)
    if len(calls) != 1:
        names = "".join(f", '{call.name}'" for call in calls)
        raise UnfitError(f"one NonMaxSuppression is needed; this model has {len(calls)}{names}")
    return calls[0]


def _refuse(call: StaticNms, why: str) -> NoReturn:
    raise UnfitError(f"of NonMaxSuppression '{call.name}', {why}")


def _check(call: StaticNms, copies: Copies, best_first: bool) -> None:
    """Refuse what the operator cannot do."""
    images, classes, boxes = copies.types[call.scores].shape
    if images != 1:
        _refuse(call, f"the operator takes one image, this suppression {images}")
    if call.center_point_box:
        raise PassError(f"{call.name}: boxes are centres still; fix-box-layout has not run")
    per_class = min(call.max_output_boxes_per_class, boxes)
    if per_class <= 0 or not call.score_threshold < float("inf"):
        _refuse(call, "it selects nothing, whatever it is given")
    if classes > 1 and call.rows < classes * per_class and not best_first:
        _refuse(
            call, "its first rows are kept in the order of classes, the operator keeps the best"
        )


def _order(
    call: StaticNms, copies: Copies, outputs: Roles, work: Sequence[onnx.NodeProto]
) -> tuple[int, ...]:
    """The columns of the returned boxes; refuses where boxes or scores are not returned whole."""
    for role, width in ((Role.BOX, 4), (Role.SCORE, 1), (Role.CLASS, 1)):
        part = outputs.one(role)
        if part is None and role is not Role.CLASS:
            _refuse(call, f"the model does not return the {role.value} of its detections")
        if part is not None and _width(part, copies) != width:
            _refuse(call, f"{part.tensor!r} holds the {role.value} in pieces")
    boxes = outputs.one(Role.BOX)
    order = () if boxes is None else box_order(copies, outputs, work, boxes)
    if order in _CENTERS and boxes is not None and boxes.tensor in outputs.leaves:
        return tuple(index - 4 for index in order)
    if order not in (_IN_ORDER, SWAPPED):
        _refuse(call, "the boxes that the model returns are no corners, the operator's are")
    return order


def _width(part: Part, copies: Copies) -> int:
    if part.columns is not None:
        return len(part.columns)
    return prod(copies.types[part.tensor].shape[1:])


def _work(
    model: onnx.ModelProto, tail: Tail, copies: Copies, found: Roles
) -> tuple[tuple[onnx.NodeProto, ...], tuple[str, ...]]:
    """The nodes between what is fetched and the parts, and what else they read."""
    given = {*found.leaves, *found.classes, *tail.counts}
    needed, read = set[int](), dict[str, None]()
    pending = [part.tensor for part in found.parts]
    while pending:
        name = pending.pop()
        node = copies.makers.get(name)
        if name in given or name in copies.constants or not name:
            continue
        if node is None or name not in tail.rows:
            read[name] = None
        elif id(node) not in needed:
            needed.add(id(node))
            pending += node.input
    work = tuple(node for node in model.graph.node if id(node) in needed)
    return work, tuple(read)
