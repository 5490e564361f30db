"""Frames between a participant and the process that holds its worker's socket: a JSON header, then raw parts.

Both are this project's own, on one pair of sockets; sizes are checked all the same, since libzmq runs in the other one.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel

# A header, one of a message to or from a worker, its arrays, and one to spare.
MAX_PARTS = 20
MAX_JSON_BYTES = 1 << 20
# One wake-up of the reader for so many bytes.
BUFFER_BYTES = 4 << 20
# A process that takes no such piece for so long is stuck.
STUCK_S = 60.0
_LENGTH = struct.Struct("<Q")


class BadPipeError(ValueError):
    """What came is no message of the other process."""


class Parcel(NamedTuple):
    """A message: what it says, and what is in it."""

    said: dict[str, Any]
    parts: list[memoryview]


class Pipe:
    """One end."""

    def __init__(self, end: socket.socket, most_bytes: int) -> None:
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._end = end
        self._most_bytes = most_bytes
        self._sending = anyio.Lock()

    async def send(self, said: dict[str, Any], parts: Sequence[Any] = ()) -> None:
        """Whole, also if the sender is cancelled in between: half a message would be the end of all others.

        OSError if the other process is gone, or takes nothing; then nothing more can be sent.
        """
        head = json.dumps(said).encode()
        lengths = [len(head), *map(len, parts)]
        async with self._sending:
            with anyio.CancelScope(shield=True):
                await self._put(bytes([len(lengths)]) + b"".join(map(_LENGTH.pack, lengths)) + head)
                for part in parts:
                    view = memoryview(part).cast("B")
                    for start in range(0, len(view), BUFFER_BYTES):
                        await self._put(view[start : start + BUFFER_BYTES])

    async def _put(self, piece: Any) -> None:
        with anyio.fail_after(STUCK_S):
            await asyncio.get_running_loop().sock_sendall(self._end, piece)

    async def receive(self, silence_s: float | None = None) -> Parcel:
        """The next message; EOFError after the last one, TimeoutError if there is none for so long."""
        # What is there already is received without a pause: others would never have their turn.
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(silence_s):
            count = (await self._exactly(1))[0]
        if not 1 <= count <= MAX_PARTS:
            raise BadPipeError(f"a message of {count} parts")
        lengths = [length for (length,) in _LENGTH.iter_unpack(await self._exactly(count * _LENGTH.size))]
        if lengths[0] > MAX_JSON_BYTES or sum(lengths) > self._most_bytes:
            raise BadPipeError(f"a message of {sum(lengths)} bytes")
        head, *parts = [await self._exactly(length) for length in lengths]
        try:
            said = json.loads(bytes(head))
        except (ValueError, RecursionError):
            raise BadPipeError("a message whose header cannot be read") from None
        if not isinstance(said, dict):
            raise BadPipeError("a message without a header")
        return Parcel(said, parts)

    async def _exactly(self, length: int) -> memoryview:
        loop = asyncio.get_running_loop()
        whole = memoryview(bytearray(length))
        rest = whole
        while rest:
            received = await loop.sock_recv_into(self._end, rest)
            if not received:
                raise EOFError
            rest = rest[received:]
            if rest:
                await anyio.lowlevel.checkpoint()
        return whole

    async def close(self) -> None:
        """Both ends read EOFError; whoever sends here stops first, since what it waits for must not be closed."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        async with self._sending:
            self._end.close()
