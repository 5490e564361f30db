"""Box-Cox by pooled sums: the same search as Yeo-Johnson's, against scipy on pooled columns."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from commonscale.ordering import Floats
from commonscale.statistics.power.search import ColumnSearch
from commonscale.statistics.power.terms import Known
from tests.unit.test_power import MAX_ROUNDS, above, grown, heavy_tailed, integers, pooled, tiny_or_huge

positive = st.one_of(heavy_tailed(), integers(), tiny_or_huge()).map(np.abs).map(lambda x: x[x > 0])
columns = positive.filter(lambda x: len(x) > 5 and x.std() > 1e-6 * x.mean())


def searched(x: Floats) -> tuple[ColumnSearch, int]:
    """The search, and its rounds."""
    least = above(x.min()) / 2
    search = ColumnSearch(Known(len(x), float(x.mean()), float(x.var()), above(x.max()), 0.0, 0, least))
    rounds = 0
    while not search.done:
        rounds += 1
        assert rounds <= MAX_ROUNDS
        search.take(pooled(x, search.point))
    return search, rounds


def log_likelihood(x: Floats, lam: float) -> float:
    """Over n, in long floats, about the end that keeps digits."""
    logs = np.log(x.astype(np.longdouble))
    origin = logs.max() if lam > 0 else logs.min()
    weight = (np.longdouble(lam) - 1) * logs.mean()
    return float(weight - np.log(grown(logs - origin, np.longdouble(lam)).var()) / 2 - np.longdouble(lam) * origin)


@settings(max_examples=100, deadline=None)
@given(columns)
def test_lambda_is_at_least_as_likely_as_any_that_scipy_finds(x: Floats) -> None:
    """Within 1e-9 of the best log-likelihood, after few rounds."""
    search, rounds = searched(x)
    reach = 0.1 * max(1, abs(search.lam))
    fine = optimize.minimize_scalar(
        lambda other: -log_likelihood(x, other), bounds=(search.lam - reach, search.lam + reach), method="bounded",
        options={"xatol": 1e-9},
    ).x  # fmt: skip
    if not search.limited:
        ours = log_likelihood(x, search.lam)
        with np.errstate(all="ignore"):
            others = [stats.boxcox_normmax(x, method="mle"), fine]
        for other in filter(np.isfinite, others):
            best = log_likelihood(x, other)
            assert ours >= best - 1e-9 * abs(best) - 1e-15
    assert rounds <= 25


@settings(max_examples=60, deadline=None)
@given(columns)
def test_moments_need_no_round_of_their_own(x: Floats) -> None:
    """Mean and variance from the search's last totals are those of the transformed column."""
    search, _ = searched(x)
    y = grown(np.log(x.astype(np.longdouble)), np.longdouble(search.lam))
    mean, variance = search.moments
    assume(float(y.std()) > 1e-6 * abs(float(y.mean())) and not search.limited)
    assert abs(mean - float(y.mean())) <= 1e-10 * max(abs(mean), float(y.std()))
    assert variance == pytest.approx(float(y.var()), rel=1e-7)


@pytest.mark.parametrize("column", [[1e-30, 1e-30 * (1 + 3e-15)], [1.7e12, 1.7e12 * (1 + 9e-16)]])
def test_a_column_whose_logarithms_are_one_float_is_left_as_it_is(column: list[float]) -> None:
    """Nothing is divided by how far they lie apart."""
    search, rounds = searched(np.array(column))
    assert (search.lam, search.limited, rounds) == (1.0, True, 0)
    assert search.moments[0] == pytest.approx(np.mean(column) - 1)


def test_a_lognormal_column_becomes_its_logarithm() -> None:
    """λ near 0; scaling a column leaves λ as it is."""
    x = np.exp(np.random.default_rng(1).normal(2, 1, 3000))
    (one, _), (other, _) = searched(x), searched(x * 2.0**-40)
    assert abs(one.lam) < 0.05
    assert one.lam == pytest.approx(stats.boxcox_normmax(x, method="mle"), abs=1e-6)
    assert other.lam == pytest.approx(one.lam, abs=1e-7)
    assert math.isfinite(other.moments[1])
