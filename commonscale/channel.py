"""What a protocol sees of the network: typed messages between named parties.

The same role functions run over an in-memory mailbox in a test, over the coordinator's store, and over
gRPC from a participant; only the Mailbox differs. A message from one site to another is sealed and signed
on its way. A party's message is made once: the journal keeps its bytes before they are sent, and a
rerun after a crash sends those same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

import anyio
from google.protobuf.message import DecodeError, Message

from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, Equivocation
from commonscale.keyshelf import KeyShelf
from commonscale.seal import Envelope
from commonscale.slot import ALL, HUB, Slot

M = TypeVar("M", bound=Message)
Make = Callable[[], Awaitable[M]] | Callable[[], M]
Event = Literal["made", "sent", "received"]


class Mailbox(Protocol):
    """Where slots are kept. `put` is idempotent and durable; `get` waits."""

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Fill a slot; other bytes than it holds raise Equivocation."""

    async def get(self, slot: Slot) -> bytes:
        """The slot's bytes, as soon as there are some."""


class Journal(Protocol):
    """A party's memory of what it has made."""

    async def once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """The slot's bytes, made and stored durably at the first call only, and whether this was it."""


class Observer(Protocol):
    """Told of every operation: progress, metrics, tests that crash here."""

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """`made` (and stored), `sent` (and acknowledged) or `received`."""

    def waiting(self, slot: Slot) -> contextlib.AbstractContextManager[None]:
        """Surrounds the time that a message is awaited."""


class NoObserver:
    """Sees nothing."""

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """Nothing to do."""

    @contextlib.contextmanager
    def waiting(self, slot: Slot) -> Iterator[None]:
        """Nothing to do."""
        yield


class NoJournal:
    """For a role that makes the same bytes every time: the coordinator's."""

    async def once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Make the bytes again."""
        return await make(), True


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
    parties: Sequence[str]
    mailbox: Mailbox
    journal: Journal = field(default_factory=NoJournal)
    observer: Observer = field(default_factory=NoObserver)
    # What a site signs and seals with; the coordinator has none.
    envelope: Envelope | None = None
    prefix: str = ""
    # Of the agreed roster; empty before there is one. Public seeds come from it.
    roster_digest: bytes = b""
    # Keys that outlive a job; a role may have none.
    shelf: KeyShelf | None = None
    # At the coordinator: sites that will not come back in this job. Shared by all scopes.
    losses: Losses = field(default_factory=Losses)

    def scope(self, name: str) -> Channel:
        """The same end for a sub-protocol whose slots are named `name.…`."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def step(self, number: int) -> Channel:
        """The same end for one step of a job that has been admitted."""
        return replace(self, run=f"{self.run}/{number}")

    def slot(self, kind: type[Message], sender: str, receiver: str) -> Slot:
        """The slot of a message of this type in this scope."""
        return Slot(self.run, self.prefix + kind.DESCRIPTOR.name, sender, receiver)

    async def send(self, receiver: str, kind: type[M], make: Make[M]) -> bytes:
        """Make a message unless it was made before, store it, then deliver it. Returns the bytes that left."""
        slot = self.slot(kind, self.me, receiver)

        async def made() -> bytes:
            message = make()
            message = message if isinstance(message, Message) else await message
            body = message.SerializeToString(deterministic=True)
            return self.envelope.seal(slot, body) if self._site_to_site(slot) and self.envelope else body

        payload, fresh = await self.journal.once(slot, made)
        if fresh:
            self.observer.event("made", slot, len(payload))
        await self.mailbox.put(slot, payload)
        self.observer.event("sent", slot, len(payload))
        return payload

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret of mine that must be the same after a crash: made once, stored, never sent."""

        async def made() -> bytes:
            return await offload(make)

        slot = Slot(self.run, self.prefix + name, self.me, self.me)
        kept, fresh = await self.journal.once(slot, made)
        if fresh:
            self.observer.event("made", slot, len(kept))
        return kept

    async def broadcast(self, message: Message) -> None:
        """From the coordinator to every party: one slot that all may read."""
        await self.send(ALL, type(message), lambda: message)

    async def decide(self, message: M) -> M:
        """Tell every party what cannot be computed the same way again: what was told first, stays."""
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
        return parse(kind, payload, slot)

    async def recv_broadcast(self, kind: type[M]) -> M:
        """What the coordinator told everyone."""
        return await self.recv(kind, HUB, ALL)

    async def gather(self, kind: type[M]) -> dict[str, M]:
        """One message from each other party, awaited together, in ring order."""
        senders = [party for party in self.parties if party != self.me]
        found = await concurrently([partial(self.recv, kind, sender) for sender in senders])
        return dict(zip(senders, found, strict=True))

    async def scatter(self, kind: type[M], makes: Mapping[str, Make[M]]) -> None:
        """One message to each of several parties, at once."""
        await concurrently([partial(self.send, receiver, kind, make) for receiver, make in makes.items()])

    @staticmethod
    def _site_to_site(slot: Slot) -> bool:
        return slot.sender != HUB and slot.receiver not in (HUB, ALL)


def parse(kind: type[M], payload: bytes, slot: Slot) -> M:
    """A peer's bytes as a message, or BadMessage naming the slot."""
    try:
        return kind.FromString(payload)
    except DecodeError:
        raise BadMessage(f"{slot.sender} sent a malformed {slot.kind} in {slot.run}.") from None
