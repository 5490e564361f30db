"""`commonscale submit` and `commonscale jobs`: the analyst's side."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from commonscale import config
from commonscale.cli.console import AnalystOption, Format, FormatOption, err, out, print_json, run
from commonscale.client import Client, Job, new_job_id
from commonscale.config import AnalystConfig
from commonscale.pipeline import Pipeline
from commonscale.protocols.secure_sum import WAYS

app = typer.Typer(no_args_is_help=True)

T = TypeVar("T")

JobArgument = Annotated[str, typer.Argument(help="The job's id.")]


def submit(
    pipeline_path: Annotated[Path, typer.Argument(help="The pipeline file (TOML).")],
    config_path: AnalystOption,
    wait: Annotated[bool, typer.Option(help="Stay until the job has ended.")] = True,
    job_id: Annotated[
        str | None, typer.Option(help="A name of your own; submitting it again finds the same job.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Submit a pipeline and watch it to its end."""
    pipeline = Pipeline.from_toml(pipeline_path)
    ways = {way for step in pipeline.steps for way in step.ways_for(len(pipeline.sites))}
    for warning in {WAYS[way].warning for way in ways if way in WAYS} - {""}:
        err.print(f"warning: {warning}", style="yellow")

    chosen = job_id or new_job_id(pipeline)
    err.print(f"job {chosen}")

    async def work(client: Client) -> Job:
        job = await client.submit(pipeline, chosen)
        return await _follow(client, job.id) if wait else job

    job = _ask(config_path, work)
    _show(job, output)
    if wait:
        _ = job.result  # a job that did not end well raises here and gives the exit code


@app.command("list")
def list_jobs(
    config_path: AnalystOption,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    output: FormatOption = Format.TEXT,
) -> None:
    """The newest jobs."""
    jobs = _ask(config_path, lambda client: client.list(limit))
    if output is Format.JSON:
        print_json([job.to_dict() for job in jobs])
        return
    table = Table("job", "state", "sites", "submitted", "seconds", "error")
    for job in jobs:
        when = dt.datetime.fromtimestamp(job.wire.submitted_at_ms / 1000, dt.timezone.utc)
        seconds = f"{job.seconds:.1f}" if job.ended else ""
        table.add_row(
            job.id,
            job.state,
            str(len(job.wire.spec.sites)),
            f"{when:%Y-%m-%d %H:%M}",
            seconds,
            job.wire.error,
        )
    out.print(table)


@app.command()
def show(job_id: JobArgument, config_path: AnalystOption, output: FormatOption = Format.TEXT) -> None:
    """A job with its result."""
    _show(_ask(config_path, lambda client: client.get(job_id)), output)


@app.command()
def watch(job_id: JobArgument, config_path: AnalystOption, output: FormatOption = Format.TEXT) -> None:
    """Follow a job to its end."""
    job = _ask(config_path, lambda client: _follow(client, job_id))
    _show(job, output)
    _ = job.result


@app.command()
def cancel(job_id: JobArgument, config_path: AnalystOption, output: FormatOption = Format.TEXT) -> None:
    """End a job for everyone."""
    _show(_ask(config_path, lambda client: client.cancel(job_id)), output)


@app.command()
def report(job_id: JobArgument, config_path: AnalystOption, output: FormatOption = Format.TEXT) -> None:
    """The disclosure report: what the job revealed, to whom, by which protocol."""
    job = _ask(config_path, lambda client: client.get(job_id))
    if output is Format.JSON:
        print_json({"job": job.id, "state": job.state, "revealed": job.disclosures})
        return
    if not job.disclosures:
        out.print(f"Job {job.id} is {job.state}; a report is made when a job has ended.")
        return
    out.print(disclosure_table(job.disclosures))


def disclosure_table(disclosures: list[dict[str, Any]]) -> Table:
    """For people."""
    table = Table("protocol", "what was revealed", "to whom", title="Disclosure report")
    for item in disclosures:
        table.add_row(item["protocol"], item["what"], ", ".join(item["to"]))
    return table


def _ask(path: Path, question: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the coordinator something, with an analyst's configuration."""

    async def work() -> T:
        async with Client(config.load(AnalystConfig, path)) as client:
            return await question(client)

    return run(work)


async def _follow(client: Client, job_id: str) -> Job:
    """Watch with a live line on a terminal."""
    with err.status("submitted …") as status:
        async for current in client.watch(job_id):
            job = current
            progress = job.wire.progress
            awaited = f", waiting for {', '.join(progress.awaited)} in {progress.round}" if progress.round else ""
            status.update(f"{job.state}{awaited}")
    return job


def _show(job: Job, output: Format) -> None:
    if output is Format.JSON:
        print_json(job.to_dict())
        return
    out.print(f"job {job.id}: {job.state}" + (f" in {job.seconds:.2f} s" if job.ended else ""))
    if job.wire.error:
        out.print(job.wire.error, soft_wrap=True)
    if job.state == "done" and job.wire.result_json:
        for number, step in enumerate(job.result):
            out.print(_step_table(number, step))


def _step_table(number: int, step: dict[str, Any]) -> Table:
    """One row a column: every parameter that has a value for each."""
    columns = step["columns"]
    values = {
        name: value
        for name, value in step.items()
        if name != "columns" and isinstance(value, list) and len(value) == len(columns)
    }
    # Two numbers of a range are not values of two columns.
    values = {name: value for name, value in values.items() if name not in ("feature_range", "quantile_range")}
    if step["transform"] == "quantiles":
        values = {"count": step["count"]}
        values |= {f"{q:g}": [row[at] for row in step["values"]] for at, q in enumerate(step["quantiles"])}
    title = f"step {number}: {step['transform']}" + (f" ({step['variant']})" if "variant" in step else "")
    table = Table("column", *values, title=title)
    for index, column in enumerate(columns):
        table.add_row(column, *(_cell(value[index]) for value in values.values()))
    return table


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
