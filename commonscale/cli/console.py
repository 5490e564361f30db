"""How the command speaks: tables for people, one JSON value for programs, one sentence for an error."""

import enum
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

T = TypeVar("T")

# Names, reasons and errors come from peers and files: nothing in them is markup.
out = Console(markup=False, highlight=False)
err = Console(stderr=True, markup=False, highlight=False)


class Format(str, enum.Enum):
    """What to print."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]


def config_option(whose: str) -> Any:
    """The option that every command about a configuration file has."""
    return typer.Option("--config", "-c", envvar="COMMONSCALE_CONFIG", help=whose)


AnalystOption = Annotated[Path, config_option("The analyst's configuration file.")]
CoordinatorOption = Annotated[Path, config_option("The coordinator's configuration file.")]
ParticipantOption = Annotated[Path, config_option("The participant's configuration file.")]


def print_json(value: Any) -> None:
    """One value on one line, so that the last line of output is always it."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def answer(output: Format, value: Any, *shown: str | Table) -> None:
    """One JSON value for programs; for people, sentences and tables that say the same."""
    if output is Format.JSON:
        print_json(value)
        return
    for part in shown:
        # A sentence is copied as one line, however narrow the terminal.
        out.print(part, soft_wrap=isinstance(part, str))


def table(*headings: str | Column, rows: Iterable[Sequence[str | Text]], **style: Any) -> Table:
    """A table of some rows."""
    made = Table(*headings, **style)
    for row in rows:
        made.add_row(*row)
    return made


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end; an error comes out as itself."""
    import anyio
    from exceptiongroup import BaseExceptionGroup

    from commonscale.concurrency import first_error

    try:
        return anyio.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from None


def cell(value: Any, digits: int = 6) -> str:
    """A value of a result in a table; of a long list, its ends: the whole of it is in the JSON."""
    if isinstance(value, list):
        return f"{len(value)} from {cell(value[0])} to {cell(value[-1])}" if value else ""
    return "" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)
