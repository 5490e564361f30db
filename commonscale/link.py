"""A daemon's or an analyst's connection to the coordinator: dialled out, renewed when the certificate is."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from commonscale import rpc
from commonscale.channel.slot import Slot
from commonscale.config import Tls
from commonscale.errors import BadMessage, SlotEmpty, TransientError
from commonscale.grpc_loading import grpc
from commonscale.v1 import jobs_pb2, jobs_pb2_grpc, relay_pb2, relay_pb2_grpc
from commonscale.version import PROTOCOL_VERSION, __version__

FETCH_WAIT_S = 20.0
CALL_TIMEOUT_S = 30.0
# A payload may take this long for each MiB beyond what a small call may take.
TRANSFER_S_PER_MIB = 2.0
# Long enough for the largest payload under way.
OLD_CHANNEL_GRACE_S = 900.0


class Link:
    """The current channel and its stubs."""

    def __init__(self, target: str, tls: Tls) -> None:
        self.target = target
        self._tls = tls
        self._retired: set[asyncio.Task[None]] = set()
        self._open()

    def _open(self) -> None:
        self._channel = rpc.connect(self.target, self._tls)
        self._stamp = self._files_stamp()
        self.relay = relay_pb2_grpc.RelayServiceStub(self._channel)
        self.jobs = jobs_pb2_grpc.JobServiceStub(self._channel)
        self.federation = jobs_pb2_grpc.FederationServiceStub(self._channel)

    def _files_stamp(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in (self._tls.certificate, self._tls.key, self._tls.ca))

    def renew_if_changed(self) -> bool:
        """Take renewed files into use; calls under way end on the old connection."""
        try:
            if self._files_stamp() == self._stamp:
                return False
        except OSError:
            return False
        old = self._channel
        self._open()
        task = asyncio.get_running_loop().create_task(old.close(OLD_CHANNEL_GRACE_S))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
        return True

    async def close(self) -> None:
        """Hang up."""
        for task in self._retired:
            task.cancel()
        await self._channel.close(None)

    async def hello(self) -> jobs_pb2.HelloResponse:
        """Compare versions both ways."""
        request = jobs_pb2.HelloRequest(version=__version__, protocol=PROTOCOL_VERSION)
        response: jobs_pb2.HelloResponse = await self.call(self.federation.Hello, request)
        rpc.check_protocol(f"coordinator {response.name}", response.version, str(response.protocol))
        return response

    async def call(self, method: Any, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """What the coordinator answers once."""
        with self.our_errors():
            return await method(request, metadata=rpc.CALL_METADATA, timeout=timeout_s)

    @contextmanager
    def our_errors(self) -> Iterator[None]:
        """A call that fails in the block fails with one of our errors."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise rpc.from_wire(error, f"The coordinator at {self.target}") from None


class RelayMailbox:
    """Slots over the network. Transient failures are repeated; the caller's deadline ends that."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Deliver until acknowledged."""
        timeout_s = CALL_TIMEOUT_S + TRANSFER_S_PER_MIB * (len(payload) >> 20)
        backoff = Backoff()
        while True:
            try:
                await self._link.call(self._link.relay.Deliver, _delivery(slot, payload), timeout_s)
                return
            except TransientError:
                await backoff.wait()

    async def get(self, slot: Slot) -> bytes:
        """Fetch until there is something."""
        backoff = Backoff()
        while True:
            try:
                return await self._fetch(slot)
            except SlotEmpty:
                backoff.reset()
            except TransientError:
                await backoff.wait()

    async def _fetch(self, slot: Slot) -> bytes:
        request = relay_pb2.FetchRequest(slot=slot.to_wire(), wait_ms=int(FETCH_WAIT_S * 1000))
        payload = io.BytesIO()
        digest = hashlib.sha256()
        announced = b""
        size: int | None = None
        try:
            with self._link.our_errors():
                responses = aiter(self._link.relay.Fetch(request, metadata=rpc.CALL_METADATA))
                while True:
                    # The wait for the first has its own limit at the server; after it, no single chunk may stall.
                    with anyio.fail_after(CALL_TIMEOUT_S + (FETCH_WAIT_S if size is None else 0)):
                        response = await anext(responses, None)
                    if response is None:
                        break
                    if response.HasField("header"):
                        size = response.header.size_bytes
                    announced = response.sha256
                    digest.update(response.chunk)
                    payload.write(response.chunk)
        except TimeoutError:
            raise TransientError(f"The coordinator stalled while sending {slot}.") from None
        if size is None or size != payload.tell():
            raise TransientError(f"The coordinator cut {slot} short.")
        if announced != digest.digest():
            raise BadMessage(f"The coordinator sent {slot} with another hash than announced.")
        return payload.getvalue()


async def _delivery(slot: Slot, payload: bytes) -> AsyncIterator[relay_pb2.DeliverRequest]:
    view = memoryview(payload)
    digest = hashlib.sha256()
    header: relay_pb2.PayloadHeader | None = relay_pb2.PayloadHeader(slot=slot.to_wire(), size_bytes=len(payload))
    for start in range(0, max(len(payload), 1), rpc.CHUNK_BYTES):
        chunk = bytes(view[start : start + rpc.CHUNK_BYTES])
        digest.update(chunk)
        is_last = start + rpc.CHUNK_BYTES >= len(payload)
        yield relay_pb2.DeliverRequest(header=header, chunk=chunk, sha256=digest.digest() if is_last else b"")
        header = None


class Backoff:
    """Doubling pauses between tries."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 1.0) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.reset()

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s

    async def wait(self) -> None:
        """Pause."""
        await anyio.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._longest_s)
