"""`commonscale probe`: ask a daemon on this machine whether it is well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commonscale.cli.console import out
from commonscale.probe import NoAnswer, faults


def probe(
    config_path: Annotated[
        Path,
        typer.Option(
            "--config", "-c", envvar="COMMONSCALE_CONFIG", help="The coordinator's or participant's configuration file."
        ),
    ],
    live: Annotated[bool, typer.Option("--live", help="Ask only whether the process answers.")] = False,
) -> None:
    """Ask the daemon of a configuration file whether it is well; exits with 1 and the faults if it is not.

    A participant is not well while it has no session with its coordinator. `python -m commonscale.probe` takes the same
    options and starts in a fraction of the time: for health checks.
    """
    try:
        found = faults(config_path, live=live)
    except NoAnswer as error:
        found = [str(error)]
    for fault in found:
        out.print(fault, soft_wrap=True)
    if found:
        raise typer.Exit(1)
    out.print("ok")
