"""Lost state, a changed audit log, a full disk: a sentence or a wait, never a wrong share."""

import resource

import anyio
import pytest

from commonscale import config
from commonscale.client import Client
from commonscale.config import ParticipantConfig
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from participant.journal import SiteJobs, open_database
from tests.e2e.conftest import GOOD, job, run
from tests.e2e.test_jobs import command
from tests.patience import eventually

pytestmark = pytest.mark.long


def test_a_site_that_lost_its_state_ends_the_job_instead_of_making_a_second_share(federation: LocalFederation) -> None:
    """The error names the site and says to submit again; the next job runs."""

    async def start() -> str:
        async with Client(federation.analyst()) as client:
            job_id = (await client.submit(Pipeline.model_validate(job([*GOOD, "manual"], ["age"])))).id
            # Until the coordinator holds the answers of all others.
            async for seen in client.watch(job_id):
                if list(seen.wire.progress.awaited) == ["manual"]:
                    break
            return job_id

    job_id = run(start)
    site = federation.participants["a"]
    site.kill()
    for path in (federation.directory / "a" / "state").glob("participant.db*"):
        path.unlink()
    site.start()
    site.wait_ready()

    async def wait() -> str:
        async with Client(federation.analyst()) as client:
            ended = await client.wait(job_id)
            again = await client.submit(Pipeline.model_validate(job(GOOD, ["age"])))
            assert (await client.wait(again.id)).state == "done"
            return ended.wire.error

    assert "a failed with StateLost: a no longer has the secrets" in run(wait)


@pytest.mark.parametrize("site", ["b"])
def test_a_broken_audit_log_stops_the_daemon_with_a_sentence(federation: LocalFederation, site: str) -> None:
    """Nothing leaves that could not be written down."""
    process = federation.participants[site]
    process.stop()
    path = federation.directory / site / "state" / "audit.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace('"what": "sent"', '"what": "spent"', 1))
    try:
        config = str(federation.directory / site / "participant.toml")
        assert "is broken at line 1" in command("participant", "--config", config, expect=2)
    finally:
        path.write_text(whole)
        process.start()
        process.wait_ready()


@pytest.mark.parametrize("who", ["c", "coordinator"])
def test_a_full_disk_makes_a_job_wait_not_fail(federation: LocalFederation, who: str) -> None:
    """No file of the daemon can grow for a while; when there is room again, the job ends with its result."""
    daemon = federation.coordinator if who == "coordinator" else federation.participants[who]
    assert daemon.process is not None
    pid = daemon.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)

    async def work() -> str:
        async with Client(federation.analyst()) as client:
            pipeline = Pipeline.model_validate(job([*GOOD, "manual"] if who == "coordinator" else GOOD, ["age"]))
            job_id = (await client.submit(pipeline)).id if who == "coordinator" else ""
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
            try:
                if who == "coordinator":
                    await anyio.sleep(1)
                    set_approval(federation, job_id)
                else:
                    job_id = (await client.submit(pipeline)).id
                await anyio.sleep(4)
                assert (await client.get(job_id)).state in ("inviting", "running")
            finally:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
            return (await client.wait(job_id)).state

    assert run(work) == "done"
    assert daemon.process.poll() is None, "the daemon lives on"


def set_approval(federation: LocalFederation, job_id: str) -> None:
    """What `commonscale approvals approve` does, once the site asks."""
    settings = config.load(ParticipantConfig, federation.directory / "manual" / "participant.toml")
    jobs = SiteJobs(open_database(settings))
    eventually(lambda: jobs.get(job_id).approval, lambda approval: approval == "pending")
    assert jobs.decide(job_id, "approved", "", "command")
