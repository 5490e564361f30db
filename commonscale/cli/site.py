"""A site's own commands: approvals, audit log, transforming its table."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from commonscale import audit as audit_log
from commonscale import config
from commonscale.cli.console import Format, FormatOption, ParticipantOption, err, out, print_json
from commonscale.config import DataSource, ParticipantConfig
from commonscale.errors import ConfigError

approvals = typer.Typer(no_args_is_help=True)
audit = typer.Typer(no_args_is_help=True)
page = typer.Typer(no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="The job's id.")]


@approvals.command("list")
def list_approvals(config_path: ParticipantOption, output: FormatOption = Format.TEXT) -> None:
    """Jobs of this site, those that wait for a person first."""
    from participant.approvals import summary
    from participant.daemon import open_database
    from participant.journal import SiteJobs

    jobs = SiteJobs(open_database(config.load(ParticipantConfig, config_path))).all()
    rows = sorted(map(summary, jobs), key=lambda row: not row["waiting"])
    if output is Format.JSON:
        print_json(rows)
        return
    table = Table("job", "analyst", "with sites", "data set", "asks for", "approval", "state")
    for row in rows:
        decided = "waits for you" if row["waiting"] else row["approval"] or "automatic"
        sites = ", ".join(row["sites"])
        table.add_row(row["job"], row["analyst"], sites, row["dataset"], row["asks"], decided, row["state"])
    out.print(table)


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
    from participant.daemon import open_database
    from participant.journal import SiteJobs

    decide(SiteJobs(open_database(config.load(ParticipantConfig, config_path))), job_id, decision, reason, "command")
    out.print(f"{job_id}: {decision}. The daemon acts on it within a second.")


@audit.command("show")
def show_audit(
    config_path: ParticipantOption,
    last: Annotated[int, typer.Option(min=1, help="How many lines.")] = 50,
    output: FormatOption = Format.TEXT,
) -> None:
    """What has left this site, and what was revealed; checks the chain of hashes first."""
    entries = audit_log.verify(_audit_path(config_path))
    if output is Format.JSON:
        print_json(entries[-last:])
        return
    table = Table("#", "at", "what", "run", "message", "to", "bytes")
    for entry in entries[-last:]:
        at = dt.datetime.fromisoformat(entry["at"])
        table.add_row(
            str(entry["number"]), f"{at:%Y-%m-%d %H:%M:%S}", entry["what"], entry.get("run", entry.get("job", "")),
            entry.get("kind", entry.get("decision", "")), entry.get("receiver", ""), str(entry.get("bytes", "")),
        )  # fmt: skip
    out.print(table)


@audit.command("verify")
def verify_audit(config_path: ParticipantOption, output: FormatOption = Format.TEXT) -> None:
    """Check the chain of hashes from the first line to the last."""
    entries = audit_log.verify(_audit_path(config_path))
    last = entries[-1]["hash"] if entries else audit_log.GENESIS
    if output is Format.JSON:
        print_json({"entries": len(entries), "intact": True, "last_hash": last})
        return
    out.print(f"{len(entries)} entries, chain intact, last hash {last}", soft_wrap=True)


def _audit_path(config_path: Path) -> Path:
    return config.load(ParticipantConfig, config_path).state / "audit.jsonl"


@page.callback()
def _page() -> None:
    pass


@page.command("token")
def page_token(
    config_path: ParticipantOption,
    renew: Annotated[bool, typer.Option("--renew", help="Make another; the old one and its sessions end.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Where this site's page is, and the token that opens it."""
    from participant.page.token import ensure_token, renew_token

    settings = config.load(ParticipantConfig, config_path)
    if not settings.page.listen:
        raise ConfigError("This site has no page: page.listen is empty.", "Set it, and restart the daemon.")
    token = renew_token(settings.state) if renew else ensure_token(settings.state)
    port = settings.page.listen.rpartition(":")[2]
    address = f"http://localhost:{port}/" if port != "0" else "the port that the daemon's log names"
    if output is Format.JSON:
        print_json({"address": address, "token": token})
        return
    out.print(f"{address}\n{token}", soft_wrap=True)


def transform(
    scaler_path: Annotated[Path, typer.Option("--estimator", "-e", help="A .skops file of a job's results.")],
    table_path: Annotated[Path, typer.Option("--in", "-i", help="The table: CSV or Parquet.")],
    output_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write: .csv or .parquet.")],
    missing: Annotated[list[str], typer.Option(help="A text that means 'missing' in a CSV file.")] = [],  # noqa: B006 - typer copies it
) -> None:
    """Put a local table on the common scale; other columns pass through unchanged."""
    from commonscale.transforms import storage
    from participant.data import DuckTable
    from participant.transform import write_transformed

    if not scaler_path.exists():
        raise ConfigError(
            f"There is no file {scaler_path}.", "A job's results are in the participant's state/results/JOB."
        )
    estimator = storage.load(scaler_path)
    table = DuckTable("here", table_path.name, DataSource(path=table_path, missing=missing))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("transforming")
        rows = 0
        for count in write_transformed(table, estimator, output_path):
            rows += count
            progress.update(task, description=f"transforming, {rows:,} rows")
    out.print(f"{rows:,} rows written to {output_path}", soft_wrap=True)
