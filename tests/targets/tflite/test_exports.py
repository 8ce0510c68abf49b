"""Real exports and reproducer cases: tails bit-equal to onnxruntime's, networks close to it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bridge import static_nms, surgery
from bridge.errors import UnsupportedModelError
from bridge.model import load
from bridge.options import Options
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import Array, Lowered
from bridge.targets.tflite import TFLITE
from tests.shared import SHARED, needs_shared
from tests.targets.tflite.emitting import onnxruntime_outputs

pytestmark = needs_shared

FOREIGN = "case_trt_efficient_nms"
TWO_STAGE = "tiny_frcnn.ts.op17"
FEW = (
    "user_report_s.ts.op11",
    "tiny_ssd.ts.op17",
    "yolo8_topk_s.ts.op17",
    "per_class_loop.ts.op17",
)
# Sigmoid or Exp in the tail: onnxruntime's own last bits are open there.
OPEN_BITS = ("case_iou_zero_logits", "tiny_retina.")

CASES = sorted(path.stem for path in SHARED.glob("cases/*.onnx") if path.stem != FOREIGN)
EXPORTS = sorted(
    path.name.removesuffix(".onnx")
    for path in SHARED.glob("exports/*.onnx")
    if path.name.removesuffix(".onnx") != TWO_STAGE
)


def source(name: str) -> Path:
    folder = "cases" if name.startswith("case_") else "exports"
    return SHARED / folder / f"{name}.onnx"


def stored(name: str) -> list[Array]:
    """The inputs stored beside a model, in order."""
    arrays = np.load(source(name).with_suffix(".npz"))
    prefix = "s0_in_" if "n_sets" in arrays.files else "in"
    count = sum(key.startswith(prefix) for key in arrays.files)
    return [arrays[f"{prefix}{position}"] for position in range(count)]


def operated(name: str) -> StaticModel:
    model = load(source(name))
    shapes = {}
    for value, array in zip(model.model.graph.input, stored(name), strict=False):
        dims = value.type.tensor_type.shape.dim
        if any(not dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = array.shape
    return surgery.run(model.model, Options(input_shapes=shapes)).static


def feeds_for(static: StaticModel, name: str) -> list[dict[str, Array]]:
    """The stored input, and noise, and nothing."""
    rng = np.random.default_rng(0)
    types = tensor_types(static.model)
    sets: list[dict[str, Array]] = [{}, {}, {}]
    for value, array in zip(static.model.graph.input, stored(name), strict=True):
        type_ = types[value.name]
        floats = type_.dtype == "float32"
        noise = rng.standard_normal(type_.shape) if floats else rng.integers(0, 3, type_.shape)
        for feeds, numbers in zip(sets, (array, noise, np.zeros(type_.shape)), strict=True):
            feeds[value.name] = np.asarray(numbers).astype(type_.dtype)
    return sets


def with_border(static: StaticModel, lowered: Lowered) -> onnx.ModelProto:
    """The static model as plain ONNX, its border tensors outputs as well."""
    plain = static_nms.inline(static.model)
    types = tensor_types(static.model)
    present = {value.name for values in (plain.graph.output, plain.graph.input) for value in values}
    for name in lowered.border:
        if name not in present:
            element = helper.np_dtype_to_tensor_dtype(np.dtype(types[name].dtype))
            value = helper.make_tensor_value_info(name, element, types[name].shape)
            plain.graph.output.append(value)
    return plain


def check(name: str, folder: Path) -> None:
    static = operated(name)
    lowered = TFLITE.lower(static, Options(), folder)
    judge = with_border(static, lowered)
    names = [value.name for value in judge.graph.output]
    for feeds in feeds_for(static, name):
        expected = dict(zip(names, onnxruntime_outputs(judge, feeds), strict=True))
        known = {**feeds, **expected}
        border = {tensor: known[tensor] for tensor in lowered.border} or feeds
        for threads in (1, 4):
            with TFLITE.open(lowered.tail or lowered.path, threads=threads) as session:
                check_tail(name, lowered, session.run(border), expected)
        if lowered.network is not None:
            turned = {
                port.name: feeds[port.name].transpose(port.transpose or range(len(port.shape)))
                for port in lowered.inputs
            }
            with TFLITE.open(lowered.network) as session:
                check_network(session.run(turned), border)


def check_tail(
    name: str, lowered: Lowered, found: Mapping[str, Array], expected: Mapping[str, Array]
) -> None:
    for port in lowered.outputs:
        a, b = found[port.name], expected[port.name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if name.startswith(OPEN_BITS) and a.dtype == np.float32:
            assert np.allclose(a, b, rtol=2e-6, atol=1e-6)
        else:
            assert np.array_equal(a, b, equal_nan=a.dtype == np.float32), port.name


def check_network(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        assert found[name].shape == array.shape
        a, b = (np.asarray(numbers, np.float64) for numbers in (found[name], array))
        assert np.abs(a - b).max(initial=0) <= 1e-4 * np.abs(b).max(initial=1e-9), name


@pytest.mark.parametrize("name", [*CASES, *(name for name in EXPORTS if name in FEW)])
def test_tail_is_exact(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPORTS if name not in FEW])
def test_tail_of_every_export_is_exact(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_a_second_stage_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"RoiAlign.*stands behind TopK"):
        TFLITE.lower(operated(TWO_STAGE), Options(), tmp_path)
