"""What the page shows, as JSON. Times are points in time, so that nothing changes while nothing happens."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography import x509

from commonscale.audit import AuditLog
from commonscale.channel.slot import COORDINATOR
from commonscale.config import ParticipantConfig
from commonscale.database import now_ms
from commonscale.errors import BadMessage, UnknownJob
from commonscale.identity import fingerprint
from commonscale.version import __version__
from participant import approvals, policy
from participant.attachment import WorkerView
from participant.journal import SiteJob, SiteJobs
from participant.page.trail import Left, Trail

NEWEST_JOBS = 30
# Earlier jobs that one which waits is compared with.
COMPARED_JOBS = 300
# So much of a long log is read for one snapshot; the next goes on.
READING_S = 0.2


@dataclass(frozen=True)
class Connection:
    """How the daemon stands with its coordinator."""

    connected: bool
    since_ms: int
    faults: list[str]
    certificate: x509.Certificate


@dataclass
class View:
    """What the page's answers are made from. Everything blocks, and runs in a thread."""

    site: str
    config: ParticipantConfig
    jobs: SiteJobs
    audit: AuditLog
    trail: Trail
    connection: Callable[[], Connection]
    # None: no worker may attach here.
    worker: Callable[[], WorkerView] | None
    # The last verification of the chain; the daemon does not start without one.
    verified: dict[str, Any]

    def state(self) -> dict[str, Any]:
        """Everything that is on the page at once."""
        self.trail.refresh(READING_S)
        entries, last_hash = self.audit.head
        rules = self.config.policy
        return {
            "site": self.site,
            "version": __version__,
            "connection": self._connection(),
            # With the transforms that it comes to, where it lists none.
            "policy": {**rules.model_dump(mode="json"), "transforms": policy.allowed_transforms(rules)},
            "data": [{"name": name, "file": source.path.name} for name, source in self.config.data.items()],
            "worker": worker_now(self.worker(), rules.train.models) if self.worker is not None else None,
            "waiting": self._all_waiting(),
            "jobs": [self._row(job) for job in self.jobs.all(limit=NEWEST_JOBS)],
            "left": {"messages": self.trail.messages, "bytes": self.trail.bytes, "unread": round(self.trail.unread, 2)},
            "audit": {"entries": entries, "last_hash": last_hash, "verified": self.verified},
        }

    def _connection(self) -> dict[str, Any]:
        now = self.connection()
        return {
            "coordinator": self.config.coordinator,
            "connected": now.connected,
            "since_ms": now.since_ms,
            "faults": now.faults,
            "certificate": {
                "from_ms": int(now.certificate.not_valid_before_utc.timestamp() * 1000),
                "until_ms": int(now.certificate.not_valid_after_utc.timestamp() * 1000),
                "issuer": now.certificate.issuer.rfc4514_string(),
                "fingerprint": fingerprint(now.certificate),
            },
        }

    def _row(self, job: SiteJob) -> dict[str, Any]:
        left = self.trail.left(job.id)
        return {
            **approvals.summary(job),
            "name": _name(job),
            "received_ms": job.received_at_ms,
            "decided_by": job.decided_by,
            "decided_ms": job.decided_at_ms,
            "reason": job.reason,
            "messages": sum(group.messages for group in left),
            "bytes": sum(group.bytes for group in left),
        }

    def _all_waiting(self) -> list[dict[str, Any]]:
        """What waits for a person, the oldest first."""
        waiting = [job for job in reversed(self.jobs.all("open")) if job.waiting]
        done = self.jobs.all("done", limit=COMPARED_JOBS) if waiting else []
        return [self._waiting(job, done) for job in waiting]

    def _waiting(self, job: SiteJob, done: list[SiteJob]) -> dict[str, Any]:
        """All that a person must see before a yes."""
        asked = approvals.request(job.spec)
        return {
            **asked,
            "job": job.id,
            "analyst": job.analyst,
            "others": [site for site in asked["sites"] if site != self.site],
            "warnings": [*asked["warnings"], *approvals.subtractions(job, done)],
            "received_ms": job.received_at_ms,
            # By this site's clock; the coordinator may have counted from earlier on.
            "until_ms": min(job.received_at_ms + 1000 * int(asked["deadline_s"]), job.deadline_at_ms),
        }

    def older(self, before: str, limit: int) -> list[dict[str, Any]]:
        """Jobs that came before one."""
        return [self._row(job) for job in self.jobs.all(before=self.jobs.get(before), limit=limit)]

    def job(self, job_id: str) -> dict[str, Any]:
        """One job: what it asked for, what it sent, what it revealed."""
        self.trail.refresh()
        job = self.jobs.get(job_id)
        try:
            asked: dict[str, Any] | None = approvals.request(job.spec)
        except BadMessage:
            asked = None
        revealed = self.trail.revealed(job_id)
        return {
            **self._row(job),
            "asked": asked,
            "left": [self._left(group) for group in self.trail.left(job_id)],
            "revealed": revealed and {
                "at": revealed.get("at", ""),
                "result_sha256": revealed.get("result_sha256", ""),
                "disclosures": revealed.get("disclosures", []),
            },
        }  # fmt: skip

    def _left(self, group: Left) -> dict[str, Any]:
        receiver = "coordinator" if group.receiver == COORDINATOR else group.receiver
        return {**asdict(group), "receiver": receiver, "protocol": self._protocol(group)}

    def _protocol(self, group: Left) -> str:
        number = group.run.partition("/")[2]
        if not number:
            return "admission"
        try:
            pipeline = approvals.read(self.jobs.get(group.job).spec)
            return pipeline.steps[int(number)].protocol(len(pipeline.sites))
        except (UnknownJob, BadMessage, ValueError, IndexError):
            return f"step {number}"

    def audit_page(self, before: int | None, limit: int) -> dict[str, Any]:
        """Lines of the audit log, newest first."""
        self.trail.refresh()
        return {"entries": self.trail.lines, "lines": self.trail.page(before, limit)}

    def left_csv(self) -> Iterator[str]:
        """What left, one line per job, run and receiver."""
        self.trail.refresh()
        columns = ["job", "run", "protocol", "receiver", "sealed", "messages", "bytes"]
        yield _csv_line(columns)
        for group in self.trail.everything():
            row = {**self._left(group), "job": group.job, "sealed": "yes" if group.sealed else "no"}
            yield _csv_line([row[column] for column in columns])

    def verify(self) -> dict[str, Any]:
        """Check the whole chain."""
        self.verified = {"at_ms": now_ms(), **self.trail.verify(self.audit)}
        return self.verified


def worker_now(found: WorkerView, pinned: Mapping[str, str]) -> dict[str, Any]:
    """The site's ML worker. Its last error may show a cell: it goes nowhere but to this page."""
    models = [
        {"name": name, "digest": digest, "pinned": pinned.get(name) == digest, "in_policy": name in pinned}
        for name, digest in sorted(found.models.items())
    ]
    # In hundredths: a finer share would be a change of its own again and again.
    return {**asdict(found), "models": models, "share": round(found.share, 2)}


def _name(job: SiteJob) -> str:
    try:
        return approvals.read(job.spec).name
    except BadMessage:
        return ""


def _csv_line(cells: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
