"""What a protocol sees of the network: typed messages between named roles.

The same role functions run over an in-memory mailbox in a test, over the coordinator's store, and over
gRPC from a participant; only the Mailbox differs. A message from one site to another is sealed and signed
on its way. A site's message is made once: the journal keeps its bytes before they are sent, and a
rerun after a crash sends those same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

import anyio
from google.protobuf.message import DecodeError, Message

from commonscale.channel.seal import Envelope
from commonscale.channel.slot import ALL, COORDINATOR, Slot, step_run
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, Equivocation
from commonscale.keyshelf import KeyShelf
from commonscale.reveal import CONTRIBUTING, OPENING, Ledger, Reveal

M = TypeVar("M", bound=Message)
Make = Callable[[], Awaitable[M]] | Callable[[], M]
Event = Literal["made", "sent", "received", "kept"]


class Mailbox(Protocol):
    """Where slots are kept. `put` is idempotent and durable; `get` waits."""

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Fill a slot; other bytes than it holds raise Equivocation."""

    async def get(self, slot: Slot) -> bytes:
        """The slot's bytes, as soon as there are some."""


class Journal(Protocol):
    """A site's memory of what it has made."""

    async def once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """The slot's bytes, made and stored durably at the first call only, and whether this was it."""


class Checkpoints(Protocol):
    """Where a role keeps what it goes on from, in sessions of many rounds."""

    async def last(self, run: str, me: str) -> bytes | None:
        """The newest checkpoint of a step's session."""

    async def keep(self, slot: Slot, payload: bytes, behind: Sequence[str]) -> None:
        """Store a checkpoint durably and forget what was said in the runs behind it; the checkpoint itself stays."""


class Observer:
    """Told of every operation: progress, metrics, tests that crash here. This one does nothing with it."""

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """`made` (and stored), `sent` (and acknowledged), `received`; of a checkpoint `kept`."""

    def waiting(self, slot: Slot) -> contextlib.AbstractContextManager[None]:
        """Surrounds the time that a message is awaited."""
        return contextlib.nullcontext()


class Losses:
    """Sites that were lost on the way."""

    def __init__(self) -> None:
        self.stand_ins: dict[str, str] = {}
        self._events: dict[str, anyio.Event] = {}

    def note(self, site: str, stand_in: str) -> None:
        """A site is lost; another stands in for it."""
        self.stand_ins[site] = stand_in
        self._events.setdefault(site, anyio.Event()).set()

    async def wait(self, site: str) -> None:
        """Returns when a site is lost."""
        await self._events.setdefault(site, anyio.Event()).wait()


