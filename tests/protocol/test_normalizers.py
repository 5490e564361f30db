"""Every transform and method against scikit-learn on the pooled table, all roles in memory."""

import warnings
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from exceptiongroup import ExceptionGroup
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import first_error
from commonscale.errors import DataError, ProtocolError
from commonscale.pipeline import Pipeline
from commonscale.statistics import power
from tests.federation import Federation, NumpySource, Result

SITES = ("east", "north", "west")
CKKS = {"ckks": {"profile": "test"}}


def columns_of(rows: np.ndarray) -> list[str]:
    return [f"c{index}" for index in range(rows.shape[1])]


def run(directory: Path, tables: dict[str, np.ndarray], **step: Any) -> dict[str, Result]:
    columns = columns_of(next(iter(tables.values())))
    job = Pipeline.model_validate({"sites": list(tables), "steps": [{"columns": columns, **step}]})
    # What a site accepts is what came over the wire.
    assert Pipeline.from_bytes(job.to_bytes()) == job
    federation = Federation(directory, list(tables))
    data = {site: NumpySource(columns, rows) for site, rows in tables.items()}
    results: dict[str, Result] = anyio.run(federation.run, job, data)
    first = results[COORDINATOR].parameters()
    assert all(result.parameters() == first for result in results.values()), "all roles end with the same"
    return results


def mixed(seed: int = 3, sites: tuple[str, ...] = SITES) -> dict[str, np.ndarray]:
    """Very different magnitudes, ties, missing values, a constant column; sites differ."""
    generator = np.random.default_rng(seed)
    tables = {}
    for index, site in enumerate(sites):
        rows = int(generator.integers(5, 60))
        part = generator.normal([3.0, -2e5, 4e-4, 0, 7], [2.0, 1e4, 2e-4, 1, 0], (rows, 5)) + 0.1 * index
        part[:, 3] = np.round(part[:, 3])
        part[:, 4] = 7.0
        part[generator.random(part.shape) < 0.1] = np.nan
        tables[site] = part
    return tables


def pooled(tables: dict[str, np.ndarray]) -> np.ndarray:
    return np.vstack(list(tables.values()))


@pytest.mark.parametrize("method", ["auto", "search"])
def test_min_max_by_search_is_exact(tmp_path: Path, method: str) -> None:
    """To the last bit, estimator and all."""
    tables = mixed()
    got = run(tmp_path, tables, transform="minmax", method=method, feature_range=(-1, 2))[COORDINATOR].estimator()
    expected = MinMaxScaler(feature_range=(-1, 2)).fit(pooled(tables))
    for name in ("data_min_", "data_max_", "data_range_", "scale_", "min_"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))


@pytest.mark.parametrize("method", ["sequential", "tree", "all-pairs"])
@pytest.mark.parametrize("sites", [3, 5])
def test_min_max_under_encryption(tmp_path: Path, method: str, sites: int) -> None:
    """Within 1e-5 of each column's bound; ties and a constant column included."""
    tables = mixed(sites=tuple(f"s{i}" for i in range(sites)))
    got = run(tmp_path, tables, transform="minmax", method=method, **CKKS)[COORDINATOR].estimator()
    expected = MinMaxScaler().fit(pooled(tables))
    bound = np.nanmax(np.abs(pooled(tables)), axis=0)
    assert (np.abs(got.data_min_ - expected.data_min_) / bound).max() < 1e-5
    assert (np.abs(got.data_max_ - expected.data_max_) / bound).max() < 1e-5
    assert got.scale_[4] == 1.0


def test_max_abs_by_search_is_exact(tmp_path: Path) -> None:
    """As scikit-learn's."""
    tables = mixed()
    got = run(tmp_path, tables, transform="maxabs")[COORDINATOR].estimator()
    np.testing.assert_array_equal(got.scale_, MaxAbsScaler().fit(pooled(tables)).scale_)


@pytest.mark.parametrize(
    "options", [{"method": "masks"}, {"method": "shares"}, {"method": "ckks", **CKKS}, {"method": "private", **CKKS}]
)
def test_robust_scaling_is_exact(tmp_path: Path, options: dict[str, Any]) -> None:
    """Median and quartiles to the last bit, for even and odd counts, ties and missing values."""
    tables = mixed()
    got = run(tmp_path, tables, transform="robust", **options)[COORDINATOR].estimator()
    expected = RobustScaler().fit(pooled(tables))
    np.testing.assert_array_equal(got.center_, expected.center_)
    np.testing.assert_array_equal(got.scale_, expected.scale_)


