"""A site's own commands: approvals, audit log, transforming its table."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from commonscale.cli.console import Format, FormatOption, ParticipantOption, answer, err, out, table
from commonscale.errors import ConfigError

if TYPE_CHECKING:
    from commonscale.config import ParticipantConfig
    from participant.journal import SiteJobs

approvals = typer.Typer(no_args_is_help=True)
audit = typer.Typer(no_args_is_help=True)
# Without a callback, typer would take a group's only command for the group itself.
page = typer.Typer(no_args_is_help=True, callback=lambda: None)

JobArgument = Annotated[str, typer.Argument(help="The job's id.")]


@approvals.command("list")
def list_approvals(config_path: ParticipantOption, output: FormatOption = Format.TEXT) -> None:
    """Jobs of this site, those that wait for a person first."""
    from participant.approvals import summary

    jobs = sorted(map(summary, _jobs(config_path).all()), key=lambda job: not job["waiting"])
    rows = []
    for job in jobs:
        decided = "waits for you" if job["waiting"] else job["approval"] or "automatic"
        sites = ", ".join(job["sites"])
        rows.append((job["job"], job["analyst"], sites, job["dataset"], job["asks"], decided, job["state"]))
    headings = ("job", "analyst", "with sites", "data set", "asks for", "approval", "state")
    answer(output, jobs, table(*headings, rows=rows))


@approvals.command()
def approve(job_id: JobArgument, config_path: ParticipantOption) -> None:
    """Let a waiting job run."""
    _decide(config_path, job_id, "approved", "")


@approvals.command()
def refuse(
    job_id: JobArgument,
    config_path: ParticipantOption,
    reason: Annotated[str, typer.Option(help="The analyst sees it.")] = "",
) -> None:
    """Refuse a waiting job."""
    _decide(config_path, job_id, "refused", reason)


def _decide(config_path: Path, job_id: str, decision: Literal["approved", "refused"], reason: str) -> None:
    from participant.approvals import decide

    decide(_jobs(config_path), job_id, decision, reason, "command")
    out.print(f"{job_id}: {decision}. The daemon acts on it within a second.")


def _jobs(config_path: Path) -> SiteJobs:
    from participant.journal import SiteJobs, open_database

    return SiteJobs(open_database(_settings(config_path)))


def _settings(config_path: Path) -> ParticipantConfig:
    from commonscale import config

    return config.load(config.ParticipantConfig, config_path)


@audit.command("show")
def show_audit(
    config_path: ParticipantOption,
    last: Annotated[int, typer.Option(min=1, help="How many lines.")] = 50,
    output: FormatOption = Format.TEXT,
) -> None:
    """What has left this site, and what was revealed; checks the chain of hashes first."""
    entries = _audited(config_path)[-last:]
    rows = [
        (
            str(entry["number"]), f"{dt.datetime.fromisoformat(entry['at']):%Y-%m-%d %H:%M:%S}", entry["what"],
            entry.get("run", entry.get("job", "")), entry.get("kind", entry.get("decision", "")),
            entry.get("receiver", ""), str(entry.get("bytes", "")),
        )
        for entry in entries
    ]  # fmt: skip
    answer(output, entries, table("#", "at", "what", "run", "message", "to", "bytes", rows=rows))


@audit.command("verify")
def verify_audit(config_path: ParticipantOption, output: FormatOption = Format.TEXT) -> None:
    """Check the chain of hashes from the first line to the last."""
    from commonscale.audit import GENESIS

    entries = _audited(config_path)
    last = entries[-1]["hash"] if entries else GENESIS
    found = {"entries": len(entries), "intact": True, "last_hash": last}
    answer(output, found, f"{len(entries)} entries, chain intact, last hash {last}")


def _audited(config_path: Path) -> list[dict[str, Any]]:
    from commonscale.audit import verify

    return verify(_settings(config_path).state / "audit.jsonl")


@page.command("token")
def page_token(
    config_path: ParticipantOption,
    renew: Annotated[bool, typer.Option("--renew", help="Make another; the old one and its sessions end.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Where this site's page is, and the token that opens it."""
    from participant.page.token import ensure_token, renew_token

    settings = _settings(config_path)
    if not settings.page.listen:
        raise ConfigError("This site has no page: page.listen is empty.", "Set it, and restart the daemon.")
    token = renew_token(settings.state) if renew else ensure_token(settings.state)
    port = settings.page.listen.rpartition(":")[2]
    address = f"http://localhost:{port}/" if port != "0" else "the port that the daemon's log names"
    answer(output, {"address": address, "token": token}, address, token)


def transform(
    estimator_path: Annotated[Path, typer.Option("--estimator", "-e", help="A .skops file of a job's results.")],
    table_path: Annotated[Path, typer.Option("--in", "-i", help="The table: CSV or Parquet.")],
    output_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write: .csv or .parquet.")],
    missing: Annotated[
        list[str], typer.Option(help="A text that means 'missing', beside those of the data set in the job.")
    ] = [],  # noqa: B006 - typer copies it
    config_path: Annotated[
        Path | None, typer.Option("--config", "-c", help="The participant's file: its data set's 'missing' counts too.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Which data set of that file; else the job's.")] = "",
) -> None:
    """Put a local table on the common scale; other columns come out as they were written."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from commonscale.estimators import storage
    from commonscale.sources.duckdb import DuckDbSource
    from participant.transform import record_beside, write_transformed

    if not estimator_path.exists():
        raise ConfigError(
            f"There is no file {estimator_path}.", "A job's results are in the participant's state/results/JOB."
        )
    estimator, record = storage.load(estimator_path), record_beside(estimator_path)
    if record is None and config_path is None and not missing:
        err.print(f"There is no pipeline.json beside {estimator_path.name}: only empty cells count as missing.")
    job_missing, job_dataset = (record.missing, record.dataset) if record else ([], "main")
    configured = _configured_missing(config_path, dataset or job_dataset) if config_path else []
    markers = tuple(dict.fromkeys([*job_missing, *configured, *missing]))
    table = DuckDbSource("here", table_path.name, table_path, markers)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("transforming")
        rows = 0
        for count in write_transformed(table, estimator, output_path, record.outputs if record else None):
            rows += count
            progress.update(task, description=f"transforming, {rows:,} rows")
    out.print(f"{rows:,} rows written to {output_path}", soft_wrap=True)


def _configured_missing(config_path: Path, dataset: str) -> list[str]:
    sources = _settings(config_path).data
    if dataset not in sources:
        raise ConfigError(
            f"{config_path} has no data set {dataset!r}.", f"Name one with --dataset: {', '.join(sources)}."
        )
    return sources[dataset].missing
