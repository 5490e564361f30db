"""The relay against callers that break its rules: typed errors, and it goes on serving."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from commonscale import rpc
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.client import Client
from commonscale.errors import (
    BadMessage,
    CommonscaleError,
    Equivocation,
    NotAllowed,
    PayloadTooLarge,
    RunOver,
    SlotEmpty,
    UnknownJob,
)
from commonscale.grpc_loading import grpc
from commonscale.identity import Role
from commonscale.link import Link, RelayMailbox
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from commonscale.v1 import relay_pb2 as wire
from tests.e2e.conftest import run
from tests.patience import PATIENCE_S

SITES = ("a", "b", "c")
JOB = "relay-1"


class Relay:
    """A coordinator with one open job whose sites are played by the test."""

    def __init__(self, directory: Path) -> None:
        self.federation = LocalFederation(directory, {})
        self.federation.start()
        self.tls = {site: self.federation.enrol(site, Role.SITE, directory / site) for site in (*SITES, "outsider")}

        async def open_job() -> None:
            pipeline = {"sites": list(SITES), "deadline_s": 600, "steps": [{"columns": ["x"]}]}
            async with Client(self.federation.analyst()) as client:
                await client.submit(Pipeline.model_validate(pipeline), JOB)

        run(open_job)

    def link(self, site: str) -> Link:
        return Link(f"127.0.0.1:{self.federation.port}", self.tls[site])

    def put(self, site: str, slot: Slot, payload: bytes) -> None:
        async def work() -> None:
            link = self.link(site)
            try:
                await RelayMailbox(link).put(slot, payload)
            finally:
                await link.close()

        run(work)

    def get(self, site: str, slot: Slot) -> bytes:
        async def work() -> bytes:
            link = self.link(site)
            try:
                return await RelayMailbox(link).get(slot)
            finally:
                await link.close()

        return run(work)

    def deliver(self, site: str, *requests: wire.DeliverRequest) -> CommonscaleError | None:
        """Raw requests as a faulty client sends them; the error they get."""

        async def stream() -> AsyncIterator[wire.DeliverRequest]:
            for request in requests:
                yield request

        async def work() -> CommonscaleError | None:
            link = self.link(site)
            try:
                await link.relay.Deliver(stream(), metadata=rpc.CALL_METADATA, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                return rpc.from_wire(error, "The coordinator")
            finally:
                await link.close()
            return None

        return run(work)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    running = Relay(tmp_path_factory.mktemp("relay"))
    yield running
    running.federation.stop()


def header(kind: str, size: int, sender: str = "a", receiver: str = "b", run_id: str = JOB) -> wire.PayloadHeader:
    return wire.PayloadHeader(slot=Slot(run_id, kind, sender, receiver).to_wire(), size_bytes=size)


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 1 << 20, (1 << 20) + 1, 9 << 20])
def test_payloads_of_every_size_arrive_whole(relay: Relay, size: int) -> None:
    """Inline, at the limits of a chunk, and as a file."""
    slot = Slot(JOB, f"size{size}", "a", "b")
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    relay.put("a", slot, payload)
    assert relay.get("b", slot) == payload


def test_the_same_again_is_accepted_and_another_is_not(relay: Relay) -> None:
    """Write-once."""
    slot = Slot(JOB, "once", "a", "b")
    relay.put("a", slot, b"first")
    relay.put("a", slot, b"first")
    with pytest.raises(Equivocation, match="holds another message"):
        relay.put("a", slot, b"second")
    assert relay.get("b", slot) == b"first"


@pytest.mark.parametrize(
    ("caller", "slot", "error", "words"),
    [
        ("a", Slot(JOB, "k", "b", COORDINATOR), NotAllowed, "site a may not write as b"),
        ("a", Slot(JOB, "k", COORDINATOR, "@all"), NotAllowed, "may not write as @coordinator"),
        ("a", Slot(JOB, "k", "a", "outsider"), NotAllowed, "may not write to outsider"),
        ("a", Slot(JOB, "k", "a", "@all"), NotAllowed, "may not write to @all"),
        ("outsider", Slot(JOB, "k", "outsider", COORDINATOR), UnknownJob, "no job relay-1 for outsider"),
        ("a", Slot("nothing", "k", "a", COORDINATOR), UnknownJob, "no job nothing"),
    ],
)
def test_a_slot_is_written_by_its_sender_only(
    relay: Relay, caller: str, slot: Slot, error: type[CommonscaleError], words: str
) -> None:
    """The sender is the caller's certificate, the receiver one of the job."""
    with pytest.raises(error, match=words):
        relay.put(caller, slot, b"x")


def test_a_slot_is_read_by_its_receiver_only(relay: Relay) -> None:
    """What is for b is not for c, and not for an outsider."""
    slot = Slot(JOB, "secret", "a", "b")
    relay.put("a", slot, b"x")
    for caller, error in (("c", NotAllowed), ("outsider", NotAllowed)):
        with pytest.raises(error):
            relay.get(caller, slot)
    with pytest.raises(UnknownJob):
        relay.get("outsider", Slot(JOB, "Roster", COORDINATOR, "@all"))


