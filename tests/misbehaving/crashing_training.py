"""A daemon that ends itself with SIGKILL after operations of a job that a file names, and writes all of them down.

python -m tests.misbehaving.crashing_training participant|coordinator --config …

What jobs draw by chance is the same in all of them, but for keys and masks: so the models of two jobs are the same too.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from commonscale.channel.channel import Event
from commonscale.channel.slot import Slot
from commonscale.cli import main
from commonscale.metrics import RoundMetrics
from commonscale.statistics.training import rounds
from crypto import fixed61

MARKS = Path(os.environ["CRASH_MARKS"])
# The directory with the configuration has the daemon's name.
ME = Path(sys.argv[sys.argv.index("--config") + 1]).parent.name


_one_at_a_time = threading.Lock()


def operation(job_id: str, what: str) -> None:
    """Write down one operation of a job; if it is named, die, once."""
    with _one_at_a_time, (MARKS / f"{ME}.{job_id}.operations").open("a") as file:
        file.write(what + "\n")
        file.flush()
        named = MARKS / f"{ME}.{job_id}.targets"
        targets = named.read_text().splitlines() if named.exists() else []
        if what in targets:
            named.write_text("\n".join(target for target in targets if target != what))
            os.kill(os.getpid(), signal.SIGKILL)


def of_slot(event: str, slot: Slot) -> str:
    """An operation on a slot, the same in every job."""
    return f"{event} {slot.run.removeprefix(slot.job_id) or '-'} {slot.kind} {slot.sender} {slot.receiver}"


def crash_after(owner: Any, name: str, named: Any) -> None:
    """Make a method count as an operation once it has returned."""
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        operation(*named(*args, **kwargs))
        return result

    setattr(owner, name, counted)


class Told(RoundMetrics):
    """Hears of a daemon's own operations."""

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """One of them."""
        super().event(event, slot, size_bytes)
        operation(slot.job_id, of_slot(event, slot))


drawn = rounds.chosen_sites
rounds.chosen_sites = lambda sites, count, _, number: drawn(sites, count, b"lots", number)
assert fixed61.encode.__kwdefaults__ is not None
fixed61.encode.__kwdefaults__["random_bytes"] = bytes

if sys.argv[1] == "participant":
    import participant.daemon
    import participant.site_worker
    from participant.journal import Journal, SiteJobs

    # Which rows are kept apart.
    participant.site_worker.secrets = SimpleNamespace(token_bytes=bytes)  # type: ignore[attr-defined]
    participant.daemon.RoundMetrics = Told  # type: ignore[misc]
    crash_after(Journal, "_insert", lambda _, slot, __: (slot.job_id, of_slot("stored", slot)))
    crash_after(SiteJobs, "open", lambda _, job_id, *__: (job_id, "opened"))
    crash_after(SiteJobs, "end", lambda _, job_id, *__: (job_id, "ended"))
else:
    import coordinator.jobs
    from coordinator.jobstore import JobStore
    from coordinator.slots import SlotStore

    original_init = coordinator.jobs.LiveJob.__init__

    def init(self: Any, record: Any) -> None:
        """A job whose rounds are told."""
        original_init(self, record, metrics=Told())

    coordinator.jobs.LiveJob.__init__ = init  # type: ignore[method-assign]
    crash_after(SlotStore, "insert", lambda _, slot, __: (slot.job_id, of_slot("stored", slot)))
    crash_after(JobStore, "create", lambda _, record: (record.id, "created"))
    crash_after(JobStore, "update", lambda _, record, **to: (record.id, f"updated {' '.join(sorted(to))}"))

main()
