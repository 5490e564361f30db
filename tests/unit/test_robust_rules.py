"""Robust rules against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from commonscale.statistics.training.robust_rules import Robustly, batch_statistics, mixed_with_nearest

MATRICES = st.integers(3, 9).flatmap(
    lambda sites: arrays(np.float64, (sites, 5), elements=st.floats(-1e6, 1e6, width=32))
)


@given(MATRICES)
def test_median_and_trimmed_mean(vectors: np.ndarray) -> None:
    """As numpy and scipy have them, ties and all."""
    sites = len(vectors)
    dishonest = (sites - 1) // 2
    np.testing.assert_array_equal(Robustly("median", dishonest)(vectors), np.median(vectors, axis=0))
    np.testing.assert_allclose(
        Robustly("trimmed-mean", dishonest)(vectors), trim_mean(vectors, (dishonest + 1e-9) / sites), rtol=1e-9
    )


@given(MATRICES)
def test_mixing_takes_the_nearest(vectors: np.ndarray) -> None:
    """Every vector becomes the mean of those nearest to it, itself included."""
    dishonest = (len(vectors) - 1) // 2
    mixed = mixed_with_nearest(vectors, dishonest)
    for row, found in zip(vectors, mixed, strict=True):
        distances = sorted(((other - row) ** 2).sum() for other in vectors)
        chosen = [other for other in vectors if ((other - row) ** 2).sum() <= distances[len(vectors) - dishonest - 1]]
        if len(chosen) == len(vectors) - dishonest:
            np.testing.assert_allclose(found, np.mean(chosen, axis=0), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("nnm", [False, True])
@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_liars_move_a_rule_no_farther_than_the_honest_are_apart(rule: str, nnm: bool) -> None:
    """Three of ten at 1e12, whatever they say; the mean goes with them."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(0, 1, (10, 50))
    vectors[7:] = 1e12 * rng.choice([-1, 1], (3, 50))
    assert np.abs(Robustly(rule, 3, nnm)(vectors)).max() < 4  # type: ignore[arg-type]
    assert np.abs(Robustly("mean", 3)(vectors)).max() > 1e11


def test_with_the_mean_the_pooled_variance_is_exact() -> None:
    """Of batches of one size."""
    values = np.random.default_rng(2).normal(3, 2, (6, 30, 4)) + np.arange(6)[:, None, None]
    mean, variance = batch_statistics(Robustly("mean", 0), values.mean(axis=1), values.var(axis=1))
    np.testing.assert_allclose(mean, values.reshape(-1, 4).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, values.reshape(-1, 4).var(axis=0), rtol=1e-12)
