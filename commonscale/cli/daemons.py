"""`commonscale coordinator` and `participant` run a daemon; `doctor` and `probe` say whether all is well with it."""

import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from commonscale.cli.console import (
    CoordinatorOption,
    Format,
    FormatOption,
    ParticipantOption,
    answer,
    config_option,
    out,
    run,
    table,
)

ReadyOption = Annotated[
    Path | None, typer.Option("--ready-file", help="Written with the ports, as JSON, once the daemon serves.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")]


def coordinator(config_path: CoordinatorOption, ready_file: ReadyOption = None, verbose: VerboseOption = False) -> None:
    """Run the coordinator until it is told to stop."""
    _begin(verbose)
    from commonscale import config

    loaded = config.load(config.CoordinatorConfig, config_path)
    from coordinator.daemon import Coordinator

    daemon = Coordinator(loaded, config_path.parent)
    run(lambda: daemon.run(ready_file))


def participant(config_path: ParticipantOption, ready_file: ReadyOption = None, verbose: VerboseOption = False) -> None:
    """Run a site's participant until it is told to stop."""
    _begin(verbose)
    from commonscale import config

    # Before the libraries: a fault in the file is seen at once.
    loaded = config.load(config.ParticipantConfig, config_path)
    from participant.daemon import Participant

    daemon = Participant(loaded)
    run(lambda: daemon.run(ready_file))


def _begin(verbose: bool) -> None:
    # Until the daemon handles it: as a container's first process, Python would not hear SIGTERM at all.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from commonscale.daemon import configure_log

    configure_log(verbose=verbose)


def doctor(
    config_path: Annotated[Path, config_option("A coordinator's, participant's or analyst's file.")],
    output: FormatOption = Format.TEXT,
) -> None:
    """Check certificates, clock, reachability, versions and data; exits with 1 if something is failing."""
    from commonscale.cli.examination import examine

    findings = list(examine(config_path))
    colours = {"ok": "green", "warning": "yellow", "failing": "red"}
    rows = [(one.check, Text(one.status, style=colours[one.status]), one.what, one.remedy) for one in findings]
    answer(output, [asdict(one) for one in findings], table("check", "", "finding", "what to do", rows=rows))
    if any(finding.status == "failing" for finding in findings):
        raise typer.Exit(1)


def probe(
    config_path: Annotated[Path, config_option("The coordinator's or participant's configuration file.")],
    live: Annotated[bool, typer.Option("--live", help="Ask only whether the process answers.")] = False,
) -> None:
    """Ask the daemon of a configuration file whether it is well; exits with 1 and the faults if it is not.

    A participant is not well while it has no session with its coordinator. `python -m commonscale.probe` takes the same
    options and starts in a fraction of the time: for health checks.
    """
    from commonscale.probe import faults

    found = faults(config_path, live=live)
    out.print("\n".join(found) or "ok", soft_wrap=True)
    if found:
        raise typer.Exit(1)
