"""`commonscale observers`: who may look at the dashboard with a token."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from commonscale import config
from commonscale.cli.console import Format, FormatOption, out, print_json

if TYPE_CHECKING:
    from coordinator.observers import Observers

app = typer.Typer(no_args_is_help=True)

ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="COMMONSCALE_CONFIG", help="The coordinator's configuration file."),
]
NameArgument = Annotated[str, typer.Argument(help="A name for whoever gets the token.")]


@contextmanager
def _opened(config_path: Path) -> Iterator[Observers]:
    from commonscale.database import Database, resolve_url
    from coordinator.daemon import MIGRATIONS
    from coordinator.observers import Observers

    settings = config.load(config.CoordinatorConfig, config_path)
    database = Database(resolve_url(settings.database, config_path.parent), MIGRATIONS)
    try:
        yield Observers(database)
    finally:
        database.close()


@app.command()
def add(
    name: NameArgument,
    config_path: ConfigOption,
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="How long the token lasts.")] = 90,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make a token with which someone may look at the dashboard. It is shown once."""
    with _opened(config_path) as observers:
        token = observers.add(name, days)
    if output is Format.JSON:
        print_json({"name": name, "token": token, "days": days})
        return
    out.print(f"Token for {name}, for {days:g} days (shown only now; an older one of that name has ended):")
    out.print(token, soft_wrap=True)


@app.command("list")
def list_observers(config_path: ConfigOption, output: FormatOption = Format.TEXT) -> None:
    """Who has a token, and until when."""
    with _opened(config_path) as observers:
        found = observers.all()
    rows = [{"name": o.name, "made": _date(o.made_at_ms), "ends": _date(o.expires_at_ms)} for o in found]
    if output is Format.JSON:
        print_json(rows)
        return
    table = Table("name", "made", "ends")
    for row in rows:
        table.add_row(row["name"], row["made"], row["ends"])
    out.print(table)


@app.command()
def remove(name: NameArgument, config_path: ConfigOption) -> None:
    """End a token, and what was opened with it, at once."""
    with _opened(config_path) as observers:
        observers.remove(name)
    out.print(f"{name} may no longer look.")


def _date(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.timezone.utc).date().isoformat()
