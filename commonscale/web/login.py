"""The way in: a page that asks for a token, and the cookie that it is exchanged for."""

import html
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

import anyio
import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from commonscale.web.sessions import SESSION_S, Sessions

log = structlog.get_logger()

STATIC = Path(__file__).parent / "static"
MAX_FORM_BYTES = 4096
FORM_S = 10.0

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Login:
    """The way into one application."""

    title: str
    # Of its own: a browser does not tell ports apart, and may be logged in to two pages of one machine.
    cookie: str
    # What to tell a person who has no token.
    hint: str
    sessions: Sessions
    # The name that a token is for.
    find_name: Callable[[str], Awaitable[str | None]]
    # Whoever needs no token: a client certificate speaks for itself.
    by_certificate: Callable[[Request], Awaitable[str | None]] | None = None

    async def visitor(self, request: Request) -> str | None:
        """The visitor's name, if it may be here."""
        if self.by_certificate is not None and (name := await self.by_certificate(request)) is not None:
            return name
        return await self.sessions.read(request.cookies.get(self.cookie, ""))

    def members_only(self, handler: Handler, *, page: bool = False) -> Handler:
        """A page sends strangers to the login, anything else tells them."""

        async def guarded(request: Request) -> Response:
            name = await self.visitor(request)
            if name is not None:
                request.state.visitor = name
                return await handler(request)
            if page:
                return RedirectResponse("/login", status_code=303)
            return JSONResponse({"error": "Log in first."}, status_code=401)

        return guarded

    def routes(self, *static: Path) -> Sequence[BaseRoute]:
        """Login, logout, and the files that a page is made of: they hold nothing but the page."""
        assets = StaticFiles(directory=STATIC)
        # The first that has a name wins.
        assets.all_directories = [STATIC, *static]
        return [
            Route("/login", self._enter, methods=["GET", "POST"]),
            Route("/logout", self._leave, methods=["POST"]),
            Mount("/static", assets),
        ]

    def _page(self, message: str, status: int = 200) -> Response:
        text = (STATIC / "login.html").read_text(encoding="utf-8")
        for name, value in {"title": self.title, "hint": self.hint, "message": message}.items():
            text = text.replace("{{" + name + "}}", html.escape(value))
        return HTMLResponse(text, status_code=status)

    async def _enter(self, request: Request) -> Response:
        if request.method != "POST":
            return self._page("")
        body = b""
        with anyio.move_on_after(FORM_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_FORM_BYTES:
                    return self._page("That is no token.", 413)
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        name = await self.find_name(token)
        if name is None:
            log.warning("login refused", page=self.title, peer=request.client.host if request.client else "")
            return self._page("This token is not known here, or has ended.", 401)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            self.cookie, await self.sessions.issue(name), max_age=SESSION_S, httponly=True, samesite="strict",
            secure=request.headers.get("origin", "").startswith("https:"),
        )  # fmt: skip
        log.info("login", page=self.title, visitor=name)
        return response

    async def _leave(self, _: Request) -> Response:
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(self.cookie, httponly=True, samesite="strict")
        return response
