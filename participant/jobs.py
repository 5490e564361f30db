"""A site's part in one job: decide, run the protocols, keep the results, say how it ended.

Everything that leaves goes through the journal first. Running this again after a crash sends the same bytes
and comes to the same end.
"""

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import structlog

from commonscale import disclosure
from commonscale.audit import AuditLog
from commonscale.channel.channel import Channel, Mailbox, Observer, parse
from commonscale.channel.seal import JobKeys
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.concurrency import first_of, offload, retry
from commonscale.config import ParticipantConfig
from commonscale.errors import (
    CommonscaleError,
    DataError,
    DeadlineMissed,
    Equivocation,
    Refused,
    RunOver,
    SiteFailed,
    StateLost,
    TransientError,
    UnknownJob,
)
from commonscale.identity import Authority
from commonscale.keyshelf import KeyShelf
from commonscale.pipeline import Pipeline, check_chain
from commonscale.protocols import admission
from commonscale.running import SitePool, run_step
from commonscale.sources.queries import RowCount
from commonscale.sources.source import Source, check
from commonscale.transforms import Transform
from commonscale.transforms.training import Train
from commonscale.v1.protocols_pb2 import Answer, Column, ColumnKind, Failure, Outcome, Refusal, Roster, Signed, Success
from crypto import signing
from participant import approvals, handover, policy, results
from participant.earlier import EarlierSteps, earlier_steps
from participant.journal import Journal, SiteJob, SiteJobs
from participant.keepsakes import SiteKeepsakes
from participant.results import StepResult
from participant.site_worker import SiteWorker, pinned_digest
from participant.worker_gate import WorkerGate

log = structlog.get_logger()

APPROVAL_POLL_S = 0.5
# After a job's deadline the coordinator has the word; a site waits this much longer to hear it.
DEADLINE_GRACE_S = 30.0


@dataclass(frozen=True)
class Site:
    """What every job of this site shares."""

    name: str
    key: signing.SigningKey
    certificate_der: bytes
    authority: Authority
    config: ParticipantConfig
    sources: Mapping[str, Source]
    mailbox: Mailbox
    journal: Journal
    jobs: SiteJobs
    audit: AuditLog
    observer: Observer
    shelf: KeyShelf
    # None: no worker may attach.
    worker_gate: WorkerGate | None = None

    def scratch(self, job_id: str) -> Path:
        """What later steps of a job see of earlier ones; emptied when the job ends."""
        return self.config.state / "scratch" / job_id


class AuditedMailbox:
    """Writes down what leaves before it leaves."""

    def __init__(self, inner: Mailbox, audit: AuditLog) -> None:
        self._inner = inner
        self._audit = audit

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Note, then send."""
        entry = {
            "run": slot.run, "kind": slot.kind, "receiver": slot.receiver, "bytes": len(payload),
            "sealed": slot.receiver != COORDINATOR, "sha256": hashlib.sha256(payload).hexdigest(),
        }  # fmt: skip
        await offload(partial(self._audit.append, "sent", **entry))
        await self._inner.put(slot, payload)

    async def get(self, slot: Slot) -> bytes:
        """Nothing leaves but the slot's name."""
        return await self._inner.get(slot)


async def run_job(site: Site, job: SiteJob) -> None:
    """Take part until the job is over here; errors are reported, not raised."""
    mailbox = AuditedMailbox(site.mailbox, site.audit)
    ch = Channel(
        job.id, site.name, (), mailbox, site.journal, site.observer, shelf=site.shelf, checkpoints=site.journal
    )
    try:
        pipeline = Pipeline.from_bytes(job.spec)
        ch = replace(ch, sites=tuple(pipeline.sites), ledger=disclosure.planned_ledger(job.id, pipeline))
        await _in_time(site, job, pipeline, ch)
    except CommonscaleError as error:
        await _end(site, job, ch, error)
    except Exception:
        log.exception("job crashed", job=job.id)
        await _end(site, job, ch, SiteFailed(f"{site.name}'s daemon failed; its log says more."))
    else:
        await offload(site.jobs.end, job.id, "done")
        log.info("job done", job=job.id, steps=len(pipeline.steps))
    finally:
        # Also where the daemon is being stopped.
        with anyio.CancelScope(shield=True):
            await offload(shutil.rmtree, site.scratch(job.id), True)


