"""Yeo-Johnson by pooled sums: its terms, its search, against scikit-learn on pooled columns."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from sklearn.preprocessing import PowerTransformer

from commonscale.ordering import Floats
from commonscale.statistics.power import MAX_ROUNDS
from commonscale.statistics.power.search import ColumnSearch
from commonscale.statistics.power.terms import TERMS, Known, Point, Totals, point_at, terms
from crypto import fixed_point
from crypto.rings import Z256

SITES = 3
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
rows = st.sampled_from([10, 100, 1000])


@st.composite
def zero_inflated(draw: st.DrawFn) -> Floats:
    rng, n = draw(seeds), 2000
    counts = rng.geometric(draw(st.floats(0.05, 0.9)), n)
    return np.where(rng.random(n) < draw(st.floats(0.9, 0.999)), 0.0, counts)


@st.composite
def heavy_tailed(draw: st.DrawFn) -> Floats:
    rng, n, scale = draw(seeds), draw(rows), 10.0 ** draw(st.integers(-3, 6))
    if draw(st.booleans()):
        return scale * rng.lognormal(0, draw(st.floats(0.1, 3)), n)
    return scale * rng.pareto(draw(st.floats(0.5, 5)), n)


@st.composite
def integers(draw: st.DrawFn) -> Floats:
    rng, n = draw(seeds), draw(rows)
    return rng.poisson(draw(st.floats(1, 20)), n).astype(np.float64)


@st.composite
def tiny_or_huge(draw: st.DrawFn) -> Floats:
    rng, n, scale = draw(seeds), draw(rows), draw(st.sampled_from([1e-12, 1e12, -1e-12, -1e12]))
    return scale * rng.gamma(draw(st.floats(0.3, 5)), size=n)


@st.composite
def mixed_signs(draw: st.DrawFn) -> Floats:
    rng, n, scale = draw(seeds), draw(rows), 10.0 ** draw(st.integers(-6, 6))
    return scale * (rng.standard_t(draw(st.integers(1, 9)), n) + draw(st.floats(-3, 3)))


columns = st.one_of(zero_inflated(), heavy_tailed(), integers(), tiny_or_huge(), mixed_signs()).filter(
    lambda x: x.std() > 0
)


def above(value: float) -> float:
    """The power of two above a value, 0 if it is not positive."""
    return math.ldexp(1.0, math.frexp(value)[1]) if value > 0 else 0.0


def known(x: Floats) -> Known:
    return Known(len(x), float(x.mean()), float(x.var()), above(x.max()), above(-x.min()))


def pooled(x: Floats, point: Point) -> list[Fraction]:
    """Terms of three sites of unequal size, added in fixed point. Nothing may overflow on the way."""
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        shares = [terms(part, point) for part in np.split(x, [len(x) // 6, len(x) // 2])]
    return fixed_point.decode(Z256.add_all([fixed_point.encode(share, addends=SITES) for share in shares]))


@dataclass
class Searched:
    """The searches of some columns, and after how many rounds the last was done."""

    columns: list[ColumnSearch]
    rounds: int = 0

    @property
    def lambdas(self) -> list[float]:
        return [column.lam for column in self.columns]

    @property
    def limited(self) -> list[bool]:
        return [column.limited for column in self.columns]

    @property
    def moments(self) -> list[tuple[float, float]]:
        return [column.moments for column in self.columns]


def searched(*tables: Floats) -> Searched:
    found = Searched([ColumnSearch(known(x)) for x in tables])
    while not all(column.done for column in found.columns):
        found.rounds += 1
        assert found.rounds <= MAX_ROUNDS
        for x, column in zip(tables, found.columns, strict=True):
            if not column.done:
                column.take(pooled(x, column.point))
    return found


def log_likelihood(x: Floats, lam: float) -> float:
    """scikit-learn's formula over n, in long floats and without its cancellation where all values have one sign."""
    values, lam = x.astype(np.longdouble), np.longdouble(lam)
    logs = np.log1p(np.abs(values))
    weight = (lam - 1) * (np.sign(values) * logs).mean()
    if x.min() < 0 < x.max():
        y = np.where(x >= 0, grown(np.where(x >= 0, logs, 0), lam), -grown(np.where(x < 0, logs, 0), 2 - lam))
        return float(weight - np.log(y.var()) / 2)
    k = lam if x.max() > 0 else 2 - lam
    origin = logs.max() if k > 0 else logs.min()
    return float(weight - np.log(grown(logs - origin, k).var()) / 2 - k * origin)


