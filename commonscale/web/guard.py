"""What stands before every page: headers that keep everything else out, hosts we answer to, posts from ourselves."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    # Everything a page needs is shipped with it; nothing runs or loads that is not.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not "no-referrer": a browser would then not name the origin of a form, which we ask for.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
LOCAL_HOSTS = ("localhost", "127.0.0.1")


class Guard:
    """Refuses posts from other origins; puts safe headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["method"] not in ("GET", "HEAD") and not _same_origin(Headers(scope=scope)):
            await PlainTextResponse("This must come from the page itself.", status_code=403)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _same_origin(headers: Headers) -> bool:
    """A browser names the origin of every post; another site's page cannot name ours."""
    return bool(headers.get("host")) and urlsplit(headers.get("origin", "")).netloc == headers.get("host")


def middleware(hosts: Sequence[str]) -> list[Middleware]:
    """For an application that answers under these names only: a rebound name of elsewhere gets nothing."""
    allowed = [*LOCAL_HOSTS, *hosts]
    return [Middleware(Guard), Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)]
