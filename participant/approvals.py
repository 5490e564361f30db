"""Approvals: what a person needs to know about a job, and the decision. One place for the command line and the page.

Only the daemon writes the audit log; a decision may come from another process. So a decision is a row first, and the
daemon notes it in the log before it acts on it, or when the job has ended without it. After a crash in between, the
log may have it twice, never not at all.
"""

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import structlog

from commonscale import disclosure
from commonscale.audit import AuditLog
from commonscale.errors import BadMessage, ConfigError, TransientError
from commonscale.pipeline import Pipeline
from commonscale.plan import plan_of
from commonscale.protocols import sums
from commonscale.protocols.admission import MIN_SITES
from commonscale.protocols.ckks.levels import REUSE, STAND_IN
from commonscale.transforms import Transform
from participant.journal import SiteJob, SiteJobs

log = structlog.get_logger()

Decision = Literal["approved", "refused"]
MAX_REASON = 500


def decide(jobs: SiteJobs, job_id: str, decision: Decision, reason: str, by: str) -> None:
    """Approve or refuse a job that waits for that; ConfigError says why it does not."""
    reason = " ".join(reason.split())
    if len(reason) > MAX_REASON:
        raise ConfigError(f"A reason has at most {MAX_REASON} characters.")
    if not jobs.decide(job_id, decision, reason, by):
        raise ConfigError(f"Job {job_id} does not wait for approval: {_why_not(jobs.get(job_id))}.")


def _why_not(job: SiteJob) -> str:
    if job.approval in ("approved", "refused"):
        return f"it was {job.approval} already" + (f" by {job.decided_by}" if job.decided_by else "")
    if job.state != "open":
        return "it is over"
    return "this site's policy decides" if job.approval == "" else job.approval


def note(jobs: SiteJobs, audit: AuditLog, job_id: str) -> None:
    """Write a decision into the audit log, unless it is there."""
    job = jobs.get(job_id)
    if job.decided_by and not job.noted:
        at = dt.datetime.fromtimestamp(job.decided_at_ms / 1000, dt.timezone.utc).isoformat(timespec="milliseconds")
        audit.append("decided", job=job.id, decision=job.approval, reason=job.reason, by=job.decided_by, decided_at=at)
        jobs.set_noted(job.id)


def note_ended(jobs: SiteJobs, audit: AuditLog, job_ids: Iterable[str]) -> None:
    """The same for jobs that have ended; what a full disk does not take now is written at the next start."""
    try:
        for job_id in job_ids:
            note(jobs, audit, job_id)
    except TransientError as error:
        log.warning("a decision is not in the audit log yet", why=str(error))


def summary(job: SiteJob) -> dict[str, Any]:
    """A job in one line: who asks for what, and together with whom."""
    row: dict[str, Any] = {
        "job": job.id, "analyst": job.analyst, "approval": job.approval, "state": job.state, "error": job.error,
        "waiting": job.waiting, "sites": [], "dataset": "",
    }  # fmt: skip
    try:
        pipeline = read(job.spec)
    except BadMessage as error:
        return {**row, "asks": f"unreadable: {error}"}
    count = len(pipeline.sites)
    asks = "; ".join(
        f"{step.transform} ({', '.join(sorted(plan_of(step, count).methods))}) of {', '.join(step.columns)}"
        for step in pipeline.steps
    )
    return {**row, "sites": pipeline.sites, "dataset": pipeline.dataset, "asks": asks}


@lru_cache(maxsize=512)
def read(spec: bytes) -> Pipeline:
    """A job's pipeline; the same bytes are parsed once."""
    return Pipeline.from_bytes(spec)


@lru_cache(maxsize=64)
def request(spec: bytes) -> dict[str, Any]:
    """All that a job asks for: steps, what they reveal and to whom, what to be aware of. Not to be changed."""
    pipeline = read(spec)
    revealed = disclosure.planned(pipeline)
    return {
        "name": pipeline.name,
        "dataset": pipeline.dataset,
        "sites": pipeline.sites,
        "deadline_s": pipeline.deadline_s,
        "steps": [_step(number, step, len(pipeline.sites)) for number, step in enumerate(pipeline.steps)],
        "reveals": [{key: value for key, value in entry.items() if key != "columns"} for entry in revealed],
        "warnings": [line for number, step in enumerate(pipeline.steps) for line in _warnings(number, step, pipeline)],
    }


def _step(number: int, step: Transform, sites: int) -> dict[str, Any]:
    plan, (_, why) = plan_of(step, sites), step.method_for(sites)
    options = step.model_dump(mode="json", exclude_defaults=True, exclude={"transform", "columns"})
    return {
        "number": number,
        "transform": step.transform,
        "protocol": step.protocol(sites),
        "columns": step.columns,
        "beside": [column for column in step.numeric_columns if column not in step.columns],
        "methods": sorted(plan.methods),
        "asks": plan.titles,
        "why": why,
        "options": [f"{name} = {json.dumps(value)}" for name, value in options.items()],
    }


def _warnings(number: int, step: Transform, pipeline: Pipeline) -> list[str]:
    """What a person should stop at."""
    found = []
    plan = plan_of(step, len(pipeline.sites))
    ckks = step.ckks_options if "ckks" in plan.methods else None
    if ckks and ckks.profile == "test":
        found.append("its encryption is quick and NOT secure (profile test)")
    if ckks:
        found.append("it computes under encryption, which trusts the coordinator to follow the protocol")
    if REUSE in plan.all_reveals:
        found.append("its key set is kept for later jobs of the same sites")
    if STAND_IN in plan.all_reveals:
        found.append("another site can stand in for this one and then holds this one's share of the key")
    beside = (sums.METHODS[method].also for method in plan.methods if method in sums.METHODS)
    found += [f"its method is for comparison only: it shows {r.to} {r.what}" for r in beside if r is not None]
    if step.caution:
        found.append(step.caution)
    for before, earlier in enumerate(pipeline.steps[:number], start=1):
        if changed := [column for column in step.columns if earlier.produces and column in (earlier.outputs() or [])]:
            found.append(f"it takes {', '.join(changed)} as step {before} ({earlier.transform}) leaves it")
    if extends := getattr(step, "extends", ""):
        found.append(f"it extends job {extends}: sites learn which of their new values a site of that job holds")
    if after := getattr(step, "after", ""):
        found.append(f"it takes its columns as the steps of job {after} leave them")
    return [f"Step {number + 1}: {line}." for line in found]


def subtractions(job: SiteJob, done: Sequence[SiteJob]) -> list[str]:
    """Earlier jobs over nearly the same sites: both results together show the few sites that they differ by."""
    pipeline = read(job.spec)
    columns = {column for step in pipeline.steps for column in step.columns}
    found = []
    for other in done:
        try:
            earlier = read(other.spec)
        except BadMessage:
            continue
        mine, theirs = set(pipeline.sites), set(earlier.sites)
        shared = columns & {column for step in earlier.steps for column in step.columns}
        nested = mine < theirs or theirs < mine
        if nested and len(mine ^ theirs) < MIN_SITES and shared and earlier.dataset == pipeline.dataset:
            apart, names = ", ".join(sorted(mine ^ theirs)), sorted(shared)
            of = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            found.append(
                f"Job {other.id} ({earlier.name}) is done and differs by {apart} only: both results together may "
                f"show numbers of {apart} alone, for {of}."
            )
    return found