def test_the_papers_binary_search_is_right_within_epsilon(tmp_path: Path) -> None:
    """Where a quantile is one of the values; between two values it is any point between them."""
    generator = np.random.default_rng(1)
    tables = {site: generator.normal(0, 1, (rows, 2)) for site, rows in zip(SITES, (11, 20, 10), strict=True)}
    found = run(
        tmp_path, tables, transform="quantiles", method="binary", epsilon=1e-4, quantiles=[0.25, 0.5, 0.75], **CKKS
    )[COORDINATOR].parameters()["values"]
    expected = np.quantile(pooled(tables), [0.25, 0.5, 0.75], axis=0).T
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_z_score_under_encryption(tmp_path: Path) -> None:
    """Mean and deviation to 1e-7 of the deviation; no count anywhere."""
    tables = mixed()
    fitted = run(tmp_path, tables, transform="zscore", method="ckks", **CKKS)[COORDINATOR]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = StandardScaler().fit(pooled(tables))
    got = fitted.estimator()
    assert (np.abs(got.mean_ - expected.mean_) / expected.scale_).max() < 1e-7
    np.testing.assert_allclose(got.scale_, expected.scale_, rtol=1e-7)
    assert fitted.parameters()["count"] is None


@pytest.mark.parametrize("method", ["masks", "shares"])
def test_yeo_johnson(tmp_path: Path, method: str) -> None:
    """Lambda and the standardized result as scikit-learn's, on skewed and on negative columns."""
    generator = np.random.default_rng(5)
    tables = {
        site: np.column_stack([
            generator.lognormal(1, 1, rows), -generator.gamma(2, 3, rows), generator.normal(0, 2, rows),
            generator.normal(1e4, 1, rows), np.full(rows, 3.0),
        ])
        for site, rows in zip(SITES, (30, 50, 41), strict=True)
    }  # fmt: skip
    got = run(tmp_path, tables, transform="power", method=method)[COORDINATOR].estimator()
    expected = PowerTransformer().fit(pooled(tables))
    usual = [0, 1, 2, 4]
    np.testing.assert_allclose(got.lambdas_[usual], expected.lambdas_[usual], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        got.transform(pooled(tables))[:, usual], expected.transform(pooled(tables))[:, usual], atol=1e-4
    )


@pytest.mark.parametrize("method", ["masks", "shares"])
def test_box_cox(tmp_path: Path, method: str) -> None:
    """As scikit-learn's, with gaps, whatever the unit of a column."""
    generator = np.random.default_rng(6)
    tables = {
        site: np.column_stack([
            generator.lognormal(1, 1, rows), generator.gamma(2, 3, rows) * 1e-9, generator.normal(1e6, 5e4, rows),
        ])
        for site, rows in zip(SITES, (30, 50, 41), strict=True)
    }  # fmt: skip
    tables["east"][3:7, 1] = np.nan
    got = run(tmp_path, tables, transform="power", family="box-cox", method=method)[COORDINATOR].estimator()
    expected = PowerTransformer(method="box-cox").fit(pooled(tables))
    np.testing.assert_allclose(got.lambdas_, expected.lambdas_, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.transform(pooled(tables)), expected.transform(pooled(tables)), atol=1e-4)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.0, "Column 'c0' has values that are not above zero."),
        (-2.0, "Column 'c0' has values that are not above zero."),
        (5.0, "All values of column 'c0' are the same"),
        (np.nan, "Column 'c0' has no value at any site."),
    ],
)
def test_box_cox_names_the_column_that_it_cannot_take(tmp_path: Path, value: float, message: str) -> None:
    """And says what to do; at all roles alike, so that nobody is told whose values they are."""
    tables = {site: np.array([[5.0, 1.0], [5.0, 2.0]]) for site in SITES}
    tables["north"] = np.array([[value, 3.0]])
    if np.isnan(value):
        tables = {site: np.array([[np.nan, 1.0], [np.nan, 2.0]]) for site in SITES}
    with pytest.raises(ExceptionGroup) as caught:
        run(tmp_path, tables, transform="power", family="box-cox")
    error = first_error(caught.value)
    assert isinstance(error, DataError)
    assert message in str(error)


def test_a_power_search_that_does_not_end_says_for_which_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many rounds; a column without spread needs none."""
    monkeypatch.setattr(power, "MAX_ROUNDS", 2)
    generator = np.random.default_rng(8)
    tables = {site: np.column_stack([np.ones(40), generator.lognormal(size=40)]) for site in SITES}
    with pytest.raises(ExceptionGroup) as caught:
        run(tmp_path, tables, transform="power")
    error = first_error(caught.value)
    assert isinstance(error, ProtocolError)
    assert "The likeliest lambda of 'c1' was not found." in str(error)
