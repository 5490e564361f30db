"""Every transform and variant over real daemons and mTLS equals pooled scikit-learn on real data.

One federation serves all: ten sites with a table of every data set, and two with narrower policies. COMMONSCALE_HEAVY=1
runs every variant on every data set with 4 and 10 sites, and the secure parameters wherever something is encrypted.
"""

from __future__ import annotations

import csv
import json
import lzma
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from commonscale.client import Client, Job
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from commonscale.transforms import scaler
from tests.e2e.conftest import job, run

HEAVY = bool(os.environ.get("COMMONSCALE_HEAVY"))
HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
SITES = [*HOSPITALS, "alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
TEST = {"ckks": {"profile": "test"}}
MISSING = {"NA", "?"}
AT_ONCE = 3
LIMIT_S = 3600 if HEAVY else 300
HEART = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"]
# Columns whose likelihood has a clear maximum: there scikit-learn's own lambda is known to 1e-5.
CURVED = {
    "breast": ["mean radius", "area error", "worst concavity"],
    "hcv": ["ALT", "BIL", "GGT"],
    "parkinsons": ["motor_UPDRS", "HNR", "age"],
    "heart": ["trestbps", "thalach", "oldpeak"],
}


@dataclass(frozen=True)
class Table:
    """A data set, its rows as text, split over sites."""

    columns: list[str]
    parts: dict[str, list[list[str]]]

    def pooled(self, columns: list[str]) -> np.ndarray:
        """Numbers of all sites, with not-a-number where a cell says missing."""
        places = [self.columns.index(column) for column in columns]
        rows = [[row[place] for place in places] for part in self.parts.values() for row in part]
        return np.array([[np.nan if cell in MISSING else float(cell) for cell in row] for row in rows])


def spread(columns: list[str], rows: list[list[str]], count: int) -> Table:
    """Unevenly over the first sites: the last has three times the first's rows."""
    weights = np.linspace(1, 3, count)
    ends = [0, *(np.cumsum(weights) / weights.sum() * len(rows)).astype(int)]
    return Table(columns, {site: rows[ends[at] : ends[at + 1]] for at, site in enumerate(SITES[:count])})


def read(path: Path) -> list[list[str]]:
    with lzma.open(path, "rt", newline="") as file:
        return list(csv.reader(file))


def load(directory: Path) -> dict[str, Table]:
    """All data sets, by name and number of sites."""
    bunch = load_breast_cancer()
    order = np.argsort(bunch.target, kind="stable")
    hcv = read(directory / "hcv" / "hcvdat0.csv.xz")
    numeric = [at for at, name in enumerate(hcv[0]) if at > 3 or name == "Age"]
    parkinsons = read(directory / "parkinsons_telemonitoring" / "parkinsons_updrs.data.xz")
    whole = {
        "breast": (list(map(str, bunch.feature_names)), [[repr(float(x)) for x in row] for row in bunch.data[order]]),
        "hcv": ([hcv[0][at] for at in numeric], [[row[at] for at in numeric] for row in hcv[1:]]),
        "parkinsons": (parkinsons[0][1:], [row[1:] for row in parkinsons[1:]]),
    }
    tables = {f"{name}-{count}": spread(*data, count) for name, data in whole.items() for count in (4, 10)}
    heart = {s: read(directory / "heart_disease_4sites" / f"processed.{s}.data.xz") for s in HOSPITALS}
    tables["heart-4"] = Table(HEART, {site: [row[:13] for row in rows if row] for site, rows in heart.items()})
    return tables


# At one hospital an infinity, at another a value beyond 1000, at the last one row; a column that is the same everywhere.
ODD = {
    "cleveland": "value,infinite,constant\n1.5,1,7\n-2.25,2,7\n3.5,3,7\n",
    "hungarian": "value,infinite,constant\n4.5,inf,7\n5.5,2,7\n",
    "switzerland": "value,infinite,constant\n1234.5678,1,7\n6.5,2,7\n",
    "va": "value,infinite,constant\n8.25,1,7\n",
}


@dataclass(frozen=True)
class World:
    """The federation and what its sites hold."""

    federation: LocalFederation
    tables: dict[str, Table]

    def end(self, pipelines: list[dict[str, Any]]) -> list[Job]:
        """Submit jobs, a few at a time, and wait for their ends."""
        ended: dict[int, Job] = {}

        async def work() -> list[Job]:
            places = anyio.Semaphore(AT_ONCE)
            async with Client(self.federation.analyst()) as client, anyio.create_task_group() as tasks:

                async def one(number: int) -> None:
                    async with places:
                        job_id = (await client.submit(Pipeline.model_validate(pipelines[number]))).id
                        ended[number] = await client.wait(job_id)

                for number in range(len(pipelines)):
                    tasks.start_soon(one, number)
            return [ended[number] for number in range(len(pipelines))]

        return run(work, LIMIT_S)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, data_directory: Path) -> Iterator[World]:
    """Ten sites, a site that insists on secure parameters, and a site that does not compute under encryption."""
    directory = tmp_path_factory.mktemp("normalizers")
    tables = load(data_directory)
    files: dict[str, dict[str, Path]] = {site: {} for site in SITES}
    for name, table in tables.items():
        for site, rows in table.parts.items():
            files[site][name] = directory / f"{site}-{name}.csv"
            with files[site][name].open("w", newline="") as file:
                csv.writer(file).writerows([table.columns, *rows])
    for site, text in ODD.items():
        files[site]["odd"] = directory / f"{site}-odd.csv"
        files[site]["odd"].write_text(text)
    files["strict"] = files["plain"] = {"odd": files["cleveland"]["odd"]}
    policies: dict[str, dict[str, Any]] = {site: {"test_profile": True, "min_rows": 1} for site in SITES}
    policies |= {"strict": {"min_rows": 1}, "plain": {"min_rows": 1, "sums": ["masks", "shares"]}}
    with LocalFederation(directory, files, policies=policies, missing=sorted(MISSING)) as federation:
        yield World(federation, tables)


