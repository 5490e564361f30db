"""Collective public keys in the database, for replicas that share nothing else. Nothing here is secret."""

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
        return self._database.scalar(sa.select(_TABLE.c.content).where(_TABLE.c.name == name))

    def put(self, name: str, content: bytes) -> None:
        """Keep a set, in place of an older one."""
        statement = self._database.insert(_TABLE).values(name=name, content=content)
        self._database.write(statement.on_conflict_do_update(index_elements=["name"], set_={"content": content}))

    def drop(self, name: str) -> None:
        """Delete a set, if it is here."""
        self._database.write(sa.delete(_TABLE).where(_TABLE.c.name == name))

    def names(self) -> Sequence[str]:
        """Of all sets that are here."""
        return [row.name for row in self._database.rows(sa.select(_TABLE.c.name).order_by(_TABLE.c.name))]
