"""The dashboard's routes: a page, two snapshots, and the same two live."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from commonscale.concurrency import offload
from commonscale.database import now_ms
from commonscale.errors import CommonscaleError, NotAllowed, TransientError, UnknownJob
from commonscale.identity import Authority, Role
from commonscale.web.guard import middleware
from commonscale.web.live import Live
from commonscale.web.login import Login
from commonscale.web.sessions import Sessions
from commonscale.web.tls import certificate_of
from coordinator.dashboard.views import Views
from coordinator.observers import Observers

STATIC = Path(__file__).parent / "static"
WELCOME = (Role.OBSERVER, Role.ANALYST, Role.COORDINATOR)
HINT = "Ask the operator for a token: commonscale observers add NAME --config coordinator.toml"


def application(
    views: Views, observers: Observers, authority: Authority, secret: bytes, hosts: Sequence[str]
) -> Starlette:
    """The dashboard, for those who show a certificate of the consortium or a token."""
    routes = _Dashboard(views, _login(views, observers, authority, secret)).routes()
    return Starlette(routes=routes, middleware=middleware(hosts), exception_handlers={CommonscaleError: _explain})


def _login(views: Views, observers: Observers, authority: Authority, secret: bytes) -> Login:
    async def by_certificate(request: Request) -> str | None:
        certificate = certificate_of(request)
        if certificate is None:
            return None
        try:
            identity = authority.verify(certificate)
        except NotAllowed:
            return None
        return str(identity) if identity.role in WELCOME else None

    sessions = Sessions(partial(offload, observers.digest_of), secret)
    name_of = partial(offload, observers.name_of)
    return Login(f"coordinator {views.name}", "commonscale_dashboard", HINT, sessions, name_of, by_certificate)


class _Dashboard:
    def __init__(self, views: Views, login: Login) -> None:
        self._views, self._live, self._login = views, Live(), login

    def routes(self) -> Sequence[Any]:
        member = self._login.members_only
        return [
            Route("/", member(self._page, page=True)),
            Route("/jobs/{job_id}", member(self._page, page=True)),
            Route("/api/overview", member(self._now)),
            Route("/api/events", member(self._events)),
            Route("/api/jobs/{job_id}", member(self._now)),
            Route("/api/jobs/{job_id}/events", member(self._events)),
            *self._login.routes(STATIC),
        ]

    async def _page(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def _now(self, request: Request) -> Response:
        job_id = request.path_params.get("job_id")
        found = await self._views.snapshot(job_id)()
        return JSONResponse(found | {"now_ms": now_ms(), "visitor": request.state.visitor})

    async def _events(self, request: Request) -> Response:
        job_id = request.path_params.get("job_id")
        if job_id is not None:
            # A job that is not there is reported before a stream of nothing begins.
            await self._views.jobs.get(job_id)
        still_welcome = partial(self._login.visitor, request)
        event, visitor = "overview" if job_id is None else "job", request.state.visitor
        return self._live.stream(event, job_id, self._views.snapshot(job_id), still_welcome, visitor=visitor)


async def _explain(_: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UnknownJob) else 503 if isinstance(error, TransientError) else 400
    return JSONResponse({"error": str(error)}, status_code=status)