def encrypted(step: dict[str, Any]) -> bool:
    return step.get("sums") == "ckks" or step.get("variant") in {"sequential", "tree", "all-pairs", "private", "binary"}


# Every protocol and variant; "rows" stands for the most rows of the data set, "few" for one or two columns.
STEPS: dict[str, dict[str, Any]] = {
    "zscore-masks": {"transform": "zscore"},
    "zscore-shares": {"transform": "zscore", "sums": "shares"},
    "zscore-ckks": {"transform": "zscore", "sums": "ckks", "max_rows": 1 << 14},
    "minmax-search": {"transform": "minmax", "variant": "search", "feature_range": (-1.0, 2.0)},
    "minmax-sequential": {"transform": "minmax", "variant": "sequential"},
    "minmax-tree": {"transform": "minmax", "variant": "tree"},
    "minmax-all-pairs": {"transform": "minmax", "variant": "all-pairs"},
    "maxabs": {"transform": "maxabs"},
    "robust-masks": {"transform": "robust"},
    "robust-shares": {"transform": "robust", "sums": "shares", "quantile_range": (10.0, 90.0)},
    "robust-ckks": {"transform": "robust", "sums": "ckks"},
    "robust-private": {"transform": "robust", "variant": "private"},
    "quantiles-private": {"transform": "quantiles", "variant": "private", "quantiles": (0.5,)},
    "quantiles-binary": {"transform": "quantiles", "variant": "binary", "epsilon": 0.01, "quantiles": (0.5,)},
    "yeo-johnson-masks": {"transform": "yeo-johnson"},
    "yeo-johnson-shares": {"transform": "yeo-johnson", "sums": "shares"},
}
SECURE = ["zscore-ckks secure", "minmax-all-pairs secure", "robust-ckks secure"]
CASES: dict[str, list[str]] = {
    "breast-4": [*SECURE, "yeo-johnson-masks"],
    "breast-10": ["zscore-ckks", "minmax-search", "minmax-tree", "minmax-all-pairs", "robust-masks"],
    "hcv-4": ["minmax-tree", "maxabs", "robust-shares", "quantiles-binary"],
    "parkinsons-4": ["zscore-ckks", "minmax-search", "robust-masks", "yeo-johnson-shares"],
    "heart-4": [
        "zscore-shares", "zscore-ckks", "minmax-search", "minmax-sequential", "minmax-all-pairs", "maxabs",
        "robust-masks", "robust-ckks", "quantiles-private", "yeo-johnson-masks",
    ],
}  # fmt: skip
if HEAVY:
    everywhere = [name for name in STEPS] + [f"{name} secure" for name, step in STEPS.items() if encrypted(step)]
    CASES = {f"{name}-4": everywhere for name in CURVED}
    CASES |= {f"{name}-10": list(STEPS) for name in CURVED if name != "heart"}


def columns_of(world: World, group: str, step: dict[str, Any]) -> list[str]:
    """All; for Yeo-Johnson the curved ones, for slow searches two (of HCV one with an even, one with an odd count)."""
    if step["transform"] == "yeo-johnson":
        return CURVED[group.partition("-")[0]]
    return world.tables[group].columns[:2] if step.get("variant") in {"private", "binary"} else world.tables[group].columns


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, world: World) -> dict[str, Job]:
    """The jobs of a data set, run together, by case."""
    group, pipelines = request.param, []
    for case in CASES[group]:
        name, _, secure = case.partition(" ")
        step = STEPS[name] | ({} if secure or not encrypted(STEPS[name]) else TEST)
        sites = list(world.tables[group].parts)
        columns = columns_of(world, group, step)
        pipelines.append(job(sites, columns, dataset=group, deadline_s=LIMIT_S, **step))
    return dict(zip(CASES[group], world.end(pipelines), strict=True))


