"""What replicas cost and give.

The same small jobs on SQLite, on PostgreSQL and with two coordinators; and how long a job stands still when the replica
that drives it is killed.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.usage import usage
from commonscale.cli.console import run
from commonscale.client import Client
from commonscale.localnet import LocalFederation
from commonscale.localreplicas import ReplicatedFederation
from commonscale.pipeline import Pipeline

ROWS = 20


def measure(
    directory: Path, database: str, *, parties: int, repeats: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row of figures for each kind of coordinator."""
    directory.mkdir(parents=True, exist_ok=True)
    data = _write_tables(directory, parties)
    kinds: list[tuple[str, Callable[[Path], LocalFederation]]] = [
        ("SQLite", lambda at: LocalFederation(at, data)),
        ("PostgreSQL", lambda at: LocalFederation(at, data, database=database)),
        ("PostgreSQL, two replicas", lambda at: ReplicatedFederation(at, data, database=database)),
    ]
    found = []
    for number, (name, make) in enumerate(kinds):
        say(f"starting a federation on {name}")
        with make(directory / str(number)) as federation:
            _jobs(federation, 2)
            say(f"measuring {name}")
            before = usage(federation)
            walls = _jobs(federation, repeats)
            row: dict[str, Any] = {
                "coordinator": name,
                "parties": parties,
                "wall_s": round(statistics.median(walls), 3),
                "cpu_s": round((usage(federation)["cpu"] - before["cpu"]) / repeats, 3),
                "still_s": None,
            }
            if isinstance(federation, ReplicatedFederation):
                say("killing the replica that drives a job")
                row["still_s"] = round(_stands_still(federation), 2)
            found.append(row)
    return found


def _jobs(federation: LocalFederation, count: int) -> list[float]:
    async def work() -> list[float]:
        seconds = []
        async with Client(federation.analyst()) as client:
            for _ in range(count):
                start = time.perf_counter()
                _ = (await client.wait((await client.submit(_pipeline(federation))).id)).result
                seconds.append(time.perf_counter() - start)
        return seconds

    return run(work)


def _stands_still(federation: ReplicatedFederation) -> float:
    """From the kill to the end of a job, less what the job takes undisturbed."""

    async def work() -> float:
        async with Client(federation.analyst()) as client:
            submitted = await client.submit(_pipeline(federation))
            driver, _ = federation.driver(submitted.id)
            start = time.perf_counter()
            driver.kill()
            _ = (await client.wait(submitted.id)).result
            return time.perf_counter() - start

    undisturbed = statistics.median(_jobs(federation, 3))
    return max(run(work) - undisturbed, 0.0)


def _pipeline(federation: LocalFederation) -> Pipeline:
    return Pipeline.model_validate({"name": "bench", "sites": federation.sites, "steps": [{"columns": ["x"]}]})


def _write_tables(directory: Path, parties: int) -> dict[str, Path]:
    generator = np.random.default_rng(2026)
    data = {f"site-{index}": directory / f"site-{index}.csv" for index in range(parties)}
    for path in data.values():
        path.write_text("x\n" + "\n".join(map(repr, generator.normal(size=ROWS).tolist())) + "\n")
    return data
