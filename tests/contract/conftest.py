"""A database of the coordinator, on SQLite and on a real PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from commonscale.database import Database
from coordinator.daemon import MIGRATIONS


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in it."""
    return emptied(request.param, request, tmp_path)


def emptied(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with nothing in it, of one kind."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'c.db'}"
    url: str = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    engine.dispose()
    return url


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    opened = Database(empty_url, MIGRATIONS)
    yield opened
    opened.close()
