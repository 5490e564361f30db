"""One contract for the coordinator's store, run on SQLite and on a real PostgreSQL server."""

import hashlib
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization

from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.database import Database
from commonscale.errors import BadMessage, Equivocation, StoreUnavailable
from commonscale.identity import Identity, Role
from commonscale.pipeline import Pipeline
from commonscale.pki import CertificateAuthority, request
from commonscale.results import plain_text
from coordinator.blobs import FileBlobs
from coordinator.daemon import MIGRATIONS
from coordinator.jobstore import JobRecord, JobStore
from coordinator.slots import INLINE_BYTES, SlotStore
from crypto import signing

SLOT = Slot("job-1/0", "mean.MaskedVector", "north", COORDINATOR)
SIZES = (0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES + 17)


@pytest.fixture
def slots(database: Database, tmp_path: Path) -> SlotStore:
    return SlotStore(database, FileBlobs(tmp_path / "blobs"))


@pytest.fixture
def jobs(database: Database) -> JobStore:
    return JobStore(database)


def payload(size: int) -> bytes:
    return (b"commonscale" * (size // 11 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_is_found(slots: SlotStore, size: int) -> None:
    """Inline and as a file, also nothing at all."""
    slots.put(SLOT, payload(size))
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.read() == payload(size)
    assert (stored.blob is None) == (size <= INLINE_BYTES)


def test_an_empty_slot_is_none(slots: SlotStore) -> None:
    """Not an empty payload."""
    assert slots.find(SLOT) is None


@pytest.mark.parametrize("size", SIZES)
def test_the_same_bytes_again_change_nothing(slots: SlotStore, tmp_path: Path, size: int) -> None:
    """And leave no second file behind."""
    slots.put(SLOT, payload(size))
    slots.put(SLOT, payload(size))
    assert len(list((tmp_path / "blobs").iterdir())) == (size > INLINE_BYTES)


@pytest.mark.parametrize("size", SIZES)
def test_other_bytes_are_an_equivocation(slots: SlotStore, tmp_path: Path, size: int) -> None:
    """The first stay."""
    slots.put(SLOT, payload(size))
    with pytest.raises(Equivocation, match=r"mean\.MaskedVector north"):
        slots.put(SLOT, payload(size) + b"!")
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.read() == payload(size)
    assert len(list((tmp_path / "blobs").iterdir())) == (size > INLINE_BYTES)


def test_two_writers_at_once_leave_one_payload(slots: SlotStore) -> None:
    """Whoever loses gets an Equivocation; no mixture, no two."""
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        try:
            slots.put(SLOT, payload(INLINE_BYTES * 2) + bytes([number]))
            outcomes.append("stored")
        except Equivocation:
            outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["stored"]


@pytest.mark.parametrize("size", [10, INLINE_BYTES * 2])
def test_an_upload_counts_only_when_whole(slots: SlotStore, tmp_path: Path, size: int) -> None:
    """Short, long, or with another hash: refused, and nothing is left of it."""
    digest = hashlib.sha256(payload(size)).digest()

    def send(content: bytes) -> None:
        with slots.upload(SLOT, size) as upload:
            upload.write(content)
            upload.commit(digest)

    for content, words in (
        (payload(size)[:-1], "cut short"),
        (payload(size) + b"!", "more bytes"),
        (bytes(size), "hash"),
    ):
        with pytest.raises(BadMessage, match=words):
            send(content)
    assert slots.find(SLOT) is None
    assert not list((tmp_path / "blobs").iterdir())


def test_a_damaged_file_is_noticed(slots: SlotStore, tmp_path: Path) -> None:
    """Other bytes than were stored are never handed out as stored."""
    slots.put(SLOT, payload(INLINE_BYTES * 2))
    blob = next((tmp_path / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    stored = slots.find(SLOT)
    assert stored is not None
    with pytest.raises(StoreUnavailable, match="damaged"):
        stored.read()


def test_slots_survive_a_new_process(slots: SlotStore, database: Database, tmp_path: Path) -> None:
    """Another connection to the same database sees what was acknowledged."""
    slots.put(SLOT, payload(INLINE_BYTES * 2))
    again = Database(database.engine.url.render_as_string(hide_password=False), MIGRATIONS)
    stored = SlotStore(again, FileBlobs(tmp_path / "blobs")).find(SLOT)
    again.close()
    assert stored is not None
    assert stored.read() == payload(INLINE_BYTES * 2)


def test_a_job_is_forgotten_with_its_files(slots: SlotStore, tmp_path: Path) -> None:
    """And only that job."""
    other = Slot("job-2", "Signed", "north", COORDINATOR)
    slots.put(SLOT, payload(INLINE_BYTES * 2))
    slots.put(other, b"x")
    slots.forget("job-1")
    assert slots.find(SLOT) is None
    assert [arrival.slot for arrival in slots.arrivals("job-2")] == [other]
    assert not list((tmp_path / "blobs").iterdir())


@contextmanager
def small_disk(limit_bytes: int) -> Iterator[None]:
    """Files of this process cannot grow beyond a limit, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_acknowledges_nothing(slots: SlotStore, tmp_path: Path) -> None:
    """A payload that was written in part does not count; when there is room again, it does."""
    large = payload(3 << 20)
    with small_disk(2 << 20), pytest.raises(StoreUnavailable, match="takes no more"):
        slots.put(SLOT, large)
    assert slots.find(SLOT) is None
    assert not list((tmp_path / "blobs").iterdir())
    slots.put(SLOT, large)
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.read() == large


def test_a_call_that_is_cut_off_does_not_take_the_file_from_under_its_commit(
    slots: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits for the thread that commits; what counts then has its file."""
    large = payload(INLINE_BYTES * 2)
    upload = slots.upload(SLOT, len(large))
    upload.write(large)
    entered, go_on = threading.Event(), threading.Event()
    real = os.fsync

    def slow(handle: int) -> None:
        entered.set()
        go_on.wait(5)
        real(handle)

    monkeypatch.setattr(os, "fsync", slow)
    committing = threading.Thread(target=upload.commit, args=(upload.sha256(),))
    closing = threading.Thread(target=upload.close)
    committing.start()
    entered.wait(5)
    closing.start()
    go_on.set()
    committing.join()
    closing.join()
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.read() == large


def test_a_delivery_that_was_given_up_does_not_count_later(slots: SlotStore) -> None:
    """A commit that comes after the end of its call is refused."""
    large = payload(INLINE_BYTES * 2)
    upload = slots.upload(SLOT, len(large))
    upload.write(large)
    upload.close()
    with pytest.raises(StoreUnavailable, match="given up"):
        upload.commit(upload.sha256())
    assert slots.find(SLOT) is None


def test_a_lost_file_is_replaced_by_the_same_bytes(slots: SlotStore, tmp_path: Path) -> None:
    """A repeated delivery mends it."""
    large = payload(INLINE_BYTES * 2)
    slots.put(SLOT, large)
    next((tmp_path / "blobs").iterdir()).unlink()
    slots.put(SLOT, large)
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.read() == large


def record(job_id: str = "job-1", name: str = "n") -> JobRecord:
    spec = Pipeline.model_validate({"name": name, "sites": ["a", "b", "c"], "steps": [{"columns": ["x"]}]}).to_bytes()
    return JobRecord(job_id, spec, "analyst", "inviting", 1000, 2000)


def test_a_job_is_created_once(jobs: JobStore) -> None:
    """The same again is the same; another spec or analyst under the same id is not."""
    first = jobs.create(record())
    assert jobs.create(record()) == first
    with pytest.raises(Equivocation):
        jobs.create(record(name="other"))


def test_an_ended_job_stays_as_it_ended(jobs: JobStore) -> None:
    """A late failure does not overwrite a result."""
    job = jobs.create(record())
    done = jobs.update(job, state="done", ended_at_ms=1500, result_json="[]")
    assert jobs.update(job, state="failed", ended_at_ms=1600, error="late") == done
    assert jobs.open_jobs() == []
    assert jobs.ended_before(1501) == ["job-1"]


def test_a_peers_words_always_fit(jobs: JobStore) -> None:
    """A zero byte, which PostgreSQL refuses, and an endless text are made plain before they are stored."""
    error = plain_text("bad\0text\x1b[31m" + "x" * 100_000)
    assert "\0" not in error
    assert len(error) == 1000
    assert jobs.update(jobs.create(record()), state="failed", ended_at_ms=1, error=error).error == error


def test_open_jobs_are_what_a_restart_finds(jobs: JobStore) -> None:
    """Inviting and running ones."""
    for number, state in enumerate(("inviting", "running", "done", "failed")):
        job = jobs.create(record(f"job-{number}"))
        jobs.update(job, state=state, ended_at_ms=0)
    assert [job.state for job in jobs.open_jobs()] == ["inviting", "running"]
    assert len(jobs.newest(3)) == 3


def test_sites_are_seen_again_and_again(jobs: JobStore, tmp_path: Path) -> None:
    """One row a site."""
    ca = CertificateAuthority.create(tmp_path / "pki", "t")
    certificate = ca.approve(request_for("north"))
    assert certificate.public_bytes(serialization.Encoding.DER)
    jobs.seen("north", "0.1", certificate)
    jobs.seen("north", "0.2", certificate)
    assert [(site.name, site.version) for site in jobs.sites()] == [("north", "0.2")]


def request_for(name: str):  # type: ignore[no-untyped-def]
    return request(Identity(Role.SITE, name), [], signing.generate())


def test_migrations_run_once(database: Database) -> None:
    """Opening an up-to-date database changes nothing."""
    with database.reading() as connection:
        before = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one()
    again = Database(database.engine.url.render_as_string(hide_password=False), MIGRATIONS)
    with again.reading() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one() == before
    again.close()
