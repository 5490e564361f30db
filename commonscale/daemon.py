"""What both daemons do at their start and end."""

from __future__ import annotations

import gc
import json
import signal
from pathlib import Path

import anyio

from commonscale.files import replace_file


async def until_signal() -> None:
    """Return at SIGTERM or SIGINT."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            return


def settle() -> None:
    """What was loaded so far stays: spare the garbage collector from walking through it in the middle of a round."""
    gc.collect()
    gc.freeze()


def write_ready(path: Path | None, **ports: int) -> None:
    """Say on which ports the daemon listens: for supervisors that let it choose them."""
    if path is not None:
        replace_file(path, json.dumps(ports).encode())
