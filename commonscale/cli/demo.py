"""`commonscale demo`: four hospitals and a coordinator, on this machine, in under a minute."""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
MAX_REL_ERROR = 1e-9
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
        hospitals = Hospitals.split_by_diagnosis()
        data = {site: hospitals.write(site, directory / "data" / f"{site}.csv") for site in SITES}
        with err.status("making certificates, starting a coordinator and four participants …"):
            federation = LocalFederation(directory, data)
            federation.start()
        try:
            with err.status("finding the common scale …"):
                start = time.perf_counter()
                job = run(lambda: _submit(federation, hospitals.pipeline()))
                seconds = time.perf_counter() - start
            states = {site: directory / site / "state" for site in SITES}
            summary = compare(hospitals, job, {site: state / "results" for site, state in states.items()}, seconds)
            summary |= _traffic(states)
        finally:
            federation.stop()
    if output is Format.JSON:
        print_json(summary)
    else:
        show(summary)
    if not summary["as_pooled"]:
        raise typer.Exit(1)


async def _submit(federation: LocalFederation, pipeline: Pipeline) -> Job:
    async with Client(federation.analyst()) as client:
        job = await client.submit(pipeline)
        return await client.wait(job.id)


@dataclass(frozen=True)
class Hospitals:
    """Four tables: numeric columns, and one categorical."""

    columns: list[str]
    parts: dict[str, Any]
    classes: dict[str, list[str]]

    @classmethod
    def split_by_diagnosis(cls) -> Hospitals:
        """Uneven in size and in diagnosis, so that a hospital's own scaler is visibly off."""
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
        malignant, benign = bunch.data[bunch.target == 0], bunch.data[bunch.target == 1]
        shares = {SITES[0]: (0.70, 0.05), SITES[1]: (0.15, 0.50), SITES[2]: (0.10, 0.30), SITES[3]: (0.05, 0.15)}
        pieces: dict[str, list[Any]] = {site: [] for site in SITES}
        for rows, which in ((malignant, 0), (benign, 1)):
            ends = np.cumsum([round(shares[site][which] * len(rows)) for site in SITES])[:-1]
            for site, piece in zip(SITES, np.split(rows, ends), strict=True):
                pieces[site].append(piece)
        parts = {site: np.vstack(own) for site, own in pieces.items()}
        area = columns.index("mean_area")
        return cls(columns, parts, {site: _classes(rows[:, area]) for site, rows in parts.items()})

    def write(self, site: str, path: Path) -> Path:
        """One hospital's table as CSV."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = zip(self.parts[site].tolist(), self.classes[site], strict=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*self.columns, CATEGORY], *([*map(repr, row), name] for row, name in rows)])
        return path

    def pipeline(self) -> Pipeline:
        """Standardize the numbers, encode the category."""
        steps = [{"transform": "zscore", "columns": self.columns}, {"transform": "onehot", "columns": [CATEGORY]}]
        return Pipeline.model_validate({"name": "demo", "sites": SITES, "steps": steps})


def _classes(areas: Any) -> list[str]:
    return [next(name for below, name in CLASSES if area < below) for area in areas]


def compare(hospitals: Hospitals, job: Job, results: Mapping[str, Path], seconds: float) -> dict[str, Any]:
    """What the hospitals found together, beside the pooled table and each alone; from each one's results directory."""
    from sklearn.preprocessing import StandardScaler

    pooled = StandardScaler().fit(np.vstack(list(hospitals.parts.values())))
    local = {site: StandardScaler().fit(rows) for site, rows in hospitals.parts.items()}
    result = job.result[0]
    mean, scale = np.array(result["mean"]), np.array(result["scale"])
    saved = [json.loads((results[site] / job.id / "parameters.json").read_text()) for site in SITES]
    summary: dict[str, Any] = {
        "columns": hospitals.columns,
        "rows": {site: len(rows) for site, rows in hospitals.parts.items()},
        "pooled": {"mean": pooled.mean_.tolist(), "scale": pooled.scale_.tolist()},
        "federated": {"mean": result["mean"], "scale": result["scale"]},
        "local": {site: {"mean": s.mean_.tolist(), "scale": s.scale_.tolist()} for site, s in local.items()},
        "same_at_all_sites": all(parameters == job.result for parameters in saved),
        "max_rel_error": float(max(np.abs(mean / pooled.mean_ - 1).max(), np.abs(scale / pooled.scale_ - 1).max())),
        "categories": _categories(hospitals, job, results),
        "seconds": round(seconds, 3),
        "disclosures": job.disclosures,
    }
    close = summary["same_at_all_sites"] and summary["max_rel_error"] <= MAX_REL_ERROR
    summary["as_pooled"] = bool(close and summary["categories"]["consistent"])
    return summary


def _categories(hospitals: Hospitals, job: Job, results: Mapping[str, Path]) -> dict[str, Any]:
    """For each value the number that every hospital would have given it alone, and the one that it has now."""
    alone = {site: {name: at for at, name in enumerate(sorted(set(own)))} for site, own in hospitals.classes.items()}
    together: dict[str, dict[str, int]] = {}
    for site in SITES:
        (found,) = json.loads((results[site] / job.id / "identifiers.json").read_text())[0]["dictionaries"]
        together[site] = dict(zip(found["values"], found["identifiers"], strict=True))
    numbers = {name: {known[name] for known in together.values() if name in known} for _, name in CLASSES}
    return {
        "alone": alone,
        "together": {name: sorted(found) for name, found in numbers.items()},
        "consistent": all(len(found) == 1 for found in numbers.values())
        and len({number for found in numbers.values() for number in found}) == len(numbers)
        and all(set(together[site]) == set(alone[site]) for site in SITES),
    }


def _traffic(states: Mapping[str, Path]) -> dict[str, Any]:
    """Rounds and bytes, from each hospital's audit log."""
    sent = {
        site: [entry for entry in verify(state / "audit.jsonl") if entry["what"] == "sent"]
        for site, state in states.items()
    }
    return {
        "rounds": len({(entry["run"], entry["kind"]) for entry in sent[SITES[0]]}),
        "bytes_sent": {site: sum(entry["bytes"] for entry in entries) for site, entries in sent.items()},
    }


def show(summary: dict[str, Any]) -> None:
    """For people."""
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
    up = max(summary.get("bytes_sent", {"": 0}).values())
    traffic = f"{summary['rounds']} rounds, {up:,} bytes sent by a hospital, " if up else ""
    out.print(f"{traffic}{summary['seconds']:.2f} s.")
    out.print(disclosure_table(summary["disclosures"]))
    out.print(
        "No hospital's own count, mean or variance left it: what it sent was masked with keys that only the "
        "hospitals share. No category left it either: the coordinator compared tokens that it cannot compute.",
    )
