"""Head files: from TOML to a `Head`, with a message for everything that is not as described.

The format is docs/heads.md. A file is the user's own, but nothing in it is ever run.
"""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bridge.errors import UsageError
from bridge.heads import formula, priors, table
from bridge.heads.describe import (
    CLASSES,
    REST,
    Activation,
    Background,
    Box,
    CenterSize,
    Corners,
    Distances,
    Extras,
    FourColumns,
    Head,
    Layout,
    Output,
    Score,
    Suppression,
    Units,
)
from bridge.heads.formula import Formula
from bridge.heads.table import Table

KEYS: Mapping[str, tuple[str, ...] | None] = {
    "outputs": None,
    "activations": None,
    "constants": None,
    "priors": (
        *("boxes", "sizes", "max_sizes", "aspect_ratios", "round", "file", "layout", "units"),
        *("offset", "spacing", "clip"),
    ),
    "box": ("value", "layout", "center", "size", "point", "distances", "units", "clip"),
    "score": ("value", "background"),
    "extras": ("value", "units"),
    "suppression": (
        *("score_threshold", "iou_threshold", "max_detections", "class_agnostic"),
        "pre_nms_top_k",
    ),
}
"""The tables of a head file and the keys of each; None where the user names them."""

TOP_KEYS = (
    *("about", "base", "strides", "maps", "classes", "input_size", "row_order"),
    *KEYS,
)
OUTPUT_KEYS = ("name", "layout", "columns")
MERGED = ("outputs", "activations", "constants", "suppression")
"""Tables that a file with a `base` adds to; other tables take the place of the base's."""

GRID_NAMES = ("cell", "stride", "map")
PRIOR_NAMES = ("prior_center", "prior_size")
GIVEN_NAMES = (*GRID_NAMES, *PRIOR_NAMES, "image")

Document = dict[str, Any]


def builtin_names() -> tuple[str, ...]:
    """The heads that come with bridge, by name, sorted."""
    folder = resources.files("bridge.heads")
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


def is_alias(name: str) -> bool:
    """Whether a built-in head is another one with other defaults."""
    text, where, _ = _text(name)
    return "base" in _parse(text, where)


def load(head: str | Path, overrides: Sequence[str] = ()) -> Head:
    """Read a head: a built-in one by name, or a file; `overrides` are `KEY=VALUE`.

    Raises:
        UsageError: there is no such head, or it is not as docs/heads.md says.
    """
    document, where, folder = _document(head, ())
    for override in overrides:
        _override(document, override)
    return _head(Path(str(head)).stem, Table(document, where, TOP_KEYS), folder)


def _document(head: str | Path, seen: tuple[str, ...]) -> tuple[Document, str, Path]:
    """The document with its base merged in, its name for messages, and its folder."""
    text, where, folder = _text(head)
    if where in seen:
        raise UsageError(f"{where} has itself as base, through {' and '.join(seen)}")
    document = _parse(text, where)
    base = document.pop("base", None)
    if base is None:
        return document, where, folder
    name = table.text(base, f"{where}, base")
    if name not in builtin_names():
        name = str(folder / name)
    return _merge(_document(name, (*seen, where))[0], document), where, folder


def _parse(text: str, where: str) -> Document:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not TOML: {error}") from error


