"""`commonscale demo`: four hospitals and a coordinator, on this machine, in under a minute."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Column

from commonscale.cli.console import Format, FormatOption, err, out, print_json, run, table
from commonscale.cli.jobs import disclosure_table

if TYPE_CHECKING:
    from commonscale.client import Job
    from commonscale.localnet import LocalFederation
    from commonscale.pipeline import Pipeline

SITES = ("north", "east", "south", "west")
SHOWN = 5
STYLE: Mapping[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
# A categorical column, from the mean area.
CATEGORY = "size_class"


def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep everything that the daemons wrote in this directory.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start a coordinator and four participants with mTLS; find the scaler and the categories of their pooled data.

    Their workers train a model on that scale. The data is scikit-learn's breast cancer set, split by diagnosis.
    """
    from commonscale.cli.demo_hospitals import Hospitals, compare
    from commonscale.cli.demo_training import worker
    from commonscale.localnet import LocalFederation

    LocalFederation.forks = True
    with tempfile.TemporaryDirectory() as scratch:
        directory = keep or Path(scratch)
        hospitals = Hospitals.split_by_diagnosis()
        data = {site: hospitals.write(site, directory / "data" / f"{site}.csv") for site in SITES}
        workers = dict.fromkeys(SITES, worker())
        starting = "making certificates, starting a coordinator and four participants with a worker each …"
        with err.status(starting) as status, LocalFederation(directory, data, workers=workers) as federation:
            status.update("finding the common scale, and training on it …")
            start = time.perf_counter()
            job = run(lambda: _submit(federation, hospitals.pipeline()))
            seconds = time.perf_counter() - start
            states = {site: directory / site / "state" for site in SITES}
            summary = compare(hospitals, job, {site: state / "results" for site, state in states.items()}, seconds)
            summary |= _traffic(states)
    if output is Format.JSON:
        print_json(summary)
    else:
        show(summary)
    if not summary["as_pooled"]:
        raise typer.Exit(1)


async def _submit(federation: LocalFederation, pipeline: Pipeline) -> Job:
    from commonscale.client import Client

    async with Client(federation.analyst()) as client:
        job = await client.submit(pipeline)
        return await client.wait(job.id)


def _traffic(states: Mapping[str, Path]) -> dict[str, Any]:
    """Rounds and bytes, from each hospital's audit log."""
    from commonscale.audit import verify

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
    parts = [summary["pooled"], summary["federated"], *summary["local"].values()]
    rows = [
        (column if key == "mean" else "", name, *(f"{part[key][index]:.4g}" for part in parts))
        for index, column in list(enumerate(summary["columns"]))[:SHOWN]
        for name, key in (("mean", "mean"), ("sd", "scale"))
    ]
    sizes = ", ".join(f"{site} {rows}" for site, rows in summary["rows"].items())
    out.print(f"Four hospitals with {sizes} rows: alone, pooled (not allowed), and together.")
    out.print(table("column", "", "pooled", Column("together", style="bold"), *SITES, rows=rows, **STYLE))
    out.print(f"… and {len(summary['columns']) - SHOWN} more columns.")
    out.print(
        f"Largest relative error against pooled scikit-learn: {summary['max_rel_error']:.1e}; "
        f"the same at all sites: {'yes' if summary['same_at_all_sites'] else 'NO'}.",
    )
    found = summary["categories"]
    rows = [
        (name, ", ".join(map(str, numbers)), *(str(found["alone"][site].get(name, "–")) for site in SITES))
        for name, numbers in found["together"].items()
    ]
    out.print("Column numbers of a category: as each hospital would give them alone, and together.")
    out.print(table(CATEGORY, Column("together", style="bold"), *SITES, rows=rows, **STYLE))
    out.print(f"One number per category at all hospitals that have it: {'yes' if found['consistent'] else 'NO'}.")
    show_training(summary["training"])
    up = max(summary.get("bytes_sent", {"": 0}).values())
    traffic = f"{summary['rounds']} rounds, {up:,} bytes sent by a hospital, " if up else ""
    out.print(f"{traffic}{summary['seconds']:.2f} s.")
    out.print(disclosure_table(summary["disclosures"]))
    out.print(
        "No hospital's own count, mean or variance left it, nor what its worker learned from its rows alone: what it "
        "sent was masked with keys that only the hospitals share. No category left it either: the coordinator compared "
        "tokens that it cannot compute.",
    )


def show_training(found: dict[str, Any]) -> None:
    """What the model is worth."""
    parts = [found["pooled"], found["federated"], *found["local"].values()]
    out.print(
        f"Diagnosis of {found['unseen_rows']} patients who are in no table, by a model trained in {found['rounds']} "
        "rounds on the common scale; alone, on a hospital's own.",
    )
    row = ("accuracy", *(f"{part:.1%}" for part in parts))
    out.print(table("", "pooled", Column("together", style="bold"), *SITES, rows=[row], **STYLE))
    out.print(f"The same model at all hospitals: {'yes' if found['same_at_all_sites'] else 'NO'}.")
