"""`commonscale demo`: four hospitals and a coordinator, on this machine, in under a minute."""

from __future__ import annotations

import csv
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from commonscale.audit import verify
from commonscale.cli.console import Format, FormatOption, err, out, print_json, run
from commonscale.cli.jobs import disclosure_table
from commonscale.client import Client, Job
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline

SITES = ("north", "east", "south", "west")
SHOWN = 5
# A categorical column, from the mean area: not every hospital has the smallest and the largest.
CATEGORY = "size_class"
CLASSES = ((200, "tiny"), (500, "small"), (900, "medium"), (1600, "large"), (2400, "huge"), (float("inf"), "giant"))


def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep everything that the daemons wrote in this directory.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start a coordinator and four participants with mTLS; find the scaler and the categories of their pooled data.

    The data is scikit-learn's breast cancer set, split unevenly by diagnosis.
    """
    with tempfile.TemporaryDirectory() as scratch:
        directory = keep or Path(scratch)
        columns, parts = _split_by_diagnosis()
        data = {site: directory / "data" / f"{site}.csv" for site in SITES}
        (directory / "data").mkdir(parents=True, exist_ok=True)
        classes = {site: _classes(rows[:, columns.index("mean_area")]) for site, rows in parts.items()}
        for site, rows in parts.items():
            with data[site].open("w", newline="", encoding="utf-8") as file:
                cells = ([*map(repr, row), name] for row, name in zip(rows.tolist(), classes[site], strict=True))
                csv.writer(file).writerows([[*columns, CATEGORY], *cells])
        steps = [{"transform": "zscore", "columns": columns}, {"transform": "onehot", "columns": [CATEGORY]}]
        pipeline = Pipeline.model_validate({"name": "demo", "sites": SITES, "steps": steps})
        with err.status("making certificates, starting a coordinator and four participants …"):
            federation = LocalFederation(directory, data)
            federation.start()
        try:
            with err.status("finding the common scale …"):
                start = time.perf_counter()
                job = run(lambda: _submit(federation, pipeline))
                seconds = time.perf_counter() - start
            summary = _summarize(federation, job, columns, parts, seconds)
            summary["categories"] = _categories(federation, job, classes)
        finally:
            federation.stop()
    if output is Format.JSON:
        print_json(summary)
        return
    _print(summary, job)


async def _submit(federation: LocalFederation, pipeline: Pipeline) -> Job:
    async with Client(federation.analyst()) as client:
        job = await client.submit(pipeline)
        return await client.wait(job.id)


def _split_by_diagnosis() -> tuple[list[str], dict[str, Any]]:
    """Uneven in size and in diagnosis, so that a hospital's own scaler is visibly off."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
    malignant, benign = bunch.data[bunch.target == 0], bunch.data[bunch.target == 1]
    shares = {SITES[0]: (0.70, 0.05), SITES[1]: (0.15, 0.50), SITES[2]: (0.10, 0.30), SITES[3]: (0.05, 0.15)}
    parts: dict[str, list[Any]] = {site: [] for site in SITES}
    for rows, which in ((malignant, 0), (benign, 1)):
        ends = np.cumsum([round(shares[site][which] * len(rows)) for site in SITES])[:-1]
        for site, piece in zip(SITES, np.split(rows, ends), strict=True):
            parts[site].append(piece)
    return columns, {site: np.vstack(pieces) for site, pieces in parts.items()}


def _classes(areas: Any) -> list[str]:
    return [next(name for below, name in CLASSES if area < below) for area in areas]


def _categories(federation: LocalFederation, job: Job, classes: dict[str, list[str]]) -> dict[str, Any]:
    """For each value the number that every hospital would have given it alone, and the one that it has now."""
    alone = {site: {name: at for at, name in enumerate(sorted(set(names)))} for site, names in classes.items()}
    together: dict[str, dict[str, int]] = {}
    for site in SITES:
        path = federation.directory / site / "state" / "results" / job.id / "identifiers.json"
        (found,) = json.loads(path.read_text())[0]["dictionaries"]
        together[site] = dict(zip(found["values"], found["identifiers"], strict=True))
    numbers = {name: {known[name] for known in together.values() if name in known} for _, name in CLASSES}
    return {
        "alone": alone,
        "together": {name: sorted(found) for name, found in numbers.items()},
        "consistent": all(len(found) == 1 for found in numbers.values())
        and len({number for found in numbers.values() for number in found}) == len(numbers)
        and all(set(together[site]) == set(alone[site]) for site in SITES),
    }


