"""Z-score over real processes and mTLS equals pooled scikit-learn on real data."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from commonscale.audit import verify
from commonscale.estimators import storage
from commonscale.localnet import LocalFederation
from tests.e2e.conftest import job, submit, write_csv

ADULT = ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
ADULT_POSITIONS = (0, 2, 4, 10, 11, 12)


def check(directory: Path, columns: list[str], parts: dict[str, np.ndarray], methods: tuple[str, ...]) -> None:
    """Every site ends with the pooled scaler, to 1e-9."""
    expected = StandardScaler().fit(np.vstack(list(parts.values())))
    data = {site: write_csv(directory / f"{site}.csv", columns, rows) for site, rows in parts.items()}
    with LocalFederation(directory, data) as federation:
        for method in methods:
            done = submit(federation, job(list(parts), columns, method=method))
            assert done.state == "done", done.wire.error
            for site in parts:
                results = directory / site / "state" / "results" / done.id
                assert json.loads((results / "parameters.json").read_text()) == done.result
                fitted = storage.load(results / "0-zscore.skops")
                np.testing.assert_allclose(fitted.mean_, expected.mean_, rtol=1e-9)
                np.testing.assert_allclose(fitted.scale_, expected.scale_, rtol=1e-9)
                assert fitted.n_samples_seen_ == expected.n_samples_seen_
                kinds = [
                    entry["kind"]
                    for entry in verify(directory / site / "state" / "audit.jsonl")
                    if entry["what"] == "sent"
                ]
                assert kinds.count("Outcome") == methods.index(method) + 1


def test_breast_cancer_at_four_hospitals(tmp_path: Path) -> None:
    """Split unevenly by diagnosis; by masks and by shares."""
    bunch = load_breast_cancer()
    order = np.argsort(bunch.target, kind="stable")
    parts = np.split(bunch.data[order], [60, 200, 450])
    columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
    check(tmp_path, columns, dict(zip(("a", "b", "c", "d"), parts, strict=True)), ("masks", "shares"))


@pytest.mark.long
def test_a_coordinator_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """The same job, with the messages and the job in a real PostgreSQL server."""
    parts = {site: np.random.default_rng(index).normal(5, 2, (30, 2)) for index, site in enumerate("abc")}
    data = {site: write_csv(tmp_path / f"{site}.csv", ["x", "y"], rows) for site, rows in parts.items()}
    expected = np.vstack(list(parts.values()))
    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    with LocalFederation(tmp_path, data, database=postgres_url) as federation:
        done = submit(federation, job(list("abc"), ["x", "y"]))
        np.testing.assert_allclose(done.result[0]["mean"], expected.mean(axis=0), rtol=1e-12)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT state FROM jobs")).scalar_one() == "done"
        assert connection.execute(sa.text("SELECT count(*) FROM slots")).scalar_one() > 20
    engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize("count", [4, pytest.param(10, marks=pytest.mark.long)])
def test_adult(tmp_path: Path, data_directory: Path, count: int) -> None:
    """The numeric columns of Adult, unevenly over 4 and 10 sites."""
    with lzma.open(data_directory / "adult" / "adult.data.xz", "rt") as file:
        rows = [line.split(", ") for line in file if line.count(", ") == 14]
    table = np.array([[float(row[position]) for position in ADULT_POSITIONS] for row in rows])
    assert len(table) == 32561
    ends = np.cumsum(np.linspace(1, 3, count) / np.linspace(1, 3, count).sum() * len(table)).astype(int)[:-1]
    sites = [f"site-{index}" for index in range(count)]
    check(tmp_path, ADULT, dict(zip(sites, np.split(table, ends), strict=True)), ("masks",))
