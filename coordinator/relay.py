"""The relay: who may fill and read which slot, and how a reader waits."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from commonscale import rpc
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.concurrency import concurrently, offload
from commonscale.config import Limits
from commonscale.errors import BadMessage, NotAllowed, PayloadTooLarge, RunOver, SlotEmpty, StoreUnavailable
from commonscale.grpc_loading import grpc
from commonscale.identity import Role
from commonscale.metrics import RELAYED_BYTES
from commonscale.v1 import relay_pb2, relay_pb2_grpc
from commonscale.v1.protocols_pb2 import Checkpoint
from coordinator.jobstore import JobRecord
from coordinator.slots import SlotStore, Stored

if TYPE_CHECKING:
    from coordinator.jobs import Jobs

# Another replica's word that it has filled a slot may be lost: look again this often.
POLL_S = 1.0
RECENT_SLOTS = 1024
MAX_WAIT_S = 60.0
# A sender that stalls in the middle of a payload gives up its place after this long.
CHUNK_TIMEOUT_S = 60.0
BATCH_BYTES = 4 << 20
HANDED_BYTES = 256 << 20
# A slot's sender is a name: only one role may use it.
PARTIES = (Role.SITE,)


class Mailroom:
    """Slots with waiting: what the coordinator's own roles use, and the service below."""

    def __init__(self, store: SlotStore, *, sole_writer: bool) -> None:
        self.store = store
        self._sole_writer = sole_writer
        # Jobs that began in this process, if it alone writes: what is not among the recent slots is not there.
        self._known: set[str] = set()
        self._events: dict[Slot, anyio.Event] = {}
        # What was filled lately, so that its readers need not ask the database. Large payloads are only paths here.
        self._recent: OrderedDict[Slot, Stored] = OrderedDict()
        # Large payloads for the coordinator's own roles, from the network straight to them; bounded, taken once.
        self._handed: dict[Slot, bytes] = {}
        self._handed_bytes = 0
        # The last large payload for all sites, which they are about to fetch; one, and none above the same bound.
        self._said: tuple[Slot, bytes] | None = None

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Fill a slot from this process."""
        stored = await offload(self.store.put, slot, payload)
        if slot.receiver == ALL and stored.blob is not None and len(payload) <= HANDED_BYTES:
            self._said = slot, payload
        self.announce(slot, stored)

    def said(self, slot: Slot) -> bytes | None:
        """What was said to all sites last, if it is this slot's: it need not be read from its file for each."""
        return self._said[1] if self._said is not None and self._said[0] == slot else None

    async def get(self, slot: Slot) -> bytes:
        """Wait for a slot without limit; the job's own deadline ends it."""
        while (stored := await self.wait(slot, MAX_WAIT_S)) is None:
            pass
        if (handed := self._handed.pop(slot, None)) is not None:
            self._handed_bytes -= len(handed)
            return handed
        if stored.is_trimmed:
            # Two replicas may drive a job for a moment: this one is behind, and goes on from the other's checkpoint.
            raise StoreUnavailable(f"{slot} lies behind a checkpoint that another replica made.")
        return stored.payload if stored.payload is not None else await offload(stored.read)

    async def wait(self, slot: Slot, timeout_s: float) -> Stored | None:
        """The slot's contents once there are some, or None after the time or an end of the job."""
        stop = anyio.current_time() + timeout_s
        while (stored := self._recent.get(slot)) is None:
            # Take the event first: what is filled between the look and the wait sets it.
            event = self._events.setdefault(slot, anyio.Event())
            if slot.job_id not in self._known and (stored := await offload(self.store.find, slot)) is not None:
                self.announce(slot, stored)
                break
            left = stop - anyio.current_time()
            with anyio.move_on_after(min(left, POLL_S)):
                await event.wait()
            if event.is_set() or left <= POLL_S:
                return self._recent.get(slot) or await self._look(slot)
        return stored

    async def _look(self, slot: Slot) -> Stored | None:
        """In the store, where another replica may have filled the slot."""
        if self._sole_writer or (stored := await offload(self.store.find, slot)) is None:
            return None
        self.announce(slot, stored)
        return stored

    def wake(self, slot: Slot) -> None:
        """A slot was filled, by another replica perhaps: whoever waits for it looks."""
        if event := self._events.pop(slot, None):
            event.set()

    def announce(self, slot: Slot, stored: Stored) -> None:
        """Hand a filled slot to those who wait for it, and to those who will come soon."""
        self._recent[slot] = stored
        if len(self._recent) > RECENT_SLOTS:
            oldest, _ = self._recent.popitem(last=False)
            self._known.discard(oldest.job_id)
        self.wake(slot)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a payload of that size may be handed over in memory."""
        return self._handed_bytes + size_bytes <= HANDED_BYTES

    def hand(self, slot: Slot, payload: bytes) -> None:
        """Keep what was stored just now for the role that waits for it."""
        if slot not in self._handed and self.has_room(len(payload)):
            self._handed[slot] = payload
            self._handed_bytes += len(payload)

    def _drop_handed(self, unwanted: Callable[[Slot], bool]) -> None:
        if self._said is not None and unwanted(self._said[0]):
            self._said = None
        for slot in [slot for slot in self._handed if unwanted(slot)]:
            self._handed_bytes -= len(self._handed.pop(slot))

    def begin(self, job_id: str) -> None:
        """A job that nobody can have written to yet."""
        if self._sole_writer:
            self._known.add(job_id)

    def close(self, job_id: str) -> None:
        """Wake everyone who waits for something of an ended job."""
        self._known.discard(job_id)
        self._drop_handed(lambda slot: slot.job_id == job_id)
        for slot in [slot for slot in self._events if slot.job_id == job_id]:
            self._events.pop(slot).set()

    async def last(self, run: str, me: str) -> bytes | None:
        """The coordinator's newest checkpoint of a step's session."""
        stored = await offload(self.store.last, run, Checkpoint.DESCRIPTOR.name)
        if stored is not None and stored.is_trimmed:
            raise StoreUnavailable(f"Another replica has gone on with {run} just now.")
        return None if stored is None else await offload(stored.read)

    async def keep(self, slot: Slot, payload: bytes, behind: Sequence[str]) -> None:
        """Store a checkpoint, then drop the payloads of the runs behind it."""
        await self.put(slot, payload)
        gone = set(behind)
        for recent, stored in self._recent.items():
            if recent.run in gone:
                self._recent[recent] = Stored(stored.size_bytes, stored.sha256)
        # What a restarted site sent again, and nobody took.
        self._drop_handed(lambda slot: slot.run in gone)
        await offload(self.store.trim, behind)

    async def forget(self, job_id: str) -> None:
        """Remove a job's messages."""
        for slot in [slot for slot in self._recent if slot.job_id == job_id]:
            del self._recent[slot]
        await offload(self.store.forget, job_id)


