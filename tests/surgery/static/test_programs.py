"""Random heads stay what they were: the property that the whole walk owes."""

import pytest
from hypothesis import HealthCheck, given, settings

from bridge.errors import UnsupportedModelError
from bridge.static_model import StaticModel, tensor_types
from bridge.surgery.static import make_static
from tests.surgery.judge import compiled
from tests.surgery.static.held import assert_same_rows, assert_well_formed
from tests.surgery.static.programs import Step, feeds, program, steps

MOST_NUMBERS = 200_000
"""Larger programs only repeat themselves: Concat after Concat after product."""

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
LONG = settings(
    max_examples=2_000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def _holds(of: list[Step]) -> None:
    model = program(of)
    if not model.graph.output:
        return
    try:
        static = make_static(model)
    except UnsupportedModelError:
        return  # a refusal is never wrong; test_most_heads_are_taken bounds how many there are
    if _size(static) > MOST_NUMBERS:
        return
    assert_well_formed(static)
    source, candidate = compiled(model), compiled(static.model)
    for given_feed in feeds():
        try:
            expected = source(given_feed)
        except Exception:
            continue  # the source reads a row of none
        assert_same_rows(static, expected, candidate(given_feed))


def _size(static: StaticModel) -> int:
    types = tensor_types(static.model)
    sizes = [1]
    for value in static.model.graph.output:
        size = 1
        for dim in types[value.name].shape:
            size *= dim
        sizes.append(size)
    return max(sizes)


@QUICK
@given(steps())
def test_random_heads_stay_what_they_were(of: list[Step]) -> None:
    _holds(of)


@pytest.mark.slow
@LONG
@given(steps())
def test_two_thousand_random_heads_stay_what_they_were(of: list[Step]) -> None:
    _holds(of)


def test_most_heads_are_taken() -> None:
    """So that refusing everything does not pass for being right."""
    taken = refused = 0

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(steps())
    def count(of: list[Step]) -> None:
        nonlocal taken, refused
        model = program(of)
        if not model.graph.output:
            return
        try:
            make_static(model)
            taken += 1
        except UnsupportedModelError:
            refused += 1

    count()
    assert taken >= 9 * refused, (taken, refused)
