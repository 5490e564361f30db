"""A daemon that ends itself with SIGKILL after the k-th operation of the job named crash-k, once a job.

python -m tests.misbehaving.crashing participant --config …
python -m tests.misbehaving.crashing coordinator --config …
"""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from commonscale.channel.channel import Event
from commonscale.channel.slot import Slot
from commonscale.cli import main
from commonscale.metrics import RoundMetrics

MARKS = Path(os.environ["CRASH_MARKS"])
_counts: dict[str, int] = {}


def operation(job_id: str) -> None:
    """Count one operation of a job; at its number, leave a mark and die."""
    match = re.fullmatch(r"crash-(\d+)", job_id)
    if match is None:
        return
    _counts[job_id] = _counts.get(job_id, 0) + 1
    mark = MARKS / f"{sys.argv[1]}-{job_id}"
    if _counts[job_id] == int(match[1]) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def crash_after(owner: Any, name: str, job_of: Any) -> None:
    """Make a method count as an operation once it has returned."""
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        operation(job_of(*args))
        return result

    setattr(owner, name, counted)


class _Counting(RoundMetrics):
    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        super().event(event, slot, size_bytes)
        operation(slot.job_id)


if sys.argv[1] == "participant":
    import participant.daemon
    from participant.journal import Journal, SiteJobs

    participant.daemon.RoundMetrics = _Counting  # type: ignore[misc]
    # Stored but not sent yet; noted but not begun; over but not acknowledged to anyone.
    crash_after(Journal, "_insert", lambda _, slot, __: slot.job_id)
    crash_after(SiteJobs, "open", lambda _, job_id, *__: job_id)
    crash_after(SiteJobs, "end", lambda _, job_id, *__: job_id)
else:
    import coordinator.jobs
    from coordinator.jobstore import JobStore
    from coordinator.slots import SlotStore

    original_init = coordinator.jobs.LiveJob.__init__

    def init(self: Any, record: Any) -> None:
        """A job whose rounds are counted."""
        original_init(self, record, metrics=_Counting())

    coordinator.jobs.LiveJob.__init__ = init  # type: ignore[method-assign]
    # Stored but not acknowledged; created but not answered; ended but not told.
    crash_after(SlotStore, "insert", lambda _, slot, __: slot.job_id)
    crash_after(JobStore, "create", lambda _, record: record.id)
    crash_after(JobStore, "update", lambda _, record, **__: record.id)

main()
