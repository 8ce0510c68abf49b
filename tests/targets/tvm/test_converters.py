"""Every operator that has a converter, one by one, against onnxruntime."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from bridge.errors import UnsupportedModelError
from bridge.targets.tvm import TVM
from tests.targets.tvm import operators
from tests.targets.tvm.building import Array, Single, build, judge, lowered, model_of
from tests.targets.tvm.operators import one

FAMILIES = (
    operators.elementwise,
    operators.moving,
    operators.choosing,
    operators.reducing,
    pytest.param(operators.resizing, marks=pytest.mark.slow),
    pytest.param(operators.pooling_regions, marks=pytest.mark.slow),
    pytest.param(operators.network, marks=pytest.mark.slow),
)


def what_is_wrong(single: Single, expected: Array, found: Array) -> str | None:
    """What is wrong with an output; None where it is equal, or as close as the operator may be."""
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    if single.close == 0.0:
        same = np.array_equal(expected, found, equal_nan=expected.dtype.kind == "f")
    else:
        size = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
        same = np.allclose(expected, found, rtol=single.close, atol=single.close * size)
    if same:
        return None
    with np.errstate(invalid="ignore"):
        off = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    return f"off by up to {np.nanmax(off):.3g} in {int((off > 0).sum())} of {off.size}"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_operator_equals_onnxruntime(family: Callable[[], list[Single]]) -> None:
    singles = [replace(single, name=f"{i} {single.name}") for i, single in enumerate(family())]
    model, feeds = model_of(singles)
    expected = judge(model)(feeds)
    with lowered(model) as made, TVM.open(made.path) as session:
        found = session.run(feeds)
    wrong = {
        single.name: problem
        for single in singles
        for index in range(single.outputs)
        if (name := f"{single.name}.out{index}")
        and (problem := what_is_wrong(single, expected[name], found[name]))
    }
    assert not wrong


@pytest.mark.parametrize(
    "single",
    [
        one("Det", np.eye(3, dtype=np.float32)),
        one("MaxPool", np.ones((1, 1, 4, 4), np.float32), kernel_shape=[2, 2], outputs=2),
        one("TopK", np.ones(4), np.array([2]), held=(1,), outputs=2, label="of float64"),
        one("Pow", np.array([3]), np.array(5), held=(1,), label="of int64"),
        one("IsNaN", np.ones(3), label="of float64"),
        one(
            "GridSample",
            np.ones((1, 1, 3, 3), np.float32),
            np.ones((1, 1, 1, 2), np.float32),
            mode="bicubic",
        ),
    ],
    ids=lambda single: single.name,
)
def test_what_has_no_exact_lowering_is_refused_by_name(single: Single) -> None:
    model, _ = model_of([single])
    with pytest.raises(UnsupportedModelError, match=f"operator .*{single.op_type}") as refused:
        build(model)
    assert single.name in str(refused.value)


def test_an_operator_of_another_domain_is_refused_by_name() -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    made = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])
    node = helper.make_node("Relu", ["x"], ["y"], name="foreign", domain="other.domain")
    graph = helper.make_graph([node], "g", [value], [made])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("other.domain", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(UnsupportedModelError, match=r"'foreign'.*other.domain::Relu"):
        build(model)
