"""A participant and a worker process for each test that wants them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commonscale_worker import registry

from tests.worker.participants import Participant, start_worker

OFFERED = Path(__file__).parent / "offered.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's is no longer than 107 bytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def participant(folder: Path) -> Iterator[Participant]:
    found = Participant(folder)
    yield found
    found.close()


@pytest.fixture
def worker(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts worker processes, and ends what is left of them."""
    started = []

    def start(module: Path = OFFERED, arguments: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        started.append(start_worker(folder, module, arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is offered yet."""
    monkeypatch.setattr(registry, "_offers", {})
