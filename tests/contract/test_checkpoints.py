"""One contract for where a role keeps its checkpoints: a site's journal, the coordinator's room, the one in memory."""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from commonscale.channel.channel import Checkpoints
from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.concurrency import concurrently
from commonscale.config import VaultConfig
from commonscale.database import Database
from commonscale.errors import Equivocation, StateLost, StoreUnavailable
from commonscale.pipeline import Pipeline
from commonscale.running import CoordinatorPool, SitePool
from commonscale.v1.protocols_pb2 import Checkpoint
from coordinator import daemon, relay
from coordinator.blobs import DatabaseBlobs, FileBlobs
from coordinator.relay import HANDED_BYTES, Mailroom
from coordinator.slots import INLINE_BYTES, SlotStore, Stored
from participant import journal
from participant.vault import open_vault
from tests.contract.conftest import emptied
from tests.federation import JOB, Federation, NumpySource
from tests.patience import PATIENCE_S
from tests.sessions import expected, sums_in_rounds

LARGE = INLINE_BYTES + 100
SITES = ("east", "north", "west")
PIPELINE = Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": ["x"]}]})
ROOMS = [f"{server} {blobs}" for server in ("sqlite", "postgresql") for blobs in ("files", "database")]


@dataclass
class Place:
    """Where one role keeps its checkpoints; opened anew, it is as after a restart."""

    open: Callable[[], Checkpoints]
    me: str = COORDINATOR

    def __post_init__(self) -> None:
        self.checkpoints = self.open()

    def keep(self, number: int, content: bytes, behind: Sequence[int] = (), run: str = "job/0") -> None:
        slot = Slot(f"{run}/{number}", "Checkpoint", self.me, self.me)
        anyio.run(self.checkpoints.keep, slot, content, [f"{run}/{gone}" for gone in behind])

    def last(self, run: str) -> bytes | None:
        """The same now and after a restart."""
        found, again = (anyio.run(one.last, run, self.me) for one in (self.checkpoints, self.open()))
        assert found == again
        return found


def open_room(database: Database, blobs: str, directory: Path, *, sole_writer: bool = True) -> Mailroom:
    where = FileBlobs(directory / "blobs") if blobs == "files" else DatabaseBlobs(database)
    return Mailroom(SlotStore(database, where), sole_writer=sole_writer)


@pytest.fixture
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Mailroom]]:
    """A coordinator's, on a kind of server and with a kind of blobs."""
    server, blobs = request.param.split()
    database = Database(emptied(server, request, tmp_path), daemon.MIGRATIONS)
    yield partial(open_room, database, blobs, tmp_path)
    database.close()


@pytest.fixture
def site_journal(tmp_path: Path) -> Iterator[Callable[[], journal.Journal]]:
    database = Database(f"sqlite:///{tmp_path / 'p.db'}", journal.MIGRATIONS)
    yield lambda: journal.Journal(database, tmp_path / "journal", open_vault(VaultConfig(), tmp_path))
    database.close()


