"""A site's part in one job: decide, run the protocols, keep the results, say how it ended.

Everything that leaves goes through the journal first. Running this again after a crash sends the same bytes
and comes to the same end.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
from exceptiongroup import BaseExceptionGroup

from commonscale import steps
from commonscale.audit import AuditLog
from commonscale.channel import Channel, Mailbox, Observer, parse
from commonscale.concurrency import first_error, offload
from commonscale.config import Policy
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
from commonscale.files import replace_file, write_private
from commonscale.identity import Authority
from commonscale.keyshelf import KeyShelf
from commonscale.pipeline import Pipeline
from commonscale.protocols import admission
from commonscale.results import canonical_json
from commonscale.seal import JobKeys
from commonscale.slot import ALL, HUB, Slot
from commonscale.transforms import storage
from commonscale.transforms.columns import FederatedColumnTransformer
from commonscale.transforms.encodings import FittedIdentifiers
from commonscale.transforms.results import Fitted
from commonscale.v1.protocols_pb2 import Answer, Column, ColumnKind, Failure, Outcome, Roster, Signed, Success
from crypto import signing
from participant import approvals, policy
from participant.data import DuckTable
from participant.inputs import MEMORY_FILE, SiteInputs
from participant.journal import Journal, SiteJob, SiteJobs

log = structlog.get_logger()

APPROVAL_POLL_S = 0.5
RETRY_S = 1.0
# After a job's deadline the coordinator has the word; a site waits this much longer to hear it.
DEADLINE_GRACE_S = 30.0


@dataclass(frozen=True)
class Site:
    """What every job of this site shares."""

    name: str
    key: signing.SigningKey
    certificate_der: bytes
    authority: Authority
    policy: Policy
    tables: dict[str, DuckTable]
    mailbox: Mailbox
    journal: Journal
    jobs: SiteJobs
    audit: AuditLog
    results: Path
    observer: Observer
    shelf: KeyShelf
    # fastText models by name.
    models: Mapping[str, Path]


class AuditedMailbox:
    """Writes down what leaves before it leaves."""

    def __init__(self, inner: Mailbox, audit: AuditLog) -> None:
        self._inner = inner
        self._audit = audit

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Note, then send."""
        entry = {
            "run": slot.run, "kind": slot.kind, "receiver": slot.receiver, "bytes": len(payload),
            "sealed": slot.receiver != HUB, "sha256": hashlib.sha256(payload).hexdigest(),
        }  # fmt: skip
        await offload(partial(self._audit.append, "sent", **entry))
        await self._inner.put(slot, payload)

    async def get(self, slot: Slot) -> bytes:
        """Nothing leaves but the slot's name."""
        return await self._inner.get(slot)


async def run_job(site: Site, job: SiteJob) -> None:
    """Take part until the job is over here; errors are reported, not raised."""
    mailbox = AuditedMailbox(site.mailbox, site.audit)
    ch = Channel(job.id, site.name, (), mailbox, site.journal, site.observer, shelf=site.shelf)
    try:
        fitted = await _in_time(site, job, ch)
    except (RunOver, UnknownJob) as error:
        await _end(site, job, error)
    except CommonscaleError as error:
        await _report_failure(ch, error)
        await _end(site, job, error)
    except Exception:
        log.exception("job crashed", job=job.id)
        failure = SiteFailed(f"{site.name}'s daemon failed; its log says more.")
        await _report_failure(ch, failure)
        await _end(site, job, failure)
    else:
        await offload(site.jobs.end, job.id, "done")
        log.info("job done", job=job.id, steps=len(fitted))


async def _in_time(site: Site, job: SiteJob, ch: Channel) -> list[Fitted]:
    pipeline = Pipeline.from_bytes(job.spec)
    # By this site's clock alone, from when it was invited: clocks of two sites may differ.
    left_s = pipeline.deadline_s + DEADLINE_GRACE_S - (time.time() - job.received_at_ms / 1000)
    try:
        with anyio.fail_after(max(left_s, 1.0)):
            return await _patiently(site, job, pipeline, replace(ch, parties=tuple(pipeline.sites)))
    except TimeoutError:
        raise DeadlineMissed(f"{site.name} did not hear of the job's end in time.") from None


