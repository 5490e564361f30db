"""Two coordinators on a real PostgreSQL behind one address: either serves any call, and one may die in the middle."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import anyio
import numpy as np
import psycopg
import pytest
import sqlalchemy as sa

from commonscale.client import Client, Job
from commonscale.config import AnalystConfig, ParticipantConfig, load
from commonscale.localnet import ENCRYPTION, Process
from commonscale.localreplicas import ReplicatedFederation
from commonscale.pipeline import Pipeline
from participant.journal import SiteJobs, open_database
from tests.e2e.conftest import run, write_csv
from tests.patience import PATIENCE_S

SITES = ["a", "b", "c"]
WITH_MANUAL = [*SITES, "manual"]
SCALE = {"columns": ["age", "chol"]}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    return {
        site: generator.normal([40 + 5 * index, 200.0], [9.0, 30.0], (30 + 10 * index, 2))
        for index, site in enumerate(WITH_MANUAL)
    }


@pytest.fixture(scope="module")
def federation(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, tables: dict[str, np.ndarray]
) -> Iterator[ReplicatedFederation]:
    directory = tmp_path_factory.mktemp("replicas")
    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    engine.dispose()
    data = {site: write_csv(directory / f"{site}.csv", ["age", "chol"], rows) for site, rows in tables.items()}
    policies: dict[str, dict[str, Any]] = {site: {**ENCRYPTION} for site in SITES}
    policies["manual"] = {"approval": "manual", **ENCRYPTION}
    with ReplicatedFederation(directory, data, policies=policies, database=postgres_url) as running:
        yield running


@pytest.fixture(autouse=True)
def both_up(federation: ReplicatedFederation) -> Iterator[None]:
    """Whatever a test killed is back for the next."""
    yield
    for process in federation.coordinators():
        if process.process is not None and process.process.poll() is not None:
            process.start()
            process.wait_ready()


def pipeline(sites: list[str], **step: Any) -> Pipeline:
    return Pipeline.model_validate({"sites": sites, "deadline_s": 120, "steps": [{**SCALE, **step}]})


def direct(federation: ReplicatedFederation, process: Process) -> AnalystConfig:
    """An analyst who dials one replica, past the common address."""
    port = json.loads(process.ready_path.read_text())["port"]
    return federation.analyst().model_copy(update={"coordinator": f"127.0.0.1:{port}"})


def is_pooled(found: Job, tables: dict[str, np.ndarray], sites: list[str], tolerance: float = 1e-9) -> bool:
    pooled = np.vstack([tables[site] for site in sites])
    mean, scale = found.result[0]["mean"], found.result[0]["scale"]
    return bool(np.allclose(mean, pooled.mean(0), rtol=tolerance) and np.allclose(scale, pooled.std(0), rtol=tolerance))


async def wait_for(condition: Any, limit_s: float = PATIENCE_S) -> None:
    with anyio.fail_after(limit_s):
        while not await anyio.to_thread.run_sync(condition):  # noqa: ASYNC110 - other processes decide
            await anyio.sleep(0.05)


def site_jobs(federation: ReplicatedFederation) -> SiteJobs:
    settings = load(ParticipantConfig, federation.directory / "manual" / "participant.toml")
    return SiteJobs(open_database(settings))


def is_pending(federation: ReplicatedFederation, job_id: str) -> bool:
    return any(found.id == job_id and found.approval == "pending" for found in site_jobs(federation).all())


def approve(federation: ReplicatedFederation, job_id: str) -> None:
    config = federation.directory / "manual" / "participant.toml"
    command = [sys.executable, "-m", "commonscale", "approvals", "approve", job_id, "--config", str(config)]
    subprocess.run(command, check=True, capture_output=True)


def test_jobs_at_either_replica_end_right(federation: ReplicatedFederation, tables: dict[str, np.ndarray]) -> None:
    """Submitted at one, watched at the other, with sites that are connected to both."""

    async def work() -> list[Job]:
        found = []
        for process, other in ((federation.coordinator, federation.other), (federation.other, federation.coordinator)):
            async with Client(direct(federation, process)) as client, Client(direct(federation, other)) as elsewhere:
                submitted = await client.submit(pipeline(SITES))
                found.append(await elsewhere.wait(submitted.id))
        return found

    for found in run(work):
        assert found.state == "done", found.wire.error
        assert is_pooled(found, tables, SITES)
    online = [process.log_path.read_text().count('"site online"') for process in federation.coordinators()]
    assert min(online) > 0, "the sites are all at one replica; this shows nothing"


@pytest.mark.parametrize("who", ["driver", "other"])
def test_a_replica_may_die_in_the_middle(
    federation: ReplicatedFederation, tables: dict[str, np.ndarray], who: str
) -> None:
    """SIGKILL while a site is awaited: the job goes on and ends with the pooled numbers."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(pipeline(WITH_MANUAL))
            await wait_for(lambda: is_pending(federation, submitted.id))
            driver, other = federation.driver(submitted.id)
            killed, left = (driver, other) if who == "driver" else (other, driver)
            killed.kill()
            async with Client(direct(federation, left)) as elsewhere:
                assert (await elsewhere.get(submitted.id)).state == "inviting"
            approve(federation, submitted.id)
            ended = await client.wait(submitted.id)
            taken_over = f'"{submitted.id}", "event": "job taken over"' in left.log_path.read_text()
            assert taken_over == (who == "driver")
            return ended

    ended = run(work)
    assert ended.state == "done", ended.wire.error
    assert is_pooled(ended, tables, WITH_MANUAL)


