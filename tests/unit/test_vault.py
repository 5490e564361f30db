"""Secrets at rest."""

from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from commonscale.channel.slot import Slot
from commonscale.config import VaultConfig
from commonscale.database import Database
from commonscale.errors import ConfigError, StateLost
from commonscale.keyshelf import KEY_SET_FORMAT, FileShelf, current, drop_outdated
from commonscale.v1.protocols_pb2 import KeySet
from participant.journal import INLINE_BYTES, MIGRATIONS, Journal, SiteJobs
from participant.vault import open_vault

SECRET = b"a key share " * 10
KEPT = Slot("job", "SecretShare", "north", "north")


def test_what_was_locked_opens_again_and_only_in_its_place(tmp_path: Path) -> None:
    """With the same key file; not for another context, not after a change."""
    vault = open_vault(VaultConfig(), tmp_path)
    locked = vault.lock(SECRET, b"here")
    assert SECRET not in locked
    assert open_vault(VaultConfig(), tmp_path).unlock(locked, b"here") == SECRET
    for broken, context in ((locked, b"there"), (locked[:-1] + bytes([locked[-1] ^ 1]), b"here"), (b"", b"here")):
        with pytest.raises(StateLost):
            vault.unlock(broken, context)
    assert (tmp_path / "vault.key").stat().st_mode & 0o077 == 0
    assert repr(vault) == "Vault()"


def test_a_passphrase_takes_the_place_of_the_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file or the environment; another passphrase opens nothing, an empty file is refused."""
    (tmp_path / "phrase").write_text("correct horse\n")
    config = VaultConfig(passphrase_file=tmp_path / "phrase")
    locked = open_vault(config, tmp_path).lock(SECRET, b"x")
    assert not (tmp_path / "vault.key").exists()
    monkeypatch.setenv("COMMONSCALE_PASSPHRASE", "correct horse")
    assert open_vault(VaultConfig(), tmp_path).unlock(locked, b"x") == SECRET
    monkeypatch.setenv("COMMONSCALE_PASSPHRASE", "wrong horse")
    with pytest.raises(StateLost):
        open_vault(VaultConfig(), tmp_path).unlock(locked, b"x")
    (tmp_path / "phrase").write_text("\n")
    with pytest.raises(ConfigError):
        open_vault(config, tmp_path)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    """With a sentence that names it."""
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(ConfigError, match="short"):
        open_vault(VaultConfig(key_file=tmp_path / "short"), tmp_path)


@pytest.mark.parametrize("size", [100, INLINE_BYTES + 1])
def test_the_journal_keeps_secrets_locked_and_messages_as_they_are(tmp_path: Path, size: int) -> None:
    """Neither the database nor a file shows a secret; a restart finds both; an ended job leaves nothing."""
    secret, message = (SECRET * size)[:size], b"m" * size
    sent = Slot("job", "KeyShare", "north", "@coordinator")

    async def once(journal: Journal, slot: Slot, content: bytes) -> tuple[bytes, bool]:
        async def make() -> bytes:
            return content

        return await journal.once(slot, make)

    def journal(database: Database) -> Journal:
        return Journal(database, tmp_path / "journal", open_vault(VaultConfig(), tmp_path))

    database = Database(f"sqlite:///{tmp_path / 'p.db'}", MIGRATIONS)
    assert anyio.run(once, journal(database), KEPT, secret) == (secret, True)
    assert anyio.run(once, journal(database), sent, message) == (message, True)
    database.close()
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET not in on_disk
    assert message in on_disk

    database = Database(f"sqlite:///{tmp_path / 'p.db'}", MIGRATIONS)
    assert anyio.run(once, journal(database), KEPT, b"another") == (secret, False)
    (tmp_path / "journal" / "orphan").write_bytes(b"x")
    journal(database).sweep()
    assert anyio.run(once, journal(database), sent, b"another") == (message, False)
    SiteJobs(database, tmp_path / "journal").end("job", "done")
    assert list((tmp_path / "journal").iterdir()) == []
    database.close()


def test_a_lost_file_ends_the_run_and_makes_nothing_anew(tmp_path: Path) -> None:
    """After a power cut the row is there and the file is not: StateLost, never a second share."""
    database = Database(f"sqlite:///{tmp_path / 'p.db'}", MIGRATIONS)
    journal = Journal(database, tmp_path / "journal", open_vault(VaultConfig(), tmp_path))
    slot = Slot("job", "RefreshShare", "north", "@coordinator")

    async def once(content: bytes) -> tuple[bytes, bool]:
        async def make() -> bytes:
            return content

        return await journal.once(slot, make)

    anyio.run(once, b"s" * (INLINE_BYTES + 1))
    (path,) = (tmp_path / "journal").iterdir()
    path.write_bytes(b"s" * INLINE_BYTES)
    with pytest.raises(StateLost):
        anyio.run(once, b"t" * (INLINE_BYTES + 1))
    path.unlink()
    with pytest.raises(StateLost):
        anyio.run(once, b"t" * (INLINE_BYTES + 1))
    database.close()


def test_a_shelf_gives_back_what_it_holds(tmp_path: Path) -> None:
    """Locked on disk; under another vault key the set counts as gone, and a new one takes its place."""
    vault = open_vault(VaultConfig(), tmp_path)
    shelf = FileShelf(tmp_path / "keys", vault.lock, vault.unlock)
    assert shelf.get("a") is None
    shelf.put("a", SECRET)
    assert shelf.get("a") == SECRET
    assert SECRET not in (tmp_path / "keys" / "a").read_bytes()
    other = open_vault(VaultConfig(key_file=tmp_path / "other"), tmp_path)
    assert FileShelf(tmp_path / "keys", other.lock, other.unlock).get("a") is None


def test_a_shelf_deletes_key_sets_of_an_earlier_version(tmp_path: Path) -> None:
    """At the start of a daemon and when one is asked for; the file is gone, and the others stay."""
    vault = open_vault(VaultConfig(), tmp_path)
    shelf = FileShelf(tmp_path / "keys", vault.lock, vault.unlock)
    current_set = KeySet(id=b"new", secret=SECRET, format=KEY_SET_FORMAT)
    shelf.put("new", current_set.SerializeToString())
    for deletes in (drop_outdated, lambda shelf: current(shelf, "old")):
        shelf.put("old", KeySet(id=b"old", secret=SECRET).SerializeToString())
        with capture_logs() as lines:
            deletes(shelf)
        assert [line["key_set"] for line in lines] == ["old"]
        assert SECRET.hex() not in str(lines)
        assert repr(SECRET) not in str(lines)
        assert not (tmp_path / "keys" / "old").exists()
    assert current(shelf, "old") is None
    assert current(shelf, "new") == current_set
    assert shelf.names() == ["new"]


def test_a_shelf_keeps_what_it_cannot_open(tmp_path: Path) -> None:
    """A vault with the wrong key does not cost a site its sets."""
    vault = open_vault(VaultConfig(), tmp_path)
    FileShelf(tmp_path / "keys", vault.lock, vault.unlock).put("a", b"")
    other = open_vault(VaultConfig(key_file=tmp_path / "other"), tmp_path)
    drop_outdated(FileShelf(tmp_path / "keys", other.lock, other.unlock))
    assert (tmp_path / "keys" / "a").exists()
