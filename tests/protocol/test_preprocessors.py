"""Bins, distributions, splines, imputation, rows and thresholds against scikit-learn on the pooled table, in memory."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exceptiongroup import ExceptionGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import preprocessing
from sklearn.impute import SimpleImputer

from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import first_error
from commonscale.errors import MissingColumn, OutOfRange
from commonscale.estimators import storage
from commonscale.pipeline import Pipeline
from commonscale.plan import plan_of
from commonscale.transforms import TRANSFORMS
from tests.protocol.test_normalizers import SITES, pooled, run

pytestmark = pytest.mark.filterwarnings("ignore:Feature", "ignore:Bins", "ignore:n_quantiles")

EMPTY_SITE = {"east": 0, "north": 1, "west": 30}
SIZES = st.fixed_dictionaries(dict.fromkeys(SITES, st.integers(0, 40))).filter(lambda s: sum(s.values()) > 1)


def column_kinds(rows: int, generator: np.random.Generator) -> np.ndarray:
    """One column of every kind: ties, atoms, constants, extremes, negatives, integers, decimals, negative zeros."""
    normal, uniform = generator.normal(size=(12, rows)), generator.random((12, rows))
    return np.column_stack([
        normal[0],
        normal[1].round(),
        np.where(uniform[2] < 0.8, 0.0, normal[2]),
        np.full(rows, -7.25),
        normal[4] * 1e-300,
        normal[5] * 1e200,
        -np.exp(10 * normal[6]),
        np.floor(1e6 * uniform[7]),
        normal[8].round(2),
        np.where(uniform[9] < 0.5, -0.0, 0.0),
        1e9 + normal[10] * 1e-6,
        np.where(uniform[11] < 0.3, 5e-324, normal[11].round(1)),
    ])  # fmt: skip


def tables_of(sizes: dict[str, int], seed: int, gaps: float = 0.0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    tables = {site: column_kinds(rows, generator) for site, rows in sizes.items()}
    for table in tables.values():
        table[generator.random(table.shape) < gaps] = np.nan
    return tables


def fitted(tables: dict[str, np.ndarray], **step: Any) -> Any:
    """The coordinator's estimator after a file, which is what a hospital has."""
    with tempfile.TemporaryDirectory() as directory:
        result = run(Path(directory), tables, **step)[COORDINATOR]
        storage.save(result.estimator(), Path(directory) / "step.skops")
        return storage.load(Path(directory) / "step.skops")


