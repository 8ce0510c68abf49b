"""What every pass owes, asked of all of them: a new pass is held to it by standing in PASSES."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from bridge import static_nms, surgery
from bridge.model import InputKind, load, seeded_inputs
from bridge.options import BoxLayout, Options
from bridge.surgery import PASSES, runner
from bridge.surgery.runner import Pass
from tests.shared import SHARED, needs_shared
from tests.surgery.judge import assert_same
from tests.surgery.ssd_head import ssd
from tests.surgery.static_text import apply, static_model

EVERY = pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)

CENTRED = """
    idle = Identity(boxes) one = Concat<axis = 0>(idle) last = Constant<value_ints = [-1]>()
    best = Gather<axis = 0>(rows, last)
    y, n = bridge.StaticNMS<max_output_boxes_per_class = 4, iou_threshold = 0.5,
        score_threshold = 0.1, center_point_box = 1, rows = 4>(one, scores)
"""
TRICK = """
    ids = ArgMax<axis = 1, keepdims = 0>(logits) number = Cast<to = 1>(ids)
    step = Constant<value_float = 4096.0>() shift = Mul(number, step)
    axis = Constant<value_ints = [1]>() column = Unsqueeze(shift, axis) moved = Add(plain, column)
    first = Constant<value_ints = [0]>() apart = Unsqueeze(moved, first)
    y, n = bridge.StaticNMS<max_output_boxes_per_class = 4, iou_threshold = 0.5,
        score_threshold = 0.1, center_point_box = 0, rows = 4>(apart, scores)
"""


def touched() -> dict[str, onnx.ModelProto]:
    """Small models that hold what the passes look for."""
    return {
        "fix-box-layout": static_model(
            "float[1, 9, 4] boxes, float[1, 1, 9] scores, float[5, 2] rows",
            "int64[4, 3] y, int64[1] n, float[1, 2] best",
            CENTRED,
        ),
        "batch-topk": ssd(4),
        "simplify": static_model(
            "float[3, 4] x",
            "float[3, 4] y",
            "a = Cast<to = 1>(x) b = Concat<axis = 0>(a) c = Clip(b, , high) y = Neg(c) "
            "high = Constant<value_float = 1.0>()",
        ),
        "recover-classes": static_model(
            "float[9, 4] plain, float[1, 1, 9] scores, float[9, 3] logits",
            "int64[4, 3] y, int64[1] n",
            TRICK,
        ),
    }


UNRELATED = """
<ir_version: 8, opset_import: ["" : 17], doc_string: "not a detector">
g (float[1, 3, 8, 8] x) => (float[1, 4] y) <float[4, 3, 3, 3] w>
{ [conv] c = Conv(x, w) [relu] r = Relu(c) [pool] p = GlobalAveragePool(r) [flat] y = Flatten(p) }
"""
OPTIONS = Options(class_aware=True)


def test_names_are_words_for_people_and_never_twice() -> None:
    names = [step.name for step in PASSES]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and " " not in name for name in names)


@EVERY
def test_a_pass_does_what_it_is_for(step: Pass) -> None:
    """And, in `apply`: valid, idempotent, honest, and the model it was given left alone."""
    model = touched()[step.name]
    result, report, assumptions = apply(step, model, OPTIONS)
    assert report.name == step.name
    assert report.changed
    assert any(finding.changed for finding in report.findings)
    assert bool(assumptions) == (step.name == "recover-classes")
    assert_same(model, result, *seeded_inputs(model, seed=4))


@EVERY
@pytest.mark.parametrize("name", touched())
def test_a_pass_moves_no_bit_of_any_model(step: Pass, name: str) -> None:
    model = touched()[name]
    result, _, _ = apply(step, model, OPTIONS)
    assert_same(model, result, *seeded_inputs(model, seed=5))


@EVERY
@pytest.mark.parametrize("layout", [None, *BoxLayout])
def test_a_pass_leaves_an_unrelated_model_alone(step: Pass, layout: BoxLayout | None) -> None:
    model = parser.parse_model(UNRELATED.replace("w>", f"w = {{{', '.join(['0.5'] * 108)}}}>"))
    typed = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    result, report, assumptions = apply(step, typed, Options(box_layout=layout, class_aware=True))
    assert result is typed
    assert not report.findings
    assert not assumptions


@EVERY
def test_a_pass_is_deterministic(step: Pass) -> None:
    model = touched()[step.name]
    first, second = (apply(step, model, OPTIONS)[0].SerializeToString() for _ in range(2))
    assert first == second


REAL = sorted(path for kind in ("exports", "cases") for path in SHARED.glob(f"{kind}/*.onnx"))
FREE = {"boxes": (50, 4), "scores": (50,), "idxs": (50,)}


@needs_shared
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_all_passes_together_move_no_bit_of_a_real_model(path: Path) -> None:
    """Each pass by itself on the static model, and the whole on it: equal to no pass at all."""
    if path.stem == "case_trt_efficient_nms":
        return  # refused, see test_normalise
    source = load(path).model
    names = {value.name for value in source.graph.input}
    shapes = {n: s for n, s in FREE.items() if n in names} if "_dyn." in path.name else {}
    options = Options(input_shapes=shapes)
    plain = runner.run(source, options, ()).static
    whole = surgery.run(source, options).static
    sets = seeded_inputs(
        source, seed=6, kinds=[InputKind.UNIFORM, InputKind.NORMAL], input_shapes=shapes
    )
    assert_same(plain.model, whole.model, *sets)
    for step in PASSES:
        apply(step, plain.model, options)
    assert {call.name for call in static_nms.calls(whole.model)} == {
        call.name for call in static_nms.calls(plain.model)
    }