@pytest.mark.long
@pytest.mark.parametrize("messages", [0, 3, 6, 9, 12])
def test_a_driver_dies_between_rounds(
    federation: ReplicatedFederation, tables: dict[str, np.ndarray], messages: int
) -> None:
    """At several moments of a job under encryption, whose payloads are large."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(pipeline(SITES, method="ckks", ckks={"profile": "test"}, max_rows=1000))
            async for seen in client.watch(submitted.id):
                if seen.wire.progress.messages >= messages:
                    break
            assert seen.state in ("inviting", "running")
            driver, other = federation.driver(submitted.id)
            driver.kill()
            ended = await client.wait(submitted.id)
            assert f'"{submitted.id}", "event": "job taken over"' in other.log_path.read_text()
            return ended

    ended = run(work, 100)
    assert ended.state == "done", ended.wire.error
    assert is_pooled(ended, tables, SITES, 1e-4)


@pytest.mark.long
def test_a_job_is_cancelled_at_the_replica_that_does_not_drive_it(federation: ReplicatedFederation) -> None:
    """And ends at the one that does, and at the sites."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(pipeline(WITH_MANUAL))
            await wait_for(lambda: is_pending(federation, submitted.id))
            driver, other = federation.driver(submitted.id)
            async with Client(direct(federation, other)) as elsewhere:
                assert (await elsewhere.cancel(submitted.id)).state == "cancelled"
            await wait_for(lambda: f'"{submitted.id}", "state": "cancelled"' in driver.log_path.read_text())
            jobs = site_jobs(federation)
            await wait_for(lambda: jobs.get(submitted.id).state == "failed")
            async with Client(direct(federation, driver)) as elsewhere:
                return await elsewhere.get(submitted.id)

    assert run(work).state == "cancelled"


@pytest.mark.long
def test_the_other_replica_shows_how_far_a_job_is(federation: ReplicatedFederation) -> None:
    """Who is awaited, in which round."""

    async def work() -> None:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(pipeline(WITH_MANUAL))
            await wait_for(lambda: is_pending(federation, submitted.id))
            _, other = federation.driver(submitted.id)
            async with Client(direct(federation, other)) as elsewhere:
                async for seen in elsewhere.watch(submitted.id):
                    if list(seen.wire.progress.awaited) == ["manual"]:
                        break
            assert seen.wire.progress.round == "Signed"
            assert 0 < time.time() * 1000 - seen.wire.progress.waits[0].since_ms < 60_000
            await client.cancel(submitted.id)

    run(work)


@pytest.mark.long
def test_a_lost_database_session_is_noticed(
    federation: ReplicatedFederation, tables: dict[str, np.ndarray], postgres_url: str
) -> None:
    """The server ends every session in mid-job: locks are taken again, the job ends right, once."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(pipeline(WITH_MANUAL))
            await wait_for(lambda: is_pending(federation, submitted.id))
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            await anyio.sleep(2.5)
            approve(federation, submitted.id)
            return await client.wait(submitted.id)

    ended = run(work)
    assert ended.state == "done", ended.wire.error
    assert is_pooled(ended, tables, WITH_MANUAL)
    logs = ""
    for process in federation.coordinators():
        assert process.process is not None
        assert process.process.poll() is None
        logs += process.log_path.read_text()
    assert logs.count(f'"job": "{ended.id}", "state": "done"') == 1


@pytest.mark.long
def test_a_replica_that_is_stopped_hands_over(federation: ReplicatedFederation, tables: dict[str, np.ndarray]) -> None:
    """SIGTERM, as in a rolling upgrade: it drains, ends with 0, and the other one goes on."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(pipeline(WITH_MANUAL))
            await wait_for(lambda: is_pending(federation, submitted.id))
            driver, other = federation.driver(submitted.id)
            assert await anyio.to_thread.run_sync(driver.stop) == 0
            await wait_for(lambda: f'"{submitted.id}", "event": "job taken over"' in other.log_path.read_text())
            approve(federation, submitted.id)
            return await client.wait(submitted.id)

    ended = run(work)
    assert ended.state == "done", ended.wire.error
    assert is_pooled(ended, tables, WITH_MANUAL)
