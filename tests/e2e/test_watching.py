"""A training that is watched from afar: at the replica that does not drive it, and in a terminal."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from commonscale.client import Client, Job
from commonscale.localnet import Worker
from commonscale.localreplicas import ReplicatedFederation
from tests import patients
from tests.e2e.conftest import run
from tests.e2e.test_replicas import direct
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[ReplicatedFederation]:
    directory = tmp_path_factory.mktemp("watched")
    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    engine.dispose()
    workers = dict.fromkeys(patients.SITES, Worker.of(patients.MODELS))
    data = patients.write_tables(directory)
    with ReplicatedFederation(directory, data, workers=workers, database=postgres_url) as running:
        yield running


@pytest.mark.long
def test_every_replica_shows_the_curves(federation: ReplicatedFederation) -> None:
    """What one drives the other tells as well; when the one dies, the other goes on from the same figures."""
    patients.hold(federation, "west", 4)

    async def work() -> tuple[Job, Job]:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(patients.training("shared", 5))
            async for seen in client.watch(submitted.id):
                if seen.training is not None and seen.training["done"] == 3:
                    break
            driver, other = federation.driver(submitted.id)
            async with Client(direct(federation, other)) as elsewhere:
                async for seen in elsewhere.watch(submitted.id):
                    if seen.training is not None and seen.training["done"] == 3:
                        break
                driver.kill()
                patients.let_go(federation, "west")
                return seen, await elsewhere.wait(submitted.id)

    seen, ended = run(work)
    assert seen.training is not None
    metrics = ended.result[1]["metrics"]
    assert [one["loss"] for one in metrics[:3]] == [one["loss"] for one in seen.training["figures"]]
    config = federation.directory / "analyst" / "analyst.toml"
    command = [sys.executable, "-m", "commonscale", "jobs", "show", ended.id, "--config", str(config)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert "train readmission, 5 rounds" in " ".join(shown.split())
    assert f"{metrics[-1]['loss']:.6g}" in shown
