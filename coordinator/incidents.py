"""Refusals and errors, kept for the people who look after the federation, with what to do about them.

The same thing of the same one again is counted, not written again; a flood costs a bounded queue and no more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import anyio
import sqlalchemy as sa
import structlog

from commonscale import errors
from commonscale.concurrency import offload
from commonscale.database import Database, now_ms
from commonscale.results import plain_text

log = structlog.get_logger()

KEPT = 1000
QUEUE = 100

_COLUMNS = ("id", "at_ms", "what", "who", "message", "remedy", "times")
_TABLE = sa.table("incidents", *map(sa.column, _COLUMNS))

# Calls that end like this are worth a person's look; the others are everyday.
NOTABLE = (
    errors.NotAllowed,
    errors.IncompatiblePeer,
    errors.Equivocation,
    errors.BadMessage,
    errors.PayloadTooLarge,
)

# What to do where the error itself does not say.
_REMEDIES: dict[str, str] = {
    "Refused": "That site decides: ask its operator, or submit the job without it.",
    "SiteFailed": "The message says what that site found; its own log says more.",
    "DeadlineMissed": "Is the awaited site's daemon up, and does a job wait for approval there?",
    "Disagreement": "Somebody said different things to others: keep the database and look into it before going on.",
    "Equivocation": "Was that site's state restored from a backup in mid-job? Then submit the job again.",
    "BadMessage": "Compare the releases of both sides; if they are the same, look into that member's daemon.",
    "NotAllowed": "Run `commonscale doctor` at that member: its certificate or its role does not fit.",
    "TooFewSites": "Submit the job with at least three sites.",
}


@dataclass(frozen=True)
class Incident:
    """Something that a person should know of."""

    at_ms: int
    what: str
    who: str
    message: str
    remedy: str
    times: int = 1

    @classmethod
    def of(cls, who: str, error: errors.CommonscaleError) -> Incident:
        """From an error; its words may be a peer's."""
        kind = type(error).__name__
        remedy = error.remedy or _REMEDIES.get(kind, "")
        return cls(now_ms(), kind, plain_text(who)[:200], plain_text(error.message), plain_text(remedy))

    @property
    def id(self) -> str:
        """The same for the same thing."""
        return hashlib.sha256("\0".join((self.what, self.who, self.message)).encode()).hexdigest()


class Incidents:
    """What is noted from anywhere in the daemon, and written by one task."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._send, self._receive = anyio.create_memory_object_stream[Incident](QUEUE)

    def note(self, who: str, error: errors.CommonscaleError) -> None:
        """Never waits, never fails: what does not fit into the queue is in the log."""
        try:
            self._send.send_nowait(Incident.of(who, error))
        except anyio.WouldBlock:
            log.warning("incident not kept", what=type(error).__name__, who=who)

    async def write(self) -> None:
        """Write what was noted; does not return."""
        async for incident in self._receive:
            try:
                await offload(self.store, incident)
            except errors.TransientError as error:
                log.warning("incident not kept", what=incident.what, who=incident.who, why=str(error))

    def store(self, incident: Incident) -> None:
        """One more, or once more."""
        row = {name: getattr(incident, name) for name in _COLUMNS}
        statement = self._database.insert(_TABLE).values(row)
        again = {"at_ms": incident.at_ms, "remedy": incident.remedy, "times": _TABLE.c.times + 1}
        with self._database.writing() as connection:
            connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=again))
            kept = sa.select(_TABLE.c.id).order_by(_TABLE.c.at_ms.desc()).limit(KEPT)
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.id.not_in(kept)))

    def remedy_for(self, who: str) -> str:
        """What to do about the newest incident of someone; nothing where none is kept."""
        query = sa.select(_TABLE.c.remedy).where(_TABLE.c.who == who).order_by(_TABLE.c.at_ms.desc()).limit(1)
        return self._database.scalar(query) or ""

    def newest(self, limit: int) -> list[Incident]:
        """The newest, first."""
        columns = [_TABLE.c[name] for name in _COLUMNS if name != "id"]
        query = sa.select(*columns).order_by(_TABLE.c.at_ms.desc(), _TABLE.c.id).limit(limit)
        return [Incident(**row._mapping) for row in self._database.rows(query)]
