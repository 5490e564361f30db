"""`commonscale observers`: who may look at the dashboard with a token."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonscale.cli.console import CoordinatorOption, Format, FormatOption, answer, out, table

if TYPE_CHECKING:
    from coordinator.observers import Observers

app = typer.Typer(no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="A name for whoever gets the token.")]


@contextmanager
def _opened(config_path: Path) -> Iterator[Observers]:
    from commonscale import config
    from commonscale.database import Database
    from coordinator.daemon import MIGRATIONS
    from coordinator.observers import Observers

    settings = config.load(config.CoordinatorConfig, config_path)
    with closing(Database(settings.database, MIGRATIONS, config_path.parent)) as database:
        yield Observers(database)


@app.command()
def add(
    name: NameArgument,
    config_path: CoordinatorOption,
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="How long the token lasts.")] = 90,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make a token with which someone may look at the dashboard. It is shown once."""
    with _opened(config_path) as observers:
        token = observers.add(name, days)
    shown = f"Token for {name}, for {days:g} days (shown only now; an older one of that name has ended):"
    answer(output, {"name": name, "token": token, "days": days}, shown, token)


@app.command("list")
def list_observers(config_path: CoordinatorOption, output: FormatOption = Format.TEXT) -> None:
    """Who has a token, and until when."""
    with _opened(config_path) as observers:
        found = observers.all()
    rows = [{"name": o.name, "made": _date(o.made_at_ms), "ends": _date(o.expires_at_ms)} for o in found]
    answer(output, rows, table("name", "made", "ends", rows=[list(row.values()) for row in rows]))


@app.command()
def remove(name: NameArgument, config_path: CoordinatorOption) -> None:
    """End a token, and what was opened with it, at once."""
    with _opened(config_path) as observers:
        observers.remove(name)
    out.print(f"{name} may no longer look.")


def _date(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.timezone.utc).date().isoformat()
