"""The program of the child process: one role towards one peer, one operation after the other.

Started as a file, so that it loads nothing but the standard library and the package. A frame is the number of its
parts and each part with its length, all numbers in 4 bytes. A request is (operation, arguments…); a reply is
(ok, results…) or (error, the exception's name): never its text, which may hold a value.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

# Together, of one frame: an answer to the largest set has some hundred kilobytes.
MOST_BYTES = 64 << 20
MOST_PARTS = 4096
LABEL_BYTES = 8
OK, ERROR = b"ok", b"error"

# False positives about 2^-67 an item; see LARGEST_SET for what the table holds.
PARAMETERS = json.dumps(
    {
        "table_params": {"hash_func_count": 3, "table_size": 409, "max_items_per_bin": 6},
        "item_params": {"felts_per_item": 5},
        "query_params": {"ps_low_degree": 0, "query_powers": [1, 2, 3, 4, 5, 6]},
        "seal_params": {"plain_modulus": 65537, "poly_modulus_degree": 2048, "coeff_modulus_bits": [48]},
    }
)


def write_frame(stream: IO[bytes], parts: Sequence[bytes]) -> None:
    """One frame, flushed."""
    stream.write(len(parts).to_bytes(4, "big"))
    for part in parts:
        stream.write(len(part).to_bytes(4, "big") + part)
    stream.flush()


def read_frame(stream: IO[bytes]) -> list[bytes]:
    """One frame; EOFError if the stream ends before it does, ValueError if it is larger than any of ours."""
    count = int.from_bytes(_exactly(stream, 4), "big")
    if not 1 <= count <= MOST_PARTS:
        raise ValueError(f"a frame of {count} parts")
    parts, room = [], MOST_BYTES
    for _ in range(count):
        size = int.from_bytes(_exactly(stream, 4), "big")
        room -= size
        if room < 0:
            raise ValueError(f"a frame of more than {MOST_BYTES} bytes")
        parts.append(_exactly(stream, size))
    return parts


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


class Operations:
    """What a parent may ask for. The package's objects live as long as this process, and serve one peer."""

    def __init__(self) -> None:
        self._server: Any = None
        self._client: Any = None
        self._items: list[str] = []

    def holder_open(self, *items_and_labels: bytes) -> list[bytes]:
        """Item, label, item, label, …: a fresh database with a fresh OPRF key."""
        from apsi import LabeledServer

        texts = [part.decode("ascii") for part in items_and_labels]
        self._server = LabeledServer()
        self._server.init_db(PARAMETERS, max_label_length=LABEL_BYTES, nonce_byte_count=16)
        self._server.add_items(list(zip(texts[::2], texts[1::2], strict=True)))
        return []

    def holder_oprf(self, request: bytes) -> list[bytes]:
        """Blinded items, multiplied."""
        return [self._server.handle_oprf_request(request)]

    def holder_query(self, query: bytes) -> list[bytes]:
        """The polynomials at a query."""
        return [self._server.handle_query(query)]

    def querier_request(self, *items: bytes) -> list[bytes]:
        """Items, blinded."""
        from apsi import LabeledClient

        self._items = [item.decode("ascii") for item in items]
        self._client = LabeledClient(PARAMETERS)
        return [self._client.oprf_request(self._items)]

    def querier_query(self, oprf_response: bytes) -> list[bytes]:
        """Encrypted powers of the items."""
        return [self._client.build_query(oprf_response)]

    def querier_extract(self, response: bytes) -> list[bytes]:
        """A label an item; empty where the holder does not have it."""
        found = self._client.extract_result(response)
        return [found.get(item, "").encode("ascii") for item in self._items]


def serve(requests: IO[bytes], replies: IO[bytes], limit_s: int) -> None:
    """Until the parent closes its end."""
    operations = Operations()
    while True:
        try:
            name, *arguments = read_frame(requests)
        except EOFError:
            return
        # A parent that was killed kills nobody: what still runs after its limit is ended by the kernel.
        signal.alarm(limit_s)
        try:
            work: Callable[..., list[bytes]] = getattr(operations, name.decode("ascii"))
            reply = [OK, *work(*arguments)]
        except Exception as error:  # noqa: BLE001 - the top loop of a process: whatever the package raises goes to the parent
            reply = [ERROR, type(error).__name__.encode("ascii", "replace")]
        signal.alarm(0)
        write_frame(replies, reply)


def main() -> None:
    """`child.py LIMIT_S`: requests on the standard input, replies on the standard output."""
    # A core file would hold keys.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The package prints: what it prints must not get between frames.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies, int(sys.argv[1]))


if __name__ == "__main__":
    main()
