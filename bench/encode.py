"""Table 4 of the tabular transformation paper: every encoding as a job over real processes and mTLS.

On Adult (8 categorical columns, non-IID), or on one made-up column with as many categories per site as asked for. The
identifiers of every job are compared with the pooled dictionary. `seconds` is from submission to the last site's word;
`paper_s` what the paper took with as many sites, without TLS and without a network.
"""

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.encoding_study.data import ADULT
from bench.encoding_study.partition import partition
from bench.normalization_study.data import data_directory
from bench.usage import finished_job, usage
from commonscale.cli.console import run
from commonscale.localnet import LocalFederation
from participant.keepsakes import MEMORY_FILE

MODEL = "bench"
STEPS: dict[str, dict[str, Any]] = {
    "oprf": {"transform": "onehot", "method": "oprf"},
    "apsi": {"transform": "onehot", "method": "apsi"},
    "apsi-both": {"transform": "onehot", "method": "apsi", "both_directions": True},
    "otmppsi": {"transform": "onehot", "method": "otmppsi"},
    "otmppsi-general": {"transform": "onehot", "method": "otmppsi", "general": True},
    "otmppsi-3": {"transform": "onehot", "method": "otmppsi", "threshold": 3},
    "ring": {"transform": "onehot", "method": "ring"},
    "bytes-norm": {"transform": "bytes-norm"},
    "mod-norm": {"transform": "mod-norm"},
    "fasttext": {"transform": "fasttext", "model": MODEL},
    "target": {"transform": "target", "target": "label", "means": "local"},
    "target-federated": {"transform": "target", "target": "label"},
    "rolling-hash": {"transform": "rolling-hash"},
}
# Some show more than a site allows unless it says so.
POLICY = {"transforms": sorted({step["transform"] for step in STEPS.values()})}
DEFAULT = ("ring", "apsi", "otmppsi", "oprf", "bytes-norm", "mod-norm", "fasttext", "target", "rolling-hash")
# Milliseconds in the paper's Table 4, by number of sites.
PAPER_MS: dict[str, dict[int, float]] = {
    "otmppsi": {4: 63673, 6: 105210, 8: 119530, 10: 148776},
    "apsi": {4: 28280, 6: 64819, 8: 140913, 10: 227524},
    "ring": {4: 264, 6: 377, 8: 520, 10: 636},
    "bytes-norm": {4: 89, 6: 96, 8: 99, 10: 111},
    "mod-norm": {4: 52, 6: 52, 8: 62, 10: 67},
    "fasttext": dict.fromkeys((4, 6, 8, 10), 20799),
    "rolling-hash": dict.fromkeys((4, 6, 8, 10), 853),
    "target": dict.fromkeys((4, 6, 8, 10), 183),
}

Tables = dict[str, dict[str, list[str]]]


def measure(
    directory: Path, *, sites: int, categories: int, methods: list[str], model: Path | None, repeats: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row of figures per method: the repeat with the median time."""
    say("writing tables")
    tables = _made_up(sites, categories) if categories else _adult(sites)
    data = _write(directory, tables)
    columns = [name for name in next(iter(tables.values())) if name != "label"]
    policies = dict.fromkeys(data, POLICY)
    models = {MODEL: model} if model else {}
    say(f"starting {sites + 1} daemons")
    with LocalFederation(directory, data, policies=policies, models=models) as federation:
        rows = []
        for name in methods:
            if STEPS[name]["transform"] == "fasttext" and model is None:
                continue
            step = {"columns": columns, **STEPS[name]}
            say(f"warming up {name}")
            run(lambda step=step: finished_job(federation, {**step, "columns": columns[:1]}))  # type: ignore[misc]
            found = []
            for number in range(repeats):
                say(f"measuring {name} ({number + 1}/{repeats})")
                found.append(_measure_job(federation, name, step, tables))
            found.sort(key=lambda row: row["wall_s"])
            rows.append(found[(len(found) - 1) // 2])
        return rows


def _measure_job(federation: LocalFederation, name: str, step: dict[str, Any], tables: Tables) -> dict[str, Any]:
    before = usage(federation)
    start = time.perf_counter()
    job = run(lambda: finished_job(federation, step))
    wall = time.perf_counter() - start
    after = usage(federation)
    sites = len(federation.sites)
    paper = PAPER_MS.get(name, {}).get(sites)
    return {
        "method": name,
        "sites": sites,
        "columns": len(step["columns"]),
        "values": sum(len({v for t in tables.values() for v in t[c]}) for c in step["columns"]),
        "wall_s": round(wall, 3),
        "cpu_s": round(after["cpu"] - before["cpu"], 3),
        "messages": _messages(federation, job.id),
        "bytes_up": round((after["sent"] - before["sent"]) / sites),
        "bytes_down": round((after["received"] - before["received"]) / sites),
        "equals_pooled": _equals_pooled(federation, job.id, step, tables),
        "paper_s": paper / 1000 if paper else None,
    }


def _messages(federation: LocalFederation, job_id: str) -> int:
    """Slots of the job's step: what the paper counts, relayed messages; admission and last words are not among them."""
    with sqlite3.connect(federation.directory / "coordinator" / "coordinator.db") as connection:
        query = "SELECT count(*) FROM slots WHERE job_id = ? AND run LIKE '%/%'"
        return int(connection.execute(query, (job_id,)).fetchone()[0])


def _equals_pooled(federation: LocalFederation, job_id: str, step: dict[str, Any], tables: Tables) -> bool | None:
    """Whether equal values, and only they, have equal identifiers; None where there are none, or none in common."""
    if step["transform"] != "onehot" or step["method"] == "ring":
        return None
    for at, column in enumerate(step["columns"]):
        pooled: dict[str, set[int]] = {}
        holders: dict[str, int] = {}
        for site, table in tables.items():
            path = federation.directory / site / "state" / "results" / job_id / MEMORY_FILE
            dictionary = json.loads(path.read_text())[0]["dictionaries"][at]
            if set(dictionary["values"]) != set(table[column]):
                return False
            for value, identifier in zip(dictionary["values"], dictionary["identifiers"], strict=True):
                pooled.setdefault(value, set()).add(identifier)
                holders[value] = holders.get(value, 0) + 1
        enough = step.get("threshold", 2)
        if any(len(ids) != (1 if holders[v] >= enough else holders[v]) for v, ids in pooled.items()):
            return False
        numbers = [identifier for ids in pooled.values() for identifier in ids]
        if sorted(numbers) != list(range(len(numbers))):
            return False
    return True


def _adult(sites: int) -> Tables:
    table = ADULT.load(data_directory())
    found: Tables = {}
    for number, rows in enumerate(partition(table, sites)):
        part = table.take(rows)
        columns = {name: part.categories[:, at].tolist() for at, name in enumerate(ADULT.categorical)}
        found[f"site-{number}"] = columns | {"label": part.labels.tolist()}
    return found


def _made_up(sites: int, categories: int) -> Tables:
    """Each site holds so many of twice as many values."""
    generator = np.random.default_rng(2026)
    found: Tables = {}
    for number in range(sites):
        chosen = generator.choice(2 * categories, categories, replace=False)
        values = [f"diagnosis {value:06d}" for value in chosen.tolist()]
        found[f"site-{number}"] = {"code": values, "label": (chosen % 2).tolist()}
    return found


def _write(directory: Path, tables: Tables) -> dict[str, Path]:
    data = {}
    for site, table in tables.items():
        data[site] = directory / f"{site}.parquet"
        pq.write_table(pa.table(table), data[site])
    return data
