"""Large payloads, keys, observers and incidents in the database: on SQLite and on a real PostgreSQL server."""

import hashlib
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.database import Database, now_ms
from commonscale.errors import BadMessage, ConfigError, DeadlineMissed, NotAllowed
from commonscale.keyshelf import KEY_SET_FORMAT, current, drop_outdated
from commonscale.v1.protocols_pb2 import KeySet
from coordinator import blobs as blobs_module
from coordinator import incidents as incidents_module
from coordinator.blobs import PIECE_BYTES, DatabaseBlobs, FileBlobs
from coordinator.daemon import MIGRATIONS
from coordinator.incidents import Incident, Incidents
from coordinator.keysets import DatabaseShelf
from coordinator.observers import Observers
from coordinator.slots import INLINE_BYTES, SlotStore

SLOT = Slot("job-1/0", "keys.Share", "north", COORDINATOR)
SIZES = (INLINE_BYTES + 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 5)


def payload(size: int) -> bytes:
    return (b"commonscale" * (size // 11 + 1))[:size]


def pieces(database: Database) -> int:
    with database.reading() as connection:
        return connection.scalar(sa.text("SELECT count(*) FROM payload_pieces")) or 0


@pytest.fixture(params=["files", "database"])
def slots(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> SlotStore:
    return SlotStore(database, DatabaseBlobs(database) if request.param == "database" else FileBlobs(tmp_path / "b"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunk", [1000, PIECE_BYTES, 5 * PIECE_BYTES])
def test_a_large_payload_comes_back_in_any_pieces(slots: SlotStore, size: int, chunk: int) -> None:
    """However it was cut when it came and is cut when it goes."""
    with slots.upload(SLOT, size) as upload:
        for start in range(0, size, 300_001):
            upload.write(payload(size)[start : start + 300_001])
        upload.commit(hashlib.sha256(payload(size)).digest())
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.payload is None
    found = list(stored.chunks(chunk))
    assert b"".join(found) == stored.read() == payload(size)
    assert max(map(len, found)) <= chunk


def test_what_was_cut_off_or_is_there_already_leaves_no_pieces(database: Database) -> None:
    """Nothing counts before its row does, and nothing is kept twice."""
    slots = SlotStore(database, DatabaseBlobs(database))
    with slots.upload(SLOT, 2 * PIECE_BYTES) as upload:
        upload.write(payload(PIECE_BYTES + 7))
        with pytest.raises(BadMessage):
            upload.commit(hashlib.sha256(b"").digest())
    assert slots.find(SLOT) is None
    assert pieces(database) == 0
    for _ in range(2):
        slots.put(SLOT, payload(PIECE_BYTES + 7))
    assert pieces(database) == 2
    slots.forget("job-1")
    assert pieces(database) == 0


def test_old_leftovers_are_swept_and_others_are_not(
    slots: SlotStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash leaves a payload without a row; what another replica is writing now looks the same, but is young."""
    slots.put(SLOT, payload(PIECE_BYTES))
    orphan = slots.blobs.create("0" * 32, read_soon=True)
    orphan.write(payload(PIECE_BYTES))
    orphan.sync()
    orphan.close()
    slots.sweep()
    assert slots.blobs.exists("0" * 32)
    monkeypatch.setattr(blobs_module, "ORPHAN_AGE_S", -1)
    slots.sweep()
    assert not slots.blobs.exists("0" * 32)
    stored = slots.find(SLOT)
    assert stored is not None
    assert stored.read() == payload(PIECE_BYTES)


def test_arrivals_say_when_and_how_much(slots: SlotStore) -> None:
    """In order of time, of one job, without what was said."""
    before = now_ms()
    first, second = Slot("job-1", "Signed", "north", COORDINATOR), Slot("job-1/0", "Total", COORDINATOR, ALL)
    slots.put(first, b"x" * 10)
    slots.put(second, payload(INLINE_BYTES * 2))
    slots.put(Slot("job-10", "Signed", "north", COORDINATOR), b"")
    found = slots.arrivals("job-1")
    assert {(arrival.slot, arrival.size_bytes) for arrival in found} == {(first, 10), (second, INLINE_BYTES * 2)}
    times = [arrival.stored_at_ms for arrival in found]
    assert times == sorted(times)
    assert before <= times[0] <= times[1] <= now_ms()


def test_rounds_of_a_session_are_added_up(slots: SlotStore) -> None:
    """But for the newest, by number and not by letters; with counts, bytes and times of all that came before."""
    for number in range(1, 12):
        for sender in ("north", "south"):
            slots.put(Slot(f"job-1/0/{number}", "Masked", sender, COORDINATOR), b"x" * number)
    slots.put(Slot("job-1/0", "Sizes", "north", COORDINATOR), b"y")
    slots.put(Slot("job-1/00", "Masked", "north", COORDINATOR), b"z")
    slots.put(Slot("job-10/0/1", "Masked", "north", COORDINATOR), b"of another job")
    every, found = slots.arrivals("job-1"), slots.arrivals_summed("job-1")
    north = [one for one in every if one.slot.sender == "north" and one.slot.run.startswith("job-1/0/")][:10]
    summed = Slot("job-1/0/10", "Masked", "north", COORDINATOR)
    assert {(one.slot.run, one.slot.kind, one.slot.sender, one.messages, one.size_bytes) for one in found} == {
        ("job-1/0/10", "Masked", "north", 10, 55), ("job-1/0/10", "Masked", "south", 10, 55),
        ("job-1/0/11", "Masked", "north", 1, 11), ("job-1/0/11", "Masked", "south", 1, 11),
        ("job-1/0", "Sizes", "north", 1, 1), ("job-1/00", "Masked", "north", 1, 1),
    }  # fmt: skip
    one = next(one for one in found if one.slot == summed)
    assert (one.began_ms, one.stored_at_ms) == (north[0].stored_at_ms, north[-1].stored_at_ms)


def test_key_sets_are_replaced_whole(database: Database) -> None:
    """As they are in files."""
    shelf = DatabaseShelf(database)
    assert shelf.get("family") is None
    shelf.put("family", b"one")
    shelf.put("family", b"two")
    shelf.put("other", b"three")
    assert (shelf.get("family"), shelf.get("other")) == (b"two", b"three")


def test_key_sets_of_an_earlier_version_are_deleted(database: Database) -> None:
    """At the start of a coordinator and when one is asked for; the row is gone, and the others stay."""
    shelf = DatabaseShelf(database)
    current_set = KeySet(id=b"new", format=KEY_SET_FORMAT)
    shelf.put("new", current_set.SerializeToString())
    for deletes in (drop_outdated, lambda shelf: current(shelf, "old")):
        shelf.put("old", KeySet(id=b"old").SerializeToString())
        assert shelf.names() == ["new", "old"]
        deletes(shelf)
        assert shelf.get("old") is None
        assert shelf.names() == ["new"]
    assert current(shelf, "new") == current_set


def test_an_observers_token_opens_until_it_ends(database: Database) -> None:
    """It is not kept; a new one ends the old; an expired or removed one opens nothing."""
    observers = Observers(database)
    first = observers.add("ops", 1)
    assert observers.name_of(first) == "ops"
    second = observers.add("ops", 1)
    assert observers.name_of(first) is None
    assert observers.name_of(second) == "ops"
    late = observers.add("late", -1)
    assert observers.name_of(late) is None
    assert observers.digest_of("late") is None
    with database.reading() as connection:
        everything = str(connection.execute(sa.text("SELECT * FROM observers")).all())
    assert second not in everything
    observers.remove("ops")
    assert observers.name_of(second) is None
    with pytest.raises(ConfigError, match="no observer ops"):
        observers.remove("ops")
    with pytest.raises(ConfigError, match="is no name"):
        observers.add("Ops Team", 1)
    assert [observer.name for observer in observers.all()] == ["late"]


def test_the_same_incident_is_counted(database: Database) -> None:
    """With its newest time; another one stands by itself; each says what to do."""
    incidents = Incidents(database)
    for _ in range(3):
        incidents.store(Incident.of("site north", NotAllowed("The certificate of site north is revoked.")))
    incidents.store(Incident.of("job x", DeadlineMissed("The deadline passed.", "Check that daemon.")))
    found = {incident.what: incident for incident in incidents.newest(10)}
    assert {what: incident.times for what, incident in found.items()} == {"NotAllowed": 3, "DeadlineMissed": 1}
    assert found["DeadlineMissed"].remedy == "Check that daemon."
    assert "commonscale doctor" in found["NotAllowed"].remedy


def test_incidents_are_bounded_and_plain(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood neither fills the table nor holds up who notes it; control characters of a peer are gone."""
    kept = 50
    monkeypatch.setattr(incidents_module, "KEPT", kept)
    incidents = Incidents(database)
    for number in range(kept + 20):
        incidents.store(Incident(number, "BadMessage", "site north", f"{number}", ""))
    newest = incidents.newest(kept * 2)
    assert len(newest) == kept
    assert newest[0].message == str(kept + 19)

    async def flood() -> None:
        for _ in range(10_000):
            incidents.note("site \x1b[2Jnorth", NotAllowed("no\x00thing"))
        with anyio.move_on_after(2):
            await incidents.write()

    anyio.run(flood)
    last = incidents.newest(1)[0]
    assert "\x1b" not in last.who + last.message
    assert "\x00" not in last.message
    assert 0 < last.times <= 100


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The first release's migrations."""
    directory = tmp_path / "old"
    directory.mkdir()
    (directory / "0001_initial.py").write_bytes((MIGRATIONS / "0001_initial.py").read_bytes())
    return directory


def test_an_interrupted_upgrade_leaves_the_old_schema(empty_url: str, old: Path, tmp_path: Path) -> None:
    """All of it or nothing: after a full disk in the middle, the next start goes on from where it was."""
    Database(empty_url, old).close()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "0001_initial.py").write_bytes((MIGRATIONS / "0001_initial.py").read_bytes())
    text = (MIGRATIONS / "0002_dashboard_and_replicas.py").read_text()
    middle = '    op.create_table(\n        "observers",'
    assert middle in text
    (broken / "0002.py").write_text(text.replace(middle, f'    raise RuntimeError("disk full")\n{middle}'))
    with pytest.raises(RuntimeError, match="disk full"):
        Database(empty_url, broken)
    Database(empty_url, MIGRATIONS).close()


def test_an_older_database_is_upgraded_with_what_it_holds(empty_url: str, old: Path, tmp_path: Path) -> None:
    """The first release's schema, with a message in it; and that release goes on writing beside the new one."""
    url = empty_url
    before = Database(url, old)
    with before.writing() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO slots (run, kind, sender, receiver, job_id, size_bytes, sha256, payload)"
                " VALUES ('job-1', 'Signed', 'north', '@coordinator', 'job-1', 3, :digest, :payload)"
            ),
            {"digest": hashlib.sha256(b"abc").digest(), "payload": b"abc"},
        )
    after = Database(url, MIGRATIONS)
    with before.writing() as connection:
        connection.execute(
            sa.text("INSERT INTO sites (name, version, last_seen_ms, certificate_expires_ms) VALUES ('a', '1', 1, 1)")
        )
    before.close()
    slots = SlotStore(after, FileBlobs(tmp_path / "blobs"))
    stored = slots.find(Slot("job-1", "Signed", "north", COORDINATOR))
    assert stored is not None
    assert stored.read() == b"abc"
    assert [arrival.stored_at_ms for arrival in slots.arrivals("job-1")] == [0]
    after.close()
    with pytest.raises(ConfigError, match="newer release"):
        Database(url, old)
