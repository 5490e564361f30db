"""People who may look at the dashboard: a name and the hash of a token each."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from commonscale.database import Database
from commonscale.errors import ConfigError
from commonscale.slot import NAME_PATTERN
from commonscale.web.sessions import digest, new_token
from coordinator.jobstore import now_ms

_TABLE = sa.table("observers", *map(sa.column, ("name", "token_sha256", "made_at_ms", "expires_at_ms")))
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Observer:
    """One who may look."""

    name: str
    made_at_ms: int
    expires_at_ms: int


class Observers:
    """The table observers. Everything here blocks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, days: float) -> str:
        """A new token; the one that this name had before ends."""
        if not NAME_PATTERN.fullmatch(name):
            raise ConfigError(f"{name!r} is no name: use lower-case letters, digits and hyphens, at most 63.")
        token = new_token()
        made = now_ms()
        row = {
            "name": name, "token_sha256": digest(token), "made_at_ms": made, "expires_at_ms": made + int(days * DAY_MS),
        }  # fmt: skip
        with self._database.writing() as connection:
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.name == name))
            connection.execute(sa.insert(_TABLE).values(row))
        return token

    def remove(self, name: str) -> None:
        """End an observer's token and sessions."""
        with self._database.writing() as connection:
            if not connection.execute(sa.delete(_TABLE).where(_TABLE.c.name == name)).rowcount:
                raise ConfigError(f"There is no observer {name}.", "See `commonscale observers list`.")

    def all(self) -> list[Observer]:
        """Everyone, by name."""
        columns = (_TABLE.c.name, _TABLE.c.made_at_ms, _TABLE.c.expires_at_ms)
        with self._database.reading() as connection:
            return [Observer(*row) for row in connection.execute(sa.select(*columns).order_by(_TABLE.c.name))]

    def name_of(self, token: str) -> str | None:
        """Whose token this is, while it lasts."""
        condition = sa.and_(_TABLE.c.token_sha256 == digest(token), _TABLE.c.expires_at_ms > now_ms())
        with self._database.reading() as connection:
            return connection.scalar(sa.select(_TABLE.c.name).where(condition))

    def digest_of(self, name: str) -> bytes | None:
        """The hash of an observer's token, while it lasts."""
        condition = sa.and_(_TABLE.c.name == name, _TABLE.c.expires_at_ms > now_ms())
        with self._database.reading() as connection:
            return connection.scalar(sa.select(_TABLE.c.token_sha256).where(condition))
