"""What the replicas of one coordinator share, by way of their PostgreSQL: who drives which job, and news of the others.

A job is driven by the replica that holds its advisory lock. The lock belongs to a session of the database and ends
with it, however that ends; another replica then takes the job over from the stored messages. The lock spares work,
and results do not rest on it: a role draws no randomness and a slot is written once, so that two replicas which drive
one job for a moment write the same bytes.
"""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import psycopg
import structlog

from commonscale.database import CHANNEL, SERVER_TIMEOUTS
from commonscale.errors import StoreUnavailable

log = structlog.get_logger()

RETRY_S = 1.0
# A machine that is cut off without a word has lost its locks after about half a minute.
_KEEPALIVES = (
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;"
    " SET tcp_user_timeout = 25000"
)


class Replicas:
    """The replicas that share a PostgreSQL database, seen from one of them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: psycopg.AsyncConnection[tuple[object, ...]] | None = None
        self._turn = anyio.Lock()
        self._held: set[str] = set()

    async def claim(self, job_id: str) -> bool:
        """Take the job's lock if nobody has it: whether this replica drives the job from now on, or did already."""
        if job_id in self._held:
            return True
        async with self._asking() as session:
            cursor = await session.execute("SELECT pg_try_advisory_lock(%s)", (_lock_key(job_id),))
            row = await cursor.fetchone()
            if row is not None and row[0]:
                self._held.add(job_id)
            return job_id in self._held

    async def release(self, job_id: str) -> None:
        """Give the job's lock back: leave the job to others."""
        if job_id in self._held:
            self._held.discard(job_id)
            async with self._asking() as session:
                await session.execute("SELECT pg_advisory_unlock(%s)", (_lock_key(job_id),))

    async def check(self) -> None:
        """A session that ended took its locks along."""
        async with self._asking() as session:
            await session.execute("SELECT 1")

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
        async with self._turn:
            try:
                if self._session is None:
                    self._held.clear()
                    self._session = await _connect(self._url)
                yield self._session
            except (psycopg.Error, OSError) as error:
                await self._hang_up()
                raise StoreUnavailable(f"The database does not answer: {_first_line(error)}.") from None

    async def _hang_up(self) -> None:
        session, self._session = self._session, None
        self._held.clear()
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.close()

    async def close(self) -> None:
        """Give everything back."""
        async with self._turn:
            await self._hang_up()

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Pass on what replicas say in their transactions; does not return.

        One line of news ("job ID", "slot RUN KIND SENDER RECEIVER"), or "" where some may have been missed. Our own
        words come back too and change nothing.
        """
        while True:
            try:
                session = await _connect(self._url)
                try:
                    await session.execute(f"LISTEN {CHANNEL}")
                    # What was said before we listened is in the tables.
                    hear("")
                    async for notice in session.notifies():
                        hear(notice.payload)
                finally:
                    with anyio.CancelScope(shield=True):
                        await session.close()
            except (psycopg.Error, OSError) as error:
                log.warning("no news of other replicas", why=_first_line(error))
            await anyio.sleep(RETRY_S)


async def _connect(url: str) -> psycopg.AsyncConnection[tuple[object, ...]]:
    session = await psycopg.AsyncConnection.connect(url, autocommit=True, **SERVER_TIMEOUTS)
    await session.execute(_KEEPALIVES)
    return session


def _lock_key(job_id: str) -> int:
    digest = hashlib.sha256(f"commonscale job {job_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _first_line(error: Exception) -> str:
    if isinstance(error, psycopg.ProgrammingError):
        # It quotes the address, and with it the password.
        return "its address is not usable"
    return (str(error) or type(error).__name__).splitlines()[0]
