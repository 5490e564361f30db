"""The coordinator's jobs over a store: what a restart and a peer's strange words lead to."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from commonscale.database import Database
from commonscale.pipeline import Pipeline
from commonscale.slot import HUB, Slot
from commonscale.v1.protocols_pb2 import Failure, Outcome, Signed
from coordinator.blobs import FileBlobs
from coordinator.daemon import MIGRATIONS
from coordinator.jobs import Jobs
from coordinator.jobstore import JobRecord, JobStore, now_ms
from coordinator.relay import Mailroom
from coordinator.slots import SlotStore

SPEC = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [{"columns": ["x"]}]}).to_bytes()


def resume(directory: Path, slots: dict[Slot, bytes], deadline_at_ms: int) -> JobRecord:
    """A coordinator that starts with one open job and these messages; the job as it ended."""
    database = Database(f"sqlite:///{directory / 'c.db'}", MIGRATIONS)
    store, jobstore = SlotStore(database, FileBlobs(directory / "blobs")), JobStore(database)
    jobstore.create(JobRecord("job-1", SPEC, "analyst", "inviting", 1, deadline_at_ms))
    for slot, payload in slots.items():
        store.put(slot, payload)

    async def work() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                jobs = Jobs(jobstore, Mailroom(store, sole_writer=True), tasks)
                await jobs.resume()
                async for _ in jobs.watch("job-1"):
                    pass

    anyio.run(work)
    ended = jobstore.get("job-1")
    database.close()
    assert ended is not None
    return ended


def test_a_restart_after_the_deadline_blames_only_who_is_missing(tmp_path: Path) -> None:
    """What was stored is read before the clock counts."""
    answered = {Slot("job-1", "Signed", site, HUB): Signed().SerializeToString() for site in ("a", "b")}
    ended = resume(tmp_path, answered, deadline_at_ms=2)
    assert ended.state == "failed"
    assert "while c was awaited in round Signed" in ended.error


@pytest.mark.parametrize("words", ["bad\0text", "\x1b[2Jgone", "x" * 50_000])
def test_a_sites_strange_words_end_its_job_and_nothing_else(tmp_path: Path, words: str) -> None:
    """They are stored plain and short."""
    outcome = Outcome(failure=Failure(code="Odd", message=words)).SerializeToString()
    ended = resume(tmp_path, {Slot("job-1", "Outcome", "b", HUB): outcome}, now_ms() + 60_000)
    assert ended.state == "failed"
    assert ended.error.startswith("b failed with Odd: ")
    assert ended.error.isprintable()
    assert len(ended.error) < 1100