def grown(logs: np.ndarray, k: np.longdouble) -> np.ndarray:
    return np.expm1(k * logs) / k if k else logs


def scikit_learn(x: Floats) -> float:
    with np.errstate(all="ignore"):
        return float(PowerTransformer(standardize=False).fit(x[:, None]).lambdas_[0])


@settings(max_examples=150, deadline=None)
@given(columns)
def test_lambda_is_at_least_as_likely_as_any_that_scikit_learn_or_scipy_finds(x: Floats) -> None:
    """Within 1e-9 of scikit-learn's best log-likelihood, and of a fine minimisation about our own λ."""
    search = searched(x)
    (lam,), (limited,) = search.lambdas, search.limited
    ours = log_likelihood(x, lam)
    fine = optimize.minimize_scalar(
        lambda other: -log_likelihood(x, other),
        bounds=(lam - 0.1 * max(1, abs(lam)), lam + 0.1 * max(1, abs(lam))),
        method="bounded",
        options={"xatol": 1e-9},
    ).x
    if not limited:
        for other in (scikit_learn(x), fine):
            best = log_likelihood(x, other)
            assert ours >= best - 1e-9 * abs(best) - 1e-15
    assert search.rounds <= 20


@settings(max_examples=60, deadline=None)
@given(columns)
def test_transformed_columns_are_those_of_scipy(x: Floats) -> None:
    """Standardized by the moments of the last round, values differ from scipy's by no more than λ does."""
    search = searched(x)
    (lam,), ((mean, variance),) = search.lambdas, search.moments
    other = scikit_learn(x)
    assume(abs(lam - other) <= 1e-5 * max(1, abs(lam)))
    expected = stats.yeojohnson(x, lmbda=other)
    # Where they saturate, scipy's own values have too few digits to compare with.
    assume(expected.std() > 1e-6 * abs(expected.mean()))
    np.testing.assert_allclose(
        (stats.yeojohnson(x, lmbda=lam) - mean) / math.sqrt(variance),
        (expected - expected.mean()) / expected.std(),
        atol=1e-3,
    )


@settings(max_examples=60, deadline=None)
@given(columns)
def test_moments_need_no_round_of_their_own(x: Floats) -> None:
    """Mean and variance from the search's last totals are those of the transformed column."""
    search = searched(x)
    y = stats.yeojohnson(x, lmbda=search.lambdas[0]).astype(np.longdouble)
    ((mean, variance),) = search.moments
    assume(float(y.std()) > 1e-6 * abs(float(y.mean())))
    assert abs(mean - float(y.mean())) <= 1e-12 * max(abs(mean), float(y.std()))
    assert variance == pytest.approx(float(y.var()), rel=1e-8)


def test_visits_that_are_mostly_zero() -> None:
    """The column whose squares fell below the fixed point: λ came out as -7.45 instead of -10.08."""
    rng = np.random.default_rng(7)
    visits = np.where(rng.random(4000) < 0.95, 0.0, rng.geometric(0.1, 4000))
    search = searched(visits)
    assert search.lambdas[0] == pytest.approx(-10.08114787, abs=1e-6)
    assert search.lambdas[0] == pytest.approx(scikit_learn(visits), abs=1e-5)
    assert search.rounds <= 10


@settings(max_examples=60, deadline=None)
@given(columns, st.floats(-5, 5), st.floats(0, 1))
def test_the_totals_hold_the_derivative_about_any_centre(x: Floats, step: float, part: float) -> None:
    """f(λ) is the slope of the log-likelihood, whatever value the terms are taken about."""
    size = math.log1p(np.abs(x).max())
    lam, h = step / size, 1e-4 / size
    point = point_at(known(x), lam, float(np.quantile(x, part)))
    totals = Totals(point, len(x), tuple(pooled(x, point)))
    assume(totals.finer() is None and totals.centred(2**20))
    numeric = (log_likelihood(x, lam + h) - log_likelihood(x, lam - h)) / (2 * h)
    assert totals.slope() == pytest.approx(numeric, rel=1e-5, abs=1e-6 * size)