class RelayService(rpc.GatedService, relay_pb2_grpc.RelayServiceServicer):
    """Deliver and Fetch."""

    def __init__(self, gate: rpc.Gate, room: Mailroom, jobs: Jobs, limits: Limits) -> None:
        self.gate = gate
        self._room = room
        self._jobs = jobs
        self._limits = limits
        self._places: dict[str, anyio.Semaphore] = {}

    @rpc.unary(*PARTIES)
    async def Deliver(  # noqa: N802 - the name is the wire's
        self, requests: AsyncIterator[relay_pb2.DeliverRequest], caller: rpc.Caller
    ) -> relay_pb2.DeliverResponse:
        """Fill a slot."""
        upload = _Incoming(requests)
        header = await upload.header()
        slot = Slot.from_wire(header.slot)
        if slot.sender != caller.name:
            raise NotAllowed(f"{caller.identity} may not write as {slot.sender}.")
        job = await self._jobs.lookup(slot.job_id, caller.name)
        if slot.receiver not in (COORDINATOR, *job.asked.sites) or slot.receiver == caller.name:
            raise NotAllowed(f"{caller.identity} may not write to {slot.receiver} in {slot.run}.")
        if header.size_bytes > self._limits.max_payload_bytes:
            raise PayloadTooLarge(
                f"{slot} announces {header.size_bytes} bytes; the limit is {self._limits.max_payload_bytes}.",
                "Raise limits.max_payload_bytes at the coordinator.",
            )
        if not job.is_open and await offload(self._room.store.find, slot) is None:
            raise over(job)
        # Back-pressure: a site has a few places, and each reads its next batch while the last is written.
        async with self._places.setdefault(caller.name, anyio.Semaphore(self._limits.uploads_at_once)):
            stored = await self._receive(slot, header.size_bytes, upload)
        self._room.announce(slot, stored)
        RELAYED_BYTES.labels("in").inc(stored.size_bytes)
        return relay_pb2.DeliverResponse()

    async def _receive(self, slot: Slot, size: int, incoming: _Incoming) -> Stored:
        batch = incoming.first
        for_us = slot.receiver == COORDINATOR and self._jobs.drives(slot.job_id)
        if size <= BATCH_BYTES:
            # The common case in one hop to a thread.
            payload = await incoming.whole(size)
            if len(payload) != size:
                raise BadMessage(f"{slot} announces {size} bytes; {len(payload)} came.")
            stored = await offload(self._room.store.put, slot, payload, incoming.sha256)
            if for_us and stored.blob is not None:
                self._room.hand(slot, payload)
            return stored
        upload = await offload(self._room.store.upload, slot, size)
        handed: list[bytes] | None = [] if for_us and self._room.has_room(size) else None
        try:
            while batch:
                if handed is not None:
                    handed += batch
                # The next batch comes in while this one is written; never more than these two are held.
                work: list[Callable[[], Awaitable[Any]]] = [partial(offload, upload.write, *batch), incoming.next_batch]
                _, batch = await concurrently(work)
            stored = await offload(upload.commit, incoming.sha256)
            if handed is not None:
                self._room.hand(slot, b"".join(handed))
            return stored
        finally:
            # Not awaited: the call may have been cut off. In a thread: another may still be writing.
            asyncio.get_running_loop().run_in_executor(None, upload.close)

    @rpc.streaming(*PARTIES)
    async def Fetch(  # noqa: N802 - the name is the wire's
        self, request: relay_pb2.FetchRequest, caller: rpc.Caller
    ) -> AsyncIterator[relay_pb2.FetchResponse]:
        """Wait for a slot and send it."""
        slot = Slot.from_wire(request.slot)
        if slot.receiver not in (caller.name, ALL):
            raise NotAllowed(f"{caller.identity} may not read what is for {slot.receiver}.")
        job = await self._jobs.lookup(slot.job_id, caller.name)
        if job.is_open:
            stored = await self._room.wait(slot, min(request.wait_ms / 1000, MAX_WAIT_S))
        else:
            stored = await offload(self._room.store.find, slot)
        if stored is None:
            job = await self._jobs.lookup(slot.job_id, caller.name)
            if not job.is_open:
                raise over(job)
            raise SlotEmpty(f"Nothing in {slot} yet.")
        header: relay_pb2.PayloadHeader | None = relay_pb2.PayloadHeader(
            slot=request.slot, size_bytes=stored.size_bytes
        )
        if stored.payload is not None:
            yield relay_pb2.FetchResponse(header=header, chunk=stored.payload, sha256=stored.sha256)
        else:
            async for chunk in self._chunks(slot, stored):
                yield relay_pb2.FetchResponse(header=header, chunk=chunk)
                header = None
            yield relay_pb2.FetchResponse(sha256=stored.sha256)
        RELAYED_BYTES.labels("out").inc(stored.size_bytes)

    async def _chunks(self, slot: Slot, stored: Stored) -> AsyncIterator[bytes]:
        """A large payload, from memory or from where it is kept."""
        said = self._room.said(slot)
        if said is not None:
            for start in range(0, len(said), rpc.CHUNK_BYTES):
                yield said[start : start + rpc.CHUNK_BYTES]
            return
        chunks = stored.chunks(rpc.CHUNK_BYTES)
        while (chunk := await offload(next, chunks, None)) is not None:
            yield chunk


