"""Which output is which, what happens where that cannot be told, and what is left of the model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bridge.errors import UnsupportedModelError, UsageError
from bridge.heads import HeadOptions, complete
from tests.heads.models import runner
from tests.heads.networks import Raw, image, network
from tests.shared import SHARED, needs_shared

SIZE = (64, 64)
ROWS = ((8, 4), (16, 4))


def two_alike(first: str, second: str) -> onnx.ModelProto:
    """Boxes and the scores of four classes: equal shapes."""
    return network(SIZE, [Raw(first, ROWS, "rows"), Raw(second, ROWS, "rows")])


def test_names_decide_where_shapes_cannot() -> None:
    for first, second in (("my_boxes", "my_scores"), ("my_scores", "my_boxes")):
        model = two_alike(first, second)
        raw = runner(model)(image(SIZE))
        options = HeadOptions(-10, 1, 1000)
        found = runner(complete(model, "boxes", options))(image(SIZE))
        assert found["scores"].max() == raw["my_scores"].max()


def test_where_nothing_decides_the_user_is_asked() -> None:
    model = two_alike("a", "b")
    with pytest.raises(UsageError) as error:
        complete(model, "boxes")
    message = str(error.value)
    assert "boxes=a, scores=b and boxes=b, scores=a fit equally" in message
    assert "--head-option outputs.boxes.name=..." in message
    raw = runner(model)(image(SIZE))
    options = HeadOptions(-10, 1, 1000, overrides=("outputs.boxes.name=b",))
    found = runner(complete(model, "boxes", options))(image(SIZE))
    assert found["scores"].max() == raw["a"].max()


@pytest.mark.parametrize(
    ("head", "overrides", "message"),
    [
        (
            "yolox",
            (),
            "found no output for predictions as '1 N C' with 64 + 16 + 4 rows (strides 8",
        ),
        ("yolox", ("strides=[8,16]",), "too few columns for a class"),
        ("boxes", ("outputs.boxes.name=loc",), "found no output for boxes as '1 N C' or '1 C N'"),
        ("boxes", ("classes=7",), "with 7 classes"),
        ("fcos", ("strides=[8,16]",), "2 strides, but 5 priors per stride"),
        ("ssd", ("strides=[8,16]", "priors.sizes=[9,9]", "maps=[[8,8]]"), "2 strides, but 1 maps"),
    ],
)
def test_a_head_that_does_not_fit_says_why(
    head: str, overrides: tuple[str, ...], message: str
) -> None:
    model = network(SIZE, [Raw("boxes", ROWS, "rows"), Raw("logits", ROWS, "rows")])
    with pytest.raises(UsageError) as error:
        complete(model, head, HeadOptions(overrides=overrides))
    assert message in str(error.value)


def test_formulas_whose_columns_do_not_meet(tmp_path: Path) -> None:
    model = network(SIZE, [Raw("raw", tuple((s, 8) for s, _ in ROWS), "rows")])
    for line, message in {
        "value = 'box[0:3]'": "[box] value has 3 columns and needs 4",
        "value = 'box + cls'": "[box] value lets 3 columns meet 4: they must be as many",
        "value = 'expectation(cls)'": "takes the expectation of 3 columns",
        "value = 'swap(cls)'": "swaps 3 columns, which are no pairs",
        "value = 'box[7:9]'": "takes columns 4 to 4 of 4",
        "value = 'concat(box, points)'": "reads 'points', for which the model has no columns left",
    }.items():
        head = tmp_path / "head.toml"
        head.write_text(
            f"""
            [outputs.raw]
            layout = "1 N C"
            columns = {{ box = 4, cls = "classes", one = 1, points = "rest" }}
            [box]
            {line}
            [score]
            value = "cls"
            """
        )
        with pytest.raises(UsageError) as error:
            complete(model, head)
        assert message in str(error.value)


def test_priors_from_a_file(tmp_path: Path) -> None:
    model = network(SIZE, [Raw("raw", tuple((s, 5) for s, _ in ROWS), "rows")])
    corners = np.random.default_rng(0).uniform(0, 0.5, (80, 4)).astype(np.float32)
    corners[:, 2:] += corners[:, :2]
    np.save(tmp_path / "priors.npy", corners)
    head = tmp_path / "head.toml"
    head.write_text(
        """
        [outputs.raw]
        layout = "1 N C"
        columns = { xy = 2, wh = 2, cls = 1 }
        [priors]
        file = "priors.npy"
        layout = "xyxy"
        units = "fractions"
        [box]
        center = "prior_center + 0 * xy"
        size = "prior_size"
        [score]
        value = "cls"
        """
    )
    options = HeadOptions(-100, 1, 80)
    found = runner(complete(model, head, options))(image(SIZE))
    order = np.argsort(-runner(model)(image(SIZE))["raw"][0, :, 4], kind="stable")
    np.testing.assert_allclose(found["boxes"], corners[order] * 64, atol=1e-4)

    np.save(tmp_path / "priors.npy", corners[:79])
    with pytest.raises(UsageError, match=r"has 79 rows of prior_center, but the model has 80 rows"):
        complete(model, head)
    (tmp_path / "priors.npy").write_bytes(b"no array")
    with pytest.raises(UsageError, match="cannot read the priors"):
        complete(model, head)


def test_a_model_that_uses_our_names_inside() -> None:
    """Its `scores` and `boxes` are other tensors than those of the result, in a branch, too."""
    model = two_alike("boxes", "scores")
    condition = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("", 9, [], [1]))
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["scores"], [f"{op}_out"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, [1, 80, 4])],
        )
        for op in ("Identity", "Neg")
    ]
    choice = helper.make_node(
        "If", ["yes"], ["chosen_scores"], then_branch=branches[0], else_branch=branches[1]
    )
    model.graph.node.extend([condition, choice])
    model.graph.output[1].name = "chosen_scores"
    raw = runner(model)(image(SIZE))
    found = runner(complete(model, "boxes", HeadOptions(-10, 1, 1000)))(image(SIZE))
    assert found["scores"].max() == raw["chosen_scores"].max()


def test_what_no_output_needs_is_gone() -> None:
    model = network(
        SIZE, [*(Raw(n, ROWS, "rows") for n in ("boxes", "scores")), Raw("aux", ROWS, "rows")]
    )
    completed = complete(model, "boxes")
    assert "out_aux" not in {node.name for node in completed.graph.node}
    used = {name for node in completed.graph.node for name in node.input}
    assert {tensor.name for tensor in completed.graph.initializer} <= used


def test_the_argument_is_left_alone() -> None:
    model = two_alike("boxes", "scores")
    before = model.SerializeToString(deterministic=True)
    complete(model, "boxes")
    assert model.SerializeToString(deterministic=True) == before


def test_half_precision_outputs_become_float32() -> None:
    model = two_alike("boxes32", "scores32")
    for output, name in zip(model.graph.output, ("boxes", "scores"), strict=True):
        node = helper.make_node("Cast", [f"{name}32"], [name], to=TensorProto.FLOAT16)
        model.graph.node.append(node)
        output.name, output.type.tensor_type.elem_type = name, TensorProto.FLOAT16
    found = runner(complete(model, "boxes", HeadOptions(-10, 1, 1000)))(image(SIZE))
    assert {found["boxes"].dtype, found["scores"].dtype} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("ir_version", "opset"), [(3, 9), (4, 11), (8, 17), (10, 20)])
def test_old_and_new_files(ir_version: int, opset: int) -> None:
    """Before IR 4 every initializer is listed as an input, and some exporters do it still."""
    model = two_alike("boxes", "scores")
    model.ir_version, model.opset_import[0].version = ir_version, opset
    if ir_version < 8:
        model.graph.input.extend(
            helper.make_tensor_value_info(t.name, t.data_type, t.dims)
            for t in model.graph.initializer
        )
    onnx.checker.check_model(model)
    completed = complete(model, "boxes", HeadOptions(-10, 1, 1000))
    assert [value.name for value in completed.graph.input] == ["image"]
    found = runner(completed)(image(SIZE))
    assert found["scores"].max() == runner(model)(image(SIZE))["scores"].max()


def test_symbolic_sizes_are_fixed_or_asked_for() -> None:
    model = two_alike("boxes", "scores")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for axis, name in ((0, "batch"), (2, "height"), (3, "width")):
        dims[axis].dim_param = name
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match="--input-shape image="):
        complete(model, "boxes")
    options = HeadOptions(-10, 1, 1000, input_shapes={"image": (1, 3, 64, 64)})
    assert len(runner(complete(model, "boxes", options))(image(SIZE))["scores"]) > 10


@needs_shared
@pytest.mark.parametrize(
    "file", ["blazeface-front-e2e.onnx", "nms-yolov8.onnx", "rtmdet-nano-person.onnx"]
)
def test_a_model_that_suppresses_is_refused(file: str) -> None:
    with pytest.raises(UsageError, match=r"has a suppression of its own \(NonMaxSuppression, node"):
        complete(onnx.load(SHARED / "models" / file), "boxes")
