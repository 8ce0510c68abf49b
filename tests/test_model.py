"""Loading files nobody can trust, saving whole files, and made-up inputs."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper, parser

from bridge.errors import UnsupportedModelError, UsageError
from bridge.model import (
    Array,
    InputKind,
    as_declared,
    input_shapes_of,
    load,
    save,
    seeded_inputs,
    skeleton,
    with_weights,
)
from tests.shared import SHARED, needs_shared

PLAIN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }
"""

HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 40, 4] boxes, float[1, 3, 40] scores, int64[40] ids, float[1, 3, 8, 8] image, uint8[4] u)
    => (int64[k, 3] y)
{ y = NonMaxSuppression(boxes, scores) }
"""  # noqa: E501 - one line of ONNX text


def write(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external_model(tmp_path: Path, **entries: str) -> Path:
    """PLAIN with `w` in w.data, its reference overwritten by `entries`."""
    model = parser.parse_model(PLAIN)
    array = np.array([1, 2], np.float32)
    (tmp_path / "w.data").write_bytes(b"head" + array.tobytes())
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(array, "w"))
    external_data_helper.set_external_data(tensor, "w.data", offset=4, length=8)
    tensor.ClearField("raw_data")
    for key, value in entries.items():
        next(e for e in tensor.external_data if e.key == key).value = value
    return write(tmp_path, model)


def test_load_gives_model_and_digest(tmp_path: Path) -> None:
    path = write(tmp_path, parser.parse_model(PLAIN))
    source = load(path)
    assert source.path == path
    assert source.digest == load(str(path)).digest
    assert len(source.digest) == 64
    assert [node.op_type for node in source.model.graph.node] == ["Add"]


@pytest.mark.parametrize("name", ["missing.onnx", ".", "missing/model.onnx", "nul\0.onnx"])
def test_a_path_that_cannot_be_read_is_usage(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        load(tmp_path / name)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x08", b"TFL3" * 100, bytes(5000)])
def test_bytes_that_are_no_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModelError, match="not an ONNX model"):
        load(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = parser.parse_model(PLAIN).SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(UnsupportedModelError, match=r"model\.onnx"):
            load(path)


def test_checker_errors_become_one_line_that_names_the_node(tmp_path: Path) -> None:
    model = parser.parse_model(PLAIN)
    model.graph.node[0].op_type = "Addd"
    model.graph.node[0].name = "sum"
    with pytest.raises(UnsupportedModelError, match=r"not valid ONNX.*Addd.*sum") as caught:
        load(write(tmp_path, model))
    assert "\n" not in str(caught.value)


def test_a_tensor_that_holds_too_little_is_refused_by_name(tmp_path: Path) -> None:
    model = parser.parse_model(PLAIN)
    model.graph.initializer[0].dims[0] = 3
    with pytest.raises(UnsupportedModelError, match="'w'"):
        load(write(tmp_path, model))
    model.graph.initializer[0].raw_data = b"1234"
    model.graph.initializer[0].ClearField("float_data")
    with pytest.raises(UnsupportedModelError, match=r"'w'.*needs 12 bytes, but holds 4"):
        load(write(tmp_path, model))


def test_functions_that_never_end_are_refused(tmp_path: Path) -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "d" : 1]>
        g (float[2] x) => (float[2] y) { y = d.a(x) }
        <domain: "d", opset_import: ["" : 17, "d" : 1]> a (x) => (y) { y = d.b(x) }
        <domain: "d", opset_import: ["" : 17, "d" : 1]> b (x) => (y) { y = d.a(x) }
    """)
    with pytest.raises(UnsupportedModelError, match="calls itself"):
        load(write(tmp_path, model))


