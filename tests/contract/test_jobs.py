"""The coordinator's jobs over a store: what a restart and a peer's strange words lead to."""

import json
from pathlib import Path

import anyio
import pytest

from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.database import Database, now_ms
from commonscale.errors import BadMessage
from commonscale.pipeline import Pipeline
from commonscale.v1 import jobs_pb2
from commonscale.v1.protocols_pb2 import Failure, Outcome, Signed
from coordinator import timeline
from coordinator.blobs import FileBlobs
from coordinator.daemon import MIGRATIONS
from coordinator.jobs import Jobs
from coordinator.jobstore import JobRecord, JobStore
from coordinator.relay import Mailroom
from coordinator.slots import SlotStore
from tests.patience import PATIENCE_S

SPEC = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [{"columns": ["x"]}]}).to_bytes()


def resume(directory: Path, slots: dict[Slot, bytes], deadline_at_ms: int, spec: bytes = SPEC) -> JobRecord:
    """A coordinator that starts with one open job and these messages; the job as it ended."""
    database = Database(f"sqlite:///{directory / 'c.db'}", MIGRATIONS)
    store, jobstore = SlotStore(database, FileBlobs(directory / "blobs")), JobStore(database)
    jobstore.create(JobRecord("job-1", spec, "analyst", "inviting", 1, deadline_at_ms))
    for slot, payload in slots.items():
        store.put(slot, payload)

    async def work() -> None:
        with anyio.fail_after(PATIENCE_S):
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
    answered = {Slot("job-1", "Signed", site, COORDINATOR): Signed().SerializeToString() for site in ("a", "b")}
    ended = resume(tmp_path, answered, deadline_at_ms=2)
    assert ended.state == "failed"
    assert "while c was awaited in round Signed" in ended.error


@pytest.mark.parametrize("run", ["job-1", "job-1/0"])
def test_a_job_that_this_release_cannot_read_ends_with_a_sentence(tmp_path: Path, run: str) -> None:
    """Another replica, of a newer release, took it; this one goes on serving, and shows the job."""
    step = jobs_pb2.Step(transform="tomorrow", options="{}")
    spec = jobs_pb2.JobSpec(name="new", sites=["a", "b", "c"], deadline_s=60, steps=[step], release="9.9")
    came = {Slot(run, "Signed", "a", COORDINATOR): Signed().SerializeToString()}
    ended = resume(tmp_path, came, now_ms() + 60_000, spec.SerializeToString())
    assert ended.state == "failed"
    assert "does not know it. Release 9.9, which submitted the job, does. Upgrade this daemon." in ended.error
    (line,) = json.loads(ended.disclosure_json)["revealed"]
    assert line["what"] == "this release cannot read the job, and cannot say what it has revealed"
    assert timeline.steps(ended) == []
    (round_,) = json.loads(ended.rounds_json)
    assert timeline.protocols(ended, [round_])[0]["protocol"] == ("admission" if run == "job-1" else "unknown")


def test_sites_are_served_beside_a_job_that_this_release_cannot_read(tmp_path: Path) -> None:
    """Its sites are known from the message itself: they hear of the others, and of this one."""
    step = jobs_pb2.Step(transform="tomorrow", options="{}")
    spec = jobs_pb2.JobSpec(name="new", sites=["a", "b", "c"], deadline_s=60, steps=[step], release="9.9")
    record = JobRecord("job-1", spec.SerializeToString(), "analyst", "inviting", 1, now_ms() + 60_000)
    assert list(record.asked.sites) == ["a", "b", "c"]
    with pytest.raises(BadMessage):
        _ = record.pipeline
    database = Database(f"sqlite:///{tmp_path / 'c.db'}", MIGRATIONS)
    jobstore = JobStore(database)
    jobstore.create(record)

    async def work() -> JobRecord:
        async with anyio.create_task_group() as tasks:
            jobs = Jobs(jobstore, Mailroom(SlotStore(database, FileBlobs(tmp_path / "blobs")), sole_writer=True), tasks)
            return await jobs.lookup("job-1", "b")

    assert anyio.run(work).id == "job-1"
    database.close()


@pytest.mark.parametrize("words", ["bad\0text", "\x1b[2Jgone", "x" * 50_000])
def test_a_sites_strange_words_end_its_job_and_nothing_else(tmp_path: Path, words: str) -> None:
    """They are stored plain and short."""
    outcome = Outcome(failure=Failure(code="Odd", message=words)).SerializeToString()
    ended = resume(tmp_path, {Slot("job-1", "Outcome", "b", COORDINATOR): outcome}, now_ms() + 60_000)
    assert ended.state == "failed"
    assert ended.error.startswith("b failed with Odd: ")
    assert ended.error.isprintable()
    assert len(ended.error) < 1100
