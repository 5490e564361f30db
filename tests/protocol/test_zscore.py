"""Z-score against scikit-learn on the pooled table: every method to add, one and two rounds."""

import warnings
from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from commonscale.channel.slot import COORDINATOR
from commonscale.errors import Overflow
from commonscale.pipeline import Pipeline
from commonscale.statistics.moments import Moments
from commonscale.transforms.scaling import standard_scaler
from tests.federation import Federation, NumpySource, Result

SITES = ("east", "north", "west")
COLUMNS = ["a", "b", "c"]
METHODS = ("masks", "shares", "sac-proportional")


def pipeline(method: str = "masks", rounds: str = "two", sites: tuple[str, ...] = SITES, columns: int = 3) -> Pipeline:
    step = {"columns": COLUMNS[:columns], "method": method, "rounds": rounds}
    return Pipeline.model_validate({"sites": list(sites), "steps": [step]})


def run(directory: Path, job: Pipeline, tables: dict[str, np.ndarray]) -> dict[str, Moments]:
    federation = Federation(directory, list(tables))
    columns = job.steps[0].columns
    return moments(federation, job, {site: NumpySource(columns, rows) for site, rows in tables.items()})


def moments(federation: Federation, job: Pipeline, data: dict[str, NumpySource]) -> dict[str, Moments]:
    results: dict[str, Result] = anyio.run(federation.run, job, data)
    return {role: result.fitted for role, result in results.items()}


