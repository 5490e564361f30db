"""The coordinator's process: puts the parts together, serves, drains."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]

from commonscale import http, rpc
from commonscale.concurrency import offload
from commonscale.config import CoordinatorConfig
from commonscale.daemon import settle, until_signal, write_ready
from commonscale.database import Database, resolve_url
from commonscale.errors import CommonscaleError, ConfigError
from commonscale.identity import Authority, Role, load_certificate
from commonscale.keyshelf import FileShelf
from commonscale.metrics import CERTIFICATE_EXPIRY
from commonscale.v1 import jobs_pb2_grpc, relay_pb2_grpc
from coordinator.jobs import Jobs
from coordinator.jobstore import JobStore
from coordinator.relay import Mailroom, RelayService
from coordinator.services import FederationService, JobService
from coordinator.slots import SlotStore

log = structlog.get_logger()

MIGRATIONS = Path(__file__).parent / "migrations"
SERVICES = ("commonscale.v1.RelayService", "commonscale.v1.JobService", "commonscale.v1.FederationService")
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
        self.database = Database(resolve_url(config.database, base), MIGRATIONS)
        self.slots = SlotStore(self.database, config.blobs)
        self.jobstore = JobStore(self.database)
        self.room = Mailroom(self.slots, sole_writer=self.database.engine.dialect.name == "sqlite")
        self.health = health.HealthServicer()
        self._faults: dict[str, str] = {}

    def _read_own_certificate(self) -> None:
        certificate = load_certificate(self.config.tls.certificate)
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
        async with anyio.create_task_group() as tasks:
            jobs = Jobs(self.jobstore, self.room, tasks, FileShelf(self.config.keys))
            server = rpc.new_server()
            gate = rpc.Gate(self.authority)
            relay = RelayService(gate, self.room, jobs, self.config.limits)
            relay_pb2_grpc.add_RelayServiceServicer_to_server(relay, server)
            jobs_pb2_grpc.add_JobServiceServicer_to_server(JobService(gate, jobs), server)
            federation = FederationService(gate, jobs, self.jobstore, self.identity.name)
            jobs_pb2_grpc.add_FederationServiceServicer_to_server(federation, server)
            health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
            port = self._bind(server)
            # Before the first call comes in: a job must not be begun twice.
            await jobs.resume()
            await server.start()
            app = http.application(f"coordinator {self.identity.name}", self._health_faults)
            async with http.serving(app, self.config.http_listen) as http_port:
                await self._set_health(serving=True)
                log.info("coordinator ready", port=port, http_port=http_port)
                settle()
                write_ready(ready_file, port=port, http_port=http_port)
                housekeeping = anyio.CancelScope()
                tasks.start_soon(self._within, housekeeping, jobs)
                await until_signal()
                log.info("draining")
                housekeeping.cancel()
                self._faults["draining"] = "draining"
                await self._set_health(serving=False)
                await server.stop(DRAIN_S)
            tasks.cancel_scope.cancel()
        self.database.close()

    def _bind(self, server: object) -> int:
        credentials = rpc.server_credentials(self.config.tls)
        try:
            return int(server.add_secure_port(self.config.listen, credentials))  # type: ignore[attr-defined]
        except RuntimeError:
            raise ConfigError(f"Cannot listen on {self.config.listen}.", "Is another coordinator running?") from None

    async def _within(self, scope: anyio.CancelScope, jobs: Jobs) -> None:
        with scope:
            await self._housekeeping(jobs)

    async def _housekeeping(self, jobs: Jobs) -> None:
        """The small things every second, the health every few, the old jobs every ten minutes."""
        for tick in itertools.count():
            await self._check("revocations", partial(offload, self.refresh_revocations))
            if tick % HEALTH_CHECK_S == 0:
                await self._check("certificate", partial(offload, self._read_own_certificate))
                await self._check("database", partial(offload, self.database.ping))
                await self._set_health(serving="database" not in self._faults)
            if tick % RETENTION_CHECK_S == 0:
                await self._check("retention", partial(jobs.forget_old, self.config.limits.retention_s))
            await anyio.sleep(1)

    async def _check(self, name: str, look: Callable[[], Awaitable[object]]) -> None:
        """Note what is wrong, as long as it is."""
        try:
            await look()
        except CommonscaleError as error:
            if self._faults.get(name) != str(error):
                log.warning("not healthy", check=name, why=str(error))
            self._faults[name] = str(error)
        except Exception:
            log.exception("housekeeping failed", check=name)
            self._faults[name] = f"{name}: the log says more"
        else:
            self._faults.pop(name, None)

    def _health_faults(self) -> Sequence[str]:
        return list(self._faults.values())

    async def _set_health(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *SERVICES):
            await self.health.set(service, status)