@settings(max_examples=40, deadline=None)
@given(columns)
def test_a_mirrored_column_has_the_mirrored_lambda(x: Floats) -> None:
    """y(-x; 2 - λ) = -y(x; λ), so the likeliest λ of -x is 2 less that of x."""
    search = searched(x, -x)
    (lam, mirrored), ((mean, variance), (other, _)) = search.lambdas, search.moments
    assume(not any(search.limited))
    assert log_likelihood(-x, mirrored) == pytest.approx(log_likelihood(x, lam), rel=1e-12, abs=1e-12)
    assert 2 - mirrored == pytest.approx(lam, rel=1e-4, abs=1e-4)
    assert mean == pytest.approx(-other, rel=1e-3, abs=1e-3 * math.sqrt(variance))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-12, 0.5, 1.0, 3.0, -2.0, -1e6, 1e12]), min_size=2, max_size=4))
def test_a_few_rows_are_enough(values: list[float]) -> None:
    """Two to four rows, equal or not, of any size and sign, end in a λ at least as likely as scikit-learn's."""
    x = np.array(values)
    if x.std() == 0:
        assert searched(x).lambdas[0] == 1
        return
    search = searched(x)
    if not search.limited[0]:
        best = log_likelihood(x, scikit_learn(x))
        assert log_likelihood(x, search.lambdas[0]) >= best - 1e-9 * abs(best) - 1e-15


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 998), st.sampled_from([1e-9, 1.0, 7.0, 1e6]))
def test_one_distinct_value_beside_zero(ones: int, value: float) -> None:
    """For zeros and one other value the root is known: φ/ψ(λ·L) is the part of the others."""
    x = np.where(np.arange(1000) < ones, value, 0.0)
    search = searched(x)
    t = search.lambdas[0] * math.log1p(value)
    assume(not search.limited[0] and abs(t) > 1e-3)
    assert 1 / -math.expm1(-t) - 1 / t == pytest.approx(ones / 1000, rel=1e-6)


def test_columns_without_spread_or_values_keep_lambda_one() -> None:
    """As in scikit-learn: a constant column, one row and no row at all need no round."""
    constant = Known(5, 3.0, 0.0, 4.0, 0.0)
    for column in (constant, Known(1, 3.0, 0.0, 4.0, 0.0), Known(0, math.nan, math.nan, 0.0, 0.0)):
        search = ColumnSearch(column)
        assert search.done
        assert search.lam == 1
    assert ColumnSearch(constant).moments[0] == 3


def test_lambda_stops_where_floats_would_merge_values() -> None:
    """Years of birth, skewed to the right, want λ near -50, at which y is 1/50 to the last digit for all of them."""
    years = np.round(1950 + 20 * np.random.default_rng(3).exponential(size=2000))
    search = searched(years)
    assert search.limited == [True]
    assert search.rounds <= 20
    assert len(np.unique(stats.yeojohnson(years, lmbda=search.lambdas[0]))) == len(np.unique(years))
    assert log_likelihood(years, search.lambdas[0]) > log_likelihood(years, 1.0)


def test_pieces_of_a_column_add_up() -> None:
    """Streaming a column in pieces gives the terms of the whole."""
    x = np.random.default_rng(5).normal(size=20_000)
    point = point_at(known(x), 0.7, 0.1)
    pieces = sum(terms(piece, point) for piece in np.array_split(x, 7))
    np.testing.assert_allclose(pieces, terms(x, point), rtol=1e-10)
    assert terms(np.empty(0), point).tolist() == [0.0] * TERMS


def test_a_scale_that_was_too_coarse_is_asked_for_again() -> None:
    """Digits lost below the fixed point do not go unnoticed: the next scale brings them back."""
    x = np.random.default_rng(6).lognormal(size=300)
    right = point_at(known(x), 0.3, 1.0)
    coarse = replace(right, scale_bits=right.scale_bits + 100)
    totals = Totals(coarse, len(x), tuple(pooled(x, coarse)))
    finer = totals.finer()
    assert finer is not None
    again = Totals(finer, len(x), tuple(pooled(x, finer)))
    assert again.finer() is None
    expected = Totals(right, len(x), tuple(pooled(x, right)))
    assert again.slope() == pytest.approx(expected.slope(), rel=1e-9)


def test_sums_of_another_round_are_refused() -> None:
    """A column takes as many sums as it has terms."""
    with pytest.raises(ValueError, match="expected 5, got 3"):
        ColumnSearch(known(np.array([1.0, 2.0]))).take([Fraction(1)] * 3)