def over(job: JobRecord) -> RunOver:
    """Why nothing more can be said in a job."""
    return RunOver(f"Job {job.id} has ended ({job.state}). {job.error}".strip())


class _Incoming:
    """The chunks of a delivery, taken out of their messages once, in batches that are worth a hop to a thread."""

    def __init__(self, requests: AsyncIterator[relay_pb2.DeliverRequest]) -> None:
        self._requests = aiter(requests)
        self.first: list[bytes] = []
        self.sha256 = b""

    async def header(self) -> relay_pb2.PayloadHeader:
        """What the first message announces."""
        request = await self._next()
        if request is None or not request.HasField("header"):
            raise BadMessage("A delivery begins with its header.")
        self.first = [request.chunk]
        return request.header

    async def whole(self, size_bytes: int) -> bytes:
        """A short payload, all of it."""
        if len(self.first[0]) >= size_bytes:
            return self.first[0]
        return b"".join([*self.first, *await self.next_batch()])

    async def next_batch(self) -> list[bytes]:
        """The next chunks; none at the end of the stream."""
        batch: list[bytes] = []
        size = 0
        while size < BATCH_BYTES and (request := await self._next()) is not None:
            chunk = request.chunk
            batch.append(chunk)
            size += len(chunk)
        return batch

    async def _next(self) -> relay_pb2.DeliverRequest | None:
        try:
            with anyio.fail_after(CHUNK_TIMEOUT_S):
                request = await anext(self._requests, None)
        except TimeoutError:
            raise BadMessage("The payload stalled on its way.") from None
        except grpc.aio.AioRpcError:
            raise BadMessage("The payload was cut off.") from None
        if request is not None:
            self.sha256 = request.sha256
        return request