@pytest.mark.parametrize(
    ("requests", "error"),
    [
        (list, BadMessage),
        (lambda: [wire.DeliverRequest(chunk=b"no header")], BadMessage),
        (lambda: [wire.DeliverRequest(header=header("cut", 100), chunk=b"x" * 50)], BadMessage),
        (lambda: [wire.DeliverRequest(header=header("long", 10), chunk=b"x" * 50)], BadMessage),
        (lambda: [wire.DeliverRequest(header=header("hash", 3), chunk=b"abc", sha256=bytes(32))], BadMessage),
        (lambda: [wire.DeliverRequest(header=header("nohash", 3), chunk=b"abc")], BadMessage),
        (lambda: [wire.DeliverRequest(header=header("huge", 1 << 40))], PayloadTooLarge),
        (lambda: [wire.DeliverRequest(header=header("../x", 1), chunk=b"x")], BadMessage),
        (lambda: [wire.DeliverRequest(header=wire.PayloadHeader())], BadMessage),
        (
            lambda: [
                wire.DeliverRequest(header=header("chunks", 1 << 20)),
                *[wire.DeliverRequest(chunk=b"y" * (1 << 19))] * 3,
            ],
            BadMessage,
        ),
    ],
)
def test_broken_deliveries_are_typed_errors_and_leave_nothing(
    relay: Relay, requests: Callable[[], list[wire.DeliverRequest]], error: type[CommonscaleError]
) -> None:
    """Truncated, oversized, without header or hash."""
    sent = requests()
    assert isinstance(relay.deliver("a", *sent), error)
    kind = sent[0].header.slot.kind if sent else ""
    if kind and "/" not in kind:
        relay.put("a", Slot(JOB, kind, "a", "b"), b"still free")


def test_a_message_over_grpcs_own_limit_is_refused(relay: Relay) -> None:
    """A chunk is at most 1 MiB; the daemon does not take more into memory."""
    request = wire.DeliverRequest(header=header("jumbo", 8 << 20), chunk=bytes(8 << 20))
    assert isinstance(relay.deliver("a", request), CommonscaleError)
    relay.put("a", Slot(JOB, "after-jumbo", "a", "b"), b"alive")


def test_random_bytes_are_refused(relay: Relay) -> None:
    """What is not protobuf does not reach a handler, and the daemon goes on."""

    async def work() -> None:
        async with rpc.connect(f"127.0.0.1:{relay.federation.port}", relay.tls["a"]) as channel:
            for method in ("RelayService/Fetch", "JobService/Submit", "FederationService/Hello", "Nothing/There"):
                call = channel.unary_unary(f"/commonscale.v1.{method}")
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(b"\xff" * 100, metadata=rpc.CALL_METADATA, timeout=PATIENCE_S)

    run(work)
    relay.put("a", Slot(JOB, "after-noise", "a", "b"), b"alive")


def test_a_wait_has_a_deadline(relay: Relay) -> None:
    """An empty slot answers with SlotEmpty after the time that was asked for."""

    async def work() -> CommonscaleError:
        link = relay.link("b")
        request = wire.FetchRequest(slot=Slot(JOB, "never", "a", "b").to_wire(), wait_ms=200)
        try:
            with anyio.fail_after(PATIENCE_S):
                async for _ in link.relay.Fetch(request, metadata=rpc.CALL_METADATA):
                    raise AssertionError("nothing was sent")
        except grpc.aio.AioRpcError as error:
            return rpc.from_wire(error, "The coordinator")
        finally:
            await link.close()
        raise AssertionError("it answered")

    assert isinstance(run(work), SlotEmpty)


def test_a_waiting_reader_is_woken(relay: Relay) -> None:
    """By the delivery, not by the next poll."""

    async def work() -> bytes:
        links = {site: relay.link(site) for site in ("a", "b")}
        slot = Slot(JOB, "woken", "a", "b")
        result: list[bytes] = []

        async def read() -> None:
            result.append(await RelayMailbox(links["b"]).get(slot))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.3)
            await RelayMailbox(links["a"]).put(slot, b"hello")
        for link in links.values():
            await link.close()
        return result[0]

    assert run(work) == b"hello"


def test_an_ended_job_takes_nothing_more(relay: Relay) -> None:
    """But gives what it has, and accepts the same again."""
    job_id = "relay-2"

    async def start(cancel: bool) -> None:
        pipeline = {"sites": list(SITES), "deadline_s": 600, "steps": [{"columns": ["x"]}]}
        async with Client(relay.federation.analyst()) as client:
            if cancel:
                await client.cancel(job_id)
            else:
                await client.submit(Pipeline.model_validate(pipeline), job_id)

    run(lambda: start(cancel=False))
    slot = Slot(job_id, "early", "a", "b")
    relay.put("a", slot, b"x")
    run(lambda: start(cancel=True))
    relay.put("a", slot, b"x")
    assert relay.get("b", slot) == b"x"
    with pytest.raises(RunOver, match=r"relay-2 has ended \(cancelled\)\. Cancelled by analyst"):
        relay.put("a", Slot(job_id, "late", "a", "b"), b"x")
    with pytest.raises(RunOver):
        relay.get("b", Slot(job_id, "late", "a", "b"))


def test_hashes_are_of_the_payload(relay: Relay) -> None:
    """A correct raw delivery passes: the broken ones above fail for the reason they name."""
    good = wire.DeliverRequest(header=header("good", 3), chunk=b"abc", sha256=hashlib.sha256(b"abc").digest())
    assert relay.deliver("a", good) is None
