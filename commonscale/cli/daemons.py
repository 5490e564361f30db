"""`commonscale coordinator` and `commonscale participant`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from commonscale import config, log
from commonscale.cli.console import ParticipantOption, run

ReadyOption = Annotated[
    Path | None,
    typer.Option("--ready-file", help="Written with the ports, as JSON, once the daemon serves."),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")]


def coordinator(
    config_path: Annotated[
        Path,
        typer.Option("--config", "-c", envvar="COMMONSCALE_CONFIG", help="The coordinator's configuration file."),
    ],
    ready_file: ReadyOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Run the coordinator until it is told to stop."""
    _end_early()
    from coordinator.daemon import Coordinator

    log.configure(verbose=verbose)
    settings = config.load(config.CoordinatorConfig, config_path)
    daemon = Coordinator(settings, config_path.parent)
    run(lambda: daemon.run(ready_file))


def participant(config_path: ParticipantOption, ready_file: ReadyOption = None, verbose: VerboseOption = False) -> None:
    """Run a site's participant until it is told to stop."""
    _end_early()
    from participant.daemon import Participant

    log.configure(verbose=verbose)
    daemon = Participant(config.load(config.ParticipantConfig, config_path))
    run(lambda: daemon.run(ready_file))


def _end_early() -> None:
    """Until the daemon handles it: as a container's first process, Python would not hear SIGTERM at all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
