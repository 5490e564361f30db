"""Rounds of training: P sites with an ML worker each, real processes, mTLS, hidden sums by masks.

The workers' model has the wanted number of parameters and trains in no time, so what is measured is everything else:
the way to the worker and back, masks, journals, messages, the coordinator's sum, the agreement and the checkpoint.
"""

import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import flower, worker_overhead
from bench.idle_model import module, name_of, noted_s
from bench.usage import finished_job, usage
from commonscale.cli.console import run
from commonscale.localnet import LocalFederation, Worker

# More than a site's policy asks for by default.
ROWS = 50
WARM_UP_ROUNDS = 2


def measure(
    directory: Path, *, parties: int, parameters: Sequence[int], rounds: int, vector_mb: int,
    flower_python: Path | None, say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row of figures per number of parameters, one for a long vector to a worker and back, and Flower's."""
    notes = directory / "notes"
    notes.mkdir(parents=True)
    models = directory / "idle.py"
    models.write_text(module(parameters, notes))
    data = _write_tables(directory, parties)
    results = []
    say(f"starting {parties} workers and {parties + 1} daemons")
    with LocalFederation(directory, data, workers=dict.fromkeys(data, Worker.of(models))) as federation:
        for size in parameters:
            say(f"warming up with {size:,} parameters")
            _train(federation, size, WARM_UP_ROUNDS)
            say(f"measuring {rounds} rounds of {size:,} parameters")
            results.append(_measure_rounds(federation, notes, size, rounds))
    for row in results:
        say(f"measuring {row['parameters']:,} parameters to a worker and back")
        row["overhead_s"] = worker_overhead.measure(directory / "worker", row["parameters"])
    if vector_mb:
        say(f"measuring a vector of {vector_mb} MB to a worker and back")
        results.append(worker_overhead.row(directory / "worker", vector_mb * 10**6 // 4))
    return results + flower.rows(flower_python, parties=parties, parameters=parameters, rounds=rounds, say=say)


def _train(federation: LocalFederation, size: int, rounds: int) -> str:
    """Train, and return the job's id."""
    step = {
        "transform": "train", "model": name_of(size), "columns": ["x"], "target": "y", "rounds": rounds,
        "evaluation": {"every": 0},
    }  # fmt: skip
    return run(lambda: finished_job(federation, step)).id


def _measure_rounds(federation: LocalFederation, notes: Path, size: int, rounds: int) -> dict[str, Any]:
    before = usage(federation)
    start = time.perf_counter()
    job_id = _train(federation, size, rounds)
    wall = time.perf_counter() - start
    after = usage(federation)
    # From the second on: the first round has also the end of what comes before it.
    counted = range(2, rounds + 1)
    lasted, trained = round_seconds(federation, job_id, counted), noted_s(notes, size, counted)
    train = {number: statistics.mean(trained[number]) for number in counted}
    sites, stored = len(federation.sites), stored_bytes(federation, job_id)
    return {
        "protocol": "training",
        "variant": "masks",
        "parties": sites,
        "parameters": size,
        "wall_s": round(wall, 3),
        "cpu_s": round(after["cpu"] - before["cpu"], 3),
        "rounds": rounds,
        "bytes_up": round((after["sent"] - before["sent"]) / sites),
        "bytes_down": round((after["received"] - before["received"]) / sites),
        "round_s": round(statistics.median(lasted[number] - train[number] for number in counted), 4),
        "train_s": round(statistics.median(train.values()), 6),
        "storage_mb": round(stored / 1e6, 3),
        "storage_rounds": round(stored / _round_bytes(federation, job_id), 2),
    }


def round_seconds(federation: LocalFederation, job_id: str, rounds: range) -> dict[int, float]:
    """From the moment that all sites have confirmed a round's checkpoint to the same of the next round."""
    kind = "checkpoint.Confirmations"
    at_ms = dict(_slots(federation, "SELECT run, stored_at_ms FROM slots WHERE job_id = ? AND kind = ?", job_id, kind))
    return {number: (at_ms[f"{job_id}/0/{number}"] - at_ms[f"{job_id}/0/{number - 1}"]) / 1000 for number in rounds}


def stored_bytes(federation: LocalFederation, job_id: str) -> int:
    """What the coordinator keeps: its database, and the files with this job's payloads."""
    directory = federation.directory / "coordinator"
    names = _slots(federation, "SELECT blob FROM slots WHERE job_id = ? AND blob IS NOT NULL", job_id)
    files = [*directory.glob("coordinator.db*"), *(directory / "blobs" / name for (name,) in names)]
    return sum(path.stat().st_size for path in files)


def _round_bytes(federation: LocalFederation, job_id: str) -> int:
    """What goes through the coordinator in one round."""
    query = "SELECT sum(size_bytes) FROM slots WHERE job_id = ? AND run = ?"
    ((total,),) = _slots(federation, query, job_id, f"{job_id}/0/1")
    return int(total)


def _slots(federation: LocalFederation, query: str, *values: str) -> list[Any]:
    with sqlite3.connect(federation.directory / "coordinator" / "coordinator.db") as connection:
        return connection.execute(query, values).fetchall()


def _write_tables(directory: Path, parties: int) -> dict[str, Path]:
    generator = np.random.default_rng(2026)
    data = {}
    for number in range(parties):
        data[f"site-{number}"] = directory / f"site-{number}.parquet"
        table = {name: generator.normal(size=ROWS) for name in ("x", "y")}
        pq.write_table(pa.table(table), data[f"site-{number}"])
    return data