def test_functions_that_explode_are_refused(tmp_path: Path) -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "d" : 1]>
        g (float[2] x) => (float[2] y) { y = d.f29(x) }
        <domain: "d", opset_import: ["" : 17, "d" : 1]> f0 (x) => (y) { y = Neg(x) }
    """)
    for number in range(1, 30):
        inner = f"d.f{number - 1}"
        text = f'<domain: "d", opset_import: ["" : 17, "d" : 1]> f{number} (x) => (y) '
        model.functions.append(parser.parse_function(text + f"{{ a = {inner}(x) y = {inner}(a) }}"))
    with pytest.raises(UnsupportedModelError, match="nodes once its functions are expanded"):
        load(write(tmp_path, model))


def test_external_data_is_loaded(tmp_path: Path) -> None:
    tensor = load(external_model(tmp_path)).model.graph.initializer[0]
    assert tensor.data_location == TensorProto.DEFAULT
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), np.array([1, 2], np.float32))


def test_external_data_missing_names_the_file(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    (tmp_path / "w.data").unlink()
    with pytest.raises(UnsupportedModelError, match=r"w\.data.*missing"):
        load(path)


@pytest.mark.parametrize(
    "location",
    ["../secret", "a/../../secret", "/etc/passwd", "", ".", "C:\\secret", "..\\secret", "a\0b"],
)
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(100))
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(UnsupportedModelError, match="external data"):
        load(external_model(folder, location=location))


def test_links_may_not_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = external_model(folder)
    (folder / "w.data").rename(tmp_path / "elsewhere.data")
    (folder / "w.data").symlink_to(tmp_path / "elsewhere.data")
    with pytest.raises(UnsupportedModelError, match="link that leaves"):
        load(path)
    shutil.copy(tmp_path / "elsewhere.data", folder / "real.data")
    (folder / "w.data").unlink()
    (folder / "w.data").symlink_to("real.data")
    assert load(path).model.graph.initializer[0].raw_data


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "-4"},
        {"offset": "8"},
        {"offset": "x"},
        {"length": "4"},
        {"length": "99"},
        {"offset": "99999999999999999999"},
    ],
)
def test_external_data_must_fit_its_file(tmp_path: Path, entries: dict[str, str]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'w'.*needs 8 bytes"):
        load(external_model(tmp_path, **entries))


def test_models_beyond_protobuf_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    path.touch()
    os.truncate(path, 2**31)
    with pytest.raises(UnsupportedModelError, match="protobuf"):
        load(path)
    path = external_model(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = [2**31]
    with pytest.raises(UnsupportedModelError, match="external data"):
        load(write(tmp_path, model))


@needs_shared
def test_every_shared_model_loads() -> None:
    paths = [*SHARED.glob("models/*.onnx"), *SHARED.glob("exports/*.onnx")]
    paths += SHARED.glob("cases/*.onnx")
    assert len(paths) > 50
    for path in paths:
        load(path)


def test_save_writes_the_same_bytes_and_leaves_nothing_else(tmp_path: Path) -> None:
    model = parser.parse_model(PLAIN)
    helper.set_model_props(model, {"b": "1", "a": "2"})
    save(model, tmp_path / "one.onnx")
    save(load(tmp_path / "one.onnx").model, tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.onnx", "two.onnx"]


def test_save_into_a_missing_folder_is_usage_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        save(parser.parse_model(PLAIN), tmp_path / "missing" / "one.onnx")
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        save(parser.parse_model(PLAIN), target)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_seeded_inputs_follow_types_and_repeat() -> None:
    model = parser.parse_model(HEAD)
    first = seeded_inputs(model, seed=3)
    second = seeded_inputs(model, seed=3)
    other = seeded_inputs(model, seed=4)
    assert len(first) == len(InputKind)
    for feeds, again in zip(first, second, strict=True):
        assert list(feeds) == ["boxes", "scores", "ids", "image", "u"]
        assert [str(a.dtype) for a in feeds.values()] == [
            "float32", "float32", "int64", "float32", "uint8",
        ]  # fmt: skip
        for name, array in feeds.items():
            np.testing.assert_array_equal(array, again[name])
    assert not np.array_equal(first[0]["image"], other[0]["image"])


@pytest.mark.parametrize("kind", [kind for kind in InputKind if kind is not InputKind.ZEROS])
def test_seeded_boxes_overlap_and_scores_differ(kind: InputKind) -> None:
    (feeds,) = seeded_inputs(parser.parse_model(HEAD), seed=0, kinds=[kind])
    scores, boxes = feeds["scores"], feeds["boxes"].astype(np.float64)[0]
    assert len(np.unique(scores)) == scores.size
    if kind is InputKind.NORMAL:
        boxes = np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2])
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    overlap = np.prod(np.clip(high - low, 0, None), axis=-1)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    iou = (overlap / (area[:, None] + area[None] - overlap))[np.triu_indices(len(boxes), 1)]
    assert (iou > 0.5).any()
    assert ((iou > 0) & (iou < 0.5)).any()
    assert (iou == 0).any()


def test_seeded_inputs_need_shapes_and_pass_frozen_values_on() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 2] x, int64[1] limit) => (float[n, 2] y) { y = Identity(x) }
    """
    model = parser.parse_model(text)
    with pytest.raises(UsageError, match=r"'x' is \[n, 2\].*--input-shape"):
        seeded_inputs(model, seed=0)
    (feeds,) = seeded_inputs(
        model,
        seed=0,
        kinds=[InputKind.NORMAL],
        input_shapes={"x": (3, 2)},
        freeze={"limit": np.array(100.0)},
    )
    assert feeds["x"].shape == (3, 2)
    assert feeds["limit"].dtype == np.int64
    assert feeds["limit"].tolist() == [100]