@dataclass(frozen=True)
class Channel:
    """One role's end of one run."""

    run: str
    me: str
    # Who has data, in ring order.
    sites: Sequence[str]
    mailbox: Mailbox
    # Of a site; the coordinator makes the same bytes every time, and has none.
    journal: Journal | None = None
    observer: Observer = field(default_factory=Observer)
    # What a site signs and seals with; the coordinator has none.
    envelope: Envelope | None = None
    prefix: str = ""
    # Of the agreed roster; empty before there is one. Public seeds come from it.
    roster_digest: bytes = b""
    # Keys that outlive a job; a role may have none.
    shelf: KeyShelf | None = None
    # At the coordinator: sites that will not come back in this job. Shared by all scopes.
    losses: Losses = field(default_factory=Losses)
    # Who adds without having data; none yet.
    servers: Sequence[str] = ()
    # For sessions; a role that has none takes part in no session.
    checkpoints: Checkpoints | None = None
    # What is opened here, and where it is noted.
    reveal: Reveal | None = None
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def is_coordinator(self) -> bool:
        """Whether this is the coordinator's end: it has no data, draws no randomness and reads no clock."""
        return self.me == COORDINATOR

    @property
    def is_site(self) -> bool:
        """Whether this is the end of a site, which has data."""
        return self.me in self.sites

    @property
    def others(self) -> list[str]:
        """The sites but me."""
        return [site for site in self.sites if site != self.me]

    def under(self, reveal: Reveal, number: int = 0) -> Channel:
        """The same end for what a Reveal speaks of; rounds of one search are numbered from 1."""
        self.ledger.check(step_run(self.run), reveal)
        scoped = self.scope(reveal.scope) if reveal.scope else self
        return replace(scoped.scope(str(number)) if number else scoped, reveal=reveal)

    def opens(self) -> None:
        """Note that something was opened here: by a message that this role sent or took, or that only others see."""
        if self.reveal is None:
            raise RuntimeError(f"{self.prefix or self.run} opens what no Reveal speaks of")
        self.ledger.note(step_run(self.run), self.reveal)

    def scope(self, name: str) -> Channel:
        """The same end for a sub-protocol whose slots are named `name.…`."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def step(self, number: int) -> Channel:
        """The same end for one step of a job that has been admitted."""
        return replace(self, run=f"{self.run}/{number}")

    def round(self, number: int) -> Channel:
        """The same end for one round of the step's session."""
        return replace(self, run=f"{step_run(self.run)}/{number}")

    def slot(self, kind: type[Message], sender: str, receiver: str) -> Slot:
        """The slot of a message of this type in this scope."""
        return Slot(self.run, self.prefix + kind.DESCRIPTOR.name, sender, receiver)

    async def send(self, receiver: str, kind: type[M], make: Make[M]) -> bytes:
        """Make a message unless it was made before, store it, then deliver it. Returns the bytes that left."""
        slot = self.slot(kind, self.me, receiver)
        opens = kind.DESCRIPTOR.name in OPENING | CONTRIBUTING
        if opens and self.reveal is None:
            raise RuntimeError(f"{slot.kind} opens what no Reveal speaks of")

        async def made() -> bytes:
            message = make()
            message = message if isinstance(message, Message) else await message
            body = message.SerializeToString(deterministic=True)
            return self.envelope.seal(slot, body) if self._site_to_site(slot) and self.envelope else body

        payload = await self._once(slot, made)
        await self.mailbox.put(slot, payload)
        self.observer.event("sent", slot, len(payload))
        if opens:
            self.opens()
        return payload

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret of mine that must be the same after a crash: made once, stored, never sent."""
        return await self.keep_awaited(name, partial(offload, make))

    async def keep_awaited(self, name: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The same for what has to be waited for."""
        return await self._once(Slot(self.run, self.prefix + name, self.me, self.me), make)

    async def _once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> bytes:
        if self.journal is None:
            payload, fresh = await make(), True
        else:
            payload, fresh = await self.journal.once(slot, make)
        if fresh:
            self.observer.event("made", slot, len(payload))
        return payload

    async def broadcast(self, message: Message) -> None:
        """From the coordinator to every site: one slot that all may read."""
        await self.send(ALL, type(message), lambda: message)

    async def decide(self, message: M) -> M:
        """Announce what cannot be computed the same again: what was announced first, stays."""
        try:
            await self.broadcast(message)
        except Equivocation:
            return await self.recv_broadcast(type(message))
        return message

    async def recv(self, kind: type[M], sender: str, receiver: str | None = None) -> M:
        """Wait for a message, open its seal if a site sent it to a site, and parse it."""
        slot = self.slot(kind, sender, receiver or self.me)
        with self.observer.waiting(slot):
            payload = await self.mailbox.get(slot)
        if self._site_to_site(slot) and self.envelope:
            payload = await offload(self.envelope.open, slot, payload)
        self.observer.event("received", slot, len(payload))
        if kind.DESCRIPTOR.name in OPENING:
            self.opens()
        return parse(kind, payload, slot)

    async def recv_broadcast(self, kind: type[M]) -> M:
        """What the coordinator announced to everyone."""
        return await self.recv(kind, COORDINATOR, ALL)

    async def gather(self, kind: type[M]) -> dict[str, M]:
        """One message from each other site, awaited together, in ring order."""
        found = await concurrently([partial(self.recv, kind, sender) for sender in self.others])
        return dict(zip(self.others, found, strict=True))

    async def deliver(self, receiver: str, message: M) -> None:
        """Send a message that is made already, the same at every rerun."""
        await self.send(receiver, type(message), lambda: message)

    async def scatter(self, kind: type[M], makes: Mapping[str, Make[M]]) -> None:
        """One message to each of several sites, at once."""
        await concurrently([partial(self.send, receiver, kind, make) for receiver, make in makes.items()])

    @staticmethod
    def _site_to_site(slot: Slot) -> bool:
        return slot.sender != COORDINATOR and slot.receiver not in (COORDINATOR, ALL)


def parse(kind: type[M], payload: bytes, slot: Slot) -> M:
    """A peer's bytes as a message, or BadMessage naming the slot."""
    try:
        return kind.FromString(payload)
    except DecodeError:
        raise BadMessage(f"{slot.sender} sent a malformed {slot.kind} in {slot.run}.") from None
