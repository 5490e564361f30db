"""Tables V and VI of the normalization paper: every protocol and method as a job over real processes and mTLS.

The paper's sequential and binary algorithms run in the same benchmark, so that ratios hold on any machine. `setup_s` is
the making of collective keys, `wall_s` everything else of the job, from submission to the last site's word.
"""

import datetime as dt
import sqlite3
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.usage import finished_job, sent_by_a_site, usage
from commonscale.cli.console import run
from commonscale.localnet import ENCRYPTION, LocalFederation
from crypto.rings import FIELD61, Z256, Ring

# transform/method, and what the paper took with 10 sites on 6 cores without a network.
PAPER_S: dict[str, float | None] = {
    "zscore/ckks": 44.0,
    "zscore/masks": 44.0,
    "minmax/search": 253.0,
    "minmax/all-pairs": 253.0,
    "minmax/tree": 253.0,
    "minmax/sequential": 253.0,
    "robust/masks": 368.0,
    "robust/ckks": 368.0,
    "robust/private": 368.0,
    "robust/binary": 368.0,
    "power/masks": None,
}
DEFAULT = ("zscore/ckks", "minmax/search", "minmax/all-pairs", "minmax/tree", "minmax/sequential",
           "robust/masks", "robust/ckks", "robust/binary")  # fmt: skip
# The paper's own algorithms.
BASELINES = {"minmax": "sequential", "robust": "binary"}
UNENCRYPTED = ("masks", "search")
SLOW = ("sequential", "binary", "private")


def step_of(name: str, columns: list[str], profile: str) -> dict[str, Any]:
    """The step of a transform/method."""
    transform, method = name.split("/")
    step: dict[str, Any] = {"transform": transform, "columns": columns, "method": method}
    return step if method in UNENCRYPTED else {**step, "ckks": {"profile": profile}}


