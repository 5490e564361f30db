"""SIGKILL of a daemon after every single operation of a job, then a restart.

Each job is named after the operation at which the daemon dies. It must end with the right numbers, and no message
may ever have been made twice with different bytes.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.audit import verify
from commonscale.client import Client, Job
from commonscale.errors import TransientError
from commonscale.localnet import ENCRYPTION, LocalFederation, Process
from commonscale.pipeline import Pipeline
from tests.e2e.conftest import job, run, write_csv

pytestmark = [pytest.mark.crash, pytest.mark.long]

SITES = ["a", "b", "c"]
COLUMNS = ["x", "y"]
ENTRY = [sys.executable, "-m", "tests.misbehaving.crashing"]


class Supervisor:
    """Starts a daemon again whenever it dies, as systemd would."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.exit_codes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            assert self._process.process is not None
            code = self._process.process.poll()
            if code is not None:
                self.exit_codes.append(code)
                self._process.start()

    @property
    def deaths(self) -> int:
        """How often it has died."""
        return len(self.exit_codes)

    def died(self, times: int) -> bool:
        """Whether it has died so often; its last operations may come after the job's end."""
        stop = time.monotonic() + 5
        while self.deaths < times and time.monotonic() < stop:
            time.sleep(0.02)
        return self.deaths >= times

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


def assert_identifiers(directory: Path, done: Job, tables: dict[str, np.ndarray], step: dict[str, Any]) -> None:
    """Equal values have equal identifiers; below a threshold, each holder its own."""
    for at, column in enumerate(COLUMNS):
        held: dict[str, set[int]] = {}
        holders: dict[str, int] = {}
        for site, rows in tables.items():
            path = directory / site / "state" / "results" / done.id / "identifiers.json"
            found = json.loads(path.read_text())[0]["dictionaries"][at]
            assert set(found["values"]) == {f"{value:g}" for value in rows[:, at]}, column
            for value, identifier in zip(found["values"], found["identifiers"], strict=True):
                held.setdefault(value, set()).add(identifier)
                holders[value] = holders.get(value, 0) + 1
        least = step.get("threshold", 2)
        assert all(len(ids) == (1 if holders[v] >= least else holders[v]) for v, ids in held.items())
        assert sum(map(len, held.values())) == done.result[0]["identifiers"][at]


@pytest.fixture
def tables() -> dict[str, np.ndarray]:
    # Whole numbers, so that some are at all sites, some at two, some at one.
    return {site: np.random.default_rng(index).normal(10, 3, (25, 2)).round() for index, site in enumerate(SITES)}


def submit_patiently(federation: LocalFederation, job_id: str, **step: Any) -> Job:
    """Submit until the coordinator has the job, then wait for its end."""
    pipeline = Pipeline.model_validate(job(SITES, COLUMNS, **step))

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            for _ in range(200):
                try:
                    await client.submit(pipeline, job_id)
                    break
                except TransientError:
                    await anyio.sleep(0.1)
            return await client.wait(job_id)

    return run(work)


# Under encryption a job has hundreds of operations, most of them alike: every 23rd has its turn. Of encodings every 8th
# or 12th; in memory (tests/protocol) every one has.
ENCRYPTED = {"transform": "minmax", "method": "tree", "ckks": {"profile": "test"}}
OPRF = {"transform": "onehot", "method": "oprf"}
APSI = {"transform": "onehot", "method": "apsi"}
THRESHOLD = {"transform": "onehot", "method": "otmppsi", "threshold": 3}


@pytest.mark.parametrize(
    ("victim", "least", "step", "wider"),
    [
        ("coordinator", 40, {}, 1),
        ("b", 25, {}, 1),
        ("coordinator", 200, ENCRYPTED, 23),
        ("b", 120, ENCRYPTED, 23),
        ("coordinator", 65, OPRF, 8),
        ("a", 35, OPRF, 8),
        ("b", 45, APSI, 12),
        ("coordinator", 70, THRESHOLD, 12),
        ("c", 40, THRESHOLD, 12),
    ],
    ids=[
        "coordinator",
        "site",
        "coordinator-encrypted",
        "site-encrypted",
        "coordinator-oprf",
        "keyholder",
        "site-apsi",
        "coordinator-threshold",
        "reconstructor",
    ],
)
def test_crash_matrix(
    tmp_path: Path, tables: dict[str, np.ndarray], victim: str, least: int, step: dict[str, Any], wider: int
) -> None:
    """Until a job comes through without a crash: then every operation (or every n-th) has had its turn."""
    stride = wider * int(os.environ.get("COMMONSCALE_CRASH_STRIDE", "1"))
    marks = tmp_path / "marks"
    marks.mkdir()
    os.environ["CRASH_MARKS"] = str(marks)
    data = {site: write_csv(tmp_path / f"{site}.csv", COLUMNS, rows) for site, rows in tables.items()}
    role = "coordinator" if victim == "coordinator" else "participant"
    pooled = np.vstack(list(tables.values()))
    policies = dict.fromkeys(SITES, ENCRYPTION)
    with LocalFederation(tmp_path, data, entry={victim: [*ENTRY, role]}, policies=policies) as federation:
        process = federation.coordinator if victim == "coordinator" else federation.participants[victim]
        supervisor = Supervisor(process)
        with supervisor.watching():
            number, runs = 1, 0
            while True:
                done = submit_patiently(federation, f"crash-{number}", **step)
                assert done.state == "done", (number, done.wire.error)
                if step.get("transform") == "onehot":
                    assert_identifiers(tmp_path, done, tables, step)
                elif step:
                    np.testing.assert_allclose(done.result[0]["max"], pooled.max(axis=0), rtol=1e-4)
                    np.testing.assert_allclose(done.result[0]["min"], pooled.min(axis=0), rtol=1e-4)
                else:
                    np.testing.assert_allclose(done.result[0]["mean"], pooled.mean(axis=0), rtol=1e-12)
                    np.testing.assert_allclose(done.result[0]["variance"], pooled.var(axis=0), rtol=1e-12)
                runs += 1
                if not supervisor.died(runs):
                    break
                number += stride
    assert supervisor.exit_codes == [-signal.SIGKILL] * (runs - 1)
    assert number > least, "the matrix covered the whole job"
    for site in SITES:
        sent: dict[tuple[str, str, str], set[str]] = {}
        for entry in verify(tmp_path / site / "state" / "audit.jsonl"):
            if entry["what"] == "sent":
                sent.setdefault((entry["run"], entry["kind"], entry["receiver"]), set()).add(entry["sha256"])
        assert all(len(hashes) == 1 for hashes in sent.values()), "a slot never gets two different messages"