async def _in_time(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel) -> None:
    # By this site's clock alone, from when it was invited: clocks of two sites may differ.
    left_s = pipeline.deadline_s + DEADLINE_GRACE_S - (time.time() - job.received_at_ms / 1000)
    try:
        with anyio.fail_after(max(left_s, 1.0)):
            # While this site's disk takes nothing, the job waits; running it again makes nothing twice.
            await retry(partial(_take_part, site, job, pipeline, ch), "job waits", job=job.id)
    except TimeoutError:
        raise DeadlineMissed(f"{site.name} did not hear of the job's end in time.") from None


async def _take_part(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel) -> None:
    # What must not change if we run again: the keys, and which data we accepted for.
    keys = JobKeys.from_bytes(await ch.keep("Keys", lambda: JobKeys.generate().to_bytes()))
    snapshot = await ch.keep("Snapshot", lambda: _snapshot(site, pipeline))
    await _answer(site, job, pipeline, ch, keys)
    ch = await admission.site(ch, job.spec, keys, site.key, site.authority)
    source = site.sources[pipeline.dataset].pinned(snapshot.decode())
    all_results = site.config.state / "results"
    keepsakes = SiteKeepsakes(site.name, pipeline.dataset, all_results, site.config.models, partial(_was_in, site))
    done: list[StepResult] = []
    for number, step in enumerate(pipeline.steps):
        # A worker gets the rows as a file of its own.
        scratch = site.scratch(job.id) / f"{number}.parquet"
        seen = source if step.last else await offload(results.seen_by, source, done, step, scratch)
        worker = await offload(_worker, site, job, ch.step(number), source, step, done)
        fitted = await run_step(SitePool(ch.step(number), seen, keepsakes, worker), step)
        done.append(await offload(StepResult.of, number, step, fitted))
        results.check_names(done, pipeline)
    # Texts that mean "missing" go along, for those who later read a table as the job did.
    missing = site.config.data[pipeline.dataset].missing
    digest = await offload(results.save, all_results / job.id, done, pipeline.dataset, missing)
    revealed = disclosure.report(job.id, pipeline, ch.ledger)
    entry = partial(site.audit.append, "revealed", job=job.id, disclosures=revealed, result_sha256=digest.hex())
    await offload(entry)
    await ch.send(COORDINATOR, Outcome, lambda: Outcome(success=Success(result_sha256=digest)))


def _worker(
    site: Site, job: SiteJob, ch: Channel, source: Source, step: Transform, done: list[StepResult]
) -> SiteWorker | None:
    if not isinstance(step, Train):
        return None
    policies = site.config.policy.train
    digest = pinned_digest(policies.models, site.worker_gate, step.model, may_come=True)
    assert site.worker_gate is not None
    before = _earlier(site, step, source.name)
    steps = before.steps if before else results.on_rows(done)
    after = before.digest if before else ""
    return SiteWorker(site.worker_gate, ch, source, steps, site.scratch(job.id), digest, policies, after)


def _earlier(site: Site, step: Train, dataset: str) -> EarlierSteps | None:
    """What a training goes on from; Refused where both could not stand in one job either."""
    if not step.after:
        return None
    if not _was_in(site, step.after):
        raise Refused(f"It has no result of job {step.after} to train on.", "Name a job that all sites have ended.")
    before = Pipeline.from_bytes(site.jobs.get(step.after).spec)
    try:
        check_chain([*(one for one in before.steps if one.produces), step.model_copy(update={"after": ""})])
    except ValueError as error:
        raise Refused(f"This cannot be trained after job {step.after}: {error}.") from None
    return earlier_steps(site.config.state / "results", step.after, dataset)


async def _answer(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel, keys: JobKeys) -> None:
    """Say yes or no, once; raises Refused after a no has been delivered."""

    async def decide() -> Signed:
        try:
            answer = admission.acceptance(job.spec, keys, await _consent(site, job, pipeline, ch))
        except (Refused, DataError) as error:
            answer = Answer(refusal=Refusal(code=type(error).__name__, reason=str(error)))
        return admission.sign_answer(ch, answer, site.key, site.certificate_der)

    try:
        sent = await ch.under(admission.VERDICTS).send(COORDINATOR, Signed, decide)
    except Equivocation:
        # The coordinator holds an answer of ours that our journal does not know.
        raise StateLost(
            f"{site.name} no longer has the secrets with which it answered job {job.id}.",
            "Submit the job again; if its state directory was restored from a backup, never do that in mid-job.",
        ) from None
    slot = ch.slot(Signed, ch.me, COORDINATOR)
    verdict = parse(Answer, parse(Signed, sent, slot).body, slot)
    if verdict.WhichOneof("verdict") == "refusal":
        raise RunOver(f"We refused: {verdict.refusal.reason}")


