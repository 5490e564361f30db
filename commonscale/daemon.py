"""What both daemons do at their start and end, and how they log."""

import contextlib
import gc
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TextIO, cast

import anyio
import structlog

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


class _Stderr:
    """Standard error, as far as it can be written: a full disk behind it must not end a job."""

    def write(self, text: str) -> None:
        """Write or let go."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush or let go."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure_log(*, verbose: bool) -> None:
    """JSON lines for programs, coloured lines on a terminal; once per process."""
    people = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
