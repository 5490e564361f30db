"""The participant's process: dials out, takes part in jobs, serves /healthz, /metrics and the site's own page."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from functools import partial
from importlib import import_module
from pathlib import Path

import anyio
import anyio.abc
import structlog
from cryptography.hazmat.primitives import serialization

from commonscale import http, rpc
from commonscale.audit import AuditLog
from commonscale.concurrency import offload
from commonscale.config import ParticipantConfig
from commonscale.daemon import settle, until_signal, write_ready
from commonscale.database import now_ms
from commonscale.errors import BadMessage, CommonscaleError, ConfigError, TransientError
from commonscale.faults import Faults, check_room
from commonscale.files import lock_file, private_directory, replace_file
from commonscale.identity import Authority, Role, load_certificate, load_key
from commonscale.keyshelf import FileShelf, drop_outdated
from commonscale.link import Backoff, Link, RelayMailbox
from commonscale.metrics import CERTIFICATE_EXPIRY, CONNECTED, JOBS_OPEN, RoundMetrics
from commonscale.names import JOB_ID_PATTERN
from commonscale.sources.duckdb import DuckDbSource
from commonscale.v1 import jobs_pb2
from participant import approvals
from participant.jobs import Site, run_job
from participant.journal import Journal, SiteJob, SiteJobs, open_database
from participant.page.app import PageApp
from participant.page.snapshot import Connection, View
from participant.page.token import ensure_token, login
from participant.page.trail import Trail
from participant.vault import open_vault
from participant.worker_gate import WorkerGate

log = structlog.get_logger()

HEARTBEAT_S = 15.0


class Participant:
    """One site's daemon."""

    def __init__(self, config: ParticipantConfig) -> None:
        self.config = config
        self.authority = Authority(load_certificate(config.tls.ca))
        self._key = load_key(config.tls.key)
        self._read_certificate()
        # Of the configuration, and as the coordinator last sent it.
        self._revocations_path = config.state / "revoked.crl"
        for path in (config.tls.revocations, self._revocations_path):
            if path is not None and path.exists():
                self.authority.revocations.update(path.read_bytes())
        private_directory(config.state)
        self._lock = lock_file(config.state / "lock")
        self.database = open_database(config)
        self.jobs = SiteJobs(self.database, config.state / "journal")
        vault = open_vault(config.vault, config.state)
        self.journal = Journal(self.database, config.state / "journal", vault)
        self.shelf = FileShelf(config.state / "keys", vault.lock, vault.unlock)
        drop_outdated(self.shelf)
        self.journal.sweep()
        # What a crash has left of earlier steps' rows.
        shutil.rmtree(config.state / "scratch", ignore_errors=True)
        private_directory(config.state / "scratch")
        self.audit = AuditLog(config.state / "audit.jsonl")
        approvals.note_ended(self.jobs, self.audit, self.jobs.ended_unnoted())
        self.observer = RoundMetrics()
        self.sources = {
            name: DuckDbSource(self.name, name, data.path, data.missing) for name, data in config.data.items()
        }
        # Where a worker attaches, if one may.
        worker = config.worker
        self.worker_gate = WorkerGate(self.name, worker, config.state) if worker is not None else None
        self._running: set[str] = set()
        self._faults = Faults(connection="not connected yet")
        self._in_session = False
        self._session_changed_ms = now_ms()

    def _read_certificate(self) -> None:
        self._certificate = load_certificate(self.config.tls.certificate)
        identity = self.authority.verify(self._certificate)
        if identity.role is not Role.SITE:
            raise ConfigError(f"{self.config.tls.certificate} is the certificate of {identity}, not of a site.")
        if self._certificate.public_key() != self._key.public_key():
            raise ConfigError(f"{self.config.tls.key} is not the key of {self.config.tls.certificate}.")
        self.name = identity.name
        CERTIFICATE_EXPIRY.set(self._certificate.not_valid_after_utc.timestamp())

    async def run(self, ready_file: Path | None = None) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.link = Link(self.config.coordinator, self.config.tls)
        self._session = anyio.CancelScope()
        app = http.application(f"participant {self.name}", self._faults.sentences)
        async with anyio.create_task_group() as tasks:
            async with (
                http.serving(app, self.config.http_listen) as http_port,
                self._page() as page_ports,
                self.worker_gate.serving() if self.worker_gate else contextlib.nullcontext(),
            ):
                ports = {"http_port": http_port, **page_ports}
                log.info("participant ready", site=self.name, coordinator=self.config.coordinator, **ports)
                for job in await offload(self.jobs.all, "open"):
                    self._start(tasks, job)
                tasks.start_soon(self._warm_up, ready_file, ports)
                tasks.start_soon(self._heartbeat)
                tasks.start_soon(self._listen, tasks)
                await until_signal()
                log.info("stopping")
            tasks.cancel_scope.cancel()
        await self.link.close()
        self.audit.close()
        self.database.close()
        self._lock.close()

    @contextlib.asynccontextmanager
    async def _page(self) -> AsyncIterator[dict[str, int]]:
        """Serve the site's own page, if it is wanted."""
        page, state = self.config.page, self.config.state
        if not page.listen:
            yield {}
            return
        ensure_token(state)
        entries, last_hash = self.audit.head
        # The log was checked when it was opened.
        verified = {"intact": True, "entries": entries, "last_hash": last_hash, "fault": "", "at_ms": now_ms()}
        trail = Trail(state / "audit.jsonl")
        worker = self.worker_gate.view if self.worker_gate is not None else None
        view = View(self.name, self.config, self.jobs, self.audit, trail, self._connection, worker, verified)
        app = PageApp(view, login(self.name, state)).starlette(page.hosts)
        async with http.serving(app, page.listen, key="page.listen") as port:
            yield {"page_port": port}

    def _connection(self) -> Connection:
        faults = self._faults.sentences("connection")
        return Connection(self._in_session, self._session_changed_ms, faults, self._certificate)

    async def _warm_up(self, ready_file: Path | None, ports: dict[str, int]) -> None:
        """Load what the first job would otherwise wait for, then say that we are ready."""
        await offload(import_module, "skops.io")
        settle()
        write_ready(ready_file, **ports)

    def _site(self) -> Site:
        return Site(
            name=self.name,
            key=self._key,
            certificate_der=self._certificate.public_bytes(serialization.Encoding.DER),
            authority=self.authority,
            config=self.config,
            sources=self.sources,
            mailbox=RelayMailbox(self.link),
            journal=self.journal,
            jobs=self.jobs,
            audit=self.audit,
            observer=self.observer,
            shelf=self.shelf,
            worker_gate=self.worker_gate,
        )

    async def _listen(self, tasks: anyio.abc.TaskGroup) -> None:
        """Stay in session with the coordinator; start a job for every invitation."""
        backoff = Backoff(longest_s=2.0)

        async def session() -> None:
            await self._greet()
            with anyio.CancelScope() as self._session:
                self._connected(True)
                backoff.reset()
                async for invitation in self._invitations():
                    await self._invited(tasks, invitation)

        while True:
            await self._faults.check("connection", session)
            self._connected(False)
            await backoff.wait()

    def _connected(self, connected: bool) -> None:
        if connected:
            log.info("connected", coordinator=self.config.coordinator)
            self._faults.pop("connection", None)
        if connected != self._in_session:
            self._in_session, self._session_changed_ms = connected, now_ms()
        CONNECTED.set(connected)

    async def _greet(self) -> None:
        response = await self.link.hello()
        if response.revocations and self.authority.revocations.update(response.revocations):
            replace_file(self._revocations_path, response.revocations)
            log.info("revocation list taken")

    async def _invitations(self) -> AsyncIterator[jobs_pb2.InvitationsResponse]:
        with self.link.our_errors():
            async for invitation in self.link.federation.Invitations(
                jobs_pb2.InvitationsRequest(), metadata=rpc.CALL_METADATA
            ):
                yield invitation

    async def _invited(self, tasks: anyio.abc.TaskGroup, invitation: jobs_pb2.InvitationsResponse) -> None:
        try:
            if not JOB_ID_PATTERN.fullmatch(invitation.job_id):
                raise BadMessage("The job's id is not well formed.")
            words = (invitation.job_id, invitation.spec, invitation.analyst, invitation.deadline_at_ms)
            job = await offload(self.jobs.open, *words)
        except TransientError:
            # Ends the session; the next one brings the invitation again.
            raise
        except CommonscaleError as error:
            log.warning("invitation ignored", job=invitation.job_id, why=str(error))
            return
        if job.state == "open":
            self._start(tasks, job)

    def _start(self, tasks: anyio.abc.TaskGroup, job: SiteJob) -> None:
        if job.id not in self._running:
            self._running.add(job.id)
            tasks.start_soon(self._run, job)

    async def _run(self, job: SiteJob) -> None:
        log.info("job begun", job=job.id, analyst=job.analyst)
        JOBS_OPEN.inc()
        try:
            await run_job(self._site(), job)
        except Exception:
            log.exception("job crashed", job=job.id)
        finally:
            JOBS_OPEN.dec()
            self._running.discard(job.id)

    async def _heartbeat(self) -> None:
        """Presence, new revocations, renewed certificates, room on the disk."""
        while True:
            await self._faults.check("disk", partial(offload, check_room, [self.config.state]))
            await anyio.sleep(HEARTBEAT_S)
            await self._faults.check("connection", self._renew_and_greet)

    async def _renew_and_greet(self) -> None:
        if self.link.renew_if_changed():
            self._key = load_key(self.config.tls.key)
            self._read_certificate()
            # The session moves to the new connection; calls under way end on the old one.
            self._session.cancel()
            log.info("renewed certificate taken into use")
        await self._greet()
