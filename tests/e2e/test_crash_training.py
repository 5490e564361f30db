"""SIGKILL of coordinator, participant and worker after every kind of operation of a training job, then a restart.

The job has all that training can have of them: sites that are drawn by lot and wait for each other with patience, first
weights of one site, evaluation, a checkpoint in each round and an early stop. It must end with the weights of the
undisturbed job, to the last bit, at all sites; nothing may be made twice.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale import Client, Job, Pipeline
from commonscale.audit import verify
from commonscale.errors import TransientError
from commonscale.localnet import LocalFederation, Worker
from tests.e2e.conftest import run
from tests.e2e.test_crash import Supervisor
from tests.patience import eventually

pytestmark = [pytest.mark.crash, pytest.mark.long]

SITES = ["a", "b", "c", "d"]
VICTIM = "b"
COLUMNS = ["x", "y", "z"]
ENTRY = [sys.executable, "-m", "tests.misbehaving.crashing_training"]
MODULE = Path(__file__).parents[1] / "models" / "crashing.py"
STRIDE = int(os.environ.get("COMMONSCALE_CRASH_STRIDE", "1"))
TRAIN: dict[str, Any] = {
    "model": "risk", "columns": COLUMNS, "target": "outcome", "classes": ["no", "yes"], "precision": "float64",
    "rounds": 9, "sample": 3, "patience_s": 600, "init": "site:a", "local": {"batch_rows": 16, "learning_rate": 0.3},
    "evaluation": {"every": 1, "share": 0.25, "patience": 1},
}  # fmt: skip


@dataclass
class Crashing:
    """The federation, and the job that nothing disturbed."""

    net: LocalFederation
    marks: Path
    jobs: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    # How often each site's participant was started.
    starts: Counter[str] = field(default_factory=lambda: Counter(SITES))
    undisturbed: bytes = b""

    def train(self, job_id: str) -> Job:
        """Submit until the coordinator has the job, then wait for its end; sites without a worker would refuse it."""
        eventually(lambda: all(map(self.is_attached, SITES)))
        pipeline = Pipeline.model_validate({"sites": SITES, "deadline_s": 600, "train": TRAIN})
        self.jobs.append(job_id)

        async def work() -> Job:
            async with Client(self.net.analyst()) as client:
                for _ in range(200):
                    try:
                        await client.submit(pipeline, job_id)
                        break
                    except TransientError:
                        await anyio.sleep(0.1)
                return await client.wait(job_id)

        return run(work)

    def is_attached(self, site: str) -> bool:
        """As the participant has said last, since it began the last time."""
        log = self.net.participants[site].log_path.read_text()
        if log.count('"a worker may attach"') < self.starts[site]:
            return False
        says = [log.rfind(f'"{what}"') for what in ("worker attached", "worker is gone", "a worker may attach")]
        return says[0] == max(says)

    def models(self, job_id: str) -> set[bytes]:
        """The different models that the sites ended with."""
        paths = [self.net.directory / site / "state" / "results" / job_id / "model.safetensors" for site in SITES]
        eventually(lambda: all(path.exists() for path in paths))
        return {path.read_bytes() for path in paths}

    def operations(self, daemon: str, job_id: str) -> list[str]:
        return (self.marks / f"{daemon}.{job_id}.operations").read_text().splitlines()

    def kinds(self, daemon: str) -> list[str]:
        """One operation of each kind, of those in different rounds and with different sites one in the middle."""
        kinds: dict[tuple[str, ...], list[str]] = {}
        for operation in self.operations(daemon, "undisturbed"):
            what, *slot = operation.split()
            kinds.setdefault((what, slot[1] if len(slot) == 4 else " ".join(slot)), []).append(operation)
        return [alike[len(alike) // 2] for alike in kinds.values()]

    def assert_as_undisturbed(self, job: Job) -> None:
        """The same model at every site, and the same figures."""
        assert job.state == "done", job.wire.error
        assert job.result[-1]["lost"] == []
        assert job.result[-1]["stopped_early"]
        assert self.models(job.id) == {self.undisturbed}

    def assert_nothing_was_made_twice(self) -> None:
        """A slot was stored once at its site, over all restarts, and left with the same bytes always."""
        for site in SITES:
            for job_id in self.jobs:
                stored = Counter(one for one in self.operations(site, job_id) if one.startswith("stored"))
                assert set(stored.values()) == {1}, (site, job_id)
                assert sum("update.1.MaskedVector" in one for one in stored) >= 2, (site, job_id)
            sent: dict[tuple[str, str, str], set[str]] = {}
            for entry in verify(self.net.directory / site / "state" / "audit.jsonl"):
                if entry["what"] == "sent":
                    sent.setdefault((entry["run"], entry["kind"], entry["receiver"]), set()).add(entry["sha256"])
            assert {len(hashes) for hashes in sent.values()} == {1}


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashing]:
    """Four sites with scikit-learn workers that have trained once."""
    directory = tmp_path_factory.mktemp("t")
    generator = np.random.default_rng(4)
    data = {}
    for number, site in enumerate(SITES):
        rows = generator.normal(0.2 * number, 1.0, (60 + 12 * number, 3))
        likely = generator.normal(rows @ [1.0, -1.0, 0.5], 1.0) > 0
        lines = [
            ",".join([*map(repr, row), "yes" if one else "no"]) for row, one in zip(rows.tolist(), likely, strict=True)
        ]
        data[site] = directory / f"{site}.csv"
        data[site].write_text("\n".join([",".join([*COLUMNS, "outcome"]), *lines, ""]))
    marks = directory / "marks"
    marks.mkdir()
    patch = pytest.MonkeyPatch()
    patch.setenv("CRASH_MARKS", str(marks))
    entry = {"coordinator": [*ENTRY, "coordinator"], **{site: [*ENTRY, "participant"] for site in SITES}}
    workers = dict.fromkeys(SITES, Worker.of(MODULE, policy={"changing_sites": True}))
    with LocalFederation(directory / "n", data, entry=entry, workers=workers) as net:
        found = Crashing(net, marks)
        job = found.train("undisturbed")
        assert job.state == "done", job.wire.error
        (found.undisturbed,) = found.models("undisturbed")
        found.assert_as_undisturbed(job)
        yield found
    patch.undo()


def is_early(operation: str) -> bool:
    """Whether a site has not accepted the job yet."""
    what, *slot = operation.split()
    return what == "opened" or (what == "stored" and slot[1] in ("Keys", "Snapshot"))


def spread(operations: list[str], deaths: int = 3) -> list[list[str]]:
    """Some for each job, far from each other."""
    jobs = -(-len(operations) // deaths)
    return [operations[number::jobs] for number in range(jobs)]


def kill_at(crashing: Crashing, victim: str, jobs: list[list[str]]) -> Iterator[Job]:
    """The jobs in which a daemon was killed after these operations, each time started again."""
    net, deaths = crashing.net, 0
    supervisor = Supervisor(net.coordinator if victim == "coordinator" else net.participants[victim])
    with supervisor.watching():
        for operations in jobs:
            job_id = f"{victim}-{next(crashing.numbers)}"
            (crashing.marks / f"{victim}.{job_id}.targets").write_text("\n".join(operations))
            job = crashing.train(job_id)
            deaths += len(operations)
            crashing.starts[victim] += len(operations)
            assert supervisor.died(deaths), operations
            assert supervisor.exit_codes == [-signal.SIGKILL] * deaths, operations
            yield job


def test_a_coordinator_that_is_killed(crashing: Crashing) -> None:
    """After every kind of operation: made, stored, sent, received and kept, of every message; three times in a job."""
    kinds = crashing.kinds("coordinator")
    assert len(kinds) > 40, kinds
    for job in kill_at(crashing, "coordinator", spread(kinds[::STRIDE])):
        crashing.assert_as_undisturbed(job)
    crashing.assert_nothing_was_made_twice()


def test_a_participant_that_is_killed(crashing: Crashing) -> None:
    """The same; before it has accepted a job it may refuse it, as its worker takes a moment to come back."""
    # What is made at a site was stored the moment before.
    kinds = [kind for kind in crashing.kinds(VICTIM) if not kind.startswith("made")]
    assert len(kinds) > 30, kinds
    kinds = kinds[::STRIDE]
    early = [[kind] for kind in kinds if is_early(kind)]
    for job in kill_at(crashing, VICTIM, early):
        if job.state == "refused":
            assert "Its ML worker is not attached." in job.wire.error
            crashing.jobs.remove(job.id)
        else:
            crashing.assert_as_undisturbed(job)
    for job in kill_at(crashing, VICTIM, spread([kind for kind in kinds if not is_early(kind)])):
        crashing.assert_as_undisturbed(job)
    crashing.assert_nothing_was_made_twice()


# Where a worker dies; a second time on its way back.
POINTS = [
    ["prepare received"],
    ["prepared"],
    ["Prepared sent"],
    ["train received"],
    ["in fit", "Hello sent"],
    ["trained"],
    ["Result sent"],
    ["evaluate received"],
    ["evaluated", "prepare received"],
]


def kill_worker_at(crashing: Crashing, jobs: list[list[str]]) -> Iterator[Job]:
    """The jobs in which a worker was killed at these points, each time started again."""
    named = crashing.net.directory / VICTIM / "state" / "crash-points"
    supervisor, deaths = Supervisor(crashing.net.workers[VICTIM]), 0
    with supervisor.watching():
        for points in jobs:
            named.write_text("\n".join(points))
            job = crashing.train(f"worker-{next(crashing.numbers)}")
            deaths += len(points)
            assert supervisor.died(deaths), points
            assert supervisor.exit_codes == [-signal.SIGKILL] * deaths, points
            yield job


def test_a_worker_that_is_killed(crashing: Crashing) -> None:
    """Wherever it is in its work, also again while it comes back."""
    for job in kill_worker_at(crashing, POINTS[::STRIDE]):
        crashing.assert_as_undisturbed(job)
    crashing.assert_nothing_was_made_twice()


def test_a_worker_that_dies_of_its_task(crashing: Crashing) -> None:
    """Three times over one: the job ends, and says whose worker it was; the next one is trained."""
    fatal, next_one = kill_worker_at(crashing, [["in fit"] * 3, []])
    crashing.jobs.remove(fatal.id)
    assert fatal.state == "failed"
    assert f"{VICTIM}: its worker ended 3 times while it worked on {fatal.id}/0/1/train" in fatal.wire.error
    crashing.assert_as_undisturbed(next_one)
