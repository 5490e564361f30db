"""Encodings of categorical columns over real daemons and mTLS equal the pooled ones, on real data.

One federation serves all: ten sites, of which four hold the Heart Disease hospitals' own tables.
"""

import base64
import csv
import hashlib
import json
import lzma
import sqlite3
import subprocess
import sys
import unicodedata
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import OneHotEncoder

from commonscale.categories import canonical
from commonscale.client import Client, Job
from commonscale.estimators import storage
from commonscale.localnet import ENCRYPTION, LocalFederation
from commonscale.pipeline import Pipeline
from commonscale.protocols.psi.items import item
from tests.e2e.conftest import job, run
from tests.patience import PATIENCE_S

HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
SITES = [*HOSPITALS, "alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
HEART = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"]
HEART_NUMERIC = ["age", "trestbps", "thalach", "oldpeak"]
HEART_CATEGORICAL = ["sex", "cp", "fbs", "restecg", "exang", "slope", "ca", "thal"]
ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours", "country", "income",
]  # fmt: skip
ADULT_CATEGORICAL = [
    "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "country",
]  # fmt: skip
GERMAN = [f"a{number}" for number in range(1, 22)]
GERMAN_CATEGORICAL = [f"a{number}" for number in (1, 3, 4, 6, 7, 9, 10, 12, 14, 15, 17, 19, 20)]
CATEGORICAL = {"adult": ADULT_CATEGORICAL, "german": GERMAN_CATEGORICAL, "heart": HEART_CATEGORICAL}
MISSING = ["?"]
METHODS: dict[str, dict[str, Any]] = {
    "oprf": {"method": "oprf"},
    "apsi": {"method": "apsi"},
    "otmppsi": {"method": "otmppsi"},
}

# Values that look alike and are, values that look alike and are not, and a column that one site lacks.
ODD = {
    "cleveland": ["naïve", "007", "1.0", "Yes", " padded ", "", "x" * 10_000, "only here"],
    "hungarian": [unicodedata.normalize("NFD", "naïve"), "7", "1", "yes", "padded", "", "x" * 10_000],
    "switzerland": ["naive", "007", "1.00", "YES", "padded", "y", "x" * 9_999],
}


@dataclass(frozen=True)
class World:
    """The federation and what its sites hold: cells by data set, site and column."""

    federation: LocalFederation
    tables: dict[str, dict[str, dict[str, list[str]]]]

    def end(self, pipeline: dict[str, Any], job_id: str | None = None) -> Job:
        async def work() -> Job:
            async with Client(self.federation.analyst()) as client:
                job = await client.submit(Pipeline.model_validate(pipeline), job_id)
                return await client.wait(job.id)

        return run(work, 180)

    def encode(self, dataset: str, columns: list[str], job_id: str | None = None, **step: Any) -> Job:
        """A one-hot job on a data set; ends well."""
        pipeline = job(list(self.tables[dataset]), columns, dataset=dataset, deadline_s=120, transform="onehot", **step)
        done = self.end(pipeline, job_id)
        assert done.state == "done", done.wire.error
        return done

    def results(self, site: str, done: Job) -> Path:
        return self.federation.directory / site / "state" / "results" / done.id

    def identifiers(self, dataset: str, done: Job, columns: list[str]) -> list[dict[str, dict[str | None, int]]]:
        """For each column and site: its values and their identifiers, as the site keeps them."""
        kept = {
            site: json.loads((self.results(site, done) / "identifiers.json").read_text())[0]["dictionaries"]
            for site in self.tables[dataset]
        }
        return [
            {
                site: dict(zip(found[at]["values"], found[at]["identifiers"], strict=True))
                for site, found in kept.items()
            }
            for at in range(len(columns))
        ]

    def held(self, dataset: str, site: str, column: str) -> set[str | None]:
        """A site's different values, as it compares them."""
        return {canonical(None if cell in MISSING else cell) for cell in self.tables[dataset][site][column]}


def split(columns: list[str], rows: list[list[str]], count: int, by: str) -> dict[str, dict[str, list[str]]]:
    """Rows in order of a column, unevenly over the first sites: many values are at a few sites only."""
    ordered = sorted(rows, key=lambda row: row[columns.index(by)])
    ends = [0, *(np.cumsum(np.linspace(1, 3, count)) / np.linspace(1, 3, count).sum() * len(rows)).astype(int)]
    return {
        site: {name: [row[place] for row in ordered[ends[at] : ends[at + 1]]] for place, name in enumerate(columns)}
        for at, site in enumerate(SITES[:count])
    }


