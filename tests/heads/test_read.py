"""Head files: what is refused and with which words, and how options change a file."""

from pathlib import Path

import pytest

from bridge.errors import UsageError
from bridge.heads import builtin_names, read

GOOD = """
strides = [8, 16]
[outputs.raw]
layout = "1 N C"
columns = { xy = 2, wh = 2, cls = "classes" }
[constants]
gain = 2
[box]
center = "(xy + cell) * stride"
size = "wh * gain"
[score]
value = "cls"
"""

REFUSED = {
    "stride = [8]\n": "has no key 'stride' (did you mean 'strides'?); it takes about, base",
    "strides = 8\n": "strides: give a list of strides such as [8, 16, 32], not 8",
    "strides = [8, 0]\n": "strides: give a number above 0, not 0",
    "classes = 0\n": "classes: give a whole number of at least 1, not 0",
    "classes = true\n": "classes: give a whole number of at least 1, not True",
    "input_size = [320]\n": "input_size: give [width, height], not [320]",
    "row_order = 'H W'\n": "row_order: give H, W and A in some order, as 'H W A', not 'H W'",
    "about = 3\n": "about: give a string, not 3",
    "box = 3\n": "[box]: give a table, not 3",
    "extras = { value = 'wh', unit = 'x' }\n": "[extras] has no key 'unit' (did you mean 'units'?)",
    "extras = { }\n": "[extras] lacks the key 'value'",
    "extras = { value = 'size' }\n": "[extras] value reads 'size', which is neither a role",
    "extras = { value = 'prior_size' }\n": "a formula reads priors, and there is no [priors]",
    "extras = { value = 'wh +' }\n": "'wh +' is not a formula",
    "extras = { value = 'cos(wh)' }\n": "calls 'cos', which is not a function; there are abs, clip",
    "extras = { value = 'clip(wh)' }\n": "clip takes 3 arguments, not 1",
    "extras = { value = 'wh if 1 else xy' }\n": "a formula has numbers, names",
    "extras = { value = '__import__(1)' }\n": "calls '__import__', which is not a function",
    "extras = { value = 'wh.real' }\n": "holds 'wh.real'; a formula has numbers",
    "extras = { value = 'wh[0.5]' }\n": "counts columns with 0.5; write a whole number",
    "extras = { value = 'wh[::-1]' }\n": "steps by -1; columns step forward",
    "extras = { value = '[1, true]' }\n": "holds 'true' where a number belongs",
    "extras = { value = '9e999 * wh' }\n": "where a number belongs",
    f"extras = {{ value = '{'(' * 45}wh{' + 1)' * 45}' }}\n": "nests deeper than 40",
    f"extras = {{ value = '{'wh + ' * 200}wh' }}\n": "a formula has at most 500 characters",
    "suppression = { iou_threshold = 1.5 }\n": "iou_threshold: give a number from 0 to 1, not 1.5",
    "suppression = { class_agnostic = 1 }\n": "class_agnostic: give true or false, not 1",
    "suppression = { max_detections = 0 }\n": "max_detections: give a whole number of at least 1",
    "suppression = { iou = 0.5 }\n": "[suppression] has no key 'iou'; it takes score_threshold",
    "activations = { xz = 'sigmoid' }\n": "[activations] names 'xz'; the roles are xy, wh, cls",
    "activations = { xy = 'gelu' }\n": "xy: give one of none, sigmoid, softmax, not 'gelu'",
    "priors = { }\n": "[priors]: give either boxes, or sizes, or file",
    "priors = { boxes = [[[3]]] }\n": "boxes: give [width, height], not [3]",
    "priors = { sizes = [8, 16], max_sizes = [9] }\n": "max_sizes must be as many as sizes",
    "priors = { sizes = [8, 16], clip = true }\n": "clip: give a string, not True",
    "priors = { sizes = [8, 16], aspect_ratios = [[1]] }\n": "1 lists of ratios for 2 strides",
    "outputs = { raw = { layout = '1 N X', columns = { a = 1 } } }\n": "'1 N X' is not a layout",
    "outputs = { raw = { layout = '1 N H C', columns = { a = 1 } } }\n": "needs N, or H and W, and",
    "outputs = { raw = { layout = '1 C', columns = { a = 1 } } }\n": "needs N, or H and W, and",
    "outputs = { raw = { layout = '1 (A C', columns = { a = 1 } } }\n": "needs N, or H and W, and",
    "outputs = { raw = { layout = '1 N C', columns = { } } }\n": "name at least one role",
    "outputs = { raw = { layout = '1 N C', columns = { a = 'all' } } }\n": "'classes' or 'rest'",
    "outputs = { raw = { layout = '1 N C', columns = { a = 'rest', b = 'rest' } } }\n": "only one",
    "outputs = { raw = { layout = '1 N C', columns = { exp = 1 } } }\n": "has a meaning of its own",
    "outputs = { raw = { layout = '1 N C', columns = { 'a-b' = 1 } } }\n": "cannot be a name",
    "outputs = { raw = { layout = '1 N C', columns = { gain = 1 } } }\n": "names 'gain' twice",
    "outputs = { raw = { columns = { a = 1 } } }\n": "[outputs.raw] lacks the key 'layout'",
    "outputs = { }\n": "say what the model's outputs are",
    "score = { value = 'cls', background = 'zero' }\n": "give one of none, first, last, not 'zero'",
    "box = { center = 'xy', distances = 'wh' }\n": "give either value and layout, or center and",
    "box = { center = 'xy' }\n": "[box] lacks the key 'size'",
    "box = { value = 'concat(xy, wh)', layout = 'yxwh' }\n": "one of xyxy, yxyx, cxcywh, cycxhw",
    "strides [8]\n": "is not TOML: ",
}


