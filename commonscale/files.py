"""Files that must be private, or never seen half written."""

import fcntl
import os
import secrets
from pathlib import Path
from typing import IO

from commonscale.errors import ConfigError


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, and never over an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists already and is not overwritten.", "Move it away first.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path, what: str = "") -> bytes:
    """A file that must be there, or ConfigError naming it, after what it should be ("the certificate ")."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read {what}{path}: {error.strerror}.") from None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never half of it, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be writing the same file.
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def sync_file(path: Path) -> None:
    """Let a file that is written survive a power cut, with its name."""
    for one in (path, path.parent):
        handle = os.open(one, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def lock_file(path: Path) -> IO[bytes]:
    """A file that one process holds; a second one gets a sentence."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(
            f"Another daemon uses {path.parent}.", "Stop it, or give this one a state of its own."
        ) from None
    return file


def private_directory(path: Path) -> Path:
    """A directory that only its owner may enter."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"Cannot keep {path} to ourselves: {error.strerror}.", "Name a directory that the daemon's user owns."
        ) from None
    return path
