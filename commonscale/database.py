"""Databases: SQLite by default, PostgreSQL by URL, brought to the newest schema when opened."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.dialects import postgresql as sa_postgresql
from sqlalchemy.dialects import sqlite as sa_sqlite

from commonscale.errors import ConfigError, StoreUnavailable

T = TypeVar("T")

# On which replicas hear of each other.
CHANNEL = "commonscale"
# A server that is cut off without a word is given up after so long, instead of a quarter of an hour.
SERVER_TIMEOUTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
MIGRATION_LOCK = 0x636F6D6D6F6E73

MIGRATIONS = Path(__file__).parent / "migrations"


def now_ms() -> int:
    """A time as tables hold it: milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def table_of(name: str, record: type[Any]) -> sa.TableClause:
    """The table whose rows are records of a dataclass."""
    return sa.table(name, *(sa.column(field.name) for field in dataclasses.fields(record)))


def row_of(record: Any) -> dict[str, Any]:
    """A record as a row of its table."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


class Database:
    """An engine whose failures are our errors, and one writer at a time where that is SQLite."""

    def __init__(self, url: str, versions: Path, base: Path = Path()) -> None:
        try:
            location = _located(sa.make_url(url), base)
            local = location.get_backend_name() == "sqlite"
            # A server may have hung up in the meantime; a file has not, and keeps its prepared connections.
            options = {} if local else {"connect_args": SERVER_TIMEOUTS}
            self.engine = sa.create_engine(location, pool_pre_ping=not local, pool_size=20, **options)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError):
            raise ConfigError("The database URL is not usable.", "Use sqlite:///FILE or postgresql://…") from None
        self._writer: contextlib.AbstractContextManager[Any] = threading.Lock() if local else contextlib.nullcontext()
        if local:
            sa.event.listen(self.engine, "connect", _sqlite_pragmas)
        self._migrate(versions)

    def _migrate(self, versions: Path) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.set_main_option("version_locations", str(versions))
        config.set_main_option("path_separator", "os")
        with self.writing() as connection:
            if self.shared:
                # Replicas that start together: one changes the schema, the others find it changed.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            else:
                # The driver opens no transaction for changes of the schema: half a migration would stay.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError:
                raise ConfigError(
                    "The database was written by a newer release of commonscale.", "Run that release, or a newer one."
                ) from None

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it: a server's database."""
        return self.engine.dialect.name == "postgresql"

    @property
    def server_url(self) -> str:
        """As the server's own library reads it."""
        return self.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def insert(self, table: sa.TableClause) -> Any:
        """An insertion that knows what to do where the row is there already."""
        return (sa_postgresql if self.shared else sa_sqlite).insert(table)

    def tell(self, connection: sa.Connection, news: str) -> None:
        """Tell all replicas, once this transaction is durable; a database of one process has nobody to tell."""
        if self.shared:
            connection.execute(sa.select(sa.func.pg_notify(CHANNEL, news)))

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that is durable when the block ends."""
        with self._writer, _our_errors(), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view."""
        with _our_errors(), self.engine.connect() as connection:
            yield connection

    def rows(self, query: sa.Select[Any], values: Mapping[str, Any] | None = None) -> Sequence[sa.Row[Any]]:
        """All that a query finds; one that is asked often is made once, and gets its values here."""
        with self.reading() as connection:
            return connection.execute(query, values).all()

    def scalar(self, query: sa.Select[tuple[T]]) -> T | None:
        """The first value that a query finds, if any."""
        with self.reading() as connection:
            return connection.scalar(query)

    def write(self, statement: sa.Insert | sa.Update | sa.Delete, values: Mapping[str, Any] | None = None) -> int:
        """One change, durable when this returns: how many rows it concerned."""
        with self.writing() as connection:
            return connection.execute(statement, values).rowcount

    def ping(self) -> None:
        """Raise StoreUnavailable unless the database answers."""
        with self.reading() as connection:
            connection.execute(sa.text("SELECT 1"))

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()


def _located(url: sa.URL, base: Path) -> sa.URL:
    """With our driver; a relative SQLite file is meant beside the configuration that names it."""
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).is_absolute():
        path = (base / url.database).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        return url.set(database=str(path))
    return url


def _sqlite_pragmas(connection: Any, _record: Any) -> None:
    # WAL with full synchronisation: a commit survives a power cut.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError) as error:
        # Among them a server that is read-only, after a failover or with a full disk.
        # The statement's parameters may be payloads: only the driver's own words are kept.
        raise StoreUnavailable(f"The database does not answer: {str(error.orig).splitlines()[0]}.") from None
    except sa.exc.TimeoutError:
        raise StoreUnavailable("The database has no connection to spare.") from None
