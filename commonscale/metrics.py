"""Prometheus metrics. Labels come from closed sets: never a data value, never a column's name."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram

from commonscale.channel import Event
from commonscale.slot import Slot
from commonscale.version import PROTOCOL_VERSION, __version__

BUILD = Gauge("commonscale_build", "The release that runs; always 1.", ["version", "protocol"])
BUILD.labels(__version__, str(PROTOCOL_VERSION)).set(1)

JOBS = Counter("commonscale_jobs", "Jobs that ended here.", ["outcome"])
JOBS_OPEN = Gauge("commonscale_jobs_open", "Jobs under way.")
JOB_SECONDS = Histogram("commonscale_job_seconds", "From submission to the end of a job.", ["outcome"])
ROUND_SECONDS = Histogram("commonscale_round_seconds", "Time a role waited for one round message.", ["kind"])
MESSAGES = Counter("commonscale_messages", "Round messages of this daemon's roles.", ["event", "kind"])
MESSAGE_BYTES = Counter("commonscale_message_bytes", "Bytes of round messages of this daemon's roles.", ["event"])
RELAYED_BYTES = Counter("commonscale_relayed_bytes", "Payload bytes that went through the relay.", ["direction"])
SITES_ONLINE = Gauge("commonscale_sites_online", "Sites that listen for invitations.")
CONNECTED = Gauge("commonscale_connected", "1 while this participant has a session with its coordinator.")
CERTIFICATE_EXPIRY = Gauge("commonscale_certificate_expiry_timestamp_seconds", "When our certificate ends.")


class RoundMetrics:
    """A channel observer that counts."""

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """Count a message."""
        MESSAGES.labels(event, _label(slot)).inc()
        MESSAGE_BYTES.labels(event).inc(size_bytes)

    @contextlib.contextmanager
    def waiting(self, slot: Slot) -> Iterator[None]:
        """Time a wait."""
        start = time.monotonic()
        yield
        ROUND_SECONDS.labels(_label(slot)).observe(time.monotonic() - start)


def _label(slot: Slot) -> str:
    """A message's kind without the numbers of rounds: a closed set."""
    return ".".join(re.sub(r"-?[0-9]+$", "", part) for part in slot.kind.split(".") if not part.isdigit())
