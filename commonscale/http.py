"""The daemons' HTTP side: /healthz and /metrics."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from commonscale.errors import ConfigError
from commonscale.version import __version__

# Names the faults; none means healthy.
HealthCheck = Callable[[], Sequence[str]]


def application(name: str, check: HealthCheck, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """What both daemons serve, and more routes of their own."""

    async def healthz(_: Request) -> Response:
        faults = list(check())
        body = {
            "name": name,
            "version": __version__,
            "status": "failing" if faults else "ok",
            "faults": faults,
        }
        return JSONResponse(body, status_code=503 if faults else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/healthz", healthz), Route("/metrics", metrics), *routes])


def split_address(address: str) -> tuple[str, int]:
    """host:port, or ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address of the form host:port.")
    return host.strip("[]"), int(port)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """The daemon handles signals itself."""
        yield


@contextlib.asynccontextmanager
async def serving(app: Starlette, address: str) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"Cannot listen on {address}: {error.strerror}.", "Change http_listen.") from None
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
