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
from rich.console import Console

T = TypeVar("T")

out = Console()
err = Console(stderr=True)


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
    """Run a coroutine to its end."""
    return anyio.run(work)
