"""Bins over real daemons, as scikit-learn makes them of the pooled table."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest
from sklearn.preprocessing import KBinsDiscretizer

from commonscale.client import Client, Job
from commonscale.estimators import storage
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from commonscale.statistics.axes import GRID, VARYING
from commonscale.statistics.extremes import RANGE
from commonscale.statistics.quantiles import COUNT, ENDS_AT_CUTS

SITES = ("east", "north", "west")
COLUMNS = ["age", "visits", "fixed"]


def rows_of(site: int) -> np.ndarray:
    """Ages, counts that are mostly zero, and a constant."""
    generator = np.random.default_rng(site)
    ages = generator.normal(50 + 5 * site, 12, 40 + 10 * site)
    visits = np.where(generator.random(len(ages)) < 0.8, 0, generator.integers(1, 30, len(ages)))
    return np.column_stack([ages, visits, np.full(len(ages), 3.0)])


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    directory = tmp_path_factory.mktemp("kbins")
    data = {}
    for number, site in enumerate(SITES):
        data[site] = directory / f"{site}.csv"
        with data[site].open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *(map(repr, row) for row in rows_of(number).tolist())])
    running = LocalFederation(directory, data)
    running.start()
    yield running
    running.stop()


def run(federation: LocalFederation, **options: object) -> Job:
    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            step = {"transform": "kbins", "columns": COLUMNS, **options}
            job = await client.submit(Pipeline.model_validate({"sites": list(SITES), "steps": [step]}))
            return await client.wait(job.id)

    return anyio.run(work)


@pytest.mark.parametrize(
    ("encode", "strategy"),
    [("onehot", "uniform"), ("onehot-dense", "uniform"), ("ordinal", "uniform"), ("onehot", "quantile")],
)
@pytest.mark.filterwarnings("ignore:Feature 2 is constant", "ignore:Bins whose width")
def test_bins_are_those_of_the_pooled_table(federation: LocalFederation, encode: str, strategy: str) -> None:
    """The same edges to the last bit at every site, and the same bins for every row; a constant column is one bin."""
    job = run(federation, n_bins=7, encode=encode, strategy=strategy)
    pooled = np.vstack([rows_of(number) for number in range(len(SITES))])
    expected = KBinsDiscretizer(
        n_bins=7, encode=encode, strategy=strategy, quantile_method="linear", subsample=None
    ).fit(pooled)
    assert job.result[0]["edges"] == [edges.tolist() for edges in expected.bin_edges_[:2]] + [[]]
    for site in SITES:
        results = federation.directory / site / "state" / "results" / job.id
        assert json.loads((results / "parameters.json").read_text()) == job.result
        found = storage.load(Path(results / "0-kbins.skops"))
        for edges, others in zip(found.bin_edges_, expected.bin_edges_, strict=True):
            np.testing.assert_array_equal(edges, others)
        got, wanted = found.transform(pooled), expected.transform(pooled)
        assert (got != wanted).sum() == 0
    opened = [line["what"] for line in job.disclosures if line["protocol"] == "kbins"]
    expected_lines = [GRID, VARYING, RANGE] if strategy == "uniform" else [COUNT, GRID, VARYING, ENDS_AT_CUTS]
    assert opened == [reveal.what for reveal in expected_lines]
