"""Everything that the coordinator stores, logs and exposes in a z-score job holds nothing of one site."""

import sqlite3
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.slot import Slot
from commonscale.database import Database, now_ms
from commonscale.localnet import LocalFederation
from commonscale.ordering import to_keys
from coordinator.blobs import FileBlobs
from coordinator.daemon import MIGRATIONS
from coordinator.jobs import Jobs
from coordinator.jobstore import JobRecord, JobStore
from coordinator.relay import Mailroom
from coordinator.slots import SlotStore
from crypto import fixed_point
from crypto.rings import Z256
from tests.e2e.conftest import GOOD, job, pooled_rows, submit
from tests.needles import present
from tests.patience import PATIENCE_S, eventually


def recorded_view(federation: LocalFederation) -> bytes:
    """The coordinator's whole directory (database, write-ahead log, blobs, log), its metrics, and every payload."""
    directory = federation.directory / "coordinator"
    parts = [path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file() and "tls" not in path.parts]
    with sqlite3.connect(directory / "coordinator.db") as connection:
        parts += [row[0] or b"" for row in connection.execute("SELECT payload FROM slots")]
        for row in connection.execute("SELECT spec, error, result_json, disclosure_json FROM jobs"):
            parts += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    port = federation.coordinator.wait_ready()["http_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        parts.append(response.read())
    return b"\0".join(parts)


def statistics(rows: np.ndarray, pooled_mean: np.ndarray) -> list[float]:
    squared = np.square(rows - pooled_mean).sum(axis=0)
    values = [*rows.mean(axis=0), *rows.sum(axis=0), *rows.var(axis=0), *rows.std(axis=0), *squared, *rows.ravel()[:20]]
    return [float(value) for value in values]


def needles(value: float) -> list[bytes]:
    """As a float either way round, in fixed point down to its upper 20 bytes, and as text."""
    fixed = Z256.to_bytes(fixed_point.encode([value], addends=1))
    big_end = np.float64(value).tobytes()[::-1]
    return [np.float64(value).tobytes(), big_end, fixed, fixed[12:], repr(value).encode(), f"{value:.8g}".encode()]


def test_no_local_statistic_is_in_the_coordinators_view(federation: LocalFederation) -> None:
    """Neither a mean, a sum, a variance, a squared deviation nor a value of any site; the pooled ones are."""
    done = submit(federation, job(GOOD, ["age", "chol"]))
    assert done.state == "done"
    view = recorded_view(federation)
    pooled = pooled_rows(federation, GOOD)
    local = [value for site in GOOD for value in statistics(pooled_rows(federation, [site]), pooled.mean(axis=0))]
    assert not present(view, [form for value in local for form in needles(value)])
    # The same search finds what is meant to be revealed, so it would have found the rest.
    assert repr(done.result[0]["mean"][0]).encode() in view
    count = Z256.to_bytes(fixed_point.encode([float(len(pooled))], addends=1))
    assert count in view


def test_no_local_count_is_in_the_coordinators_view(federation: LocalFederation) -> None:
    """A site's number of rows, in fixed point, is in no message; the pooled number is."""
    submit(federation, job(GOOD, ["age"]))
    with sqlite3.connect(federation.directory / "coordinator" / "coordinator.db") as connection:
        payloads = [row[0] for row in connection.execute("SELECT payload FROM slots WHERE payload IS NOT NULL")]
    for site in GOOD:
        count = Z256.to_bytes(fixed_point.encode([float(len(pooled_rows(federation, [site])))], addends=1))
        assert not any(count in payload for payload in payloads)


def test_a_sites_secrets_are_gone_after_the_job(federation: LocalFederation) -> None:
    """Its job keys leave the journal when the job ends, and never were in a log."""
    submit(federation, job(GOOD, ["age"]))
    for site in GOOD:
        state = federation.directory / site / "state"
        # The site hears of the end a moment after the analyst.
        with sqlite3.connect(state / "participant.db") as connection:
            left = partial(connection.execute, "SELECT count(*) FROM journal")
            eventually(lambda left=left: left().fetchone(), lambda count: count == (0,))  # type: ignore[misc]
        assert (state / "participant.db").stat().st_mode & 0o077 == 0
        log = (federation.directory / site / "log.jsonl").read_text()
        assert "PRIVATE" not in log
        _assert_no_values(log, pooled_rows(federation, [site]))


def _assert_no_values(log: str, rows: np.ndarray) -> None:
    for value in rows.ravel()[:50]:
        assert f"{value:.8g}" not in log


@pytest.mark.long
def test_the_messages_of_an_ended_job_are_removed(tmp_path: Path) -> None:
    """By what the housekeeping calls: of old ended jobs, from database and memory; open and recent ones stay."""
    database = Database(f"sqlite:///{tmp_path / 'c.db'}", MIGRATIONS)
    store, jobstore = SlotStore(database, FileBlobs(tmp_path / "blobs")), JobStore(database)
    slots = {name: Slot(name, "Signed", "a", "@coordinator") for name in ("old", "recent", "open")}

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            room = Mailroom(store, sole_writer=True)
            for name, slot in slots.items():
                record = jobstore.create(JobRecord(name, b"", "analyst", "inviting", 0, 1))
                await room.put(slot, b"x")
                if name != "open":
                    jobstore.update(record, state="done", ended_at_ms=1 if name == "old" else now_ms())
            await Jobs(jobstore, room, tasks).forget_old(3600)
            assert await room.wait(slots["old"], 0.01) is None
            assert await room.wait(slots["recent"], 0.01) is not None

    anyio.run(work)
    assert store.job_ids() == {"recent", "open"}
    database.close()


NORMALIZERS: dict[str, dict[str, Any]] = {
    "minmax-search": {"transform": "minmax", "method": "search"},
    "minmax-tree": {"transform": "minmax", "method": "tree", "ckks": {"profile": "test"}},
    "robust-counts": {"transform": "robust"},
    "robust-counts-ckks": {"transform": "robust", "method": "ckks", "ckks": {"profile": "test"}},
    "robust-private": {"transform": "robust", "method": "private", "ckks": {"profile": "test"}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != "minmax-search")) for name in NORMALIZERS]
)
def test_no_local_extreme_or_quantile_is_in_the_coordinators_view(federation: LocalFederation, name: str) -> None:
    """Neither a minimum, a maximum, a quartile nor a row of any site, in database, files, log and metrics."""
    done = submit(federation, job(GOOD, ["age", "chol"], **NORMALIZERS[name]))
    assert done.state == "done", done.wire.error
    view = recorded_view(federation)
    pooled = pooled_rows(federation, GOOD)
    ordered = np.sort(pooled, axis=0)
    ranks = [int(edge((len(pooled) - 1) * q)) for q in (0, 0.25, 0.5, 0.75, 1) for edge in (np.floor, np.ceil)]
    revealed = set(ordered[ranks].ravel().tolist())
    local = set(pooled.ravel().tolist())
    for site in GOOD:
        local.update(np.quantile(pooled_rows(federation, [site]), [0, 0.25, 0.5, 0.75, 1], axis=0).ravel().tolist())
    keys = to_keys(np.array(list(local - revealed)))
    forms = {form for value in local - revealed for form in needles(value)}
    assert not present(view, forms | {key.tobytes() for key in (*keys, *~keys)})
    # The same search finds the pooled result.
    found = done.result[0]["max" if name.startswith("minmax") else "median"][0]
    assert repr(found).encode() in view