def assert_same_rows(found: Any, expected: Any, tables: dict[str, np.ndarray]) -> None:
    """Every row of the pooled table, and rows between and beyond its values, come out alike to the last bit."""
    rows = pooled(tables)
    with np.errstate(over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = np.vstack([rows, rows + np.abs(rows) * 0.3 + 1, np.nextafter(rows, np.inf)])
        new = new[np.isfinite(new).all(axis=1) | np.isnan(new).any(axis=1)]
        np.testing.assert_array_equal(found.transform(new), expected.transform(new))


@settings(max_examples=15)
@given(sizes=SIZES, seed=st.integers(0, 2**32), n_bins=st.integers(2, 12))
def test_quantile_bins_are_those_of_the_pooled_table(sizes: dict[str, int], seed: int, n_bins: int) -> None:
    """Edges to the last bit, and as many bins: those that are too narrow are dropped alike."""
    tables = tables_of(sizes, seed)
    found = fitted(tables, transform="kbins", n_bins=n_bins, encode="ordinal")
    expected = preprocessing.KBinsDiscretizer(n_bins, encode="ordinal", quantile_method="linear", subsample=None)
    expected.fit(pooled(tables))
    np.testing.assert_array_equal(found.n_bins_, expected.n_bins_)
    for edges, others in zip(found.bin_edges_, expected.bin_edges_, strict=True):
        np.testing.assert_array_equal(edges, others)
    assert_same_rows(found, expected, tables)


@pytest.mark.parametrize("strategy", ["quantile", "uniform"])
@pytest.mark.parametrize("encode", ["onehot-dense", "ordinal"])
def test_bins_of_every_strategy_and_encoding(strategy: str, encode: str) -> None:
    """With the names of their columns."""
    tables = {site: np.delete(table, 4, axis=1) for site, table in tables_of(EMPTY_SITE, 4).items()}
    found = fitted(tables, transform="kbins", n_bins=4, encode=encode, strategy=strategy)
    expected = preprocessing.KBinsDiscretizer(
        4, encode=encode, strategy=strategy, quantile_method="linear", subsample=None
    )
    expected.fit(pooled(tables))
    names = [f"c{place}" for place in range(11)]
    assert found.get_feature_names_out().tolist() == expected.get_feature_names_out(names).tolist()
    assert_same_rows(found, expected, tables)


@settings(max_examples=15)
@given(sizes=SIZES, seed=st.integers(0, 2**32), n_quantiles=st.sampled_from([1, 2, 7, 100, 1000]))
def test_quantile_transformer_is_that_of_the_pooled_table(sizes: dict[str, int], seed: int, n_quantiles: int) -> None:
    """Quantiles to the last bit, with gaps; as many as there are rows, missing ones included."""
    tables = tables_of(sizes, seed, gaps=0.2)
    found = fitted(tables, transform="quantile", n_quantiles=n_quantiles, output_distribution="normal")
    expected = preprocessing.QuantileTransformer(n_quantiles=n_quantiles, output_distribution="normal", subsample=None)
    with warnings.catch_warnings():
        # A column may lack all values.
        warnings.simplefilter("ignore")
        expected.fit(pooled(tables))
    assert found.n_quantiles_ == expected.n_quantiles_
    np.testing.assert_array_equal(found.references_, expected.references_)
    np.testing.assert_array_equal(found.quantiles_, expected.quantiles_)
    assert_same_rows(found, expected, tables)


@settings(max_examples=15)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    knots=st.sampled_from(["uniform", "quantile"]),
    extrapolation=st.sampled_from(["constant", "linear", "continue", "periodic"]),
)
def test_splines_are_those_of_the_pooled_table(
    sizes: dict[str, int], seed: int, knots: str, extrapolation: str
) -> None:
    """To the last bit, also where knots coincide."""
    options: dict[str, Any] = {"n_knots": 5, "knots": knots, "extrapolation": extrapolation}
    # Where curves of scikit-learn's own run beyond floats, there is nothing to compare.
    tables = {site: table[:, [0, 1, 2, 7, 8, 10]] for site, table in tables_of(sizes, seed).items()}
    found = fitted(tables, transform="spline", **options)
    expected = preprocessing.SplineTransformer(**options).fit(pooled(tables))
    for curve, other in zip(found.bsplines_, expected.bsplines_, strict=True):
        np.testing.assert_array_equal(curve.t, other.t)
    assert_same_rows(found, expected, tables)


@settings(max_examples=15)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    strategy=st.sampled_from(["mean", "median", "constant"]),
    add_indicator=st.booleans(),
)
def test_imputation_is_that_of_the_pooled_table(
    sizes: dict[str, int], seed: int, strategy: str, add_indicator: bool
) -> None:
    """Medians to the last bit, means correctly rounded; indicators of the columns that have gaps anywhere."""
    tables = tables_of(sizes, seed, gaps=0.2)
    # Sums beyond 1e38 are refused.
    tables = {site: np.delete(table, 5, axis=1) for site, table in tables.items()}
    options: dict[str, Any] = {"strategy": strategy, "add_indicator": add_indicator, "keep_empty_features": True}
    found = fitted(tables, transform="impute", **options)
    expected = SimpleImputer(**options).fit(pooled(tables))
    if strategy == "mean":
        scale = np.nanmax(np.abs(np.nan_to_num(pooled(tables))), axis=0)
        assert (np.abs(found.statistics_ - expected.statistics_) <= 1e-13 * scale + 1e-30).all()
        expected.statistics_ = found.statistics_
    np.testing.assert_array_equal(found.statistics_, expected.statistics_)
    names = [f"c{place}" for place in range(11)]
    assert found.get_feature_names_out().tolist() == expected.get_feature_names_out(names).tolist()
    assert_same_rows(found, expected, tables)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        *(({"transform": "normalizer", "norm": n}, preprocessing.Normalizer(norm=n)) for n in ("l1", "l2", "max")),
        ({"transform": "binarizer", "threshold": 0.5}, preprocessing.Binarizer(threshold=0.5)),
    ],
)  # fmt: skip
def test_what_needs_no_protocol_opens_nothing(step: dict[str, Any], expected: Any) -> None:
    """Rows and thresholds: as scikit-learn's; no query, no sum."""
    tables = tables_of(EMPTY_SITE, 6)
    assert_same_rows(fitted(tables, **step), expected.fit(pooled(tables)), tables)
    plan = plan_of(TRANSFORMS[step["transform"]].model_validate({"columns": ["a"], **step}), 3)
    assert (plan.queries, plan.all_reveals) == ((), ())


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        ({"transform": "kbins"}, "Leave it out of the pipeline."),
        ({"transform": "kbins", "strategy": "uniform"}, "Leave it out of the pipeline."),
        ({"transform": "spline"}, "Leave it out of the pipeline."),
        ({"transform": "spline", "knots": "quantile"}, "Leave it out of the pipeline."),
        ({"transform": "impute"}, "keep_empty_features = true"),
        ({"transform": "impute", "strategy": "median"}, "keep_empty_features = true"),
    ],
)
def test_a_column_without_values_is_named(tmp_path: Path, step: dict[str, Any], remedy: str) -> None:
    """All roles say which, and what to do."""
    tables = {site: np.array([[1.0, np.nan], [2.0, np.nan]]) for site in SITES}
    with pytest.raises(ExceptionGroup) as caught:
        run(tmp_path, tables, **step)
    error = first_error(caught.value)
    assert isinstance(error, MissingColumn)
    assert "Column 'c1' has no value at any site." in str(error)
    assert remedy in str(error)


