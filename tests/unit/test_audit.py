"""The audit log: a chain that shows tampering."""

import json
import resource
from pathlib import Path

import pytest

from commonscale.audit import AuditLog, verify
from commonscale.errors import ConfigError, StoreUnavailable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5):
        log.append("sent", run="job", bytes=number)
    log.close()
    return tmp_path / "audit.jsonl"


def test_the_chain_goes_on_after_a_restart(path: Path) -> None:
    """A reopened log continues where it ended."""
    log = AuditLog(path)
    log.append("sent", run="job", bytes=99)
    log.close()
    assert [entry["number"] for entry in verify(path)] == [1, 2, 3, 4, 5, 6]


def test_a_changed_line_is_found(path: Path) -> None:
    """Down to one digit."""
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"bytes": 2', '"bytes": 7')
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match="broken at line 3"):
        verify(path)


def test_a_removed_line_is_found(path: Path) -> None:
    """Also when every other line is whole."""
    lines = path.read_text().splitlines()
    del lines[1]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match="broken at line 2"):
        verify(path)


def test_a_daemon_does_not_write_on_after_a_broken_line(path: Path) -> None:
    """It stops with a sentence instead of hiding the break."""
    path.write_text(path.read_text().replace('"bytes": 0', '"bytes": 1', 1))
    with pytest.raises(ConfigError, match="broken at line 1"):
        AuditLog(path)


def test_a_line_torn_by_a_crash_is_dropped(path: Path) -> None:
    """Its message was not sent: a line is on disk before its message leaves."""
    with path.open("a") as file:
        file.write('{"number": 6, "wh')
    log = AuditLog(path)
    log.append("sent", run="job", bytes=6)
    log.close()
    assert json.loads(path.read_text().splitlines()[5])["bytes"] == 6
    assert len(verify(path)) == 6


def test_a_full_disk_leaves_whole_lines(path: Path) -> None:
    """The append fails, so the message is not sent; the log goes on when there is room."""
    log = AuditLog(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, hard))
    try:
        with pytest.raises(StoreUnavailable, match="audit log takes no more"):
            log.append("sent", run="job", bytes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.append("sent", run="job", bytes=2)
    log.close()
    assert [entry["bytes"] for entry in verify(path)] == [0, 1, 2, 3, 4, 2]
