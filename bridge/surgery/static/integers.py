"""Symbolic integers: what is known at conversion time of a number that exists at run time.

An `Int` is a plain `int` or a `Linear`: a constant plus multiples of unknowns. An unknown *is* an
int64[1] tensor of the static graph, so two unknowns are the same number exactly where they are the
same tensor (equal nodes are emitted once), and every `Int` can be computed at run time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

INT64_MAX = 2**63 - 1

# Exporters write "to the end" as any of several huge numbers (2**31 - 1, 2**62, 2**63 - 1).
# No tensor has an axis that long.
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Unknown:
    """An int64[1] tensor of the graph with bounds that always hold.

    Attributes:
        tensor: identity of the tensor that holds it.
        at_most: other integers it never exceeds; what proves that it is zero where they are.
        is_least: it is the smallest of `at_most`, not only below them.
        truth: the unknown is 1 where this condition holds and 0 elsewhere.
    """

    tensor: str
    lo: int = field(compare=False)
    hi: int = field(compare=False)
    at_most: "tuple[Int, ...]" = field(default=(), compare=False)
    is_least: bool = field(default=False, compare=False)
    truth: "Condition | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant + sum(coefficient * unknown)`, with at least one unknown, sorted by tensor."""

    terms: tuple[tuple[Unknown, int], ...]
    constant: int

    @property
    def lo(self) -> int:
        """The smallest value the bounds of the unknowns allow."""
        return self.constant + sum(min(k * u.lo, k * u.hi) for u, k in self.terms)

    @property
    def hi(self) -> int:
        """The largest value the bounds of the unknowns allow."""
        return self.constant + sum(max(k * u.lo, k * u.hi) for u, k in self.terms)

    def __add__(self, other: "Int") -> "Int":
        terms = dict(self.terms)
        if isinstance(other, Linear):
            for unknown, factor in other.terms:
                terms[unknown] = terms.get(unknown, 0) + factor
            return linear(terms, self.constant + other.constant)
        return linear(terms, self.constant + other)

    __radd__ = __add__

    def __mul__(self, factor: int) -> "Int":
        return linear({u: k * factor for u, k in self.terms}, self.constant * factor)

    __rmul__ = __mul__

    def __neg__(self) -> "Int":
        return self * -1

    def __sub__(self, other: "Int") -> "Int":
        return self + -1 * other

    def __rsub__(self, other: int) -> "Int":
        return -self + other


type Int = int | Linear


