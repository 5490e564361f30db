"""Watching a training: what the coordinator notes of it, who may see its figures, how it looks in a terminal."""

import itertools
import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from rich.console import Console

from commonscale import disclosure
from commonscale.cli import following
from commonscale.client import Job
from commonscale.identity import Identity, Role
from commonscale.pipeline import Pipeline
from commonscale.statistics.training.evaluation import Metrics
from commonscale.statistics.training.standing import Standing, thinned
from commonscale.v1 import jobs_pb2
from coordinator import training
from coordinator.jobs.driver import LiveJob
from coordinator.jobstore import JobRecord
from coordinator.services import seen_by

TRAIN = {"model": "risk", "columns": ["x"], "target": "y", "rounds": 50}


def record(**train: Any) -> JobRecord:
    pipeline = Pipeline.model_validate({"sites": ["a", "b", "c"], "train": {**TRAIN, **train}})
    return JobRecord("j", pipeline.to_bytes(), "mona", "running", submitted_at_ms=1000, deadline_at_ms=9000)


def metrics(count: int) -> tuple[Metrics, ...]:
    return tuple(Metrics(number, 60, 1 / number, 0.5 + number / 100, 0.75) for number in range(1, count + 1))


def standing(done: int) -> Standing:
    return Standing(done, 50, stopped=False, lost=(), metrics=metrics(done))


def told(record: JobRecord, *done: int) -> LiveJob:
    """A job that is driven, after some rounds."""

    async def work() -> LiveJob:
        live = LiveJob(record)
        for number in done:
            live.trains(0, standing(number))
        return live

    return anyio.run(work)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Time, as the coordinator has it, in milliseconds."""
    now = [10_000]
    monkeypatch.setattr("coordinator.jobs.driver.now_ms", lambda: now[0])
    return now


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (1, 1), (200, 200), (201, 101), (1000, 200), (99_999, 200)])
def test_a_long_curve_is_thinned(count: int, kept: int) -> None:
    """To no more points than a screen shows, evenly, the newest among them."""
    found = [one.round for one in thinned([Metrics(number, 1, 0.0) for number in range(1, count + 1)])]
    assert len(found) == kept
    assert found[-1:] == [count][:count]
    assert len({later - earlier for earlier, later in itertools.pairwise(found)}) <= 1


def test_rounds_are_timed(clock: list[int]) -> None:
    """From the end of one to the end of the next; a session that goes on after a restart begins anew."""

    async def work() -> None:
        live = LiveJob(record())
        changed = live.changed
        live.trains(0, standing(7))
        assert changed.is_set()
        assert live.training is not None
        assert (live.training.done, live.training.round_s, live.training.since_ms) == (7, 0, 10_000)
        clock[0] += 1500
        live.trains(0, standing(8))
        assert (live.training.done, live.training.round_s, len(live.training.figures)) == (8, 1.5, 8)

    anyio.run(work)


def test_another_replica_goes_on_from_what_was_noted() -> None:
    """Its watchers see the curves before it has read the last checkpoint."""
    live = told(record(), 7)
    taken_over = told(replace(record(), progress=live.progress().SerializeToString()))
    assert taken_over.progress().training == live.progress().training


def wire(**train: Any) -> jobs_pb2.Job:
    live = told(record(**train), 3)
    return live.record.to_wire(live.progress())


@pytest.mark.parametrize(
    ("caller", "sees"),
    [
        (Identity(Role.ANALYST, "mona"), True),
        (Identity(Role.ANALYST, "other"), False),
        (Identity(Role.OBSERVER, "mona"), False),
        (Identity(Role.COORDINATOR, "coordinator"), False),
    ],
)
def test_figures_are_the_analysts(caller: Identity, sees: bool) -> None:
    """Who submitted the job sees them while it runs, others do not; rounds and seconds are everybody's."""
    job = wire()
    found = seen_by(caller, job)
    assert bool(found.progress.training.figures) is sees
    assert found.progress.training.done == 3
    assert job.progress.training.figures
    assert seen_by(caller, wire(observers=True)).progress.training.figures


