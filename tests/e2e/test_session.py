"""A session over real daemons, which are killed again and again: every total right, little kept, nothing made twice."""

import random
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from commonscale.audit import verify
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.client import Client
from commonscale.errors import Equivocation, StateLost
from commonscale.link import Link, RelayMailbox
from commonscale.localnet import LocalFederation, Process
from commonscale.pipeline import Pipeline
from tests import sessions
from tests.e2e.conftest import run, write_csv
from tests.patience import PATIENCE_S

SITES = ["a", "b", "c"]
LENGTH = 100_000
# What a round costs: a masked vector per site and the total at the coordinator, one masked vector at a site.
VECTOR_BYTES = 8 * LENGTH
MOST_ROUNDS_KEPT = 20


class Storm:
    """Kills daemons at random moments of a job, and starts them again; looks at what they keep meanwhile."""

    def __init__(self, federation: LocalFederation, job_id: str, seed: int) -> None:
        self.federation = federation
        self.job_id = job_id
        self.random = random.Random(seed)
        self.processes: list[Process] = [federation.coordinator, *federation.participants.values()]
        self.kills: Counter[str] = Counter()
        # The most that was kept, in rounds' worth.
        self.most_kept = {process.name: 0.0 for process in self.processes}

    def round(self) -> int:
        """The last checkpoint at the coordinator."""
        query = "SELECT run FROM slots WHERE kind = 'Checkpoint' AND payload IS NOT NULL"
        path = self.federation.directory / "coordinator" / "coordinator.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=PATIENCE_S) as connection:
            rounds = [int(row[0].rpartition("/")[2]) for row in connection.execute(query)]
        return max(rounds, default=0)

    def look(self) -> None:
        """At the sizes of the coordinator's blobs and of the sites' journals."""
        for process in self.processes:
            is_coordinator = process is self.federation.coordinator
            where = process.directory / ("blobs" if is_coordinator else "state/journal")
            kept = sum(_size(path) for path in where.iterdir()) if where.exists() else 0
            worth = kept / VECTOR_BYTES / (len(SITES) + 1 if is_coordinator else 1)
            self.most_kept[process.name] = max(self.most_kept[process.name], worth)

    def strike(self, times: int) -> None:
        """Kill so many of the daemons at once, those first that were spared most; start them again after a moment."""
        order = sorted(self.processes, key=lambda process: (self.kills[process.name], self.random.random()))
        for process in order[:times]:
            process.kill()
            self.kills[process.name] += 1
        time.sleep(self.random.uniform(0, 0.2))
        for process in order[:times]:
            process.start()

    def until(self, number: int) -> None:
        """Look on while the job goes on to a round."""
        stop = time.monotonic() + 2 * PATIENCE_S
        while self.round() < number:
            assert time.monotonic() < stop, f"no round {number}: {self.round()}"
            self.look()
            time.sleep(0.05)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("rounds", "kills_each"), [(50, 1), pytest.param(1000, 20, marks=[pytest.mark.long])], ids=["short", "long"]
)
def test_a_session_survives_its_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, kills_each: int
) -> None:
    """Sums of 100,000 numbers; every daemon is killed at random moments, often two at once."""
    # A fork would have read `quantiles` into its pipelines before the session takes its place.
    monkeypatch.setattr(LocalFederation, "forks", False)
    monkeypatch.setenv("SESSION", f"{rounds},{LENGTH},1")
    data = {site: write_csv(tmp_path / f"{site}.csv", ["x"], np.ones((20, 1))) for site in SITES}
    entry = {name: [sys.executable, "-m", "tests.e2e.session_daemon", role] for name, role in (
        ("coordinator", "coordinator"), *((site, "participant") for site in SITES),
    )}  # fmt: skip
    policies = {site: {"min_rows": 1} for site in SITES}
    pipeline = {"sites": SITES, "deadline_s": 3600, "steps": [{"transform": "quantiles", "columns": ["x"]}]}

    with LocalFederation(tmp_path, data, entry=entry, policies=policies) as federation:

        async def start() -> str:
            async with Client(federation.analyst()) as client:
                return (await client.submit(Pipeline.model_validate(pipeline))).id

        async def wait() -> list[list[float]]:
            async with Client(federation.analyst()) as client:
                ended = await client.wait(job_id)
                assert ended.state == "done", ended.wire.error
                values: list[list[float]] = ended.result[0]["values"]
                return values

        job_id = run(start)
        storm = Storm(federation, job_id, seed=rounds)
        strikes = len(storm.processes) * kills_each // 2
        for strike in range(strikes):
            storm.until(1 + strike * (rounds - 5) // strikes)
            time.sleep(storm.random.uniform(0, 0.15))
            storm.strike(2)
        storm.until(rounds)
        assert run(wait, 2 * PATIENCE_S) == sessions.as_numbers(sessions.expected(SITES, rounds, LENGTH)).tolist()
        assert_old_slots_are_closed(federation, job_id)
    assert set(storm.kills.values()) == {kills_each}
    assert max(storm.most_kept.values()) < MOST_ROUNDS_KEPT, storm.most_kept
    for site in SITES:
        assert_nothing_was_made_twice(tmp_path / site / "state" / "audit.jsonl", rounds)


def assert_old_slots_are_closed(federation: LocalFederation, job_id: str) -> None:
    """What lies behind the checkpoints is not to be had, and takes nothing else: a site is told why."""

    async def work() -> None:
        link = Link(f"127.0.0.1:{federation.port}", federation.renew("a", federation.directory / "a"))
        try:
            with pytest.raises(StateLost, match="behind the last checkpoint"):
                await RelayMailbox(link).get(Slot(f"{job_id}/0/1", "total.Total", COORDINATOR, ALL))
            with pytest.raises(Equivocation):
                await RelayMailbox(link).put(Slot(f"{job_id}/0/1", "total.MaskedVector", "a", COORDINATOR), b"again")
        finally:
            await link.close()

    run(work)


def assert_nothing_was_made_twice(path: Path, rounds: int) -> None:
    """One hash per slot, whatever was sent again: a second making would differ. No message of any round is missing."""
    sent: dict[tuple[str, str, str], set[str]] = {}
    for entry in verify(path):
        if entry["what"] == "sent":
            sent.setdefault((entry["run"], entry["kind"], entry["receiver"]), set()).add(entry["sha256"])
    assert all(len(hashes) == 1 for hashes in sent.values())
    made = Counter(kind for _, kind, _ in sent)
    assert (made["total.MaskedVector"], made["more.Share"]) == (rounds - rounds // 5, 2 * (rounds // 5))
