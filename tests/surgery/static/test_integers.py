"""Symbolic integers: sound for every value of the unknowns."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.surgery.static.integers import (
    Condition,
    Int,
    Linear,
    Truth,
    Unknown,
    divide,
    emptiness,
    equal,
    hi,
    is_negative,
    is_zero,
    less,
    linear,
    lo,
    negate,
    negative_form,
    of,
    product,
    surely_at_most,
    where_zero,
)
from bridge.surgery.static.integers import (
    Test as Question,
)

N = Unknown("n", 0, 6)
M = Unknown("m", 0, 4, at_most=(of(N),))
K = Unknown("k", 0, 3, at_most=(of(N), 3), is_least=True)
Z = Unknown("z", -2, 2)
UNKNOWNS = (N, M, K, Z)


@st.composite
def values(draw: st.DrawFn) -> dict[Unknown, int]:
    """Any values that the bounds allow."""
    n = draw(st.integers(0, 6))
    return {N: n, M: draw(st.integers(0, min(4, n))), K: min(n, 3), Z: draw(st.integers(-2, 2))}


ints = st.builds(
    lambda factors, constant: linear(dict(zip(UNKNOWNS, factors, strict=True)), constant),
    st.tuples(*[st.integers(-3, 3)] * 4),
    st.integers(-9, 9),
)


def at(x: Int, known: Mapping[Unknown, int]) -> int:
    return x.constant + sum(k * known[u] for u, k in x.terms) if isinstance(x, Linear) else x


def truth_at(truth: Truth, known: Mapping[Unknown, int]) -> bool:
    if isinstance(truth, bool):
        return truth
    number = at(truth.of, known)
    return (number == 0 if truth.test is Question.ZERO else number < 0) != truth.negated


@given(ints, ints, st.integers(-4, 4), values())
def test_arithmetic(a: Int, b: Int, k: int, known: dict[Unknown, int]) -> None:
    assert at(a + b, known) == at(a, known) + at(b, known)
    assert at(a - b, known) == at(a, known) - at(b, known)
    assert at(k - a, known) == k - at(a, known)
    assert at(a * k, known) == at(k * a, known) == k * at(a, known)
    assert lo(a) <= at(a, known) <= hi(a)


@given(ints, st.integers(-3, 3), values())
def test_exact_division(a: Int, k: int, known: dict[Unknown, int]) -> None:
    quotient = divide(a, k)
    if quotient is not None:
        assert at(quotient, known) * k == at(a, known)
    assert k == 0 or divide(a * k, k) == a


@given(ints, ints, values())
def test_comparisons(a: Int, b: Int, known: dict[Unknown, int]) -> None:
    assert truth_at(equal(a, b), known) == (at(a, known) == at(b, known))
    assert truth_at(less(a, b), known) == (at(a, known) < at(b, known))
    assert truth_at(negate(less(a, b)), known) == (at(a, known) >= at(b, known))
    assert equal(a, b) == equal(b, a)
    if surely_at_most(a, b):
        assert at(a, known) <= at(b, known)


@given(ints, values())
def test_negative_form(a: Int, known: dict[Unknown, int]) -> None:
    condition = is_negative(a)
    if isinstance(condition, Condition):
        form = negative_form(condition)
        assert form is not None
        assert (at(form, known) < 0) == truth_at(condition, known)


@given(ints, values())
def test_a_test_for_no_rows_is_one(a: Int, known: dict[Unknown, int]) -> None:
    for truth in (is_zero(a), is_negative(a)):
        asked = emptiness(truth) if isinstance(truth, Condition) else None
        if asked is not None:
            zeros, holds_then = asked
            none = all(known[unknown] == 0 for unknown in zeros)
            assert (truth_at(truth, known) == holds_then) == none


@given(ints, values())
def test_what_is_left_without_rows(a: Int, known: dict[Unknown, int]) -> None:
    for zeros in (frozenset({N}), frozenset({M}), frozenset({N, Z})):
        if all(known[unknown] == 0 for unknown in zeros):
            assert at(where_zero(a, zeros), known) == at(a, known)


def test_what_never_exceeds_rows_is_zero_without_them() -> None:
    assert where_zero(of(M) * 2 + 1, frozenset({N})) == 1
    assert where_zero(of(N), frozenset({M})) == of(N)
    assert where_zero(of(Unknown("c", -1, 5, at_most=(of(N),))), frozenset({N})) != 0


def test_where_the_least_is_zero_its_operand_is() -> None:
    condition = is_zero(of(K))
    assert isinstance(condition, Condition)
    assert emptiness(condition) == (frozenset({K, N}), True)
    condition = is_zero(of(M))
    assert isinstance(condition, Condition)
    assert emptiness(condition) == (frozenset({M}), True)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (is_zero(of(N) * 4), True),
        (less(of(N), 1), True),
        (less(of(N) * 4, 3), True),
        (negate(less(of(N), 1)), False),
        (less(0, of(N)), False),
        (less(of(N), 2), None),
        (less(of(N) * 4, 5), None),
        (is_zero(of(N) - 1), None),
        (is_zero(of(N) - of(M)), None),
        (is_zero(of(Z)), None),
    ],
)
def test_what_asks_for_no_rows(asked: Truth, answer: bool | None) -> None:
    assert isinstance(asked, Condition)
    found = emptiness(asked)
    assert (None if found is None else found[1]) == answer


def test_a_number_that_stands_for_a_condition() -> None:
    condition = is_zero(of(N))
    assert isinstance(condition, Condition)
    flag = of(Unknown("flag", 0, 1, truth=condition))
    assert is_zero(flag) == negate(condition)
    assert is_zero(flag - 1) == condition
    assert is_zero(1 - flag) == condition
    assert is_zero(flag * 2 - 1) is False
    assert less(flag, 1) == negate(condition)
    assert less(0, flag) == condition


def test_proofs_by_what_is_never_exceeded() -> None:
    assert surely_at_most(of(M), of(N))
    assert surely_at_most(of(K), of(N))
    assert surely_at_most(of(K), 3)
    assert not surely_at_most(of(N), of(M))
    assert surely_at_most(of(M) * 2, of(N) * 2)
    assert not surely_at_most(of(M) * 2, of(N))


def test_a_sum_of_many_counts_is_compared_at_once() -> None:
    rows = [Unknown(f"n{k}", 0, 99) for k in range(90)]
    least = [Unknown(f"k{k}", 0, 9, at_most=(of(n), 9), is_least=True) for k, n in enumerate(rows)]
    total: Int = sum((of(k) for k in least), 0)
    assert surely_at_most(total, 810)
    assert not surely_at_most(total, 809)
    assert not surely_at_most(total, sum((of(n) for n in rows), 0) - 1)


def test_products() -> None:
    assert product([2, of(N), 3]) == of(N) * 6
    assert product([]) == 1
    assert product([of(N), of(M)]) is None