def _text(head: str | Path) -> tuple[str, str, Path]:
    if isinstance(head, str) and head in builtin_names():
        return (
            (resources.files("bridge.heads") / f"{head}.toml").read_text(),
            f"head {head}",
            Path(),
        )
    path = Path(head)
    try:
        return path.read_text(encoding="utf-8"), f"head file {path}", path.parent
    except FileNotFoundError:
        raise UsageError(
            f"there is no head {str(head)!r}: give {', '.join(builtin_names())}, or the path of a "
            "head file (docs/heads.md)"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the head file {path}: {error}") from error


def _merge(base: Document, document: Document) -> Document:
    merged = base | document
    for key in MERGED:
        if isinstance(base.get(key), dict) and isinstance(document.get(key), dict):
            merged[key] = base[key] | document[key]
    return merged


def _override(document: Document, override: str) -> None:
    """Set one key of the document, as if the file said so."""
    key, found, value = override.partition("=")
    where = f"--head-option {override}"
    if not found or not key:
        raise UsageError(f"{where}: write KEY=VALUE")
    *tables, last = _path(document, key.strip(), where)
    target = document
    for name in tables:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise UsageError(f"{where}: {name} is not a table")
    try:
        target[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        target[last] = value.strip()


def _path(document: Document, key: str, where: str) -> list[str]:
    path = key.split(".")
    if path[0] in TOP_KEYS and path[0] != "base":
        return path
    owners = [
        name
        for name, keys in KEYS.items()
        if name in document and key in (document[name] if keys is None else keys)
    ]
    if len(owners) != 1:
        known = ", ".join(k for k in TOP_KEYS if k != "base")
        several = " or ".join(f"{owner}.{key}" for owner in owners)
        raise UsageError(f"{where}: {f'say {several}' if owners else f'the keys are {known}'}")
    return [owners[0], key]


def _head(name: str, top: Table, folder: Path) -> Head:
    outputs = tuple(
        _output(label, table.table(OUTPUT_KEYS)(value, f"{top.where}, [outputs.{label}]"))
        for label, value in _section(top, "outputs").values.items()
    )
    roles = tuple(role for output in outputs for role, _ in output.columns)
    constants = {
        key: table.one_or_more(table.number)(value, f"{top.where}, [constants], {key}")
        for key, value in _section(top, "constants").values.items()
    }
    _check_names(top, outputs, roles, tuple(constants))
    head = Head(
        name=name,
        about=top.get("about", table.text, ""),
        strides=top.get("strides", _strides, ()),
        maps=top.get("maps", table.each(_whole_pair, "a list of [width, height]"), ()),
        classes=top.get("classes", table.optional(table.count(1)), None),
        input_size=top.get("input_size", table.optional(_whole_pair), None),
        row_order=top.get("row_order", _row_order, ("H", "W", "A")),
        outputs=outputs,
        activations=_activations(_section(top, "activations"), roles),
        constants=constants,
        priors=priors.read(_section(top, "priors"), folder) if "priors" in top.values else None,
        box=_box(_section(top, "box")),
        score=_score(_section(top, "score")),
        extras=_extras(_section(top, "extras")) if "extras" in top.values else None,
        suppression=_suppression(_section(top, "suppression")),
    )
    _check_formulas(head, top.where, (*roles, *constants, *GIVEN_NAMES))
    return head


def _section(top: Table, name: str) -> Table:
    keys = KEYS[name]
    return table.table(keys)(top.values.get(name, {}), f"{top.where}, [{name}]")


def _check_names(
    top: Table, outputs: Sequence[Output], roles: Sequence[str], constants: Sequence[str]
) -> None:
    if not outputs:
        raise UsageError(f"{top.where} lacks [outputs.NAME]: say what the model's outputs are")
    for name in (*roles, *constants):
        if not name.isidentifier():
            raise UsageError(f"{top.where}: {name!r} cannot be a name in a formula; use letters")
        if name in GIVEN_NAMES or name in formula.FUNCTIONS:
            raise UsageError(f"{top.where}: {name!r} has a meaning of its own; use another name")
        if (*roles, *constants).count(name) > 1:
            raise UsageError(f"{top.where} names {name!r} twice among its columns and constants")


def _check_formulas(head: Head, where: str, known: Sequence[str]) -> None:
    used = set()
    for place, tree in formulas(head):
        for name in formula.names(tree):
            used.add(name)
            if name not in known:
                raise UsageError(
                    f"{where}, {place} reads {name!r}, which is neither a role of a column nor a "
                    f"constant; there are {', '.join(known)}"
                )
    if used & set(PRIOR_NAMES) and head.priors is None:
        raise UsageError(f"{where}: a formula reads priors, and there is no [priors]")
    has_cells = bool(head.strides or head.maps)
    if used & set(GRID_NAMES) and not has_cells:
        raise UsageError(f"{where}: a formula reads {', '.join(GRID_NAMES)}: give strides")
    if head.priors is not None and head.priors.file is None and not has_cells:
        raise UsageError(f"{where}: [priors] stand in cells: give strides")


def formulas(head: Head) -> tuple[tuple[str, Formula], ...]:
    """Every formula of a head, with its place in the file."""
    extras = [("[extras] value", head.extras.value)] if head.extras else []
    boxes = [("[box]", tree) for tree in box_formulas(head)]
    return (*boxes, ("[score] value", head.score.value), *extras)


def box_formulas(head: Head) -> tuple[Formula, ...]:
    """The formulas that the boxes are computed with."""
    match head.box.form:
        case FourColumns(value=value):
            return (value,)
        case CenterSize(center=center, size=size):
            return (center, size)
        case Distances(point=point, distances=distances):
            return (point, distances)


def _output(label: str, section: Table) -> Output:
    columns = section.need("columns", table.table(None))
    if not columns.values:
        raise UsageError(f"{columns.where}: name at least one role, as in {{ box = 4 }}")
    roles = tuple((role, _columns(n, columns.place(role))) for role, n in columns.values.items())
    layouts = section.need("layout", table.one_or_more(_layout))
    if sum(n == REST for _, n in roles) > 1:
        raise UsageError(f"{columns.where}: only one role can have the rest of the columns")
    return Output(label, section.get("name", table.one_or_more(table.text), ()), layouts, roles)


def _columns(value: Any, where: str) -> int | str:
    if value in (CLASSES, REST):
        return str(value)
    if isinstance(value, str):
        raise UsageError(f"{where}: give a number of columns, {CLASSES!r} or {REST!r}")
    return table.count(1)(value, where)


def _layout(value: Any, where: str) -> Layout:
    words = table.text(value, where).replace("(", " ( ").replace(")", " ) ").split()
    axes: list[tuple[str, ...]] = []
    product: list[str] | None = None
    for word in words:
        if word == "(" and product is None:
            product = []
        elif word == ")" and product:
            axes.append(tuple(product))
            product = None
        elif word in ("1", "N", "C", "H", "W", "A") and product is not None:
            product.append(word)
        elif word in ("1", "N", "C", "H", "W", "A"):
            axes.append((word,))
        else:
            raise UsageError(f"{where}: {value!r} is not a layout such as '1 N C' or '1 (A C) H W'")
    layout = Layout(tuple(axes))
    letters = [letter for letter in layout.letters if letter != "1"]
    cells = {"N"} if "N" in letters else {"H", "W"}
    if (
        product is not None
        or len(set(letters)) != len(letters)
        or set(letters) - {"C", "A"} != cells
    ):
        raise UsageError(f"{where}: {value!r} needs N, or H and W, and each letter only once")
    return layout


def _strides(value: Any, where: str) -> tuple[tuple[float, ...], ...]:
    one = table.each(table.positive, "a list of strides such as [8, 16, 32]")
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        return tuple(one(item, where) for item in value)
    return (one(value, where),)


def _whole_pair(value: Any, where: str) -> tuple[int, int]:
    pair = table.each(table.count(1), "[width, height]", length=2)(value, where)
    return pair[0], pair[1]


def _row_order(value: Any, where: str) -> tuple[str, ...]:
    order = tuple(table.text(value, where).split())
    if sorted(order) != ["A", "H", "W"]:
        raise UsageError(f"{where}: give H, W and A in some order, as 'H W A', not {value!r}")
    return order


def _activations(section: Table, roles: Sequence[str]) -> dict[str, Activation]:
    result = {}
    for role, value in section.values.items():
        if role not in roles:
            raise UsageError(f"{section.where} names {role!r}; the roles are {', '.join(roles)}")
        result[role] = table.choice(Activation)(value, section.place(role))
    return result


def _box(section: Table) -> Box:
    pairs = (("value", "layout"), ("center", "size"), ("point", "distances"))
    given = [pair for pair in pairs if set(pair) & set(section.values)]
    if len(given) != 1:
        raise UsageError(
            f"{section.where}: give either value and layout, or center and size, or point and "
            "distances"
        )
    form: FourColumns | CenterSize | Distances
    if given[0] == pairs[0]:
        layout = section.get("layout", table.choice(Corners), Corners.XYXY)
        form = FourColumns(section.need("value", _formula), layout)
    elif given[0] == pairs[1]:
        form = CenterSize(section.need("center", _formula), section.need("size", _formula))
    else:
        form = Distances(section.need("point", _formula), section.need("distances", _formula))
    units = section.get("units", table.choice(Units), Units.PIXELS)
    return Box(form, units, section.get("clip", table.flag, False))


def _score(section: Table) -> Score:
    background = section.get("background", table.choice(Background), Background.NONE)
    return Score(section.need("value", _formula), background)


def _extras(section: Table) -> Extras:
    units = section.get("units", table.choice(Units), Units.PIXELS)
    return Extras(section.need("value", _formula), units)


def _suppression(section: Table) -> Suppression:
    return Suppression(
        score_threshold=section.get("score_threshold", table.number, 0.25),
        iou_threshold=section.get("iou_threshold", table.fraction, 0.45),
        max_detections=section.get("max_detections", table.count(1), 100),
        class_agnostic=section.get("class_agnostic", table.flag, False),
        pre_nms_top_k=section.get("pre_nms_top_k", table.count(0), 0),
    )


def _formula(value: Any, where: str) -> Formula:
    return formula.parse(table.text(value, where), where)