def assert_equals_pooled(results: dict[str, Moments], tables: dict[str, np.ndarray], rtol: float = 1e-9) -> None:
    first = results[COORDINATOR]
    assert all(repr(moments) == repr(first) for moments in results.values()), "all roles end with the same numbers"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = StandardScaler().fit(np.vstack(list(tables.values())))
    got = standard_scaler(first)
    np.testing.assert_allclose(got.mean_, expected.mean_, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(got.scale_, expected.scale_, rtol=rtol)
    np.testing.assert_array_equal(np.broadcast_to(got.n_samples_seen_, 3), np.broadcast_to(expected.n_samples_seen_, 3))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rounds", ["two", "one"])
def test_it_equals_pooled_scikit_learn(tmp_path: Path, method: str, rounds: str) -> None:
    """Uneven sites, missing values, columns of very different size."""
    generator = np.random.default_rng(7)
    rows = generator.normal([3.0, 1e6, 1e-6], [2.0, 1e5, 1e-7], (200, 3))
    rows[generator.random((200, 3)) < 0.1] = np.nan
    tables = dict(zip(SITES, np.split(rows, [20, 60]), strict=True))
    assert_equals_pooled(run(tmp_path, pipeline(method, rounds), tables), tables)


cells = st.one_of(
    st.floats(-1e12, 1e12, allow_subnormal=False),
    st.sampled_from([float("nan"), 0.0, 1.0, 1.0, -1.0, 1e-9, 1e12, -1e12]),
)
site_rows = st.lists(st.tuples(cells, cells, cells), min_size=0, max_size=6)


@settings(max_examples=40)
@given(parts=st.tuples(site_rows, site_rows, site_rows))
def test_any_table_gives_what_exact_arithmetic_gives(
    tmp_path_factory: pytest.TempPathFactory, parts: tuple[list[tuple[float, ...]], ...]
) -> None:
    """Ties, missing values, empty sites and extremes, against long-double numpy on the pooled rows."""
    tables = {site: np.array(rows, dtype=float).reshape(-1, 3) for site, rows in zip(SITES, parts, strict=True)}
    moments = run(tmp_path_factory.mktemp("f"), pipeline(), tables)[COORDINATOR]
    pooled = np.vstack(list(tables.values())).astype(np.longdouble)
    for index in range(3):
        present = pooled[:, index][~np.isnan(pooled[:, index])]
        assert moments.count[index] == len(present)
        if not len(present):
            assert np.isnan(moments.mean[index])
            continue
        size = float(np.abs(present).max())
        assert abs(float(moments.mean[index] - present.mean())) <= 1e-13 * size + 1e-30
        assert abs(float(np.sqrt(moments.variance[index]) - present.std())) <= 1e-12 * size + 1e-18


@pytest.mark.parametrize(
    "tables",
    [
        {"east": [[1.0, 2.0, 3.0]], "north": [[1.0, 2.0, 3.0]], "west": [[1.0, 2.0, 3.0]]},
        {"east": np.empty((0, 3)), "north": [[1.0, 5.0, 3.0]], "west": [[2.0, 2.0, 3.5]]},
        {"east": [[np.nan] * 3] * 4, "north": [[1.0, 5.0, 3.0]], "west": [[2.0, 2.0, 3.5]]},
        {"east": [[1e12, 1e-9, 0.0]] * 5, "north": [[-1e12, 2e-9, 0.0]], "west": [[5.0, 3e-9, 0.0]]},
    ],
    ids=["all equal", "empty site", "all-missing site", "extremes"],
)
@pytest.mark.parametrize("rounds", ["two", "one"])
def test_odd_tables(tmp_path: Path, tables: dict[str, object], rounds: str) -> None:
    """Constant columns, empty and all-missing sites, 1e-9 beside 1e12."""
    arrays = {site: np.array(rows, dtype=float).reshape(-1, 3) for site, rows in tables.items()}
    assert_equals_pooled(run(tmp_path, pipeline(rounds=rounds), arrays), arrays)


def test_a_column_that_nobody_has_is_missing_everywhere(tmp_path: Path) -> None:
    """No mean, no variance, and no error."""
    tables = {site: np.array([[np.nan, 1.0, 2.0]]) for site in SITES}
    moments = run(tmp_path, pipeline(), tables)[COORDINATOR]
    assert moments.count[0] == 0
    assert np.isnan(moments.mean[0])
    assert np.isnan(moments.variance[0])


def test_one_round_falls_back_where_squares_cancel(tmp_path: Path) -> None:
    """Values far from zero: sums of squares would lose the variance, so the second round follows for it."""
    rows = np.random.default_rng(3).normal(1e8, 1.0, (90, 3))
    tables = dict(zip(SITES, np.split(rows, 3), strict=True))
    federation = Federation(tmp_path, SITES)
    data = {site: NumpySource(COLUMNS, part) for site, part in tables.items()}
    results = moments(federation, pipeline(rounds="one"), data)
    assert_equals_pooled(results, tables)
    assert any(slot.kind.startswith("variance.") for slot in federation.mailbox.slots)


def test_one_round_is_one_round_where_it_is_safe(tmp_path: Path) -> None:
    """No second sum is opened."""
    tables = {site: np.random.default_rng(5).normal(1.0, 2.0, (30, 3)) for site in SITES}
    federation = Federation(tmp_path, SITES)
    data = {site: NumpySource(COLUMNS, part) for site, part in tables.items()}
    assert_equals_pooled(moments(federation, pipeline(rounds="one"), data), tables)
    assert not any(slot.kind.startswith("variance.") for slot in federation.mailbox.slots)


def test_an_overflow_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    """It names the site and the column, and no masked vector of that site exists."""
    federation = Federation(tmp_path, SITES)
    tables = {site: NumpySource(COLUMNS, np.ones((2, 3))) for site in SITES}
    tables["north"] = NumpySource(COLUMNS, np.array([[1.0, 1e300, 1.0]]))

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(federation.coordinator, pipeline())
            for site in ("east", "west"):
                tasks.start_soon(federation.site, site, pipeline(), tables[site])
            with pytest.raises(Overflow, match=r"north: the sum of column 'b'"):
                await federation.site("north", pipeline(), tables["north"])
            tasks.cancel_scope.cancel()

    anyio.run(work)
    assert not any(s.sender == "north" and s.kind == "mean.MaskedVector" for s in federation.mailbox.slots)


@pytest.mark.parametrize("count", [3, 10, 25])
def test_many_sites(tmp_path: Path, count: int) -> None:
    """From the least to more than the papers use."""
    names = tuple(f"s{index:02d}" for index in range(count))
    generator = np.random.default_rng(count)
    tables = {name: generator.normal(5, 2, (generator.integers(1, 9), 3)) for name in names}
    assert_equals_pooled(run(tmp_path, pipeline(sites=names), tables), tables)
