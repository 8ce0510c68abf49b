"""Every way to pick a lane, and every operator over lanes, is exact."""

import pytest

from bridge.surgery.batch_topk import batch_topk
from bridge.surgery.runner import Pass
from tests.surgery.judge import assert_same
from tests.surgery.ssd_head import K, branch, head, with_output
from tests.surgery.static_text import apply, operators

BATCH = Pass("batch-topk", batch_topk)
PICKS = {
    "Gather of a vector and Squeeze": (
        "v{c} = Constant<value_ints = [{c}]>() p{c} = Gather<axis = 1>(scores, v{c}) "
        "one{c} = Constant<value_ints = [1]>() s{c} = Squeeze(p{c}, one{c})"
    ),
    "Slice and Squeeze": (
        "f{c} = Constant<value_ints = [{c}]>() u{c} = Constant<value_ints = [{d}]>() "
        "one{c} = Constant<value_ints = [1]>() p{c} = Slice(scores, f{c}, u{c}, one{c}) "
        "s{c} = Squeeze(p{c}, one{c})"
    ),
    "Slice from the end and Reshape": (
        "f{c} = Constant<value_ints = [{c}]>() u{c} = Constant<value_ints = [{d}]>() "
        "one{c} = Constant<value_ints = [-1]>() p{c} = Slice(scores, f{c}, u{c}, one{c}) "
        "n{c} = Constant<value_ints = [-1]>() s{c} = Reshape(p{c}, n{c})"
    ),
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS.keys())
def test_every_way_to_pick_a_class(pick: str) -> None:
    branches = [
        branch(c).replace(f"s{c} = Gather<axis = 1>(scores, c{c})", pick.format(c=c, d=c + 1))
        for c in (1, 2, 3, 4)
    ]
    model = head(branches)
    result, report, _ = apply(BATCH, model)
    assert report.changed
    assert operators(result).count("TopK") == 1
    assert_same(model, result)


def test_classes_that_a_split_parted() -> None:
    split = "p0, p1, p2, p3 = Split<axis = 1>(scores) one = Constant<value_ints = [1]>() "
    branches = [
        branch(c).replace(f"s{c} = Gather<axis = 1>(scores, c{c})", f"s{c} = Squeeze(p{c}, one)")
        for c in (1, 2, 3)
    ]
    model = head([split + branches[0], *branches[1:]])
    result, report, _ = apply(BATCH, model)
    assert report.changed
    assert operators(result).count("TopK") == 1
    assert_same(model, result)


OPERATORS = [
    # What a branch does behind its TopK, to tensors [K] and [K, 4], and constants of its own.
    "m{c} = Constant<value_float = {c}.5>() y{c} = Mul(top{c}, m{c})",
    "m{c} = Constant<value_floats = [{c}.0, 2.0, 3.0, 4.0]>() z{c} = Add(box{c}, m{c}) "
    "y{c} = ReduceMax<axes = [-1], keepdims = 0>(z{c})",
    "z{c} = Transpose<perm = [1, 0]>(box{c}) y{c} = ReduceMin<axes = [0], keepdims = 0>(z{c})",
    "y{c} = ReduceMax(box{c})",
    "z{c} = ArgMax<axis = 1, keepdims = 0>(box{c}) y{c} = Cast<to = 1>(z{c})",
    "a{c} = Constant<value_ints = [1]>() b{c} = Constant<value_ints = [3]>() "
    "z{c} = Slice(box{c}, a{c}, b{c}, a{c}) y{c} = Clip(z{c}, low, limit)",
    "z{c} = Flatten<axis = 0>(box{c}) y{c} = Sqrt(z{c})",
    "z{c} = Unsqueeze(index{c}, one) y{c} = GatherND(boxes, z{c})",
    "z{c} = Sub(index{c}, index{c}) y{c} = Gather(top{c}, z{c})",
    "z{c} = Gather(s{c}, index{c}) y{c} = Neg(z{c})",
    "z{c} = Unsqueeze(index{c}, one) y{c} = GatherND(s{c}, z{c})",
    "i{c} = Constant<value_ints = [3, 0]>() z{c} = Gather<axis = 1>(box{c}, i{c}) y{c} = Exp(z{c})",
    "z{c} = Unsqueeze(top{c}, one) y{c} = Mul(box{c}, z{c})",
    "y{c} = Mul(boxes_row, top{c})",
]  # fmt: skip


@pytest.mark.parametrize("tail", OPERATORS)
def test_every_operator_over_lanes_is_exact(tail: str) -> None:
    branches = [branch(c) + tail.format(c=c) for c in (1, 2, 3)]
    shared = (
        f"row = Constant<value_ints = {list(range(K))}>() boxes_row = Cast<to = 1>(row) "
        "one = Constant<value_ints = [1]>() "
    )
    plain = head([shared + branches[0], *branches[1:]], "y = Concat<axis = 0>(y1, y2, y3)", "")
    model = with_output(plain, "y")
    result, report, _ = apply(BATCH, model)
    assert report.changed
    assert operators(result).count("TopK") == 1
    assert_same(model, result)