class Test(Enum):
    """What a condition asks of a number."""

    ZERO = "= 0"
    NEGATIVE = "< 0"


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison that the bounds do not decide: `of = 0`, `of < 0`, or the contrary of it.

    Normal form: the first coefficient is positive, so equal questions are equal conditions.
    """

    test: Test
    of: Linear
    negated: bool = False


type Truth = bool | Condition
type Element = int | Linear | bool | Condition | None
"""One element of a tensor whose values are followed; None is a bool nothing is known of."""


def linear(terms: Mapping[Unknown, int], constant: int) -> Int:
    """The linear form, as a plain int where no unknown is left."""
    kept = tuple(sorted(((u, k) for u, k in terms.items() if k), key=lambda term: term[0].tensor))
    return Linear(kept, constant) if kept else constant


def of(unknown: Unknown) -> Int:
    """The unknown itself; a plain int where its bounds leave one value only."""
    return unknown.lo if unknown.lo == unknown.hi else Linear(((unknown, 1),), 0)


def lo(x: Int) -> int:
    """Lower bound."""
    return x.lo if isinstance(x, Linear) else x


def hi(x: Int) -> int:
    """Upper bound."""
    return x.hi if isinstance(x, Linear) else x


def total(terms: Iterable[Int]) -> Int:
    """The sum, in time linear in the number of unknowns."""
    factors: dict[Unknown, int] = {}
    constant = 0
    for term in terms:
        if isinstance(term, Linear):
            constant += term.constant
            for unknown, factor in term.terms:
                factors[unknown] = factors.get(unknown, 0) + factor
        else:
            constant += term
    return linear(factors, constant)


def product(factors: Iterable[Int]) -> Int | None:
    """The product, or None where two unknowns would be multiplied."""
    result: Int = 1
    for factor in factors:
        if isinstance(factor, int):
            result = result * factor
        elif isinstance(result, int):
            result = factor * result
        else:
            return None
    return result


def divide(x: Int, divisor: int) -> Int | None:
    """`x / divisor` where that is exact for every value of the unknowns, else None."""
    if not divisor:
        return None
    if not isinstance(x, Linear):
        return x // divisor if x % divisor == 0 else None
    if x.constant % divisor or any(k % divisor for _, k in x.terms):
        return None
    return linear({u: k // divisor for u, k in x.terms}, x.constant // divisor)


def surely_at_most(a: Int, b: Int) -> bool:
    """Whether `a <= b` for every value of the unknowns; False where no short proof is found."""
    return _never_positive(a - b, _PROOF_STEPS)


_PROOF_STEPS = 6
_PROOF_TERMS = 4


def _never_positive(x: Int, steps: int) -> bool:
    """By bounds, or with one unknown replaced by something it never exceeds, and so on."""
    if hi(x) <= 0:
        return True
    # Only what is subtracted can make up for an unknown that is replaced.
    if not isinstance(x, Linear) or not steps or all(k > 0 for _, k in x.terms):
        return False
    return len(x.terms) <= _PROOF_TERMS and any(
        _never_positive(x - Linear(((u, k),), 0) + k * bound, steps - 1)
        for u, k in x.terms
        if k > 0
        for bound in u.at_most
    )


def negate(truth: Truth) -> Truth:
    """The contrary."""
    if isinstance(truth, Condition):
        return Condition(truth.test, truth.of, not truth.negated)
    return not truth


def is_zero(x: Int) -> Truth:
    """`x = 0`."""
    if not isinstance(x, Linear):
        return x == 0
    if x.lo > 0 or x.hi < 0:
        return False
    if len(x.terms) == 1 and (truth := x.terms[0][0].truth) is not None:
        off, on = x.constant == 0, x.constant + x.terms[0][1] == 0
        return False if not off and not on else (truth if on else negate(truth))
    return Condition(Test.ZERO, x if x.terms[0][1] > 0 else _linear(-x))


def _linear(x: Int) -> Linear:
    assert isinstance(x, Linear)
    return x


def is_negative(x: Int) -> Truth:
    """`x < 0`."""
    if surely_at_most(x, -1):
        return True
    if surely_at_most(0, x):
        return False
    assert isinstance(x, Linear)
    if len(x.terms) == 1 and (truth := x.terms[0][0].truth) is not None:
        return truth if x.constant + x.terms[0][1] < 0 else negate(truth)
    if x.terms[0][1] < 0:
        return Condition(Test.NEGATIVE, _linear(-x - 1), negated=True)
    return Condition(Test.NEGATIVE, x)


def negative_form(condition: Condition) -> Linear | None:
    """The x of a condition that says `x < 0`; None for a test of zero."""
    if condition.test is Test.ZERO:
        return None
    return _linear(-condition.of - 1) if condition.negated else condition.of


def equal(a: Int, b: Int) -> Truth:
    """`a = b`."""
    return is_zero(a - b)


def less(a: Int, b: Int) -> Truth:
    """`a < b`."""
    return is_negative(a - b)


def emptiness(condition: Condition) -> tuple[frozenset[Unknown], bool] | None:
    """The unknowns that are all zero exactly where the condition holds (True) or fails (False).

    None where the condition asks anything else. `4n = 0` and `4n < 1` ask whether n is zero.
    """
    x = condition.of
    if any(k <= 0 or u.lo != 0 for u, k in x.terms):
        return None
    smallest = min(k for _, k in x.terms)
    asks = x.constant == 0 if condition.test is Test.ZERO else 0 < -x.constant <= smallest
    return (_zero_with(u for u, _ in x.terms), not condition.negated) if asks else None


def _zero_with(unknowns: Iterable[Unknown]) -> frozenset[Unknown]:
    """Unknowns that are zero, and those that must be: where min(n, 5) is 0, n is."""
    found: set[Unknown] = set()
    pending = list(unknowns)
    while pending:
        unknown = pending.pop()
        found.add(unknown)
        possible = [x for x in unknown.at_most if lo(x) <= 0] if unknown.is_least else []
        if len(possible) == 1 and isinstance(x := possible[0], Linear):
            counts = x.constant == 0 and all(k > 0 and u.lo == 0 for u, k in x.terms)
            pending += [u for u, _ in x.terms if counts and u not in found]
    return frozenset(found)


def where_zero(x: Int, zeros: frozenset[Unknown]) -> Int:
    """`x` for the case that the unknowns `zeros` are zero, and all that never exceeds them."""
    if not isinstance(x, Linear):
        return x
    return linear({u: k for u, k in x.terms if not _vanishes(u, zeros)}, x.constant)


def _vanishes(unknown: Unknown, zeros: frozenset[Unknown]) -> bool:
    if unknown in zeros:
        return True
    bounds = (where_zero(bound, zeros) for bound in unknown.at_most)
    return unknown.lo >= 0 and any(hi(bound) <= 0 for bound in bounds)
