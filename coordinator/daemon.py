"""The coordinator's process: puts the parts together, serves, drains."""

import hashlib
import itertools
import os
import socket
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from commonscale import http, rpc
from commonscale.concurrency import offload
from commonscale.config import CoordinatorConfig
from commonscale.daemon import settle, until_signal, write_ready
from commonscale.database import Database
from commonscale.errors import CommonscaleError, ConfigError, StoreUnavailable
from commonscale.faults import Faults, check_room
from commonscale.identity import Authority, Role, hosts_of, load_certificate
from commonscale.keyshelf import FileShelf, KeyShelf, drop_outdated
from commonscale.metrics import CERTIFICATE_EXPIRY
from commonscale.v1 import jobs_pb2_grpc, relay_pb2_grpc
from commonscale.web import tls as web_tls
from coordinator.blobs import DatabaseBlobs, FileBlobs
from coordinator.dashboard import app as dashboard
from coordinator.dashboard.views import Views
from coordinator.incidents import NOTABLE, Incidents
from coordinator.jobs import Jobs
from coordinator.jobstore import JobStore
from coordinator.keysets import DatabaseShelf
from coordinator.observers import Observers
from coordinator.relay import Mailroom, RelayService
from coordinator.replicas import Replicas
from coordinator.services import FederationService, Health, JobService
from coordinator.slots import SlotStore

log = structlog.get_logger()

MIGRATIONS = Path(__file__).parent / "migrations"
DRAIN_S = 5.0
HEALTH_CHECK_S = 5
RETENTION_CHECK_S = 600


