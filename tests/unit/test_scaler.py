"""A scaler from moments is the one that scikit-learn fits on the pooled table."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler
from sklearn.preprocessing._data import _handle_zeros_in_scale, _is_constant_feature

from commonscale.estimators import storage
from commonscale.statistics.moments import Moments
from commonscale.transforms.scaling import ZScore, scale_of, standard_scaler

TABLES = {
    "plain": np.random.default_rng(1).normal(5, 2, (40, 3)),
    "constant": np.column_stack([np.full(10, 3.3), np.arange(10.0), np.zeros(10)]),
    "missing": np.where(np.arange(60).reshape(20, 3) % 7 == 0, np.nan, np.arange(60.0).reshape(20, 3)),
    "one row": np.array([[1.0, 2.0, 3.0]]),
}


def moments_of(table: np.ndarray) -> Moments:
    count = (~np.isnan(table)).sum(axis=0)
    return Moments(
        tuple("abc"), tuple(map(int, count)), tuple(np.nanmean(table, axis=0)), tuple(np.nanvar(table, axis=0))
    )


@pytest.mark.parametrize("name", TABLES)
def test_it_equals_scikit_learn(name: str) -> None:
    """Attributes and transformed values, for constant, missing and single-row columns."""
    table = TABLES[name]
    expected, got = StandardScaler().fit(table), standard_scaler(moments_of(table))
    for attribute in ("mean_", "var_", "scale_"):
        np.testing.assert_allclose(getattr(got, attribute), getattr(expected, attribute), rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(got.n_samples_seen_, expected.n_samples_seen_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(got.transform(table), expected.transform(table), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mean", [0.0, 1.0, -1e9])
@pytest.mark.parametrize("variance", [0.0, 1e-30, 1e-16, 1e-12, 1.0])
@pytest.mark.parametrize("count", [1, 10, 10**7])
def test_what_counts_as_constant_is_scikit_learns_rule(mean: float, variance: float, count: int) -> None:
    """Variances that are nothing but rounding give a scale of 1."""
    mask = _is_constant_feature(np.array([variance]), np.array([mean]), count)
    expected = _handle_zeros_in_scale(np.sqrt([variance]), copy=False, constant_mask=mask)
    assert scale_of(Moments(("a",), (count,), (mean,), (variance,))) == expected.tolist()


def test_a_column_without_any_value_passes_through_as_missing() -> None:
    """Like scikit-learn, whose transform gives missing values for it."""
    table = np.column_stack([np.full(5, np.nan), np.arange(5.0), np.arange(5.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moments = moments_of(table)
        expected = StandardScaler().fit_transform(table)
        got = standard_scaler(moments).transform(table)
    np.testing.assert_allclose(got, expected)
    assert ZScore(columns=list("abc")).parameters(moments)["mean"][0] is None


def test_a_saved_scaler_loads_without_trusting_anything(tmp_path: Path) -> None:
    """Skops needs no exception for it."""
    fitted = standard_scaler(moments_of(TABLES["plain"]))
    storage.save(fitted, tmp_path / "s.skops")
    loaded = storage.load(tmp_path / "s.skops")
    np.testing.assert_array_equal(loaded.mean_, fitted.mean_)
    assert list(loaded.get_feature_names_out()) == ["a", "b", "c"]