def numbers(values: list[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)


def check_zscore(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """To 1e-7 of the deviation under encryption, which reveals no count; else to 1e-9."""
    expected = StandardScaler().fit(pooled)
    tolerance = 1e-7 if step.get("sums") == "ckks" else 1e-9
    np.testing.assert_array_equal(got.mean_, numbers(result["mean"]))
    assert (np.abs(got.mean_ - expected.mean_) / expected.scale_).max() < tolerance
    np.testing.assert_allclose(got.scale_, expected.scale_, rtol=tolerance)
    counts = None if step.get("sums") == "ckks" else (~np.isnan(pooled)).sum(axis=0).tolist()
    assert result["count"] == counts


def check_minmax(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """To the last bit by search; under encryption to 1e-5 of the largest magnitude."""
    expected = MinMaxScaler(feature_range=step.get("feature_range", (0, 1))).fit(pooled)
    np.testing.assert_array_equal(got.data_min_, numbers(result["min"]))
    np.testing.assert_array_equal(got.data_max_, numbers(result["max"]))
    assert result["variant"] == step["variant"]
    if step["variant"] == "search":
        for name in ("data_min_", "data_max_", "data_range_", "scale_", "min_"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    largest = np.nanmax(np.abs(pooled), axis=0)
    for name in ("data_min_", "data_max_"):
        assert (np.abs(getattr(got, name) - getattr(expected, name)) / largest).max() < 1e-5


def check_maxabs(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """To the last bit."""
    np.testing.assert_array_equal(got.max_abs_, numbers(result["max_abs"]))
    np.testing.assert_array_equal(got.scale_, MaxAbsScaler().fit(pooled).scale_)


def check_robust(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """To the last bit, whatever adds or compares."""
    expected = RobustScaler(quantile_range=step.get("quantile_range", (25.0, 75.0))).fit(pooled)
    np.testing.assert_array_equal(got.center_, numbers(result["median"]))
    np.testing.assert_array_equal(got.center_, expected.center_)
    np.testing.assert_array_equal(got.scale_, expected.scale_)


def check_quantiles(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """Exact; of the paper's search within epsilon of a value, or between the two values around it."""
    assert got is None
    slack = step["epsilon"] if step["variant"] == "binary" else 0.0
    for column, found in zip(pooled.T, result["values"], strict=True):
        present = column[~np.isnan(column)]
        if not slack:
            np.testing.assert_array_equal(found, np.quantile(present, step["quantiles"]))
            continue
        for quantile, value in zip(step["quantiles"], found, strict=True):
            low, high = (np.quantile(present, quantile, method=method) for method in ("lower", "higher"))
            assert low - slack <= value <= high + slack


def check_yeo_johnson(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """Lambda to 1e-5, and the standardized table to 1e-4 of a deviation."""
    expected = PowerTransformer().fit(pooled)
    np.testing.assert_array_equal(got.lambdas_, numbers(result["lambda"]))
    np.testing.assert_allclose(got.lambdas_, expected.lambdas_, rtol=1e-5, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our estimator knows the columns' names, the array does not
        np.testing.assert_allclose(got.transform(pooled), expected.transform(pooled), atol=1e-4)


CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any], Any, np.ndarray], None]] = {
    "zscore": check_zscore,
    "minmax": check_minmax,
    "maxabs": check_maxabs,
    "robust": check_robust,
    "quantiles": check_quantiles,
    "yeo-johnson": check_yeo_johnson,
}


@pytest.mark.parametrize(
    ("ended", "group", "case"), [(group, group, case) for group in CASES for case in CASES[group]], indirect=["ended"]
)
def test_a_job_equals_pooled_scikit_learn(ended: dict[str, Job], world: World, group: str, case: str) -> None:
    """Within the variant's error; and every site has kept the result that the coordinator tells."""
    done, step = ended[case], STEPS[case.partition(" ")[0]]
    assert done.state == "done", done.wire.error
    (result,) = done.result
    pooled = world.tables[group].pooled(result["columns"])
    for site in world.tables[group].parts:
        results = world.federation.directory / site / "state" / "results" / done.id
        assert json.loads((results / "parameters.json").read_text()) == done.result
        path = results / f"0-{step['transform']}.skops"
        CHECKS[step["transform"]](step, result, scaler.load(path) if path.exists() else None, pooled)


def test_heart_disease_has_columns_that_whole_hospitals_lack(world: World) -> None:
    """So the jobs on it show that a site without any value of a column changes nothing."""
    lacking = {
        (site, HEART[at])
        for site, rows in world.tables["heart-4"].parts.items()
        for at in range(len(HEART))
        if all(row[at] == "?" for row in rows)
    }
    assert lacking or "none"