def read(path: Path, separator: str = ",") -> list[list[str]]:
    with lzma.open(path, "rt") as file:
        lines = [line.strip() for line in file if line.strip()]
    return [[cell.strip() for cell in line.split(separator)] for line in lines]


def load(directory: Path) -> dict[str, dict[str, dict[str, list[str]]]]:
    adult = [row for row in read(directory / "adult" / "adult.data.xz") if len(row) == len(ADULT)]
    german = read(directory / "german_credit" / "german.data.xz", " ")
    tables = {}
    for count in (4, 10):
        tables[f"adult-{count}"] = split(ADULT, adult, count, "education")
        tables[f"german-{count}"] = split(GERMAN, german, count, "a4")
    tables["adult-5"] = split(ADULT, adult[:3000], 5, "country")
    heart = {site: read(directory / "heart_disease_4sites" / f"processed.{site}.data.xz") for site in HOSPITALS}
    tables["heart-4"] = {
        site: {name: [row[place] for row in rows] for place, name in enumerate(HEART)} for site, rows in heart.items()
    }
    tables["odd"] = {site: {"word": cells, "label": ["1", "0"] * 4} for site, cells in ODD.items()}
    tables["odd"] = {
        site: {"word": table["word"], "label": table["label"][: len(table["word"])]}
        for site, table in tables["odd"].items()
    }
    tables["odd"]["cleveland"]["extra"] = ["e"] * 8
    return tables


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, data_directory: Path) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("encodings")
    tables = load(data_directory)
    files: dict[str, dict[str, Path]] = {site: {} for site in SITES}
    for name, table in tables.items():
        for site, columns in table.items():
            files[site][name] = directory / f"{site}-{name}.csv"
            with files[site][name].open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    policies: dict[str, dict[str, Any]] = {site: {**ENCRYPTION, "min_rows": 1} for site in SITES}
    files["narrow"] = {"odd": files["cleveland"]["odd"]}
    policies["narrow"] = {"min_rows": 1, "methods": ["masks", "apsi"]}
    for site in HOSPITALS[:3]:
        policies[site]["transforms"] = [
            "zscore", "onehot", "ordinal", "target", "bytes-norm", "mod-norm", "rolling-hash", "fasttext",
        ]  # fmt: skip
    with LocalFederation(directory, files, policies=policies, missing=MISSING) as federation:
        yield World(federation, tables)


