"""How the command speaks: tables for people, one JSON value for programs, one sentence for an error."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer
from exceptiongroup import BaseExceptionGroup
from rich.console import Console

from commonscale.concurrency import first_error

T = TypeVar("T")

# Names, reasons and errors come from peers and files: nothing in them is markup.
out = Console(markup=False, highlight=False)
err = Console(stderr=True, markup=False, highlight=False)


class Format(str, enum.Enum):
    """What to print."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]
AnalystOption = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="COMMONSCALE_CONFIG", help="The analyst's configuration file."),
]
ParticipantOption = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="COMMONSCALE_CONFIG", help="The participant's configuration file."),
]


def print_json(value: Any) -> None:
    """One value on one line, so that the last line of output is always it."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end; an error comes out as itself."""
    try:
        return anyio.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
