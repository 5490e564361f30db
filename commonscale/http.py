"""The daemons' HTTP side: /healthz, /livez and /metrics; and how any page of theirs is served."""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import anyio
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from commonscale.errors import ConfigError
from commonscale.version import __version__
from commonscale.web.tls import CertificateProtocol

# At the end, a live stream is cut off; an answer under way has this long.
LAST_ANSWERS_S = 1
MAX_CONNECTIONS = 500

# Names the faults; none means healthy.
HealthCheck = Callable[[], Sequence[str]]


def application(name: str, check: HealthCheck, ready: HealthCheck | None = None) -> Starlette:
    """What both daemons serve to their operators' monitoring; `ready` is what a load balancer must know."""
    daemon: dict[str, Any] = {"name": name, "version": __version__}

    def telling(look: HealthCheck) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_: Request) -> Response:
            faults = list(look())
            status = {"status": "failing" if faults else "ok", "faults": faults}
            return JSONResponse(daemon | status, status_code=503 if faults else 200)

        return answer

    async def livez(_: Request) -> Response:
        # Whoever answers, lives: a fault elsewhere is no reason to be restarted.
        return JSONResponse(daemon)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    answers = {"/healthz": telling(check), "/readyz": telling(ready or check), "/livez": livez, "/metrics": metrics}
    return Starlette(routes=[Route(path, handler) for path, handler in answers.items()])


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
async def serving(
    app: Starlette, address: str, *, key: str = "http_listen", tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. `key` is what the address is called in the configuration."""
    host, port = split_address(address)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {address}: {error.strerror}.", f"Change {key}.") from None
    config = uvicorn.Config(
        app, http=CertificateProtocol, log_config=None, access_log=False, lifespan="off", ws="none",
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=LAST_ANSWERS_S,
        limit_concurrency=MAX_CONNECTIONS,
    )  # fmt: skip
    config.load()
    config.ssl = tls
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
