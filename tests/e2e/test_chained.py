"""Steps that work on what earlier steps made of their columns, over real daemons: results, scratch space, failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PowerTransformer

from commonscale.audit import verify
from commonscale.client import Client, Job
from commonscale.estimators import storage
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from tests.e2e.conftest import run
from tests.environments import ScikitLearnAlone
from tests.patience import PATIENCE_S, eventually

SITES = ["a", "b", "c"]
WARDS = ["icu", "er", "surgery", "?", "stroke unit"]
YEO_JOHNSON = {"transform": "power", "columns": ["dose", "bmi"]}
MINMAX = {"transform": "minmax", "columns": ["dose", "bmi"]}
ROBUST = {"transform": "robust", "columns": ["dose"]}
# Busy machines start daemons slowly.


def table_of(seed: int) -> pd.DataFrame:
    """Skewed numbers with gaps, and wards of which every site has some."""
    generator = np.random.default_rng(seed)
    rows = 120 + 30 * seed
    dose, bmi = generator.lognormal(1.0, 0.8, rows), generator.normal(26 + seed, 4, rows)
    dose[generator.random(rows) < 0.1] = np.nan
    return pd.DataFrame({"dose": dose, "bmi": bmi, "ward": generator.choice(WARDS[: 3 + seed], rows)})


TABLES = {site: table_of(seed) for seed, site in enumerate(SITES)}
POOLED = pd.concat(TABLES.values(), ignore_index=True)


class Chained(LocalFederation):
    """A federation with a look at its sites' scratch space."""

    def scratch(self, site: str) -> Path:
        return self.directory / site / "state" / "scratch"

    def results(self, site: str, job_id: str) -> Path:
        return self.directory / site / "state" / "results" / job_id

    def submit(self, *steps: dict[str, Any], deadline_s: int = PATIENCE_S) -> str:
        content = {"sites": SITES, "deadline_s": deadline_s, "steps": list(steps)}

        async def work() -> str:
            async with Client(self.analyst()) as client:
                return (await client.submit(Pipeline.model_validate(content))).id

        return run(work)

    def wait(self, job_id: str) -> Job:
        async def work() -> Job:
            async with Client(self.analyst()) as client:
                return await client.wait(job_id)

        return run(work, PATIENCE_S + 40)

    def cancel(self, job_id: str) -> None:
        async def work() -> None:
            async with Client(self.analyst()) as client:
                await client.cancel(job_id)

        run(work)

    def revealed(self, site: str, job_id: str) -> list[dict[str, Any]]:
        """The last word of a site's audit log on what a job has shown."""
        entries = verify(self.directory / site / "state" / "audit.jsonl")
        found = [entry for entry in entries if entry["what"] == "revealed" and entry["job"] == job_id]
        return found[-1]["disclosures"] if found else []  # type: ignore[no-any-return]

    @contextmanager
    def stopped(self, site: str) -> Iterator[None]:
        """A site that does nothing for a while."""
        process = self.participants[site].process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chained]:
    directory = tmp_path_factory.mktemp("chained")
    data = {}
    for site, table in TABLES.items():
        data[site] = directory / f"{site}.csv"
        table.to_csv(data[site], index=False)
    with Chained(directory, data, missing=["?"]) as running:
        yield running


