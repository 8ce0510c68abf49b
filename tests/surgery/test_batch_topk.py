"""Equal branches become one, bit for bit; branches that differ stay."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import surgery
from bridge.model import load
from bridge.options import Options
from bridge.surgery import runner
from bridge.surgery.batch_topk import batch_topk
from bridge.surgery.runner import Pass
from tests.counting import calls
from tests.shared import SHARED, needs_shared
from tests.surgery.judge import assert_all_equal, assert_same, compiled
from tests.surgery.ssd_head import K, N, branch, head, ssd
from tests.surgery.static_text import apply, operators, static_model

BATCH = Pass("batch-topk", batch_topk)
# Must stay.


def test_a_graph_without_topk_stays() -> None:
    model = static_model(
        "float[4, 2] x",
        "float[8] y",
        "i = Constant<value_int = 0>() j = Constant<value_int = 1>() a = Gather<axis = 1>(x, i) "
        "b = Gather<axis = 1>(x, j) c = Exp(a) d = Exp(b) y = Concat<axis = 0>(c, d)",
    )
    result, report, _ = apply(BATCH, model)
    assert result is model
    assert not report.findings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= Greater(s2, limit)", "= GreaterOrEqual(s2, limit)"),
        ("TopK<axis = 0>(masked2", "TopK<axis = 0, largest = 0>(masked2"),
        ("s2 = Gather<axis = 1>(scores, c2)", "r2 = Gather<axis = 1>(scores, c2) s2 = Tanh(r2)"),
        ("s2 = Gather<axis = 1>(scores", "other = Neg(scores) s2 = Gather<axis = 1>(other"),
    ],
)
def test_branches_that_differ_stay(old: str, new: str) -> None:
    branches = [branch(c) for c in (1, 2, 3)]
    assert old in branches[1]
    branches[1] = branches[1].replace(old, new)
    model = head(branches)
    result, _, _ = apply(BATCH, model)
    assert operators(result).count("TopK") == 3
    assert_same(model, result)


def test_branches_of_operators_without_a_rule_stay() -> None:
    branches = [branch(c).replace(f"Greater(s{c}", f"Greater(t{c}") for c in (1, 2, 3)]
    branches = [f"{text.replace(f'mask{c} =', f't{c} = Softmax<axis = 0>(s{c}) mask{c} =')}"
                for c, text in zip((1, 2, 3), branches, strict=True)]  # fmt: skip
    model = head(branches)
    result, _, _ = apply(BATCH, model)
    assert operators(result).count("TopK") == 3


def test_a_float_sum_stays() -> None:
    branches = []
    for c in (1, 2, 3):
        text = branch(c).replace(
            f"bits{c} = Cast<to = 7>(mask{c})", f"bits{c} = Cast<to = 1>(mask{c})"
        )
        text = text.replace(
            f"passed{c} = ReduceSum(bits{c}, zero)",
            f"sum{c} = ReduceSum(bits{c}, zero) passed{c} = Cast<to = 7>(sum{c})",
        )
        branches.append(text)
    model = head(branches)
    result, _, _ = apply(BATCH, model)
    assert operators(result).count("ReduceSum") == 3
    assert_same(model, result)


def test_a_branch_that_is_read_by_itself_keeps_all() -> None:
    model = head([branch(c) for c in (1, 2, 3)], "alone = Neg(top2)", f", float[{K}] alone")
    result, report, _ = apply(BATCH, model)
    assert result is model
    (finding,) = report.findings
    assert finding.what == "3 equal branches stay as they are: n_alone reads one of them"


# Must change.


def test_one_branch_is_left() -> None:
    model = ssd(20)
    result, report, _ = apply(BATCH, model)
    (finding,) = report.findings
    assert finding.what == "20 equal branches joined: 1 TopK in place of 20"
    assert len(result.graph.node) <= 20 < len(model.graph.node)
    assert_same(model, result)


COMPILED = (compiled(ssd(3)), compiled(apply(BATCH, ssd(3))[0]))
some_scores = st.lists(
    st.one_of(st.sampled_from([0.0, 0.4, 0.5, 1.0, np.inf, -np.inf]), st.floats(-1, 2, width=32)),
    min_size=4 * N,
    max_size=4 * N,
)


@given(values=some_scores)
@settings(max_examples=200, deadline=None)
def test_ties_and_limits_are_decided_the_same(values: list[float]) -> None:
    feeds = {
        "scores": np.array(values, np.float32).reshape(N, 4),
        "boxes": np.arange(4 * N, dtype=np.float32).reshape(N, 4),
    }
    judge, candidate = COMPILED
    assert_all_equal(judge(feeds), candidate(feeds))


def test_ten_times_the_classes_take_about_ten_times_the_work() -> None:
    few, many = (
        calls(partial(runner.edit, ssd(classes), Options(), (BATCH,))) for classes in (10, 100)
    )
    assert many < 11 * few


@needs_shared
@pytest.mark.parametrize("name", ["tiny_ssd.ts.op11", "tiny_ssd.ts.op17", "tiny_ssd.dypatch.opdef"])
def test_real_ssd_heads_have_one_topk(name: str) -> None:
    source = load(SHARED / "exports" / f"{name}.onnx").model
    with_it = surgery.run(source, Options())
    others = tuple(step for step in surgery.PASSES if step.name != BATCH.name)
    without = runner.run(source, Options(), others)
    assert operators(without.static.model).count("TopK") == 3
    assert operators(with_it.static.model).count("TopK") == 1
    assert_same(without.static.model, with_it.static.model)