async def _patiently(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel) -> list[Fitted]:
    """While this site's disk takes nothing, the job waits; running it again makes nothing twice."""
    while True:
        try:
            return await _take_part(site, job, pipeline, ch)
        except TransientError as error:
            log.warning("job waits", job=job.id, why=str(error))
            await anyio.sleep(RETRY_S)


async def _take_part(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel) -> list[Fitted]:
    # What must not change if we run again: the keys, and which data we accepted for.
    keys = JobKeys.from_bytes(await ch.keep("Keys", lambda: JobKeys.generate().to_bytes()))
    fingerprint = await ch.keep("Fingerprint", lambda: _fingerprint(site, pipeline))
    await _answer(site, job, pipeline, ch, keys)
    ch = await admission.party(ch, job.spec, keys, site.key, site.authority)
    table = SiteInputs(
        site.tables[pipeline.dataset], fingerprint.decode(), site.results, site.models, partial(_was_in, site)
    )
    fitted: list[Fitted] = []
    for number, step in enumerate(pipeline.steps):
        fitted.append(await steps.party(ch.step(number), step, table))
    digest = await offload(_save, site, job, pipeline, fitted)
    await ch.send(HUB, Outcome, lambda: Outcome(success=Success(result_sha256=digest)))
    return fitted


async def _answer(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel, keys: JobKeys) -> None:
    """Say yes or no, once; raises Refused after a no has been delivered."""

    async def decide() -> Signed:
        try:
            answer = admission.acceptance(job.spec, keys, await _consent(site, job, pipeline, ch))
        except (Refused, DataError) as error:
            answer = admission.refusal(type(error).__name__, str(error))
        return admission.sign_answer(ch, answer, site.key, site.certificate_der)

    try:
        sent = await ch.send(HUB, Signed, decide)
    except Equivocation:
        # The coordinator holds an answer of ours that our journal does not know.
        raise StateLost(
            f"{site.name} no longer has the secrets with which it answered job {job.id}.",
            "Submit the job again; if its state directory was restored from a backup, never do that in mid-job.",
        ) from None
    slot = ch.slot(Signed, ch.me, HUB)
    verdict = parse(Answer, parse(Signed, sent, slot).body, slot)
    if verdict.WhichOneof("verdict") == "refusal":
        raise RunOver(f"We refused: {verdict.refusal.reason}")


async def _consent(site: Site, job: SiteJob, pipeline: Pipeline, ch: Channel) -> list[Column]:
    """The schema, if policy, data and (where asked for) a person agree."""
    policy.check_request(site.policy, pipeline, job.analyst)
    policy.check_machine(pipeline)
    schema = await offload(_inspect, site, pipeline)
    if site.policy.approval == "manual":
        await _await_approval(site, job, ch)
    return schema


def _inspect(site: Site, pipeline: Pipeline) -> list[Column]:
    table = site.tables.get(pipeline.dataset)
    if table is None:
        raise Refused(f"It has no data set {pipeline.dataset!r}.")
    numeric = {column for step in pipeline.steps for column in step.numeric_columns}
    columns = sorted(numeric.union(*(step.categorical_columns for step in pipeline.steps)))
    for step in pipeline.steps:
        table.check_numeric(step.numeric_columns)
    policy.check_rows(site.policy, table.row_count())
    # What is only compared as text may be of another type at every site.
    kinds = {column: kind if column in numeric else "category" for column, kind in table.kinds(columns).items()}
    return [Column(name=c, kind=ColumnKind.Value(f"COLUMN_KIND_{kinds[c].upper()}")) for c in columns]


