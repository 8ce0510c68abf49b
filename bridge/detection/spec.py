"""The words for what is in a detection model. Data only; `inspect` derives it from the graph."""

from dataclasses import dataclass
from enum import StrEnum

from bridge.options import BoxLayout

type Shape = tuple[int | str | None, ...]
"""Per dimension its size, its symbol, or None where nothing is known."""


class Provenance(StrEnum):
    """Where the knowledge of a box layout comes from."""

    ATTRIBUTE = "attribute"
    DECLARED = "declared"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What an output holds: one row per detection, but for `count`."""

    BOXES = "boxes"
    SCORES = "scores"
    CLASSES = "classes"
    INDICES = "indices"
    DETECTIONS = "detections"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of a box's four numbers.

    Attributes:
        order: None where it is corners and nothing shows whether x or y comes first; a suppression
            decides the same either way.
        because: the attribute, option or node that shows it.
    """

    order: BoxLayout | None
    provenance: Provenance
    because: str


@dataclass(frozen=True, slots=True)
class NmsSite:
    """One NonMaxSuppression. Limits are None where they are computed at run time.

    Attributes:
        scope: names of the If, Loop and function calls it sits in, outermost first.
        max_output_boxes_per_class: 0 also where the input is absent: nothing is selected then.
        iou_threshold: 0 where the input is absent.
        score_threshold: minus infinity where the input is absent.
        images, boxes, classes: sizes of `scores[images, classes, boxes]`; None if not fixed.
    """

    node: str
    scope: tuple[str, ...]
    boxes_tensor: str
    scores_tensor: str
    layout: Layout
    max_output_boxes_per_class: int | None
    iou_threshold: float | None
    score_threshold: float | None
    images: int | None
    boxes: int | None
    classes: int | None


@dataclass(frozen=True, slots=True)
class Guard:
    """An If around a suppression or on its result; `condition` spells what it tests."""

    node: str
    scope: tuple[str, ...]
    condition: str


@dataclass(frozen=True, slots=True)
class Cause:
    """A node (or input) that makes a size depend on the data."""

    operator: str
    node: str
    scope: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of the model.

    Attributes:
        role: of an output that depends on a suppression, where it can be told.
        causes: what makes its shape dynamic.
    """

    name: str
    dtype: str
    shape: Shape | None
    role: Role | None = None
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class DetectionSpec:
    """What a model is, as far as its graph tells."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    sites: tuple[NmsSite, ...]
    guards: tuple[Guard, ...]
    functions: tuple[str, ...]
    foreign: tuple[Cause, ...]