class Coordinator:
    """One coordinator."""

    def __init__(self, config: CoordinatorConfig, base: Path) -> None:
        self.config = config
        self.authority = Authority(load_certificate(config.tls.ca))
        self._read_own_certificate()
        self._revocations_seen = 0.0
        self.refresh_revocations()
        self.database = Database(config.database, MIGRATIONS, base)
        self.replicas = Replicas(self.database.server_url) if self.database.shared else None
        in_database = config.blob_store == "database"
        self.slots = SlotStore(self.database, DatabaseBlobs(self.database) if in_database else FileBlobs(config.blobs))
        self.shelf: KeyShelf = DatabaseShelf(self.database) if in_database else FileShelf(config.keys)
        self.jobstore = JobStore(self.database)
        self.incidents = Incidents(self.database)
        self.room = Mailroom(self.slots, sole_writer=not self.database.shared)
        self._page_certificate = self.certificate
        self._page_tls = web_tls.server_context(config.tls) if config.dashboard.tls else None
        self.health = Health()
        self._faults = Faults()

    def _disks(self) -> list[Path]:
        """Directories that this process writes to; a server's database is elsewhere."""
        database = self.database.engine.url.database
        files = [Path(database).parent] if database and not self.database.shared else []
        return [*files, self.config.blobs] if self.config.blob_store == "files" else files

    def _read_own_certificate(self) -> None:
        self.certificate = certificate = load_certificate(self.config.tls.certificate)
        self.identity = self.authority.verify(certificate)
        if self.identity.role is not Role.COORDINATOR:
            raise ConfigError(
                f"{self.config.tls.certificate} is the certificate of {self.identity}, not a coordinator."
            )
        CERTIFICATE_EXPIRY.set(certificate.not_valid_after_utc.timestamp())

    def refresh_revocations(self) -> None:
        """Take the revocation list if its file is new."""
        path = self.config.tls.revocations
        if path is None:
            return
        try:
            changed = path.stat().st_mtime
            if changed != self._revocations_seen and self.authority.revocations.update(path.read_bytes()):
                log.info("revocation list taken", file=str(path))
            self._revocations_seen = changed
        except OSError as error:
            raise ConfigError(f"Cannot read the revocation list {path}: {error.strerror}.") from None

    async def run(self, ready_file: Path | None = None) -> None:
        """Serve until SIGTERM or SIGINT."""
        await offload(self.slots.sweep)
        await offload(drop_outdated, self.shelf)
        async with anyio.create_task_group() as tasks:
            jobs = Jobs(self.jobstore, self.room, tasks, self.shelf, self.replicas, self.incidents)
            server = rpc.new_server()
            gate = rpc.Gate(self.authority, self._note_refusal)
            relay = RelayService(gate, self.room, jobs, self.config.limits)
            relay_pb2_grpc.add_RelayServiceServicer_to_server(relay, server)
            jobs_pb2_grpc.add_JobServiceServicer_to_server(JobService(gate, jobs), server)
            federation = FederationService(gate, jobs, self.jobstore, self.identity.name)
            jobs_pb2_grpc.add_FederationServiceServicer_to_server(federation, server)
            self.health.add_to(server)
            port = self._bind(server)
            # Before the first call comes in: a job must not be begun twice.
            await jobs.resume()
            await server.start()
            tasks.start_soon(self.incidents.write)
            if self.replicas is not None:
                tasks.start_soon(jobs.attend)
            async with AsyncExitStack() as pages:
                pages.push_async_callback(server.stop, None)
                # What keeps it from serving; other faults want a person, and calls are served meanwhile.
                unready = partial(self._faults.sentences, "draining", "database")
                app = http.application(f"coordinator {self.identity.name}", self._faults.sentences, unready)
                ports = {"port": port}
                ports["http_port"] = await pages.enter_async_context(http.serving(app, self.config.http_listen))
                if self.config.dashboard.listen:
                    ports["dashboard_port"] = await pages.enter_async_context(self._serve_dashboard(jobs))
                await self.health.set(serving=True)
                log.info("coordinator ready", **ports)
                settle()
                write_ready(ready_file, **ports)
                housekeeping = anyio.CancelScope()
                tasks.start_soon(self._housekeeping, housekeeping, jobs)
                await until_signal()
                log.info("draining")
                housekeeping.cancel()
                self._faults["draining"] = "draining"
                await self.health.set(serving=False)
                with anyio.move_on_after(DRAIN_S):
                    await jobs.leave()
                await server.stop(DRAIN_S)
            tasks.cancel_scope.cancel()
        if self.replicas is not None:
            await self.replicas.close()
        self.database.close()

    def _note_refusal(self, who: str, error: CommonscaleError) -> None:
        if isinstance(error, NOTABLE):
            self.incidents.note(who, error)

    def _serve_dashboard(self, jobs: Jobs) -> AbstractAsyncContextManager[int]:
        views = Views(
            name=self.identity.name,
            replica=f"{socket.gethostname()}-{os.getpid()}",
            certificate_expires_ms=lambda: int(self.certificate.not_valid_after_utc.timestamp() * 1000),
            faults=self._faults.sentences,
            jobs=jobs,
            jobstore=self.jobstore,
            slots=self.slots,
            incidents=self.incidents,
        )
        settings = self.config.dashboard
        hosts = hosts_of(self.certificate)
        # The same at all replicas, and not in the database.
        secret = hashlib.sha256(b"commonscale dashboard\0" + self.config.tls.key.read_bytes()).digest()
        app = dashboard.application(views, Observers(self.database), self.authority, secret, [*hosts, *settings.hosts])
        return http.serving(app, settings.listen, key="dashboard.listen", tls=self._page_tls)

    def _bind(self, server: object) -> int:
        credentials = rpc.server_credentials(self.config.tls)
        try:
            return int(server.add_secure_port(self.config.listen, credentials))  # type: ignore[attr-defined]
        except RuntimeError:
            raise ConfigError(f"Cannot listen on {self.config.listen}.", "Is another coordinator running?") from None

    async def _housekeeping(self, scope: anyio.CancelScope, jobs: Jobs) -> None:
        """The small things every second, the health every few, old jobs and leftovers of uploads every ten minutes."""
        with scope:
            for tick in itertools.count():
                await self._faults.check("revocations", partial(offload, self.refresh_revocations))
                if tick % HEALTH_CHECK_S == 0:
                    await self._faults.check("certificate", partial(offload, self._refresh_certificate))
                    await self._faults.check("database", self._ping)
                    await self._faults.check("disk", partial(offload, check_room, self._disks()))
                    await self.health.set(serving="database" not in self._faults)
                if tick % RETENTION_CHECK_S == 0:
                    await self._faults.check("retention", partial(jobs.forget_old, self.config.limits.retention_s))
                    await self._faults.check("leftovers", partial(offload, self.slots.sweep))
                await anyio.sleep(1)

    async def _ping(self) -> None:
        """A server that neither answers nor hangs up is out as well."""
        try:
            with anyio.fail_after(HEALTH_CHECK_S):
                await anyio.to_thread.run_sync(self.database.ping, abandon_on_cancel=True)
        except TimeoutError:
            raise StoreUnavailable("The database does not answer.") from None

    def _refresh_certificate(self) -> None:
        self._read_own_certificate()
        if self._page_tls is not None and self.certificate != self._page_certificate:
            web_tls.refresh(self._page_tls, self.config.tls)
            self._page_certificate = self.certificate
