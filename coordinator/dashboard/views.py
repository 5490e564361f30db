"""What the dashboard shows, as JSON. All of it comes from the database, so that every replica shows the same.

Never a result: the numbers of a job are its analyst's and its sites'. Of a job that trains and says so, observers see
the pooled figures.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from commonscale.concurrency import offload
from commonscale.database import now_ms
from commonscale.v1 import jobs_pb2
from commonscale.version import PROTOCOL_VERSION, __version__
from coordinator import timeline, training
from coordinator.incidents import Incidents
from coordinator.jobs import Jobs
from coordinator.jobs.driver import training_of
from coordinator.jobstore import OPEN_STATES, JobRecord, JobStore
from coordinator.slots import SlotStore

JOBS_SHOWN = 50
INCIDENTS_SHOWN = 100


@dataclass(frozen=True)
class Views:
    """Reads what is to be shown."""

    name: str
    replica: str
    certificate_expires_ms: Callable[[], int]
    faults: Callable[[], Sequence[str]]
    jobs: Jobs
    jobstore: JobStore
    slots: SlotStore
    incidents: Incidents

    async def overview(self) -> dict[str, Any]:
        """The federation at a glance."""
        at_ms = now_ms()
        records = await self.jobs.newest(JOBS_SHOWN)
        counts = await offload(self.jobstore.totals)
        return {
            "coordinator": {
                "name": self.name,
                "version": __version__,
                "protocol": PROTOCOL_VERSION,
                "certificate_expires_ms": self.certificate_expires_ms(),
                "replica": self.replica,
                "faults": list(self.faults()),
            },
            "sites": [asdict(s) | {"online": s.is_online(at_ms)} for s in await offload(self.jobstore.sites)],
            "jobs": [self._summary(record) for record in records],
            "totals": {
                "open": sum(counts.get(state, 0) for state in OPEN_STATES),
                **{state: counts.get(state, 0) for state in ("done", "failed", "refused", "cancelled")},
            },
            "incidents": [asdict(found) for found in await offload(self.incidents.newest, INCIDENTS_SHOWN)],
        }

    async def job(self, job_id: str) -> dict[str, Any]:
        """One job, round by round; UnknownJob if there is none."""
        record = await self.jobs.get(job_id)
        if record.is_open:
            rounds, revealed = await offload(self._so_far, record)
        else:
            rounds = json.loads(record.rounds_json or "[]")
            revealed = json.loads(record.disclosure_json or '{"revealed": []}')["revealed"]
        return {
            **self._summary(record),
            "coordinator": {"name": self.name},
            "remedy": await offload(self.incidents.remedy_for, f"job {job_id}") if record.error else "",
            "dataset": record.asked.dataset,
            "steps": timeline.steps(record),
            "rounds": rounds,
            "awaiting": [
                {
                    "step": timeline.step_of(wait.run),
                    "kind": wait.kind,
                    "site": wait.sender,
                    "since_ms": wait.since_ms,
                    "round": timeline.round_of(wait.run),
                }
                for wait in self._progress(record).waits
            ],
            "training": training.panel(record, self._training(record), rounds),
            "protocols": timeline.protocols(record, rounds),
            "disclosures": revealed,
        }

    def _so_far(self, record: JobRecord) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rounds of an open job, and what they revealed."""
        arrivals, under_way = self.slots.arrivals_summed(record.id), training.under_way(self._training(record))
        return timeline.rounds(arrivals, under_way), timeline.revealed(record, arrivals)

    def snapshot(self, job_id: str | None) -> Callable[[], Any]:
        """What a live stream asks for again and again."""
        return self.overview if job_id is None else partial(self.job, job_id)

    def _progress(self, record: JobRecord) -> jobs_pb2.Progress:
        """Of a failed job: how far it was when it ended."""
        if record.state == "failed" and record.progress:
            return jobs_pb2.Progress.FromString(record.progress)
        return self.jobs.to_wire(record).progress if record.is_open else jobs_pb2.Progress()

    def _training(self, record: JobRecord) -> jobs_pb2.Training | None:
        """Also of a job that has ended."""
        if record.is_open:
            progress = self.jobs.to_wire(record).progress
            return progress.training if progress.HasField("training") else None
        return training_of(record)

    def _summary(self, record: JobRecord) -> dict[str, Any]:
        progress = self._progress(record)
        first = progress.waits[0] if progress.waits else None
        return {
            "id": record.id,
            "name": record.asked.name,
            "state": record.state,
            "analyst": record.analyst,
            "sites": list(record.asked.sites),
            "submitted_at_ms": record.submitted_at_ms,
            "deadline_at_ms": record.deadline_at_ms,
            "ended_at_ms": record.ended_at_ms or None,
            "error": record.error,
            "training": {"done": progress.training.done, "rounds": progress.training.rounds}
            if record.is_open and progress.HasField("training")
            else None,
            "progress": {
                "step": timeline.step_of(first.run),
                "round": progress.round,
                "awaited": list(progress.awaited),
                "since_ms": first.since_ms,
                "messages": progress.messages,
            }
            if first and record.is_open
            else None,
        }
