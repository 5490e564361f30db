"""What benchmarks submit is valid and allowed where it runs, and what they count is right."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from bench import encode, ppf
from bench.ckks_operations import OPERATIONS, measured
from commonscale.channel.slot import COORDINATOR
from commonscale.cli.bench import app
from commonscale.config import Policy
from commonscale.localnet import ENCRYPTION
from commonscale.pipeline import Pipeline
from commonscale.reveal import Reveal
from commonscale.running import CoordinatorPool, RunningPool, SitePool
from crypto.rings import Z256
from participant.policy import check_request
from tests.federation import JOB, Federation, NumpySource

SITES = ("north", "south", "west")


def pipeline(step: Mapping[str, Any]) -> Pipeline:
    return Pipeline.model_validate({"sites": SITES, "steps": [step]})


@pytest.mark.parametrize("name", ppf.PAPER_S)
def test_sites_of_bench_ppf_allow_its_methods(name: str) -> None:
    """Each name is a transform and a method that the benchmark's policy allows, and is reported by that name."""
    job = pipeline(ppf.step_of(name, ["x", "y"], "test"))
    check_request(Policy.model_validate(ENCRYPTION), job, "analyst")
    assert job.steps[0].protocol(len(SITES)) == name


@pytest.mark.parametrize("name", encode.STEPS)
def test_sites_of_bench_encode_allow_its_methods(name: str) -> None:
    """Each name is a step that the benchmark's policy allows."""
    job = pipeline({"columns": ["code"], **encode.STEPS[name]})
    check_request(Policy.model_validate(encode.POLICY), job, "analyst")


def test_what_was_announced_is_counted_by_its_kind(tmp_path: Path) -> None:
    """Opened numbers, totals and a search's results; a roster, which has no scope, is none of these."""
    (tmp_path / "coordinator").mkdir()
    announced = [
        ("Roster", 500),
        ("mean.Total", 640),
        ("range.1.Answers", 32),
        ("x.Opened", 80),
        ("keys.RelinJoint", 9),
    ]
    announced += [(f"range.{number}.Answers", 32) for number in range(2, 9)]
    with sqlite3.connect(tmp_path / "coordinator" / "coordinator.db") as connection:
        connection.execute("CREATE TABLE slots (job_id, kind, size_bytes, receiver)")
        rows = [("job", kind, size, "@all") for kind, size in announced]
        connection.executemany("INSERT INTO slots VALUES (?, ?, ?, ?)", [*rows, ("other", "mean.Total", 9999, "@all")])
    assert ppf.revealed_values(SimpleNamespace(directory=tmp_path), "job", Z256, 3) == 20 + 10 + 6  # type: ignore[arg-type]


def test_ratios_are_to_the_papers_algorithm() -> None:
    """Where that ran; other rows have none."""
    rows = [
        {"protocol": "minmax", "method": "search", "total_s": 2.0},
        {"protocol": "minmax", "method": "sequential", "total_s": 50.0},
        {"protocol": "zscore", "method": "ckks", "total_s": 10.0},
    ]
    found = [row.get("times_faster_than_baseline") for row in ppf.with_ratios(rows)]
    assert found == [25.0, 1.0, None]


@pytest.mark.parametrize("command", ["zscore", "ppf", "encode", "growth"])
def test_unknown_methods_are_refused(command: str) -> None:
    """Before anything is started, with the names that there are."""
    done = CliRunner().invoke(app, [command, "--methods", "minimax"])
    assert done.exit_code == 2
    assert "minimax" in done.output


@pytest.mark.parametrize("numbers", ["", "many", "1000,0", "1000,,2000"])
def test_bench_training_wants_numbers_of_parameters(numbers: str) -> None:
    """Before anything is started."""
    done = CliRunner().invoke(app, ["training", "--parameters", numbers])
    assert done.exit_code == 2
    assert "--parameters" in done.output


def test_every_operation_is_measured_at_every_role(tmp_path: Path) -> None:
    """All roles go through the same operations to their end."""
    federation = Federation(tmp_path, SITES)
    job = pipeline({"transform": "quantiles", "columns": ["x"], "method": "ckks", "ckks": {"profile": "test"}})
    table = NumpySource(["x"], [])
    seconds: dict[str, list[float]] = {}

    async def role(name: str) -> None:
        pool: RunningPool
        if name == COORDINATOR:
            pool = CoordinatorPool(await federation.admitted_coordinator())
        else:
            pool = SitePool(await federation.admitted_site(name, job), table, table)
        seconds[name] = await measured(pool, job.steps[0].ckks, Reveal("numbers", "random numbers"))
        await pool.finish()

    async def all_roles() -> None:
        async with anyio.create_task_group() as tasks:
            for name in (COORDINATOR, *SITES):
                tasks.start_soon(role, name)

    anyio.run(all_roles)
    assert set(seconds) == {COORDINATOR, *SITES}
    assert {len(found) for found in seconds.values()} == {len(OPERATIONS)}
    assert [reveal.scope for reveal in federation.ledgers[COORDINATOR].of(f"{JOB}/0")] == ["numbers"]
