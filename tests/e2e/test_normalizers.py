"""Every transform and method over real daemons and mTLS equals pooled scikit-learn on real data.

One federation serves all: ten sites with a table of every data set, and one with a narrow policy. COMMONSCALE_HEAVY=1
runs every method on every data set with 4 and 10 sites, and with 4 sites the secure parameters too.
"""

import csv
import json
import lzma
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from commonscale.client import Client, Job
from commonscale.errors import BadMessage
from commonscale.estimators import storage
from commonscale.localnet import ENCRYPTION, LocalFederation
from commonscale.pipeline import Pipeline
from commonscale.statistics.axes import GRID, VARYING
from commonscale.statistics.extremes import RANGE
from tests.e2e.conftest import job, run

pytestmark = pytest.mark.long

HEAVY = bool(os.environ.get("COMMONSCALE_HEAVY"))
HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
SITES = [*HOSPITALS, "alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
TEST = {"ckks": {"profile": "test"}}
MISSING = {"NA", "?"}
AT_ONCE = 2
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
    tables = {f"{name}-{count}": spread(*data, count) for name, data in whole.items() for count in (3, 4, 10)}
    heart = {s: read(directory / "heart_disease_4sites" / f"processed.{s}.data.xz") for s in HOSPITALS}
    tables["heart-4"] = Table(HEART, {site: [row[:13] for row in rows if row] for site, rows in heart.items()})
    return tables


# At one hospital an infinity, at another a value beyond 1000, at the last one row; a column that is the same at all
# sites, and one that two of them lack.
ODD = {
    "cleveland": "value,infinite,constant,lacking\n1.5,1,7,?\n-2.25,2,7,?\n3.5,3,7,?\n",
    "hungarian": "value,infinite,constant,lacking\n4.5,2,7,2.5\n5.5,inf,7,?\n",
    "switzerland": "value,infinite,constant,lacking\n1234.5678,1,7,3\n6.5,2,7,-1\n",
    "va": "value,infinite,constant,lacking\n8.25,1,7,?\n",
}


@dataclass(frozen=True)
class World:
    """The federation and what its sites hold."""

    federation: LocalFederation
    tables: dict[str, Table]
    ended: dict[str, dict[str, Job]] = field(default_factory=dict)

    def jobs_of(self, group: str) -> dict[str, Job]:
        """The jobs on a data set, by case; run when they are first asked for."""
        if group not in self.ended:
            pipelines = [self._pipeline(group, *case.partition(" ")) for case in CASES[group]]
            self.ended[group] = dict(zip(CASES[group], self.end(pipelines), strict=True))
        return self.ended[group]

    def _pipeline(self, group: str, name: str, _: str, secure: str) -> dict[str, Any]:
        step, table = STEPS[name], self.tables[group]
        columns = table.columns
        if step["transform"] == "power":
            columns = CURVED[group.partition("-")[0]]
        elif step.get("method") in {"private", "binary"}:
            columns = columns[:2]
        options = {} if secure or not encrypted(step) else TEST
        return job(list(table.parts), columns, dataset=group, deadline_s=LIMIT_S, **step, **options)

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
    """Ten sites, one that does not compute under encryption, and one that does, with secure parameters only."""
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
    files["strict"] = files["careful"] = {"odd": files["cleveland"]["odd"]}
    policies: dict[str, dict[str, Any]] = {site: {**ENCRYPTION, "min_rows": 1} for site in SITES}
    # As by default.
    policies["strict"] = {"min_rows": 1}
    policies["careful"] = {"min_rows": 1, "methods": ["masks", "ckks"]}
    with LocalFederation(directory, files, policies=policies, missing=sorted(MISSING)) as federation:
        yield World(federation, tables)


def encrypted(step: dict[str, Any]) -> bool:
    return step.get("method") in {"ckks", "sequential", "tree", "all-pairs", "private", "binary"}


# Every protocol and method. Encrypted ones run under the quick parameters unless their case says "secure".
STEPS: dict[str, dict[str, Any]] = {
    "zscore-masks": {"transform": "zscore"},
    "zscore-shares": {"transform": "zscore", "method": "shares"},
    "zscore-ckks": {"transform": "zscore", "method": "ckks", "max_rows": 1 << 14},
    "minmax-search": {"transform": "minmax", "method": "search", "feature_range": (-1.0, 2.0)},
    "minmax-sequential": {"transform": "minmax", "method": "sequential"},
    "minmax-tree": {"transform": "minmax", "method": "tree"},
    "minmax-all-pairs": {"transform": "minmax", "method": "all-pairs"},
    "maxabs": {"transform": "maxabs"},
    "robust-masks": {"transform": "robust"},
    "robust-shares": {"transform": "robust", "method": "shares", "quantile_range": (10.0, 90.0)},
    "robust-ckks": {"transform": "robust", "method": "ckks"},
    "robust-private": {"transform": "robust", "method": "private"},
    "quantiles-private": {"transform": "quantiles", "method": "private", "quantiles": (0.5,)},
    "quantiles-binary": {"transform": "quantiles", "method": "binary", "epsilon": 0.1, "quantiles": (0.5,)},
    "power-masks": {"transform": "power"},
    "power-shares": {"transform": "power", "method": "shares"},
}
CASES: dict[str, list[str]] = {
    "breast-4": ["zscore-ckks secure", "minmax-all-pairs secure", "robust-ckks secure"],
    "breast-10": ["zscore-ckks", "minmax-search", "minmax-tree", "minmax-all-pairs", "robust-masks"],
    "hcv-3": ["minmax-sequential", "quantiles-binary"],
    "hcv-4": ["robust-shares", "maxabs"],
    "parkinsons-4": ["minmax-search", "robust-masks", "power-masks"],
    "heart-4": ["zscore-ckks", "minmax-search", "robust-ckks", "quantiles-private", "power-shares"],
}
if HEAVY:
    everything = [*STEPS, *(f"{name} secure" for name, step in STEPS.items() if encrypted(step))]
    CASES |= {f"{name}-4": everything for name in CURVED}
    CASES |= {f"{name}-10": list(STEPS) for name in CURVED if name != "heart"}


def numbers(values: list[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)


def check_zscore(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """To 1e-7 of the deviation under encryption, which reveals no count; else to 1e-9."""
    expected = StandardScaler().fit(pooled)
    tolerance = 1e-7 if step.get("method") == "ckks" else 1e-9
    np.testing.assert_array_equal(got.mean_, numbers(result["mean"]))
    assert (np.abs(got.mean_ - expected.mean_) / expected.scale_).max() < tolerance
    np.testing.assert_allclose(got.scale_, expected.scale_, rtol=tolerance)
    counts = None if step.get("method") == "ckks" else (~np.isnan(pooled)).sum(axis=0).tolist()
    assert result["count"] == counts


def check_minmax(step: dict[str, Any], result: dict[str, Any], got: Any, pooled: np.ndarray) -> None:
    """To the last bit by search; under encryption to 1e-5 of the largest magnitude."""
    expected = MinMaxScaler(feature_range=step.get("feature_range", (0, 1))).fit(pooled)
    np.testing.assert_array_equal(got.data_min_, numbers(result["min"]))
    np.testing.assert_array_equal(got.data_max_, numbers(result["max"]))
    assert result["method"] == step["method"]
    if step["method"] == "search":
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
    slack = step["epsilon"] if step["method"] == "binary" else 0.0
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
    "power": check_yeo_johnson,
}


# Groups whose jobs compute long, most of them under encryption.
LONG = {"breast-4", "breast-10", "hcv-3", "hcv-4", "heart-4"}


@pytest.mark.parametrize(
    ("group", "case"),
    [pytest.param(group, case, marks=[pytest.mark.long] * (group in LONG)) for group in CASES for case in CASES[group]],
)
def test_a_job_equals_pooled_scikit_learn(world: World, group: str, case: str) -> None:
    """Within the method's error; and every site has kept the result that the coordinator tells."""
    done, step = world.jobs_of(group)[case], STEPS[case.partition(" ")[0]]
    assert done.state == "done", done.wire.error
    (result,) = done.result
    pooled = world.tables[group].pooled(result["columns"])
    for site in world.tables[group].parts:
        results = world.federation.directory / site / "state" / "results" / done.id
        assert json.loads((results / "parameters.json").read_text()) == done.result
        path = results / f"0-{step['transform']}.skops"
        CHECKS[step["transform"]](step, result, storage.load(path) if path.exists() else None, pooled)


@pytest.mark.long
def test_heart_disease_has_a_column_that_three_hospitals_lack(world: World) -> None:
    """Nearly so; the jobs on it show that missing values at some sites change nothing."""
    place = HEART.index("ca")
    missing = {
        site: np.mean([row[place] == "?" for row in rows]) for site, rows in world.tables["heart-4"].parts.items()
    }
    assert [site for site, share in missing.items() if share > 0.95] == ["hungarian", "switzerland", "va"]


def test_one_row_one_value_and_no_value(world: World) -> None:
    """A site with one row, a column that is constant everywhere and one that two sites lack, by four protocols."""
    columns = ["value", "constant", "lacking"]
    steps = [STEPS[name] | TEST for name in ("zscore-ckks", "minmax-tree")] + [{"transform": "robust"}, {}]
    # Apart: in one job, each would see what the one before it made.
    ended = world.end([job(HOSPITALS, columns, dataset="odd", **step) for step in steps])
    hidden, extremes, robust, plain = (done.result[0] for done in ended)
    rows = [line.split(",") for text in ODD.values() for line in text.splitlines()[1:]]
    pooled = np.array([[float(row[at]) if row[at] != "?" else np.nan for at in (0, 2, 3)] for row in rows])
    expected = StandardScaler().fit(pooled)
    for found, tolerance in ((hidden, 1e-7), (plain, 1e-9)):
        np.testing.assert_allclose(found["mean"], expected.mean_, rtol=0, atol=tolerance * expected.scale_.max())
        np.testing.assert_allclose(found["scale"], expected.scale_, rtol=tolerance)
    np.testing.assert_allclose(extremes["min"], np.nanmin(pooled, axis=0), atol=1e-5 * 1234.5678)
    np.testing.assert_allclose(extremes["max"], np.nanmax(pooled, axis=0), rtol=1e-5)
    assert extremes["min"][1] == extremes["max"][1]
    np.testing.assert_array_equal(robust["median"], np.nanmedian(pooled, axis=0))


def test_a_declared_bound_that_does_not_hold(world: World) -> None:
    """The error names site and column, not the value."""
    step = STEPS["zscore-ckks"] | {"ckks": {"profile": "test", "max_abs": [1000.0]}}
    (ended,) = world.end([job(HOSPITALS, ["constant", "value"], dataset="odd", **step)])
    assert ended.state == "failed"
    assert "switzerland failed with OutOfRange: switzerland: column 'value' has values beyond" in ended.wire.error
    assert "1234" not in ended.wire.error


@pytest.mark.parametrize("name", ["zscore-masks", "minmax-search", "maxabs", "robust-masks", "power-masks"])
def test_infinities_are_refused(world: World, name: str) -> None:
    """Before any protocol begins, whatever the transform."""
    (ended,) = world.end([job(HOSPITALS, ["value", "infinite"], dataset="odd", **STEPS[name])])
    assert ended.state == "refused"
    assert "hungarian refused: hungarian: column 'infinite' holds infinities" in ended.wire.error


def test_a_policy_refuses_parameters_that_are_not_secure(world: World) -> None:
    """Unless it allows them in so many words, or nothing is encrypted with them."""
    names = ("robust-ckks", "robust-masks")
    sites = [*HOSPITALS, "careful"]
    refused, ended = world.end([job(sites, ["value"], dataset="odd", **STEPS[name], **TEST) for name in names])
    assert refused.state == "refused"
    assert "careful refused: Its policy does not allow the profile 'test'" in refused.wire.error
    assert "in step 0 (robust)" in refused.wire.error
    assert ended.state == "done"


@pytest.mark.parametrize("name", ["zscore-ckks", "minmax-tree", "robust-ckks", "robust-private", "quantiles-binary"])
def test_a_policy_refuses_computing_under_encryption(world: World, name: str) -> None:
    """A policy without ckks, the default, refuses every protocol that encrypts and says how to allow it."""
    (ended,) = world.end([job([*HOSPITALS, "strict"], ["value"], dataset="odd", **STEPS[name])])
    assert ended.state == "refused"
    assert "strict refused: Its policy does not allow the method 'ckks'" in ended.wire.error
    assert "add it to policy.methods; see SECURITY.md first" in ended.wire.error


def test_two_sites_are_refused_by_the_coordinator(world: World) -> None:
    """Even if the client does not check."""
    three = Pipeline.model_validate(job(HOSPITALS[:3], ["value"], dataset="odd", **STEPS["minmax-search"]))

    async def work() -> None:
        async with Client(world.federation.analyst()) as client:
            await client.submit(three.model_copy(update={"sites": HOSPITALS[:2]}))

    with pytest.raises(BadMessage, match="2 sites are too few"):
        run(work)


def test_the_report_of_a_search_names_what_it_reveals(world: World) -> None:
    """Minimum and maximum, and what all values have in common, to everyone who took part; nothing else of the data."""
    revealed = world.jobs_of("heart-4")["minmax-search"].disclosures
    told = [item for item in revealed if item["protocol"] == "minmax/search"]
    assert [item["what"] for item in told] == [reveal.what for reveal in (GRID, VARYING, RANGE)]
    assert all(set(item["to"]) == {"coordinator", "analyst", *HOSPITALS} for item in told)
    assert {item["protocol"] for item in revealed} == {"admission", "minmax/search"}