def measure(
    directory: Path, *, parties: int, features: int, rows: int, methods: list[str], profile: str, repeats: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row of figures per method: the repeat with the median time."""
    columns = [f"x{index}" for index in range(features)]
    data, pooled = write_tables(directory, parties, columns, rows)
    say(f"starting {parties + 1} daemons")
    policies = dict.fromkeys(data, ENCRYPTION)
    with LocalFederation(directory, data, policies=policies) as federation:
        results = []
        for name in methods:
            step = step_of(name, columns, profile)
            say(f"warming up {name}")
            _warm_up(federation, step)
            rows_of = []
            for number in range(repeats):
                say(f"measuring {name} ({number + 1}/{repeats})")
                rows_of.append(_measure_job(federation, step, pooled))
            rows_of.sort(key=lambda row: row["total_s"])
            results.append(rows_of[(len(rows_of) - 1) // 2])
        return with_ratios(results)


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much quicker than the paper's own algorithm in this run, where it ran."""
    base_s = {row["protocol"]: row["total_s"] for row in rows if row["method"] == BASELINES.get(row["protocol"])}
    for row in rows:
        if row["protocol"] in base_s:
            row["times_faster_than_baseline"] = round(base_s[row["protocol"]] / row["total_s"], 1)
    return rows


def _warm_up(federation: LocalFederation, step: dict[str, Any]) -> None:
    """Load what a daemon loads once: OpenFHE and the parameters. One column, and nothing that takes long."""
    light = {**step, "columns": step["columns"][:1]}
    if step["method"] in SLOW:
        light = step_of("minmax/all-pairs", light["columns"], step["ckks"]["profile"])
    run(lambda: finished_job(federation, light))


def _measure_job(federation: LocalFederation, step: dict[str, Any], pooled: np.ndarray[Any, Any]) -> dict[str, Any]:
    before = usage(federation)
    start = time.perf_counter()
    job = run(lambda: finished_job(federation, step))
    total = time.perf_counter() - start
    after = usage(federation)
    messages = sent_by_a_site(federation, job.id)
    setup = _setup_s(messages)
    sites = len(federation.sites)
    protocol, method = step["transform"], step["method"]
    return {
        "protocol": protocol,
        "method": method,
        "parties": sites,
        "features": len(step["columns"]),
        "wall_s": round(total - setup, 3),
        "setup_s": round(setup, 3),
        "total_s": round(total, 3),
        "cpu_s": round(after["cpu"] - before["cpu"], 3),
        "rounds": len(messages),
        "bytes_up": round((after["sent"] - before["sent"]) / sites),
        "bytes_down": round((after["received"] - before["received"]) / sites),
        "revealed_values": revealed_values(
            federation, job.id, Z256 if protocol != "robust" else FIELD61, len(step["columns"])
        ),
        "max_error": error(job.result[0], pooled),
        "paper_s": PAPER_S[f"{protocol}/{method}"],
    }


def _setup_s(messages: list[dict[str, Any]]) -> float:
    """From the message before the first of a key set to the confirmation that ends it, for every key set."""
    total, begun = 0.0, None
    for before, entry in zip([messages[0], *messages], messages, strict=False):
        keys, last = ".keys." in f".{entry['kind']}", entry["kind"].endswith("keys.Confirmation")
        if keys and begun is None:
            begun = before["at"]
        if last and begun is not None:
            total += (dt.datetime.fromisoformat(entry["at"]) - dt.datetime.fromisoformat(begun)).total_seconds()
            begun = None
    return total


def revealed_values(federation: LocalFederation, job_id: str, totals_in: Ring, columns: int) -> int:
    """Numbers that the coordinator announced to everyone: opened ones, totals, and what a search for a range found."""
    path = federation.directory / "coordinator" / "coordinator.db"
    query = "SELECT kind, size_bytes FROM slots WHERE job_id = ? AND receiver = '@all'"
    with sqlite3.connect(path) as connection:
        found: list[tuple[str, int]] = connection.execute(query, (job_id,)).fetchall()
    element_bytes = {"Opened": 8, "Total": totals_in.element_bytes}
    numbers, has_searched = 0, False
    for kind, size in found:
        *scopes, name = kind.split(".")
        numbers += size // element_bytes[name] if name in element_bytes else 0
        has_searched |= name == "Answers" and "range" in scopes
    return numbers + 2 * columns * has_searched


def error(result: dict[str, Any], pooled: np.ndarray[Any, Any]) -> float:
    """The largest difference from the pooled computation, relative to what scales the column."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _error(result, pooled)


def _error(result: dict[str, Any], pooled: np.ndarray[Any, Any]) -> float:
    def largest(found: Any, expected: Any, scale: Any) -> float:
        return float((np.abs(np.array(found, dtype=float) - expected) / scale).max())

    transform = result["transform"]
    if transform == "zscore":
        sd = pooled.std(axis=0)
        return max(largest(result["mean"], pooled.mean(axis=0), sd), largest(result["scale"], sd, sd))
    if transform == "minmax":
        scale = np.abs(pooled).max(axis=0)
        low, high = pooled.min(axis=0), pooled.max(axis=0)
        return max(largest(result["min"], low, scale), largest(result["max"], high, scale))
    if transform == "robust":
        expected = np.percentile(pooled, [25, 75], axis=0)
        scale = expected[1] - expected[0]
        return max(
            largest(result["lower"], expected[0], scale),
            largest(result["upper"], expected[1], scale),
            largest(result["median"], np.median(pooled, axis=0), scale),
        )
    from sklearn.preprocessing import PowerTransformer

    fitted = PowerTransformer().fit(pooled)
    return largest(result["lambda"], fitted.lambdas_, 1.0)


def write_tables(
    directory: Path, parties: int, columns: list[str], rows: int
) -> tuple[dict[str, Path], np.ndarray[Any, Any]]:
    """Columns of many magnitudes, different at every site."""
    generator = np.random.default_rng(2026)
    directory.mkdir(parents=True, exist_ok=True)
    centre, width = 10.0 ** generator.uniform(-1, 3, len(columns)), generator.uniform(0.1, 2, len(columns))
    data: dict[str, Path] = {}
    parts = []
    for index in range(parties):
        part = generator.normal(centre * (1 + 0.05 * index), centre * width, (rows, len(columns)))
        data[f"site-{index}"] = directory / f"site-{index}.parquet"
        pq.write_table(pa.table({c: part[:, i] for i, c in enumerate(columns)}), data[f"site-{index}"])
        parts.append(part)
    return data, np.vstack(parts)