class Watch:
    """Notes every file and directory that comes up in the sites' scratch spaces, and who may read it."""

    def __init__(self, federation: Chained) -> None:
        self._federation = federation
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.modes: dict[str, set[int]] = {}

    def _look(self) -> None:
        while not self._over.is_set():
            for site in SITES:
                top = self._federation.scratch(site)
                self._note(top)
                # Unlike a glob, it takes no offence at directories that go meanwhile.
                for directory, directories, files in os.walk(top):
                    for name in (*directories, *files):
                        self._note(Path(directory, name))

    def _note(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            self.modes.setdefault(str(path.relative_to(self._federation.directory)), set()).add(mode)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def assert_private(self, job_id: str) -> None:
        """Files were seen, and nobody but their owner could read any of them at any time."""
        files = [name for name in self.modes if f"/{job_id}/" in name]
        assert files, "no file of the job was seen: this watch would find nothing"
        assert {name: modes for name, modes in self.modes.items() if any(mode & 0o077 for mode in modes)} == {}


def assert_empty(federation: Chained) -> None:
    """Soon after a job's end nothing of it is left in scratch space."""
    for site in SITES:
        eventually(lambda site=site: list(federation.scratch(site).glob("*")), lambda left: not left)  # type: ignore[misc]


def test_yeo_johnson_then_minmax_is_the_pooled_pipeline(federation: Chained) -> None:
    """As scikit-learn's, fitted on all rows together: min-max exactly on what Yeo-Johnson gave; new rows the same."""
    with Watch(federation) as watch:
        done = federation.wait(job_id := federation.submit(YEO_JOHNSON, MINMAX))
    assert done.state == "done", done.wire.error
    watch.assert_private(job_id)
    assert_empty(federation)
    columns = YEO_JOHNSON["columns"]
    pooled = POOLED[columns].to_numpy()
    expected = make_pipeline(PowerTransformer(), MinMaxScaler()).fit(pooled)
    new = pd.DataFrame({"dose": [0.0, 2.5, 400.0, np.nan, -3.0], "bmi": [26.1, np.nan, 31.0, 12.0, 55.5]})
    for site in SITES:
        results = federation.results(site, job_id)
        power, minmax = storage.load(results / "0-power.skops"), storage.load(results / "1-minmax.skops")
        np.testing.assert_allclose(power.lambdas_, expected[0].lambdas_, atol=1e-4)
        after = np.vstack([power.transform(table[columns]) for table in TABLES.values()])
        np.testing.assert_array_equal(minmax.data_min_, np.nanmin(after, axis=0))
        np.testing.assert_array_equal(minmax.data_max_, np.nanmax(after, axis=0))
        # The same lambdas, and nothing else of ours.
        expected[0].lambdas_ = power.lambdas_
        expected[0]._scaler.fit(np.vstack([_unscaled(power, table[columns]) for table in TABLES.values()]))
        expected[1].fit(expected[0].transform(pooled))
        pipeline = storage.load(results / "pipeline.skops")
        assert list(pipeline.get_feature_names_out()) == columns
        np.testing.assert_allclose(pipeline.transform(POOLED[columns]), expected.transform(pooled), atol=1e-6)
        np.testing.assert_allclose(pipeline.transform(new), expected.transform(new.to_numpy()), atol=1e-6)
        assert json.loads((results / "parameters.json").read_text()) == done.result


@pytest.mark.long
def test_what_a_job_leaves_loads_with_scikit_learn_and_skops_alone(federation: Chained, tmp_path: Path) -> None:
    """Every site's own pipeline.skops, where neither this package nor pandas is, gives what it gives here."""
    done = federation.wait(job_id := federation.submit(YEO_JOHNSON, MINMAX))
    assert done.state == "done", done.wire.error
    alone = ScikitLearnAlone(tmp_path / "venv")
    rows = [[0.0, 26.1], [2.5, None], [400.0, 31.0], [None, 12.0], [-3.0, 55.5]]
    pooled = make_pipeline(PowerTransformer(), MinMaxScaler()).fit(POOLED[["dose", "bmi"]].to_numpy())
    for site in SITES:
        file = federation.results(site, job_id) / "pipeline.skops"
        values, names = alone.transform(file, rows)
        assert names == ["dose", "bmi"]
        np.testing.assert_array_equal(values, storage.load(file).transform(np.array(rows, dtype=float)))
        np.testing.assert_allclose(values, pooled.transform(np.array(rows, dtype=float)), rtol=1e-3, atol=1e-4)


def _unscaled(power: PowerTransformer, rows: pd.DataFrame) -> np.ndarray:
    """What it gives before it standardizes."""
    made = PowerTransformer(standardize=False)
    made.lambdas_, made.n_features_in_ = power.lambdas_, power.n_features_in_
    found: np.ndarray = made.transform(rows.to_numpy())
    return found


def test_ordinal_then_minmax_of_the_same_column(federation: Chained) -> None:
    """Identifiers, of the missing value too, are brought between 0 and 1: the same at all sites, for new rows too."""
    ordinal = {"transform": "ordinal", "columns": ["ward"]}
    done = federation.wait(job_id := federation.submit(ordinal, {"transform": "minmax", "columns": ["ward"]}))
    assert done.state == "done", done.wire.error
    size = done.result[0]["identifiers"][0]
    assert size == len(WARDS)
    assert (done.result[1]["min"], done.result[1]["max"]) == ([0.0], [size - 1.0])
    scaled: dict[str | None, set[float]] = {}
    for site, table in TABLES.items():
        pipeline = storage.load(federation.results(site, job_id) / "pipeline.skops")
        cells = table[["ward"]].replace({"?": None})
        for ward, number in zip(cells["ward"], pipeline.transform(cells)[:, 0], strict=True):
            scaled.setdefault(ward, set()).add(float(number))
    assert set(scaled) == {None, *WARDS} - {"?"}
    places = [number for numbers in scaled.values() for number in numbers]
    np.testing.assert_allclose(sorted(places), np.arange(size) / (size - 1), atol=1e-12)
    assert_empty(federation)


def test_a_target_that_an_earlier_step_scaled(federation: Chained) -> None:
    """Texts as the table has them beside numbers as a step before made them, missing ones at both."""
    target = {"transform": "target", "columns": ["ward"], "target": "dose", "smoothing": 0.0}
    done = federation.wait(job_id := federation.submit({"columns": ["dose"]}, target))
    assert done.state == "done", done.wire.error
    scaled = (POOLED["dose"] - POOLED["dose"].mean()) / POOLED["dose"].std(ddof=0)
    expected = scaled.groupby(POOLED["ward"].replace({"?": "missing"})).mean()
    for site, table in TABLES.items():
        encoder = storage.load(federation.results(site, job_id) / "1-target.skops")
        for ward in set(table["ward"]):
            cell = pd.DataFrame({"ward": [None if ward == "?" else ward]}, dtype=object)
            wanted = expected["missing" if ward == "?" else ward]
            np.testing.assert_allclose(encoder.transform(cell)[0, 0], wanted, atol=1e-9)


def in_mid_chain(federation: Chained, job_id: str, site: str = "b") -> None:
    """Until a site works on what the first step made: none is past the second step, which needs them all."""
    eventually((federation.scratch(site) / job_id / "1.parquet").exists, pause_s=0.001)


def test_a_cancelled_job_leaves_nothing(federation: Chained) -> None:
    """Also at a site that was busy with something else when it was cancelled."""
    with Watch(federation) as watch:
        job_id = federation.submit(YEO_JOHNSON, ROBUST, MINMAX)
        in_mid_chain(federation, job_id)
        with federation.stopped("c"):
            federation.cancel(job_id)
            assert federation.wait(job_id).state == "cancelled"
        assert_empty(federation)
    watch.assert_private(job_id)
    assert not any(federation.results(site, job_id).exists() for site in SITES)


def test_data_that_change_in_mid_chain_fail_the_job(federation: Chained) -> None:
    """The next step that reads the table notices; nothing is left, and every log says what had been opened by then."""
    path = federation.directory / "c.csv"
    whole = path.read_bytes()
    with Watch(federation) as watch:
        job_id = federation.submit(YEO_JOHNSON, ROBUST, MINMAX)
        audit = federation.directory / "c" / "state" / "audit.jsonl"
        eventually(lambda: f'"run": "{job_id}/1"' in audit.read_text(), pause_s=0.001)
        with federation.stopped("c"):
            path.write_bytes(whole + b"1.5,22.0,icu\n")
        done = federation.wait(job_id)
        assert_empty(federation)
    path.write_bytes(whole)
    assert done.state == "failed"
    assert "c failed with DataChanged: c: the files of data set 'main' changed during the job." in done.wire.error
    watch.assert_private(job_id)
    assert {line.get("step") for line in done.disclosures} == {None, 0, 1}
    for site in SITES:
        revealed = eventually(partial(federation.revealed, site, job_id))
        # A site whose part of the third step has left counts it: it cannot know that c's never did.
        assert [line for line in revealed if line.get("step") != 2 or site == "c"] == done.disclosures


def test_a_power_cut_in_mid_chain(federation: Chained) -> None:
    """What was in scratch space goes at the next start, is made again, and the job ends as the others."""
    with Watch(federation) as watch:
        job_id = federation.submit(YEO_JOHNSON, ROBUST, {"transform": "minmax", "columns": ["dose"]})
        in_mid_chain(federation, job_id)
        daemon = federation.participants["b"]
        daemon.kill()
        left = federation.scratch("b") / job_id / "1.parquet"
        assert left.exists()
        daemon.start()
        daemon.wait_ready()
        done = federation.wait(job_id)
        assert done.state == "done", done.wire.error
        assert_empty(federation)
    watch.assert_private(job_id)
    dose = POOLED[["dose"]].to_numpy()
    results = federation.results("b", job_id)
    after = storage.load(results / "0-power.skops").transform(POOLED[["dose", "bmi"]])[:, :1]
    robust = storage.load(results / "1-robust.skops")
    np.testing.assert_allclose(robust.center_, np.nanmedian(after, axis=0), rtol=1e-12)
    pipeline = storage.load(results / "pipeline.skops")
    scaled = pipeline.transform(POOLED[["dose", "bmi"]])[:, 0]
    assert (np.nanmin(scaled), np.nanmax(scaled)) == pytest.approx((0.0, 1.0))
    assert np.isnan(scaled).sum() == np.isnan(dose).sum()


def test_scratch_space_of_a_killed_daemon_is_emptied_at_its_start(federation: Chained) -> None:
    """Even where the job ended meanwhile."""
    job_id = federation.submit(YEO_JOHNSON, ROBUST)
    in_mid_chain(federation, job_id)
    daemon = federation.participants["b"]
    daemon.kill()
    assert (federation.scratch("b") / job_id / "1.parquet").exists()
    federation.cancel(job_id)
    daemon.start()
    daemon.wait_ready()
    assert not any(federation.scratch("b").glob("*"))
    assert_empty(federation)