@pytest.mark.parametrize(
    ("declared", "given", "expected"),
    [
        ("int64", np.array(100.0), np.array(100)),
        ("int64[1]", np.array(2**62), np.array([2**62])),
        ("float", np.array([0.1]), np.array(0.1, np.float32)),
        ("float[2, n]", np.array([[1], [2]]), np.array([[1], [2]], np.float32)),
        ("bool", np.array(1), np.array(True)),
    ],
)
def test_a_value_takes_the_declared_type(declared: str, given: Array, expected: Array) -> None:
    value = parser.parse_graph(f"g ({declared} x) => (int64 y) {{ }}").input[0]
    fitted = as_declared(value, given)
    assert fitted.dtype == expected.dtype
    np.testing.assert_array_equal(fitted, expected)


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ("int64", np.array(0.5)),
        ("uint8", np.array(300)),
        ("bool", np.array(2)),
        ("int64", np.array([1, 2])),
        ("float[3]", np.array([1, 2])),
        ("float[2, 2]", np.array([1, 2, 3, 4])),
        ("int64", np.array(np.inf)),
    ],
)
def test_a_value_that_does_not_fit_is_usage(declared: str, given: Array) -> None:
    value = parser.parse_graph(f"g ({declared} x) => (int64 y) {{ }}").input[0]
    with pytest.raises(UsageError, match="'x'"):
        as_declared(value, given)


SHAPES = """
g (float[n, 4] boxes, float[n] scores, float[1, 3, h, 8] image) => (float y) { }
"""


def test_a_symbol_has_one_size_everywhere() -> None:
    inputs = parser.parse_graph(SHAPES).input
    assert input_shapes_of(inputs, {"boxes": (5, 4)}) == {
        "boxes": (5, 4),
        "scores": (5,),
        "image": (1, 3, None, 8),
    }
    inputs[1].type.tensor_type.shape.dim[0].dim_value = -1
    assert input_shapes_of(inputs, {"image": (1, 3, 2, 8)}) == {
        "boxes": (None, 4),
        "scores": (None,),
        "image": (1, 3, 2, 8),
    }
    inputs[1].type.tensor_type.ClearField("shape")
    assert input_shapes_of(inputs, {})["scores"] is None
    assert input_shapes_of(inputs, {"scores": (2, 2)})["scores"] == (2, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"box": (5, 4)}, "no such input; it has boxes, scores, image"),
        ({"boxes": (5, 3)}, r"contradicts.*\[n, 4\]"),
        ({"boxes": (5,)}, r"not 2 sizes"),
        ({"boxes": (0, 4)}, r"at least 1"),
        ({"boxes": (5, 4), "scores": (6,)}, r"scores=6 contradicts"),
    ],
)
def test_shapes_that_do_not_fit_are_usage(given: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        input_shapes_of(parser.parse_graph(SHAPES).input, given)


def test_a_skeleton_has_no_weights_and_gets_them_back() -> None:
    model = parser.parse_model(PLAIN)
    weights = numpy_helper.from_array(np.arange(5000, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    model.doc_string, model.producer_name = "mine", "me"
    helper.set_model_props(model, {"a": "b"})
    before = model.SerializeToString(deterministic=True)
    light = skeleton(model)
    onnx.checker.check_model(light, full_check=True)
    assert [tensor.name for tensor in light.graph.initializer] == ["w"]
    assert [value.name for value in light.graph.input] == ["x", "weights"]
    assert light.ByteSize() < 1000
    assert with_weights(light, model).SerializeToString(deterministic=True) == before
    assert model.SerializeToString(deterministic=True) == before


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    data = parser.parse_model(
        PLAIN.replace("y)", "name)").replace("y =", "name =")
    ).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(b"name", b"n\xffme"))
    with pytest.raises(UnsupportedModelError, match="not text"):
        load(path)


def test_unknown_element_types_are_refused(tmp_path: Path) -> None:
    model = parser.parse_model(PLAIN)
    model.graph.input[0].type.tensor_type.elem_type = 114
    with pytest.raises(UnsupportedModelError, match=r"'x'.*element type 114"):
        load(write(tmp_path, model))
