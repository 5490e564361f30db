"""Live updates by server-sent events. A browser gets the newest state, never a queue of old ones.

All browsers share one snapshot that is at most INTERVAL_S old: ten of them cost the daemon what one does, none costs
nothing, and one that does not read holds up nobody but itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from functools import partial
from typing import Any

import anyio
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from commonscale.concurrency import offload

INTERVAL_S = 0.5
# A comment now and then keeps proxies from closing a quiet stream.
BEAT_S = 15.0
MAX_STREAMS = 100
# How often to ask whether a visitor is still welcome.
WELCOME_S = 3.0

Snapshot = Callable[[], Awaitable[dict[str, Any]]]
# Something true, as the visitor's name, as long as it may be here.
StillWelcome = Callable[[], Awaitable[object]]


class Live:
    """The streams of one application."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._snapshots: dict[Hashable, _Shared] = {}
        self.streams = 0

    async def now(self, key: Hashable, snapshot: Snapshot) -> str:
        """The state of one thing as JSON, at most an interval old."""
        shared = self._snapshots.setdefault(key, _Shared())
        async with shared.lock:
            if time.monotonic() >= shared.made_at + self._interval_s:
                # Making the text of a long job takes milliseconds, which calls need not wait for.
                shared.text = await offload(partial(json.dumps, await snapshot(), separators=(",", ":")))
                shared.made_at = time.monotonic()
        return shared.text

    def stream(
        self, event: str, key: Hashable, snapshot: Snapshot, still_welcome: StillWelcome, **extra: str
    ) -> Response:
        """An answer that goes on as long as the browser is there and its visitor is welcome.

        What is `extra`, and the time of sending, goes with every snapshot and is no change by itself.
        """
        if self.streams >= MAX_STREAMS:
            return PlainTextResponse("Too many pages are open.", status_code=503, headers={"retry-after": "30"})
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(
            self._events(event, key, snapshot, still_welcome, extra), media_type="text/event-stream", headers=headers
        )

    async def _events(
        self, event: str, key: Hashable, snapshot: Snapshot, still_welcome: StillWelcome, extra: dict[str, str]
    ) -> AsyncIterator[str]:
        last, said_at, asked_at = "", time.monotonic(), time.monotonic()
        self.streams += 1
        try:
            while True:
                if time.monotonic() > asked_at + WELCOME_S:
                    if not await still_welcome():
                        return
                    asked_at = time.monotonic()
                text = await self.now(key, snapshot)
                if text != last:
                    head = json.dumps({**extra, "now_ms": time.time_ns() // 1_000_000})
                    yield f"event: {event}\ndata: {head[:-1]},{text[1:]}\n\n"
                    last, said_at = text, time.monotonic()
                elif time.monotonic() > said_at + BEAT_S:
                    yield ": still here\n\n"
                    said_at = time.monotonic()
                await anyio.sleep(self._interval_s)
        finally:
            self.streams -= 1
            if not self.streams:
                self._snapshots.clear()


class _Shared:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.text = ""
        self.made_at = -1e9
