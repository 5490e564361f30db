"""The whole z-score job: P sites × N features × R rows per site, real processes, mTLS.

Beside the job itself, the same job on a table of 20 rows: there is nothing to compute, so its time divided by
its rounds is what a round costs beyond its computation.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.usage import sent_by_a_site, usage
from commonscale.cli.console import run
from commonscale.client import Client, Job
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline

TINY_ROWS = 20


def measure(
    directory: Path, *, parties: int, features: int, rows: int, methods: list[tuple[str, str]], repeats: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row of figures per method, each with its number of rounds (one or two)."""
    columns = [f"x{index}" for index in range(features)]
    say(f"writing {parties} tables of {rows:,} × {features}")
    data, expected = _write_tables(directory, parties, columns, rows)
    say(f"starting {parties + 1} daemons")
    # The paper's formula runs too, for comparison; no policy allows it unless it says so.
    policies = {site: {"methods": sorted({method for method, _ in methods})} for site in data}
    with LocalFederation(directory, data, policies=policies) as federation:
        for dataset in data["site-0"]:
            say(f"warming up on {dataset}")
            run(lambda dataset=dataset: _job(federation, columns, dataset, *methods[0]))  # type: ignore[misc]
        results = []
        for method, rounds in methods:
            say(f"measuring {method}, {rounds} round(s)")
            results.append(_measure_method(federation, columns, (method, rounds), expected, repeats))
        return results


def _measure_method(
    federation: LocalFederation, columns: list[str], method: tuple[str, str], expected: Any, repeats: int
) -> dict[str, Any]:
    before = usage(federation)
    walls, errors = [], []
    for _ in range(repeats):
        # A participant remembers the sums of an unchanged table; a job on new data must compute them.
        for path in federation.directory.glob("*-main.parquet"):
            os.utime(path)
        start = time.perf_counter()
        job = run(lambda: _job(federation, columns, "main", *method))
        walls.append(time.perf_counter() - start)
        errors.append(_error(job, expected))
    after = usage(federation)
    tiny = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(lambda: _job(federation, columns, "tiny", *method))
        tiny.append(time.perf_counter() - start)
    # Messages that a site sends one after the other, from its answer to its last word; shares go out together.
    rounds = len({(entry["run"], entry["kind"]) for entry in sent_by_a_site(federation, job.id)})
    wall = statistics.median(walls)
    per_site = {
        key: round((after[key] - before[key]) / repeats / len(federation.sites)) for key in ("sent", "received")
    }
    return {
        "protocol": "zscore",
        "method": f"{method[0]}/{method[1]}-round",
        "parties": len(federation.sites),
        "features": len(columns),
        "wall_s": round(wall, 3),
        "cpu_s": round((after["cpu"] - before["cpu"]) / repeats, 3),
        "rounds": rounds,
        "bytes_up": per_site["sent"],
        "bytes_down": per_site["received"],
        "max_rel_error": max(errors),
        "wall_without_data_s": round(statistics.median(tiny), 3),
        "round_overhead_ms": round(1000 * statistics.median(tiny) / rounds, 1),
    }


async def _job(federation: LocalFederation, columns: list[str], dataset: str, method: str, rounds: str) -> Job:
    async with Client(federation.analyst()) as client:
        step = {"columns": columns, "method": method, "rounds": rounds}
        pipeline = Pipeline.model_validate(
            {"name": "bench", "dataset": dataset, "sites": federation.sites, "steps": [step]}
        )
        job = await client.wait((await client.submit(pipeline)).id)
        _ = job.result
        return job


def _write_tables(
    directory: Path, parties: int, columns: list[str], rows: int
) -> tuple[dict[str, dict[str, Path]], dict[str, Any]]:
    """Normal columns of many magnitudes, different at every site; the pooled moments come from numpy."""
    generator = np.random.default_rng(2026)
    directory.mkdir(parents=True, exist_ok=True)
    centre, width = 10.0 ** generator.uniform(-3, 6, len(columns)), 10.0 ** generator.uniform(-2, 2, len(columns))
    data: dict[str, dict[str, Path]] = {}
    parts = []
    for index in range(parties):
        part = generator.normal(centre * (1 + 0.1 * index), centre * width, (rows, len(columns)))
        site = f"site-{index}"
        data[site] = {}
        for name, table in (("main", part), ("tiny", part[:TINY_ROWS])):
            data[site][name] = directory / f"{site}-{name}.parquet"
            pq.write_table(pa.table({c: table[:, i] for i, c in enumerate(columns)}), data[site][name])
        parts.append(part)
    pooled = np.vstack(parts)
    return data, {"mean": pooled.mean(axis=0), "scale": pooled.std(axis=0)}


def _error(job: Job, expected: dict[str, Any]) -> float:
    result = job.result[0]
    return float(max(np.abs(np.array(result[key]) / expected[key] - 1).max() for key in ("mean", "scale")))