def test_a_model_is_its_analysts_alone() -> None:
    """Others who may read results get what is left of them."""
    job = wire(observers=True)
    job.result_json = '[{"metrics":[{"loss":1}],"rows":3,"safetensors":"AAAA"}]'
    assert seen_by(Identity(Role.ANALYST, "mona"), job) == job
    for other in (Identity(Role.ANALYST, "other"), Identity(Role.OBSERVER, "mona")):
        assert seen_by(other, job).result_json == '[{"metrics":[{"loss":1}],"rows":3}]'
        private = wire()
        private.result_json = job.result_json
        assert seen_by(other, private).result_json == '[{"metrics":[],"rows":3}]'


@pytest.mark.parametrize("observers", [True, False])
def test_the_dashboard_shows_figures_where_the_job_says_so(observers: bool) -> None:
    """And otherwise none; how far it is, it always shows."""
    live = told(record(observers=observers), 3)
    entry = {"step": 0, "rounds": [1, 3], "first_ms": 2000, "last_ms": 5000, "bytes": 900}
    begun = {"step": 0, "rounds": [4, 4], "first_ms": 5000, "last_ms": 5100, "bytes": 50}
    panel = training.panel(live.record, live.training, [entry, begun])
    assert panel is not None
    assert (panel["model"], panel["done"], panel["rounds"], panel["observers"]) == ("risk", 3, 50, observers)
    assert (panel["mean_s"], panel["round_bytes"], panel["bytes"]) == (1.0, 300, 950)
    assert len(panel["figures"]) == (3 if observers else 0)
    assert ("0.333" in json.dumps(panel)) is observers
    assert training.panel(live.record, None, []) is None


def test_sites_read_beforehand_who_will_see_the_figures() -> None:
    """On the approval page and in the report, with and without observers."""

    def audience(observers: bool) -> list[str]:
        lines = disclosure.planned(record(observers=observers).pipeline)
        found: list[str] = next(line["to"] for line in lines if "pooled loss" in line["what"])
        return found

    assert audience(observers=False) == ["coordinator", "analyst", "a", "b", "c"]
    assert audience(observers=True) == ["coordinator", "analyst", "observers", "a", "b", "c"]


def test_a_terminal_says_round_seconds_figures_and_who_is_awaited() -> None:
    """In one line."""
    job = wire()
    job.progress.round, job.progress.awaited[:] = "update.MaskedVector", ["a", "b"]
    job.progress.training.round_s = 1.25
    job.progress.received_bytes = 12_600_000
    assert following.now(Job(job)) == (
        "running, round 4 of 50 · 1.25 s a round · 12.6 MB received · loss 0.3333 █▃▁ · accuracy 0.530 · AUC 0.750, "
        "waiting for a, b in update.MaskedVector"
    )
    del job.progress.training.figures[:]
    assert "loss" not in following.now(Job(job))
    assert following.now(Job(jobs_pb2.Job(state=jobs_pb2.JOB_STATE_INVITING))) == "inviting"


def test_programs_read_the_same() -> None:
    """Under progress, with every figure that there is."""
    told = Job(wire()).to_dict()["progress"]["training"]
    assert (told["done"], told["rounds"], told["round_s"]) == (3, 50, None)
    assert told["figures"][0] == {"round": 1, "loss": 1.0, "accuracy": 0.51, "auc": 0.75}
    assert "training" not in Job(jobs_pb2.Job()).to_dict()["progress"]


def test_a_result_is_a_table_of_rounds() -> None:
    """Some of them, the last among them, and not one row a column."""
    step = {
        "transform": "train", "columns": ["x"], "model": "risk", "rounds": 25, "rows": 4000, "stopped_early": True,
        "metrics": [one.plain() for one in metrics(25)],
    }  # fmt: skip
    console = Console(width=100)
    with console.capture() as shown:
        console.print(following.training_table(0, step))
    text = shown.get()
    assert "train risk, 25 rounds, stopped early, 4,000 rows" in " ".join(text.split())
    assert [line.split()[1] for line in text.splitlines() if line.startswith("│")] == [
        "1", "4", "7", "10", "13", "16", "19", "22", "25",
    ]  # fmt: skip