async def _await_approval(site: Site, job: SiteJob, ch: Channel) -> None:
    """Wait for a person, or for the end of the job."""
    if await offload(site.jobs.ask, job.id):
        log.warning("job waits for approval", job=job.id, command=f"commonscale approvals approve {job.id}")

    async def person() -> None:
        while (await offload(site.jobs.get, job.id)).approval == "pending":  # noqa: ASYNC110 - another process decides
            await anyio.sleep(APPROVAL_POLL_S)
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(person)
            # There is no roster before our answer: this only ever ends with the job.
            await ch.mailbox.get(ch.slot(Roster, HUB, ALL))
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    await offload(approvals.note, site.jobs, site.audit, job.id)
    current = await offload(site.jobs.get, job.id)
    if current.approval == "refused":
        raise Refused(current.reason or "Its operator refused.")


def _fingerprint(site: Site, pipeline: Pipeline) -> bytes:
    table = site.tables.get(pipeline.dataset)
    try:
        return table.fingerprint().encode() if table else b""
    except DataError:
        # Decided in _inspect, where the reason is told.
        return b""


def _save(site: Site, job: SiteJob, pipeline: Pipeline, fitted: list[Fitted]) -> bytes:
    """Estimators and parameters into results/JOB/; returns the hash that all parties compare."""
    directory = site.results / job.id
    directory.mkdir(parents=True, exist_ok=True)
    parameters: list[dict[str, Any]] = []
    for number, (step, result) in enumerate(zip(pipeline.steps, fitted, strict=True)):
        parameters.append(result.parameters())
        if (estimator := result.estimator()) is not None:
            fresh = directory / f"{number}-{step.transform}.skops.new"
            storage.save(estimator, fresh)
            fresh.replace(directory / f"{number}-{step.transform}.skops")
    _save_together(directory, pipeline, fitted)
    text = canonical_json(parameters)
    replace_file(directory / "parameters.json", text.encode())
    digest = hashlib.sha256(text.encode()).digest()
    # Everything that a job can reveal: at this site, it has run to its end.
    revealed = steps.disclosures(pipeline, lambda _, __: True)
    site.audit.append("revealed", job=job.id, disclosures=revealed, result_sha256=digest.hex())
    return digest


def _was_in(site: Site, job_id: str) -> bool:
    try:
        return site.jobs.get(job_id).state == "done"
    except UnknownJob:
        return False


def _save_together(directory: Path, pipeline: Pipeline, fitted: list[Fitted]) -> None:
    """All steps in one estimator, and what a later job that extends this one needs of them."""
    made = [
        (f"{number}-{step.transform}", estimator, list(estimator.feature_names_in_))
        for number, (step, result) in enumerate(zip(pipeline.steps, fitted, strict=True))
        if (estimator := result.estimator()) is not None
    ]
    if made:
        fresh = directory / "pipeline.skops.new"
        storage.save(FederatedColumnTransformer.fitted(made), fresh)
        fresh.replace(directory / "pipeline.skops")
    memories = [result.memory() for result in fitted if isinstance(result, FittedIdentifiers)]
    if memories:
        # After a crash, again: the same.
        (directory / MEMORY_FILE).unlink(missing_ok=True)
        write_private(directory / MEMORY_FILE, json.dumps(memories).encode())


async def _report_failure(ch: Channel, error: CommonscaleError) -> None:
    """Tell everyone why this site cannot go on, unless the job is over anyway."""
    failure = Failure(code=type(error).__name__, message=str(error))
    try:
        with anyio.fail_after(DEADLINE_GRACE_S):
            await ch.send(HUB, Outcome, lambda: Outcome(failure=failure))
    except (CommonscaleError, TimeoutError) as unsent:
        log.info("failure not delivered", run=ch.run, why=str(unsent))


async def _end(site: Site, job: SiteJob, error: CommonscaleError) -> None:
    log.warning("job ended without a result", job=job.id, error=type(error).__name__, why=str(error))
    await offload(site.jobs.end, job.id, "failed", str(error))
    # A decision that came while the job was ending.
    await offload(approvals.note_ended, site.jobs, site.audit, [job.id])