async def _consent(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel) -> list[Column]:
    """The schema, if policy, data and (where asked for) a person agree."""
    await offload(policy.check_request, site.config.policy, pipeline, job.analyst)
    await offload(policy.check_machine, pipeline)
    schema = await offload(_inspect, site, pipeline)
    if site.config.policy.approval == "manual":
        await _await_approval(site, job, ch)
    return schema


def _inspect(site: Site, pipeline: Pipeline) -> list[Column]:
    source = site.sources.get(pipeline.dataset)
    if source is None:
        raise Refused(f"It has no data set {pipeline.dataset!r}.")
    numeric, texts, complete = pipeline.source_columns()
    kinds = check(source, numeric, texts, complete)
    rows = source.answer(RowCount())
    policy.check_rows(site.config.policy, rows)
    for step in pipeline.steps:
        if isinstance(step, Train):
            policy.check_training_rows(site.config.policy.train, rows)
            pinned_digest(site.config.policy.train.models, site.worker_gate, step.model)
            if before := _earlier(site, step, pipeline.dataset):
                used = handover.steps_on(before.steps, step.columns)
                check(source, *handover.table_columns(used, step.columns, step.target, bool(step.classes)))
    # What is only compared as text may be of another type at every site.
    kinds |= {column: "category" for column in texts if column not in numeric}
    return [Column(name=c, kind=ColumnKind.Value(f"COLUMN_KIND_{kinds[c].upper()}")) for c in sorted(kinds)]


async def _await_approval(site: Site, job: SiteJob, ch: Channel) -> None:
    """Wait for a person, or for the end of the job."""
    if await offload(site.jobs.ask, job.id):
        log.warning("job waits for approval", job=job.id, command=f"commonscale approvals approve {job.id}")

    async def person() -> None:
        while (await offload(site.jobs.get, job.id)).approval == "pending":  # noqa: ASYNC110 - another process decides
            await anyio.sleep(APPROVAL_POLL_S)

    # There is no roster before our answer: waiting for it only ever ends with the job.
    await first_of(person, partial(ch.mailbox.get, ch.slot(Roster, COORDINATOR, ALL)))
    await offload(approvals.note, site.jobs, site.audit, job.id)
    current = await offload(site.jobs.get, job.id)
    if current.approval == "refused":
        raise Refused(current.reason or "Its operator refused.")


def _snapshot(site: Site, pipeline: Pipeline) -> bytes:
    source = site.sources.get(pipeline.dataset)
    try:
        return source.snapshot().encode() if source else b""
    except DataError:
        # Decided in _inspect, where the reason is told.
        return b""


def _was_in(site: Site, job_id: str) -> bool:
    try:
        return site.jobs.get(job_id).state == "done"
    except UnknownJob:
        return False


async def _report_failure(ch: Channel, error: CommonscaleError) -> None:
    """Tell everyone why this site cannot go on."""
    failure = Failure(code=type(error).__name__, message=str(error))
    try:
        with anyio.fail_after(DEADLINE_GRACE_S):
            await ch.send(COORDINATOR, Outcome, lambda: Outcome(failure=failure))
    except (CommonscaleError, TimeoutError) as unsent:
        log.info("failure not delivered", run=ch.run, why=str(unsent))


async def _end(site: Site, job: SiteJob, ch: Channel, error: CommonscaleError) -> None:
    """The site's part is over without a result: say so, unless the job is over anyway, and keep why."""
    if not isinstance(error, RunOver | UnknownJob):
        await _report_failure(ch, error)
    log.warning("job ended without a result", job=job.id, error=type(error).__name__, why=str(error))
    await offload(_note_revealed, site, job, ch)
    await offload(site.jobs.end, job.id, "failed", str(error))
    # A decision that came while the job was ending.
    await offload(approvals.note_ended, site.jobs, site.audit, [job.id])


def _note_revealed(site: Site, job: SiteJob, ch: Channel) -> None:
    """What a job that did not end well has revealed nevertheless."""
    if ch.ledger.opened:
        try:
            revealed = disclosure.report(job.id, Pipeline.from_bytes(job.spec), ch.ledger)
            site.audit.append("revealed", job=job.id, disclosures=revealed)
        except TransientError as error:
            log.warning("what was revealed is not in the audit log", job=job.id, why=str(error))