def _summarize(
    federation: LocalFederation, job: Job, columns: list[str], parts: dict[str, Any], seconds: float
) -> dict[str, Any]:
    from sklearn.preprocessing import StandardScaler

    pooled = StandardScaler().fit(np.vstack(list(parts.values())))
    local = {site: StandardScaler().fit(rows) for site, rows in parts.items()}
    result = job.result[0]
    mean, scale = np.array(result["mean"]), np.array(result["scale"])
    sent = {
        site: [
            entry for entry in verify(federation.directory / site / "state" / "audit.jsonl") if entry["what"] == "sent"
        ]
        for site in SITES
    }
    saved = {
        site: json.loads((federation.directory / site / "state" / "results" / job.id / "parameters.json").read_text())
        for site in SITES
    }
    return {
        "columns": columns,
        "rows": {site: len(rows) for site, rows in parts.items()},
        "pooled": {"mean": pooled.mean_.tolist(), "scale": pooled.scale_.tolist()},
        "federated": {"mean": result["mean"], "scale": result["scale"]},
        "local": {site: {"mean": s.mean_.tolist(), "scale": s.scale_.tolist()} for site, s in local.items()},
        "same_at_all_sites": all(parameters == job.result for parameters in saved.values()),
        "max_rel_error": float(max(np.abs(mean / pooled.mean_ - 1).max(), np.abs(scale / pooled.scale_ - 1).max())),
        "rounds": len({(entry["run"], entry["kind"]) for entry in sent[SITES[0]]}),
        "bytes_sent": {site: sum(entry["bytes"] for entry in entries) for site, entries in sent.items()},
        "seconds": round(seconds, 3),
        "disclosures": job.disclosures,
    }


def _print(summary: dict[str, Any], job: Job) -> None:
    table = Table("column", "", "pooled", "together", *SITES, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[3].style = "bold"
    parts = [summary["pooled"], summary["federated"], *summary["local"].values()]
    for index, column in list(enumerate(summary["columns"]))[:SHOWN]:
        for name, key in (("mean", "mean"), ("sd", "scale")):
            table.add_row(column if key == "mean" else "", name, *(f"{part[key][index]:.4g}" for part in parts))
    sizes = ", ".join(f"{site} {rows}" for site, rows in summary["rows"].items())
    out.print(f"Four hospitals with {sizes} rows: alone, pooled (not allowed), and together.")
    out.print(table)
    out.print(f"… and {len(summary['columns']) - SHOWN} more columns.")
    out.print(
        f"Largest relative error against pooled scikit-learn: {summary['max_rel_error']:.1e}; "
        f"the same at all sites: {'yes' if summary['same_at_all_sites'] else 'NO'}.",
    )
    found = summary["categories"]
    table = Table(CATEGORY, "together", *SITES, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[1].style = "bold"
    for name, numbers in found["together"].items():
        own = (str(found["alone"][site].get(name, "–")) for site in SITES)
        table.add_row(name, ", ".join(map(str, numbers)), *own)
    out.print("Column numbers of a category: as each hospital would give them alone, and together.")
    out.print(table)
    out.print(f"One number a category at all hospitals that have it: {'yes' if found['consistent'] else 'NO'}.")
    up = max(summary["bytes_sent"].values())
    out.print(f"{summary['rounds']} rounds, {up:,} bytes sent by a hospital, {summary['seconds']:.2f} s.")
    out.print(disclosure_table(summary["disclosures"]))
    out.print(
        "No hospital's own count, mean or variance left it: what it sent was masked with keys that only the "
        "hospitals share. No category left it either: the coordinator compared tokens that it cannot compute.",
    )
    if not found["consistent"]:
        raise typer.Exit(1)
    if job.state != "done" or not summary["same_at_all_sites"] or summary["max_rel_error"] > 1e-9:
        raise typer.Exit(1)
