"""Prometheus metrics. Labels come from closed sets: never a data value, never a column's name."""

import contextlib
import re
import time
from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram

from commonscale.channel.channel import Event, Observer
from commonscale.channel.slot import Slot
from commonscale.version import PROTOCOL_VERSION, __version__

BUILD = Gauge("commonscale_build", "The release that runs; always 1.", ["version", "protocol"])
BUILD.labels(__version__, str(PROTOCOL_VERSION)).set(1)

# From a round on one machine to a job that waits for a person.
SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400)

JOBS = Counter("commonscale_jobs", "Jobs that ended here.", ["outcome"])
for _outcome in ("done", "failed", "refused", "cancelled"):
    # There from the start, so that the first failure is an increase.
    JOBS.labels(_outcome)
JOBS_OPEN = Gauge("commonscale_jobs_open", "Jobs under way.")
JOB_SECONDS = Histogram("commonscale_job_seconds", "From submission to the end of a job.", ["outcome"], buckets=SECONDS)
ROUND_SECONDS = Histogram(
    "commonscale_round_seconds", "Time a role waited for one round message.", ["kind"], buckets=SECONDS
)
MESSAGES = Counter("commonscale_messages", "Round messages of this daemon's roles.", ["event", "kind"])
MESSAGE_BYTES = Counter("commonscale_message_bytes", "Bytes of round messages of this daemon's roles.", ["event"])
RELAYED_BYTES = Counter("commonscale_relayed_bytes", "Payload bytes that went through the relay.", ["direction"])
SITES_ONLINE = Gauge("commonscale_sites_online", "Sites that listen for invitations.")
CONNECTED = Gauge("commonscale_connected", "1 while this participant has a session with its coordinator.")
DISK_FREE = Gauge("commonscale_disk_free_bytes", "Room on the fullest disk that this daemon writes to.")
CERTIFICATE_EXPIRY = Gauge("commonscale_certificate_expiry_timestamp_seconds", "When our certificate ends.")


class RoundMetrics(Observer):
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
