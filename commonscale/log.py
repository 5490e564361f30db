"""Logs: JSON lines for programs, coloured lines on a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


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


def configure(*, verbose: bool = False) -> None:
    """Set up structlog once a process."""
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