def test_a_column_without_any_bin_is_named(tmp_path: Path) -> None:
    """Where scikit-learn ends with an error of its own: all edges are too near to each other to make columns of."""
    tables = {site: np.array([[1e-9], [2e-9]]) for site in SITES}
    with pytest.raises(ExceptionGroup) as caught:
        run(tmp_path, tables, transform="kbins")
    error = first_error(caught.value)
    assert isinstance(error, OutOfRange)
    assert "column 'c0' are nearer to each other than 1e-08: it has no bin." in str(error)


@pytest.mark.parametrize("step", [{"transform": "kbins", "strategy": "uniform"}, {"transform": "spline"}])
def test_values_too_far_apart_are_named(tmp_path: Path, step: dict[str, Any]) -> None:
    """Between them no float can be an edge; they are not called missing."""
    tables = {site: np.array([[-1e308], [1e308]]) for site in SITES}
    with pytest.raises(ExceptionGroup) as caught, np.errstate(over="ignore", invalid="ignore"):
        run(tmp_path, tables, **step)
    error = first_error(caught.value)
    assert isinstance(error, OutOfRange)
    assert "The values of column 'c0' lie too far apart." in str(error)


def test_one_row_with_one_quantile(tmp_path: Path) -> None:
    """The least that there may be."""
    tables = {site: np.zeros((0, 1)) for site in SITES} | {"west": np.array([[3.0]])}
    found = run(tmp_path, tables, transform="quantile")["east"]
    assert found.parameters()["quantiles"] == [[3.0]]


def test_no_row_at_all_is_an_error_or_nothing(tmp_path: Path) -> None:
    """Quantiles of no rows are null."""
    tables = {site: np.zeros((0, 1)) for site in SITES}
    assert run(tmp_path, tables, transform="quantile")["east"].parameters()["quantiles"] == [[None]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"transform": "kbins", "subsample": 200_000}, "has no option subsample: it draws rows at random"),
        ({"transform": "quantile", "random_state": 1}, "has no option random_state: nothing is drawn at random"),
        ({"transform": "impute", "missing_values": "?"}, "has no option missing_values: each site's configuration"),
        ({"transform": "impute", "fill_value": 3}, "fill_value is of strategy 'constant'"),
        ({"transform": "impute", "fill_value": 0.0}, "fill_value is of strategy 'constant'"),
        ({"transform": "kbins", "n_bins": 101}, "n_bins may be 100 at most with quantiles"),
        ({"transform": "spline", "n_knots": 101, "knots": "quantile"}, "n_knots may be 100 at most with quantiles"),
        ({"transform": "quantile", "n_quantiles": 9000, "columns": [f"c{n}" for n in range(23)]}, "more than 200,000"),
        ({"transform": "describe", "extremes": False, "bins": 50}, "a histogram lies between the extremes"),
        ({"transform": "spline", "extrapolation": "periodic", "n_knots": 3}, "n_knots must be larger than degree"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(step: dict[str, Any], message: str) -> None:
    """Never ignored. What scikit-learn takes for "leave it out" is no option."""
    with pytest.raises(ValueError, match=message):
        TRANSFORMS[step["transform"]].model_validate({"columns": ["a"], **step})
    assert TRANSFORMS["kbins"].model_validate({"columns": ["a"], "subsample": None})


def test_filled_columns_may_go_where_no_value_may_be_missing() -> None:
    """A table with gaps is no error then, but for the columns that were not filled."""
    steps = [{"transform": "impute", "columns": ["a"]}, {"transform": "kbins", "columns": ["a", "b"]}]
    _, _, complete = Pipeline.model_validate({"sites": list(SITES), "steps": steps}).source_columns()
    assert complete == ["b"]
