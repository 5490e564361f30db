"""What analysts and sites call, beside the relay."""

from collections import Counter
from collections.abc import AsyncIterator

import anyio
import structlog

from commonscale import rpc
from commonscale.concurrency import offload
from commonscale.database import now_ms
from commonscale.errors import BadMessage, TransientError
from commonscale.grpc_loading import grpc
from commonscale.identity import Identity, Role
from commonscale.metrics import SITES_ONLINE
from commonscale.names import JOB_ID_PATTERN
from commonscale.v1 import jobs_pb2 as wire
from commonscale.v1 import jobs_pb2_grpc
from commonscale.version import PROTOCOL_VERSION, __version__
from coordinator import training
from coordinator.jobs import Jobs
from coordinator.jobstore import JobStore

# These load grpc, too, so they stand after.
# isort: split
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio  # type: ignore[attr-defined]

log = structlog.get_logger()

READERS = (Role.ANALYST, Role.OBSERVER, Role.COORDINATOR)
EVERYONE = tuple(Role)
SERVICES = ("commonscale.v1.RelayService", "commonscale.v1.JobService", "commonscale.v1.FederationService")


class JobService(rpc.GatedService, jobs_pb2_grpc.JobServiceServicer):
    """For analysts; observers may look."""

    def __init__(self, gate: rpc.Gate, jobs: Jobs) -> None:
        self.gate = gate
        self._jobs = jobs

    @rpc.unary(Role.ANALYST)
    async def Submit(self, request: wire.SubmitRequest, caller: rpc.Caller) -> wire.SubmitResponse:  # noqa: N802
        """Start a job."""
        if not JOB_ID_PATTERN.fullmatch(request.job_id):
            raise BadMessage("A job's id has 1 to 100 lower-case letters, digits and hyphens.")
        record = await self._jobs.submit(request.job_id, request.spec, caller.name)
        return wire.SubmitResponse(job=seen_by(caller.identity, self._jobs.to_wire(record)))

    @rpc.unary(*READERS)
    async def Get(self, request: wire.GetRequest, caller: rpc.Caller) -> wire.GetResponse:  # noqa: N802
        """One job."""
        record = await self._jobs.get(request.job_id)
        return wire.GetResponse(job=seen_by(caller.identity, self._jobs.to_wire(record)))

    @rpc.unary(*READERS)
    async def List(self, request: wire.ListRequest, caller: rpc.Caller) -> wire.ListResponse:  # noqa: N802
        """The newest jobs."""
        records = await self._jobs.newest(min(request.limit or 50, 1000))
        jobs = [seen_by(caller.identity, self._jobs.to_wire(record)) for record in records]
        for job in jobs:
            job.spec.ClearField("steps")
        return wire.ListResponse(jobs=jobs)

    @rpc.streaming(*READERS)
    async def Watch(  # noqa: N802
        self, request: wire.WatchRequest, caller: rpc.Caller
    ) -> AsyncIterator[wire.WatchResponse]:
        """A job and its changes."""
        async for job in self._jobs.watch(request.job_id):
            yield wire.WatchResponse(job=seen_by(caller.identity, job))

    @rpc.unary(Role.ANALYST, Role.COORDINATOR)
    async def Cancel(self, request: wire.CancelRequest, caller: rpc.Caller) -> wire.CancelResponse:  # noqa: N802
        """End a job."""
        record = await self._jobs.cancel(request.job_id, caller.identity)
        return wire.CancelResponse(job=seen_by(caller.identity, self._jobs.to_wire(record)))


def seen_by(caller: Identity, job: wire.Job) -> wire.Job:
    """A job for one who asks.

    The figures of a training are its analyst's, unless it shows them to observers; a model is its analyst's alone.
    """
    if caller.role is Role.ANALYST and caller.name == job.analyst:
        return job
    job = training.result_for_others(job)
    allowed = training.observers_may_see(job.spec, job.progress.training.step)
    return job if allowed or not job.progress.training.figures else training.without_figures(job)


class FederationService(rpc.GatedService, jobs_pb2_grpc.FederationServiceServicer):
    """For the sites' daemons."""

    def __init__(self, gate: rpc.Gate, jobs: Jobs, store: JobStore, name: str) -> None:
        self.gate = gate
        self._jobs = jobs
        self._store = store
        self._name = name
        self._sessions: Counter[str] = Counter()

    @rpc.unary(*EVERYONE)
    async def Hello(self, request: wire.HelloRequest, caller: rpc.Caller) -> wire.HelloResponse:  # noqa: N802
        """Compare versions; note that a site is there."""
        rpc.check_protocol(str(caller.identity), request.version, str(request.protocol))
        if caller.identity.role is Role.SITE:
            await offload(self._store.seen, caller.name, request.version[:40], caller.certificate)
        return wire.HelloResponse(
            version=__version__,
            protocol=PROTOCOL_VERSION,
            name=self._name,
            now_ms=now_ms(),
            revocations=self.gate.authority.revocations.pem,
        )

    @rpc.streaming(Role.SITE)
    async def Invitations(  # noqa: N802
        self, request: wire.InvitationsRequest, caller: rpc.Caller
    ) -> AsyncIterator[wire.InvitationsResponse]:
        """The site's jobs, as they come."""
        log.info("site online", site=caller.name, version=caller.version)
        SITES_ONLINE.inc()
        self._sessions[caller.name] += 1
        try:
            async for record in self._jobs.invitations(caller.name):
                yield wire.InvitationsResponse(
                    job_id=record.id,
                    spec=record.spec,
                    analyst=record.analyst,
                    deadline_at_ms=record.deadline_at_ms,
                )
        finally:
            SITES_ONLINE.dec()
            self._sessions[caller.name] -= 1
            log.info("site offline", site=caller.name)
            if not self._sessions[caller.name]:
                await self._note_leaving(caller.name)

    async def _note_leaving(self, site: str) -> None:
        """The call may have been cut off: what is noted of it must not be."""
        try:
            with anyio.CancelScope(shield=True):
                await offload(self._store.left, site)
        except TransientError as error:
            log.info("leaving not noted", site=site, why=str(error))


class Health:
    """What gRPC's standard health service says of the coordinator as a whole, and of each of its services."""

    def __init__(self) -> None:
        self._servicer = aio.HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer health checks on a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set(self, *, serving: bool) -> None:
        """Tell those who ask and those who watch."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *SERVICES):
            await self._servicer.set(service, status)
