"""The page's application: what it answers, and to whom."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import structlog
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from commonscale.concurrency import offload
from commonscale.errors import CommonscaleError, ConfigError, TransientError, UnknownJob
from commonscale.names import JOB_ID_PATTERN
from commonscale.web import guard
from commonscale.web.live import Live
from commonscale.web.login import Login
from participant import approvals
from participant.page.snapshot import View

log = structlog.get_logger()

STATIC = Path(__file__).parent / "static"
MAX_BODY_BYTES = 16 << 10
MAX_LINES = 500
MAX_DIGITS = 15

STATUSES = ((UnknownJob, 404), (ConfigError, 409), (TransientError, 503), (CommonscaleError, 500))

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class PageApp:
    """The handlers of one site's page."""

    def __init__(self, view: View, login: Login) -> None:
        self._view = view
        self._login = login
        self._live = Live()
        self._verifying = anyio.Lock()
        # What a page reads keeps to itself: a job's threads are others.
        self._threads = anyio.CapacityLimiter(2)

    def starlette(self, hosts: list[str]) -> Starlette:
        """All routes; nothing but the way in is open to strangers."""
        only = self._login.members_only
        routes = [
            Route("/", only(self._page, page=True)),
            Route("/api/state", only(_plainly(self._state))),
            Route("/api/events", only(_plainly(self._events))),
            Route("/api/jobs", only(_plainly(self._jobs))),
            Route("/api/jobs/{job}", only(_plainly(self._job))),
            Route("/api/jobs/{job}/approve", only(_plainly(self._approve)), methods=["POST"]),
            Route("/api/jobs/{job}/refuse", only(_plainly(self._refuse)), methods=["POST"]),
            Route("/api/audit", only(_plainly(self._audit))),
            Route("/api/verify", only(_plainly(self._verify)), methods=["POST"]),
            Route("/api/left.csv", only(_plainly(self._left))),
            *self._login.routes(STATIC),
        ]
        return Starlette(routes=routes, middleware=guard.middleware(["[::1]", *hosts]))

    async def _offload(self, function: Callable[..., T], *args: Any) -> T:
        return await anyio.to_thread.run_sync(function, *args, limiter=self._threads)

    async def _page(self, _: Request) -> Response:
        return FileResponse(STATIC / "page.html")

    async def _snapshot(self) -> dict[str, Any]:
        return await self._offload(self._view.state)

    async def _state(self, _: Request) -> Response:
        return Response(await self._live.now("state", self._snapshot), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        return self._live.stream("state", "state", self._snapshot, partial(self._login.visitor, request))

    async def _jobs(self, request: Request) -> Response:
        before = _job_id(request.query_params.get("before", ""))
        return JSONResponse({"jobs": await self._offload(self._view.older, before, _limit(request, 30))})

    async def _job(self, request: Request) -> Response:
        return JSONResponse(await self._offload(self._view.job, _job_id(request.path_params["job"])))

    async def _approve(self, request: Request) -> Response:
        return await self._decide(request, "approved", "")

    async def _refuse(self, request: Request) -> Response:
        reason = (await _body(request)).get("reason", "")
        if not isinstance(reason, str) or not reason.strip():
            raise HTTPException(400, "Say why: the analyst sees the reason.")
        return await self._decide(request, "refused", reason)

    async def _decide(self, request: Request, decision: approvals.Decision, reason: str) -> Response:
        job_id = _job_id(request.path_params["job"])
        # Not among the page's own threads: a decision never waits behind somebody who reads.
        await offload(approvals.decide, self._view.jobs, job_id, decision, reason, "page")
        log.info("decided", job=job_id, decision=decision, by="page")
        return JSONResponse({"job": job_id, "decision": decision})

    async def _audit(self, request: Request) -> Response:
        before = _number(request, "before")
        return JSONResponse(await self._offload(self._view.audit_page, before, _limit(request, 100)))

    async def _verify(self, _: Request) -> Response:
        async with self._verifying:
            found = await self._offload(self._view.verify)
        if not found["intact"]:
            log.error("audit log broken", why=found["fault"])
        return JSONResponse(found)

    async def _left(self, _: Request) -> Response:
        headers = {"content-disposition": f'attachment; filename="left-{self._view.site}.csv"'}
        return StreamingResponse(iterate_in_threadpool(self._view.left_csv()), media_type="text/csv", headers=headers)


def _plainly(handler: Handler) -> Handler:
    """An error becomes one sentence and a status."""

    async def handled(request: Request) -> Response:
        try:
            return await handler(request)
        except HTTPException as error:
            return JSONResponse({"error": error.detail}, status_code=error.status_code)
        except CommonscaleError as error:
            status = next(status for kind, status in STATUSES if isinstance(error, kind))
            return JSONResponse({"error": str(error)}, status_code=status)

    return handled


def _job_id(text: str) -> str:
    if not JOB_ID_PATTERN.fullmatch(text):
        raise HTTPException(400, "That is not the id of a job.")
    return text


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise HTTPException(400, f"{name} is a number.")
    return int(text)


def _limit(request: Request, default: int) -> int:
    asked = _number(request, "limit")
    return min(max(default if asked is None else asked, 1), MAX_LINES)


async def _body(request: Request) -> dict[str, Any]:
    """A small JSON object."""
    raw = b""
    async for piece in request.stream():
        raw += piece
        if len(raw) > MAX_BODY_BYTES:
            raise HTTPException(413, "That is too long.")
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "Send a JSON object.")
    return found
