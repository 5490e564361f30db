"""`commonscale submit` and `commonscale jobs`: the analyst's side."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from commonscale.cli import description, following
from commonscale.cli.console import AnalystOption, Format, FormatOption, answer, cell, err, run, table

if TYPE_CHECKING:
    from commonscale.client import Client, Job

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
    from commonscale.client import new_job_id
    from commonscale.pipeline import Pipeline
    from commonscale.plan import plan_of
    from commonscale.protocols.sums import METHODS

    pipeline = Pipeline.from_toml(pipeline_path)
    methods = {method for step in pipeline.steps for method in plan_of(step, len(pipeline.sites)).methods}
    for method in sorted(methods & METHODS.keys()):
        if also := METHODS[method].also:
            err.print(f"warning: {method} is for comparison only: it shows {also.to} {also.what}", style="yellow")

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
    rows = []
    for job in jobs:
        when = dt.datetime.fromtimestamp(job.wire.submitted_at_ms / 1000, dt.timezone.utc)
        sites, seconds = str(len(job.wire.spec.sites)), f"{job.seconds:.1f}" if job.ended else ""
        rows.append((job.id, job.state, sites, f"{when:%Y-%m-%d %H:%M}", seconds, job.wire.error))
    listed = table("job", "state", "sites", "submitted", "seconds", "error", rows=rows)
    answer(output, [job.to_dict() for job in jobs], listed)


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
    none = f"Job {job.id} is {job.state}; a report is made when a job has ended."
    shown = disclosure_table(job.disclosures) if job.disclosures else none
    answer(output, {"job": job.id, "state": job.state, "revealed": job.disclosures}, shown)


@app.command()
def model(
    job_id: JobArgument,
    config_path: AnalystOption,
    path: Annotated[Path, typer.Option("--output", help="Where to write it (.safetensors).")] = Path(
        "model.safetensors"
    ),
) -> None:
    """Write the model that a job has trained to a file, if every site's policy lets the analyst have it."""
    from commonscale.errors import ConfigError
    from commonscale.files import replace_file

    content = _ask(config_path, lambda client: client.get(job_id)).model
    if content is None:
        raise ConfigError(
            f"Job {job_id} has no model for the analyst.",
            'Only a training job with model_for = "everyone" has one; sites keep results/JOB/model.safetensors.',
        )
    replace_file(path, content)
    err.print(f"wrote {path}, {len(content):,} bytes")


@app.command()
def describe(
    job_id: JobArgument,
    config_path: AnalystOption,
    path: Annotated[Path, typer.Option("--output", help="Where to write it (.html).")] = Path("description.html"),
) -> None:
    """Write what a job's `describe` found as one page, with charts: it needs no network and runs no script."""
    from commonscale.errors import ConfigError
    from commonscale.files import replace_file

    job = _ask(config_path, lambda client: client.get(job_id))
    steps = [step for step in job.result if step["transform"] == "describe"]
    if not steps:
        raise ConfigError(f"Job {job_id} has no step that describes.", 'Submit one with transform = "describe".')
    content = description.page(job.id, list(job.wire.spec.sites), steps).encode(errors="replace")
    replace_file(path, content)
    err.print(f"wrote {path}, {len(content):,} bytes")


def disclosure_table(disclosures: list[dict[str, Any]]) -> Table:
    """For people."""
    rows = [(item["protocol"], item["what"], ", ".join(item["to"])) for item in disclosures]
    return table("protocol", "what was revealed", "to whom", rows=rows, title="Disclosure report")


def _ask(path: Path, question: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the coordinator something, with an analyst's configuration."""
    from commonscale import config
    from commonscale.client import Client

    async def work() -> T:
        async with Client(config.load(config.AnalystConfig, path)) as client:
            return await question(client)

    return run(work)


async def _follow(client: Client, job_id: str) -> Job:
    """Watch with a live line on a terminal."""
    with err.status("submitted …") as status:
        async for current in client.watch(job_id):
            job = current
            # Names come from peers: nothing in them is markup.
            status.update(Text(following.now(job)))
    return job


def _show(job: Job, output: Format) -> None:
    state = f"job {job.id}: {job.state}" + (f" in {job.seconds:.2f} s" if job.ended else "")
    steps = job.result if job.state == "done" and job.wire.result_json else []
    tables = [_step_table(number, step) for number, step in enumerate(steps)]
    answer(output, job.to_dict(), state, *([job.wire.error] if job.wire.error else []), *tables)


def _step_table(number: int, step: dict[str, Any]) -> Table:
    """One row a column: every parameter that has a value for each. Of training, one row a measurement."""
    if step["transform"] == "train":
        return following.training_table(number, step)
    columns = step["columns"]
    if step["transform"] == "describe":
        return description.description_table(number, step)
    if step["transform"] == "quantiles":
        values = {"count": step["count"]}
        values |= {f"{q:g}": [row[at] for row in step["values"]] for at, q in enumerate(step["quantiles"])}
    else:
        lists = {name: value for name, value in step.items() if isinstance(value, list) and len(value) == len(columns)}
        # Two numbers of a range are not values of two columns.
        values = {name: lists[name] for name in lists if name not in ("columns", "feature_range", "quantile_range")}
    title = f"step {number}: {step['transform']}" + (f" ({step['method']})" if "method" in step else "")
    rows = [(column, *(cell(value[at]) for value in values.values())) for at, column in enumerate(columns)]
    return table("column", *values, rows=rows, title=title)