def assert_pooled(world: World, dataset: str, done: Job, columns: list[str], threshold: int = 2) -> None:
    """Identifiers are those of the pooled dictionary up to renaming: one a value, numbered without gaps."""
    found = world.identifiers(dataset, done, columns)
    for at, column in enumerate(columns):
        pooled: dict[str | None, set[int]] = {}
        holders: dict[str | None, int] = {}
        for site, dictionary in found[at].items():
            assert set(dictionary) == world.held(dataset, site, column), "a site names its own values, and no other"
            for value, identifier in dictionary.items():
                pooled.setdefault(value, set()).add(identifier)
                holders[value] = holders.get(value, 0) + 1
        for value, identifiers in pooled.items():
            assert len(identifiers) == (1 if holders[value] >= threshold else holders[value])
        numbers = [identifier for identifiers in pooled.values() for identifier in identifiers]
        assert sorted(numbers) == list(range(done.result[0]["identifiers"][at]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "dataset",
    ["adult-4", *(pytest.param(name, marks=pytest.mark.long) for name in ("german-4", "adult-10", "german-10"))],
)
def test_identifiers_are_the_same_everywhere(world: World, dataset: str, method: str) -> None:
    """For each method, Adult and German Credit at 4 and 10 sites: equal to the pooled dictionary."""
    columns = CATEGORICAL[dataset.partition("-")[0]]
    done = world.encode(dataset, columns, **METHODS[method])
    assert_pooled(world, dataset, done, columns)


@pytest.mark.long
@pytest.mark.parametrize("step", [{"method": "otmppsi", "general": True}, {"method": "apsi", "both_directions": True}])
def test_the_papers_longer_ways_come_to_the_same(world: World, step: dict[str, Any]) -> None:
    """Shares in tables with a threshold of 2, and questions in both directions."""
    done = world.encode("german-4", GERMAN_CATEGORICAL, **step)
    assert_pooled(world, "german-4", done, GERMAN_CATEGORICAL)


@pytest.mark.long
def test_over_a_threshold_of_three(world: World) -> None:
    """T = 3 of 5 sites: exactly the values that at least three hold have one identifier."""
    columns = ["country", "occupation", "education"]
    done = world.encode("adult-5", columns, method="otmppsi", threshold=3)
    assert_pooled(world, "adult-5", done, columns, threshold=3)
    holders = [
        sum(value in world.held("adult-5", site, column) for site in SITES[:5])
        for column in columns
        for value in set.union(*(world.held("adult-5", site, column) for site in SITES[:5]))
    ]
    assert {1, 2, 3, 4, 5} <= set(holders), "the data has values on both sides of the threshold"


@pytest.mark.long
def test_the_ring_alone_gives_each_site_its_own(world: World) -> None:
    """UHE: no identifier is at two sites, and padding stays within its bound."""
    done = world.encode("german-4", GERMAN_CATEGORICAL, method="ring", padding=5)
    for at, by_site in enumerate(world.identifiers("german-4", done, GERMAN_CATEGORICAL)):
        numbers = [identifier for dictionary in by_site.values() for identifier in dictionary.values()]
        assert len(set(numbers)) == len(numbers)
        size = done.result[0]["identifiers"][at]
        assert max(numbers) < size
        assert len(numbers) <= size <= len(numbers) + 5 * 4


def pooled_onehot(world: World, dataset: str, columns: list[str]) -> np.ndarray:
    """scikit-learn's, over all sites' rows in one table; missing is a category."""
    rows = [
        [canonical(None if cell in MISSING else cell) or "(missing)" for cell in row]
        for table in world.tables[dataset].values()
        for row in zip(*(table[column] for column in columns), strict=True)
    ]
    found: np.ndarray = OneHotEncoder(sparse_output=False).fit_transform(np.array(rows, dtype=object))
    return found


def same_columns(a: np.ndarray, b: np.ndarray) -> None:
    """Equal up to the order of the columns."""
    assert a.shape == b.shape
    assert sorted(map(bytes, a.T.astype(np.float64))) == sorted(map(bytes, b.T.astype(np.float64)))


@pytest.mark.long
def test_four_hospitals_scale_and_encode_in_one_job(world: World, tmp_path: Path) -> None:
    """Heart Disease: numbers under encryption and categories by intersection; each site writes the pooled table."""
    pipeline = {
        "name": "heart",
        "dataset": "heart-4",
        "sites": HOSPITALS,
        "deadline_s": 170,
        "steps": [
            {"transform": "zscore", "method": "ckks", "columns": HEART_NUMERIC, "max_rows": 4096},
            {"transform": "onehot", "method": "apsi", "columns": HEART_CATEGORICAL},
        ],
    }
    done = world.end(pipeline)
    assert done.state == "done", done.wire.error
    written, names = [], set()
    for site in HOSPITALS:
        output = tmp_path / f"{site}.csv"
        commonscale(
            "transform", "--estimator", str(world.results(site, done) / "pipeline.skops"),
            "--in", str(world.federation.directory / f"{site}-heart-4.csv"), "--out", str(output),
        )  # fmt: skip
        with output.open(newline="") as file:
            header, *rows = list(csv.reader(file))
        estimator = storage.load(world.results(site, done) / "pipeline.skops")
        wanted = [header.index(name) for name in estimator.get_feature_names_out()]
        written.append(np.array([[float(row[at] or "nan") for at in wanted] for row in rows]))
        names.add(len(wanted))
        for name in estimator.get_feature_names_out():
            column, _, value = str(name).partition("_")
            if column in HEART_CATEGORICAL and not value.startswith("#") and value != "missing":
                assert value in world.held("heart-4", site, column), "names show only values that the site holds"
    together = np.vstack(written)
    assert len(names) == 1
    numbers = np.array(
        [
            [float("nan") if cell == "?" else float(cell) for cell in row]
            for table in world.tables["heart-4"].values()
            for row in zip(*(table[column] for column in HEART_NUMERIC), strict=True)
        ]
    )
    expected = (numbers - np.nanmean(numbers, axis=0)) / np.nanstd(numbers, axis=0)
    np.testing.assert_allclose(together[:, : len(HEART_NUMERIC)], expected, atol=1e-4)
    same_columns(together[:, len(HEART_NUMERIC) :], pooled_onehot(world, "heart-4", HEART_CATEGORICAL))


def commonscale(*arguments: str) -> str:
    """The command as a person runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "commonscale", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def view_of(world: World, jobs: list[str]) -> bytes:
    """What the coordinator stored of some jobs, all that it logged, and its metrics."""
    directory = world.federation.directory / "coordinator"
    marks = ", ".join("?" * len(jobs))
    parts = [(directory / "log.jsonl").read_bytes()]
    with sqlite3.connect(directory / "coordinator.db") as connection:
        for payload, blob in connection.execute(f"SELECT payload, blob FROM slots WHERE job_id IN ({marks})", jobs):
            parts.append(payload if blob is None else (directory / "blobs" / blob).read_bytes())
        for row in connection.execute(f"SELECT * FROM jobs WHERE id IN ({marks})", jobs):
            parts += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    port = world.federation.coordinator.wait_ready()["http_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        parts.append(response.read())
    return b"\0".join(parts)


def test_no_category_is_in_the_coordinators_view(world: World) -> None:
    """Messages, job records, log and metrics hold no value of any site, nor a hash of one, for any method."""
    view = view_of(world, [world.encode("adult-4", ["country", "occupation"], **step).id for step in METHODS.values()])
    values = {
        (column, value)
        for column in ("country", "occupation")
        for site in SITES[:4]
        for value in world.held("adult-4", site, column)
        # Shorter ones occur in random bytes.
        if value is not None and len(value) > 4
    }
    assert len(values) > 40
    for column, value in values:
        raw = value.encode()
        for needle in (raw, raw[::-1], value.encode("utf-16-le"), raw.hex().encode(), base64.b64encode(raw)):
            assert needle not in view, value
        for name in ("sha256", "sha1", "md5", "blake2b"):
            for text in (raw, column.encode() + raw, item(column, value)):
                assert hashlib.new(name, text).digest()[:16] not in view
    # The same search finds the columns' names, which are meant to be there.
    assert b"occupation" in view


def test_look_alikes(world: World) -> None:
    """NFC and NFD are one value, so are 1, 1.0 and 1.00; 007 and 7, Yes and yes, naïve and naive are not."""
    done = world.encode("odd", ["word"])
    assert_pooled(world, "odd", done, ["word"])
    (found,) = world.identifiers("odd", done, ["word"])
    number = {(site, value): identifier for site, known in found.items() for value, identifier in known.items()}
    assert number["cleveland", "naïve"] == number["hungarian", "naïve"] != number["switzerland", "naive"]
    assert number["cleveland", "1"] == number["hungarian", "1"] == number["switzerland", "1"]
    assert number["cleveland", "007"] == number["switzerland", "007"] != number["hungarian", "7"]
    assert len({number["cleveland", "Yes"], number["hungarian", "yes"], number["switzerland", "YES"]}) == 3
    assert number["cleveland", "padded"] == number["hungarian", "padded"]
    assert number["cleveland", None] == number["hungarian", None]
    assert number["cleveland", "x" * 10_000] == number["hungarian", "x" * 10_000]
    folded = world.encode("odd", ["word"], casefold=True)
    (found,) = world.identifiers("odd", folded, ["word"])
    assert found["cleveland"]["yes"] == found["hungarian"]["yes"] == found["switzerland"]["yes"]


@pytest.mark.long
def test_rare_values_share_a_column(world: World) -> None:
    """min_frequency counts over all sites: as many output columns as scikit-learn's on the pooled table."""
    done = world.encode("german-4", ["a4", "a10"], min_frequency=50)
    for at, column in enumerate(["a4", "a10"]):
        rows = [[canonical(cell)] for table in world.tables["german-4"].values() for cell in table[column]]
        pooled = OneHotEncoder(min_frequency=50).fit(np.array(rows, dtype=object))
        result = done.result[0]
        width = result["identifiers"][at] - result["infrequent"][at] + bool(result["infrequent"][at])
        assert width == len(pooled.get_feature_names_out())


@pytest.mark.long
def test_a_late_joiner_keeps_the_others_identifiers(world: World) -> None:
    """A fourth hospital joins: old identifiers stay as they are, its own are consistent with them."""
    columns = ["thal", "cp", "slope"]
    first = world.end(job(HOSPITALS[:3], columns, dataset="heart-4", transform="onehot"))
    assert first.state == "done", first.wire.error
    for method in METHODS:
        second = world.encode("heart-4", columns, method=method, extends=first.id)
        after = world.identifiers("heart-4", second, columns)
        for at, column in enumerate(columns):
            for site in HOSPITALS[:3]:
                kept = json.loads((world.results(site, first) / "identifiers.json").read_text())[0]["dictionaries"][at]
                assert after[at][site] == dict(zip(kept["values"], kept["identifiers"], strict=True)), column
        assert_pooled(world, "heart-4", second, columns)


@pytest.mark.long
def test_values_unseen_at_the_job_are_handled(world: World, tmp_path: Path) -> None:
    """A new value gives zeros with "ignore"; with "error" the command says which column, not which value."""
    table = tmp_path / "new.csv"
    table.write_text("word,label\nnever seen,1\n007,0\n")
    for unknown in ("ignore", "error"):
        done = world.encode("odd", ["word"], handle_unknown=unknown)
        estimator = str(world.results("cleveland", done) / "0-onehot.skops")
        command = [sys.executable, "-m", "commonscale", "transform", "-e", estimator, "-i", str(table)]
        ended = subprocess.run(
            [*command, "-o", str(tmp_path / "out.csv")], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if unknown == "ignore":
            assert ended.returncode == 0, ended.stderr
            rows = list(csv.DictReader((tmp_path / "out.csv").open()))
            assert [sum(float(v) for k, v in row.items() if k.startswith("word_")) for row in rows] == [0, 1]
        else:
            assert ended.returncode == 4, ended.stderr
            assert "word" in ended.stderr
            assert "never seen" not in ended.stderr
            assert "Traceback" not in ended.stderr


ALL = ["cleveland", "hungarian", "switzerland"]


@pytest.mark.parametrize(
    ("columns", "step", "state", "says"),
    [
        (["word", "extra"], {}, "refused", "hungarian has no column 'extra'"),
        (["word"], {"max_categories": 3}, "failed", "different values"),
        (["word"], {"extends": "no-such-job"}, "failed", "No site remembers job no-such-job"),
        (["word"], {"transform": "fasttext", "model": "unknown"}, "failed", "has no model 'unknown'"),
    ],
)
def test_a_job_that_does_not_fit_says_why(
    world: World, columns: list[str], step: dict[str, Any], state: str, says: str
) -> None:
    """Site, column and remedy; no value. The daemons go on serving."""
    ended = world.end(job(ALL, columns, dataset="odd", **{"transform": "onehot", **step}))
    assert ended.state == state, ended.wire.error
    assert says in ended.wire.error
    assert world.encode("odd", ["word"]).state == "done"


def test_a_policy_decides_how_values_are_compared(world: World) -> None:
    """A site may allow some methods and refuse others; bytes-norm is refused unless a policy names it."""
    sites = ["narrow", "hungarian", "switzerland"]
    refused = world.end(job(sites, ["word"], dataset="odd", transform="onehot"))
    assert refused.state == "refused"
    assert (
        "narrow refused: Its policy does not allow the method 'oprf' that step 0 (onehot) uses; allowed: masks, apsi."
        in refused.wire.error
    )
    allowed = world.end(job(sites, ["word"], dataset="odd", transform="onehot", method="apsi"))
    assert allowed.state == "done", allowed.wire.error
    refused = world.end(job(sites, ["word"], dataset="odd", transform="bytes-norm"))
    assert "narrow refused: Its policy does not allow the transform 'bytes-norm'" in refused.wire.error


@pytest.mark.parametrize(
    "step",
    [
        {"transform": "ordinal"},
        {"transform": "target", "target": "label"},
        {"transform": "target", "target": "label", "means": "local"},
        {"transform": "bytes-norm"},
        {"transform": "mod-norm"},
        {"transform": "rolling-hash"},
    ],
    ids=lambda step: f"{step['transform']}-{step.get('means', '')}",
)
def test_every_other_encoding_is_a_job_too(world: World, step: dict[str, Any]) -> None:
    """It ends alike at all sites, and its estimator transforms the site's own table."""
    done = world.end(job(ALL, ["word"], dataset="odd", **step))
    assert done.state == "done", done.wire.error
    for site in ALL:
        estimator = storage.load(world.results(site, done) / "pipeline.skops")
        cells = np.array([[cell or None] for cell in ODD[site]], dtype=object)
        assert len(estimator.transform(cells)) == len(cells)
    assert done.disclosures[0]["protocol"] == "admission"


def test_the_report_says_who_learns_what(world: World) -> None:
    """Of over-threshold intersection: the last site of the ring is named for what only it learns."""
    done = world.encode("odd", ["word"], method="otmppsi")
    to = {entry["what"]: entry["to"] for entry in done.disclosures}
    assert to["which sites hold each of the anonymous values that at least 2 sites hold"] == ["switzerland"]
    assert all("coordinator" not in who for what, who in to.items() if "how many identifiers the sites before" in what)