def head(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "head.toml"
    path.write_text(text)
    return path


def replaced(line: str) -> str:
    """The good file with the key or table that the line gives in place of its own."""
    key = line.split(" ")[0]
    if f"{key} = " in GOOD.split("[outputs")[0]:
        return "".join(
            line if kept.startswith(f"{key} ") else kept for kept in GOOD.splitlines(True)
        )
    table = GOOD.split("\n[")
    return line + "\n[".join(t for t in table if t.split("]")[0].split(".")[0] != key)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    assert read.load(head(tmp_path, GOOD)).strides == ((8, 16),)


@pytest.mark.parametrize(("line", "message"), REFUSED.items())
def test_refused_with_these_words(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read.load(head(tmp_path, replaced(line)))
    assert message in str(error.value)
    assert str(tmp_path / "head.toml") in str(error.value) or "[priors]" in str(error.value)


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_heads_are_valid_and_say_what_they_are_for(name: str) -> None:
    assert len(read.load(name).about) > 20


def test_names_of_the_issue_are_built_in() -> None:
    wanted = "boxes ssd yolov5 yolov8 yolo11 yolox nanodet picodet fcos retinanet yunet fastestdet"
    assert {*wanted.split(), "retinaface"} <= set(builtin_names())


@pytest.mark.parametrize(
    ("option", "attribute", "value"),
    [
        ("classes=3", "classes", 3),
        ("classes=auto", "classes", None),
        ("strides=[8,16,32,64]", "strides", ((8, 16, 32, 64),)),
        ("strides=[[8],[16, 32]]", "strides", ((8,), (16, 32))),
        ("input_size=[640,480]", "input_size", (640, 480)),
        ("row_order=A H W", "row_order", ("A", "H", "W")),
    ],
)
def test_an_option_changes_a_key(option: str, attribute: str, value: object) -> None:
    assert getattr(read.load("yolox", [option]), attribute) == value


def test_an_option_finds_its_table() -> None:
    plain = read.load("ssd", ["center_variance=0.5", "suppression.iou_threshold=0.3"])
    assert plain.constants["center_variance"] == (0.5,)
    assert plain.suppression.iou_threshold == 0.3
    assert read.load("boxes", ["units=fractions"]).box.units == "fractions"
    assert read.load("boxes", ["background=last"]).score.background == "last"
    assert read.load("boxes", ["outputs.scores.name=conf"]).outputs[1].names == ("conf",)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("classes", "--head-option classes: write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("clases=3", "the keys are about, strides"),
        ("base=boxes", "the keys are about, strides"),
        ("units=fractions", "say box.units or extras.units"),
        ("classes.x=3", "classes is not a table"),
        ("iou_threshold=high", "iou_threshold: give a number, not 'high'"),
    ],
)
def test_an_option_that_does_not_fit(option: str, message: str) -> None:
    options = ["classes=2", option] if "." in option else [option]
    with pytest.raises(UsageError) as error:
        read.load("yolov8" if option.startswith("units") else "yolox", options)
    assert message in str(error.value)


def test_a_base_is_changed_key_by_key_or_table_by_table(tmp_path: Path) -> None:
    text = """
    base = "yunet"
    [outputs.kps]
    layout = "1 N C"
    columns = { points = 4 }
    [suppression]
    iou_threshold = 0.6
    [box]
    value = "concat(xy, wh)"
    """
    changed, base = read.load(head(tmp_path, text)), read.load("yunet")
    assert changed.outputs[3].columns == (("points", 4),)
    assert changed.outputs[:3] == base.outputs[:3]
    assert changed.suppression.score_threshold == base.suppression.score_threshold
    assert changed.suppression.iou_threshold == 0.6
    assert type(changed.box.form).__name__ == "FourColumns"


def test_a_base_may_be_a_file_beside_it(tmp_path: Path) -> None:
    head(tmp_path, GOOD)
    child = tmp_path / "child.toml"
    child.write_text("base = 'head.toml'\nclasses = 7")
    assert read.load(child).classes == 7


def test_a_circle_of_bases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has itself as base"):
        read.load(head(tmp_path, "base = 'head.toml'"))


def test_an_unknown_head_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no head 'yolo9'.*boxes, fastestdet"):
        read.load("yolo9")
    with pytest.raises(UsageError, match="cannot read the head file"):
        read.load(tmp_path)
