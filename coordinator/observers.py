"""People who may look at the dashboard: a name and the hash of a token each."""

from dataclasses import dataclass

import sqlalchemy as sa

from commonscale.database import Database, now_ms
from commonscale.errors import ConfigError
from commonscale.names import NAME_PATTERN
from commonscale.web.sessions import digest, new_token

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
        row = {"token_sha256": digest(token), "made_at_ms": made, "expires_at_ms": made + int(days * DAY_MS)}
        statement = self._database.insert(_TABLE).values(name=name, **row)
        self._database.write(statement.on_conflict_do_update(index_elements=["name"], set_=row))
        return token

    def remove(self, name: str) -> None:
        """End an observer's token and sessions."""
        if not self._database.write(sa.delete(_TABLE).where(_TABLE.c.name == name)):
            raise ConfigError(f"There is no observer {name}.", "See `commonscale observers list`.")

    def all(self) -> list[Observer]:
        """Everyone, by name."""
        columns = (_TABLE.c.name, _TABLE.c.made_at_ms, _TABLE.c.expires_at_ms)
        return [Observer(*row) for row in self._database.rows(sa.select(*columns).order_by(_TABLE.c.name))]

    def name_of(self, token: str) -> str | None:
        """Whose token this is, while it lasts."""
        condition = sa.and_(_TABLE.c.token_sha256 == digest(token), _TABLE.c.expires_at_ms > now_ms())
        return self._database.scalar(sa.select(_TABLE.c.name).where(condition))

    def digest_of(self, name: str) -> bytes | None:
        """The hash of an observer's token, while it lasts."""
        condition = sa.and_(_TABLE.c.name == name, _TABLE.c.expires_at_ms > now_ms())
        return self._database.scalar(sa.select(_TABLE.c.token_sha256).where(condition))
