"""What stands before the daemons' pages: sessions, origins, hosts, and browsers that do not read."""

import json
import time
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from commonscale.web import live as live_module
from commonscale.web import sessions
from commonscale.web.guard import HEADERS, middleware
from commonscale.web.live import Live
from commonscale.web.sessions import Sessions, digest, new_token
from tests.patience import PATIENCE_S


def book(**tokens: str) -> Sessions:
    kept = {name: digest(token) for name, token in tokens.items()}

    async def find(name: str) -> bytes | None:
        return kept.get(name)

    return Sessions(find)


async def call(
    app: Starlette, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str]]:
    """Status and headers of one request, straight to the application."""
    found: dict[str, Any] = {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.update(message)

    raw = [(key.encode(), value.encode()) for key, value in (headers or {}).items()]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": raw, "scheme": "http", "server": ("127.0.0.1", 80), "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    return found["status"], {key.decode(): value.decode() for key, value in found["headers"]}


def guarded_app() -> Starlette:
    async def answer(_: Request) -> Response:
        return PlainTextResponse("yes")

    return Starlette(routes=[Route("/", answer, methods=["GET", "POST"])], middleware=middleware(["ops.example.org"]))


def test_a_cookie_opens_for_its_member_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another name, another end, another token or a later time make it worthless."""

    async def work() -> None:
        token = new_token()
        ours = book(ops=token, other=new_token())
        cookie = await ours.issue("ops")
        assert await ours.read(cookie) == "ops"
        name, ends, code = cookie.split("~")
        later = str(int(ends) + 1)
        for forged in (
            "", "~~", "ops", f"other~{ends}~{code}", f"{name}~{later}~{code}", f"{name}~{ends}~", f"{name}~x~{code}",
            f"{name}~{'9' * 30}~{code}", f"{name}~{ends}~{code}0", "nobody~1~00", f"{name}~٣~{code}",
        ):  # fmt: skip
            assert await ours.read(forged) is None, forged
        assert await book(ops=new_token()).read(cookie) is None
        assert await Sessions(ours.find, b"another coordinator's key").read(cookie) is None
        assert await book().read(cookie) is None
        monkeypatch.setattr(sessions.time, "time", lambda: int(ends) + 1.0)
        assert await ours.read(cookie) is None

    anyio.run(work)


def test_tokens_are_long_and_never_the_same() -> None:
    """256 bits each."""
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:7490", "origin": "http://localhost:7490"}, 200),
        ({"host": "ops.example.org", "origin": "https://ops.example.org"}, 200),
        ({"host": "localhost:7490", "origin": "http://evil.example.org"}, 403),
        ({"host": "localhost:7490", "origin": "http://localhost:7491"}, 403),
        ({"host": "localhost:7490", "origin": "null"}, 403),
        ({"host": "localhost:7490"}, 403),
    ],
)
def test_posts_come_from_the_page_itself(headers: dict[str, str], status: int) -> None:
    """A browser names the origin of every post."""
    assert anyio.run(call, guarded_app(), "POST", "/", headers)[0] == status


def test_other_names_get_nothing_and_every_answer_has_the_headers() -> None:
    """A name of elsewhere that was bound to our address is not answered."""
    assert anyio.run(call, guarded_app(), "GET", "/", {"host": "evil.example.org"})[0] == 400
    for path, method in (("/", "GET"), ("/none", "GET"), ("/", "POST")):
        _, headers = anyio.run(call, guarded_app(), method, path, {"host": "127.0.0.1:7490"})
        assert HEADERS.items() <= headers.items()


async def welcome() -> bool:
    return True


def test_all_browsers_share_one_snapshot() -> None:
    """A hundred that look cost what one costs; each gets the newest state, with the time and its own name."""
    made = 0

    async def snapshot() -> dict[str, Any]:
        nonlocal made
        made += 1
        return {"made": made}

    async def work() -> None:
        live = Live(interval_s=0.2)
        seen: list[dict[str, Any]] = []

        async def browser() -> None:
            response: Any = live.stream("state", "key", snapshot, welcome, visitor="ops")
            async for text in response.body_iterator:
                seen.append(json.loads(text.split("data: ")[1]))  # noqa: PERF401 - the stream does not end

        begun = time.monotonic()
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(live_module.MAX_STREAMS):
                    tasks.start_soon(browser)
                while len(seen) < 3 * live_module.MAX_STREAMS:  # noqa: ASYNC110 - the streams have no event for it
                    await anyio.sleep(0.05)
                assert live.stream("state", "key", snapshot, welcome).status_code == 503
                tasks.cancel_scope.cancel()
        assert made <= 1 + (time.monotonic() - begun) / 0.2
        assert all(entry["visitor"] == "ops" and abs(entry["now_ms"] / 1000 - time.time()) < 5 for entry in seen)
        assert live.streams == 0

    anyio.run(work)


def test_a_stream_ends_with_its_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was removed ends what it opened."""
    monkeypatch.setattr(live_module, "WELCOME_S", 0)
    answers = iter([True, True, False])

    async def snapshot() -> dict[str, Any]:
        return {"at": time.monotonic()}

    async def still_welcome() -> bool:
        return next(answers)

    async def work() -> int:
        response: Any = Live(interval_s=0.01).stream("state", "key", snapshot, still_welcome)
        return len([text async for text in response.body_iterator])

    assert anyio.run(work) == 2
