"""The dashboard's routes: a page, two snapshots, and the same two live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from commonscale.concurrency import offload
from commonscale.errors import CommonscaleError, NotAllowed, TransientError, UnknownJob
from commonscale.identity import Authority, Role
from commonscale.web.guard import middleware
from commonscale.web.live import Live
from commonscale.web.login import Login
from commonscale.web.sessions import Sessions
from commonscale.web.tls import certificate_of
from coordinator.dashboard.views import Views
from coordinator.jobstore import now_ms
from coordinator.observers import Observers

STATIC = Path(__file__).parent / "static"
WELCOME = (Role.OBSERVER, Role.ANALYST, Role.COORDINATOR)
HINT = "Ask the operator for a token: commonscale observers add NAME --config coordinator.toml"


def application(
    views: Views, observers: Observers, authority: Authority, secret: bytes, hosts: Sequence[str]
) -> Starlette:
    """The dashboard, for those who show a certificate of the consortium or a token."""
    live = Live()
    dashboard = _Dashboard(views, live, _login(views, observers, authority, secret))
    return Starlette(
        routes=dashboard.routes(), middleware=middleware(hosts), exception_handlers={CommonscaleError: _explain}
    )


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

    async def digest_of(name: str) -> bytes | None:
        return await offload(observers.digest_of, name)

    async def name_of(token: str) -> str | None:
        return await offload(observers.name_of, token)

    return Login(
        f"coordinator {views.name}", "commonscale_dashboard", HINT, Sessions(digest_of, secret), name_of, by_certificate
    )


class _Dashboard:
    def __init__(self, views: Views, live: Live, login: Login) -> None:
        self._views, self._live, self._login = views, live, login

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
            # A job that is not there is told before a stream of nothing begins.
            await self._views.jobs.get(job_id)

        async def still_welcome() -> bool:
            return await self._login.visitor(request) is not None

        event, visitor = "overview" if job_id is None else "job", request.state.visitor
        return self._live.stream(event, job_id, self._views.snapshot(job_id), still_welcome, visitor=visitor)


async def _explain(_: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UnknownJob) else 503 if isinstance(error, TransientError) else 400
    return JSONResponse({"error": str(error)}, status_code=status)