@pytest.fixture(params=["memory", "journal", *ROOMS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        mailbox = MemoryMailbox()
        yield Place(lambda: mailbox)
    elif request.param == "journal":
        yield Place(request.getfixturevalue("site_journal"), "north")
    else:
        server, blobs = request.param.split()
        database = Database(emptied(server, request, tmp_path), daemon.MIGRATIONS)
        yield Place(partial(open_room, database, blobs, tmp_path))
        database.close()


@pytest.mark.parametrize("size", [0, 10, LARGE])
def test_the_newest_checkpoint_is_found(place: Place, size: int) -> None:
    """Of its own step and job, by number and not by letters."""
    assert place.last("job/0") is None
    place.keep(9, b"nine" + bytes(size))
    place.keep(10, b"ten" + bytes(size), [9])
    place.keep(11, b"other step", run="job/1")
    place.keep(12, b"other step", run="job/01")
    place.keep(13, b"other job", run="jobs/0")
    assert place.last("job/0") == b"ten" + bytes(size)
    assert place.last("job/1") == b"other step"
    assert place.last("job/2") is None


def test_what_lies_behind_is_gone_and_the_checkpoint_stays(place: Place) -> None:
    """A site forgets the round of the checkpoint too, the coordinator only those before."""
    for number in (1, 2, 3):
        place.keep(number, str(number).encode(), [number - 1, number] if place.me != COORDINATOR else [number - 1])
        assert place.last("job/0") == str(number).encode()


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_journal_forgets_messages_and_their_files(
    site_journal: Callable[[], journal.Journal], tmp_path: Path, size: int
) -> None:
    """All in one transaction; what was made in another run, and after the checkpoint, stays."""
    found = site_journal()
    slots = [Slot(f"job/{run}", "MaskedVector", "north", COORDINATOR) for run in ("0", "0/1", "0/2", "0/3", "1/1")]

    async def made(slot: Slot) -> bool:
        async def make() -> bytes:
            return bytes(size)

        return (await found.once(slot, make))[1]

    assert all(anyio.run(made, slot) for slot in slots)
    checkpoint = Slot("job/0/2", "Checkpoint", "north", "north")
    anyio.run(found.keep, checkpoint, b"secret state" * size, ["job/0/0", "job/0/1", "job/0/2"])
    assert len(list((tmp_path / "journal").iterdir())) == (4 if size == LARGE else 0)
    assert [anyio.run(made, slot) for slot in slots] == [False, True, True, False, False]
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secret state" not in on_disk


def test_a_checkpoint_that_the_database_refuses_leaves_no_file(
    site_journal: Callable[[], journal.Journal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is tried; what was there before is still the last one."""
    found = site_journal()
    one, two = (Slot(f"job/0/{number}", "Checkpoint", "north", "north") for number in (1, 2))
    anyio.run(found.keep, one, bytes(LARGE), [])

    @contextlib.contextmanager
    def locked(_: Database) -> Iterator[NoReturn]:
        raise StoreUnavailable("The database is locked.")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(Database, "writing", locked)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                anyio.run(found.keep, two, bytes(LARGE + 1), ["job/0/1"])
    assert len(list((tmp_path / "journal").iterdir())) == 1
    assert anyio.run(found.last, "job/0", "north") == bytes(LARGE)


def assert_trimmed(stored: Stored | None) -> None:
    assert stored is not None
    assert stored.is_trimmed
    with pytest.raises(StateLost, match="behind the last checkpoint"):
        list(stored.chunks(1 << 20))


@pytest.mark.parametrize("room", ROOMS, indirect=True)
@pytest.mark.parametrize("size", [10, LARGE])
def test_a_trimmed_slot_has_no_payload_and_takes_no_other(
    room: Callable[[], Mailroom], tmp_path: Path, size: int
) -> None:
    """The same bytes are still welcome; when it came and how long it was stays.

    A site that asks for it is told; a replica that drives the job too, and is behind, tries again from the checkpoint.
    """
    old, new = (Slot(f"job/0/{number}", "Total", COORDINATOR, ALL) for number in (1, 2))
    checkpoint = Slot("job/0/2", "Checkpoint", COORDINATOR, COORDINATOR)

    async def work(found: Mailroom) -> None:
        found.begin("job")
        for slot in (old, new):
            await found.put(slot, bytes(size))
        await found.keep(checkpoint, b"state", ["job/0/1"])
        for one in (found, room()):
            assert_trimmed(one.store.find(old))
            with pytest.raises(StoreUnavailable, match="behind a checkpoint"):
                await one.get(old)
            assert await one.get(new) == bytes(size)
            await one.put(old, bytes(size))
            with pytest.raises(Equivocation):
                await one.put(old, b"x" * size)
            assert_trimmed(await one.wait(old, 0))

    found = room()
    anyio.run(work, found)
    arrivals = {arrival.slot: arrival.size_bytes for arrival in found.store.arrivals("job")}
    assert arrivals == {old: size, new: size, checkpoint: 5}
    if (tmp_path / "blobs").exists():
        assert len(list((tmp_path / "blobs").iterdir())) == (size == LARGE)


@pytest.mark.parametrize("room", ROOMS[:1], indirect=True)
def test_what_was_sent_again_and_not_taken_leaves_memory(room: Callable[[], Mailroom]) -> None:
    """A restarted site sends its rounds since the checkpoint again; nobody waits for them."""
    found = room()
    for number in range(3):
        found.hand(Slot(f"job/0/{number}", "MaskedVector", "north", COORDINATOR), bytes(HANDED_BYTES // 4))
    assert not found.has_room(HANDED_BYTES // 2)
    checkpoint = Slot("job/0/3", "Checkpoint", COORDINATOR, COORDINATOR)
    anyio.run(found.keep, checkpoint, b"state", ["job/0/0", "job/0/1", "job/0/2"])
    assert found.has_room(HANDED_BYTES)


class StandsStill:
    """A replica's room: in the third round it waits for something."""

    def __init__(self, room: Mailroom, wait: Callable[[], Awaitable[None]]) -> None:
        self._room = room
        self._wait = wait
        self.put, self.last, self.keep = room.put, room.last, room.keep

    async def get(self, slot: Slot) -> bytes:
        if slot.run == f"{JOB}/0/3":
            await self._wait()
        return await self._room.get(slot)


@pytest.mark.parametrize("room", ROOMS, indirect=True)
def test_two_replicas_that_drive_one_session_end_alike(
    room: Callable[..., Mailroom], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stands still while the other goes on and trims: it tries again from there, as its driver does."""
    monkeypatch.setattr(relay, "POLL_S", 0.02)
    federation = Federation(tmp_path / "pki", SITES)
    first, second = (room(sole_writer=False) for _ in range(2))
    source: Any = NumpySource(["x"], [[1.0]])
    states: dict[str, bytes] = {}
    tries: Counter[str] = Counter()

    async def site(name: str) -> None:
        ch = await federation.admitted_site(name, PIPELINE, first)
        states[name] = await sums_in_rounds(SitePool(ch, source, source), 8, 3, 1)

    async def replica(name: str, mailbox: StandsStill) -> None:
        while name not in states:
            tries[name] += 1
            ch = await federation.admitted_coordinator(mailbox)
            with contextlib.suppress(StoreUnavailable):
                states[name] = await sums_in_rounds(CoordinatorPool(replace(ch, checkpoints=mailbox)), 8, 3, 1)

    async def work() -> None:
        is_second_there = anyio.Event()

        async def until_first_is_far() -> None:
            is_second_there.set()
            while Checkpoint.FromString(await second.last(f"{JOB}/0", COORDINATOR) or b"").number < 6:  # noqa: ASYNC110 - a replica has no other news
                await anyio.sleep(0.01)

        with anyio.fail_after(PATIENCE_S):
            await concurrently([
                partial(replica, "first", StandsStill(first, is_second_there.wait)),
                partial(replica, "second", StandsStill(second, until_first_is_far)),
                *(partial(site, name) for name in SITES),
            ])  # fmt: skip

    anyio.run(work)
    assert set(states.values()) == {expected(SITES, 8, 3)}
    assert tries["second"] > 1


@pytest.mark.parametrize("room", ROOMS[:1], indirect=True)
def test_many_rounds_are_trimmed_at_once(room: Callable[[], Mailroom]) -> None:
    """After a restart the coordinator does not know what it had trimmed, and names all rounds."""
    found = room()
    anyio.run(found.put, Slot("job/0/1999", "Total", COORDINATOR, ALL), b"x")
    checkpoint = Slot("job/0/2001", "Checkpoint", COORDINATOR, COORDINATOR)
    anyio.run(found.keep, checkpoint, b"state", [f"job/0/{number}" for number in range(2001)])
    assert_trimmed(found.store.find(Slot("job/0/1999", "Total", COORDINATOR, ALL)))
