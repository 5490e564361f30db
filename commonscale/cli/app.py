"""All commands, and the one place where an error becomes a sentence and an exit code."""

import sys
from typing import Annotated

import typer

from commonscale.cli import bench, daemons, demo, enroll, jobs, observers, pki, site
from commonscale.cli.console import err
from commonscale.errors import CommonscaleError
from commonscale.version import PROTOCOL_VERSION, __version__

app = typer.Typer(
    name="commonscale",
    help="Put the data of many sites on a common scale without moving it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(pki.app, name="pki", help="The consortium's certificate authority.", rich_help_panel="Identity")
app.add_typer(enroll.app, name="enroll", help="Get a certificate for a member.", rich_help_panel="Identity")
app.command("coordinator", rich_help_panel="Daemons")(daemons.coordinator)
app.command("participant", rich_help_panel="Daemons")(daemons.participant)
app.command("doctor", rich_help_panel="Daemons")(daemons.doctor)
app.command("probe", rich_help_panel="Daemons")(daemons.probe)
app.add_typer(observers.app, name="observers", help="Who may look at the dashboard.", rich_help_panel="Daemons")
app.command("submit", rich_help_panel="Analysts")(jobs.submit)
app.add_typer(jobs.app, name="jobs", help="List, watch, cancel and explain jobs.", rich_help_panel="Analysts")
app.add_typer(site.approvals, name="approvals", help="Decide on jobs that wait for a person.", rich_help_panel="Sites")
app.add_typer(site.audit, name="audit", help="What has left this site.", rich_help_panel="Sites")
app.add_typer(site.page, name="page", help="This site's own page in a browser.", rich_help_panel="Sites")
app.command("transform", rich_help_panel="Sites")(site.transform)
app.command("demo", rich_help_panel="Try it")(demo.demo)
app.add_typer(bench.app, name="bench", help="Measure this machine.", rich_help_panel="Try it")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"commonscale {__version__} (protocol {PROTOCOL_VERSION})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the release.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the `commonscale` command."""
    try:
        app()
    except CommonscaleError as error:
        err.print("error:", style="red", end=" ")
        err.print(str(error), soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
