"""Collective public keys in the database, for replicas that share nothing else. Nothing here is secret."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from commonscale.database import Database

_TABLE = sa.table("key_sets", *map(sa.column, ("name", "content")))


class DatabaseShelf:
    """Key sets by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> bytes | None:
        """A set, if it is here."""
        with self._database.reading() as connection:
            return connection.scalar(sa.select(_TABLE.c.content).where(_TABLE.c.name == name))

    def put(self, name: str, content: bytes) -> None:
        """Keep a set, in place of an older one."""
        statement = self._database.insert(_TABLE).values(name=name, content=content)
        with self._database.writing() as connection:
            connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"content": content}))

    def drop(self, name: str) -> None:
        """Delete a set, if it is here."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.name == name))

    def names(self) -> Sequence[str]:
        """Of all sets that are here."""
        with self._database.reading() as connection:
            return list(connection.scalars(sa.select(_TABLE.c.name).order_by(_TABLE.c.name)))
