"""gRPC, loaded so that it speaks TLS 1.3 only: whoever needs it writes `from commonscale.grpc_loading import grpc`.

gRPC has no setting for the least TLS version. Its suites for TLS 1.2 come from an environment variable, so we leave
only one that needs an RSA key: all our keys are elliptic, and every TLS 1.2 handshake fails. Suites of TLS 1.3 are not
affected.

gRPC reads the variable once, 1.85 as it is imported, 1.72 at its first use. So it is set before the import; and where
somebody else has imported gRPC before, we look at what it offers in a handshake.
"""

import contextlib
import os
import socket
import sys
from typing import BinaryIO

from commonscale.errors import GrpcLoadedBefore

CIPHERS_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
VERBOSITY_VARIABLE = "GRPC_VERBOSITY"
CIPHERS = "ECDHE-RSA-AES256-GCM-SHA384"
# That suite's number on the wire; those of TLS 1.3 begin with 0x13.
_CIPHERS_NUMBER = 0xC030
_TLS_1_3 = 0x13
_HELLO_TIMEOUT_S = 10.0

_loaded_before = "grpc._cython.cygrpc" in sys.modules
_environment_before = dict(os.environ)
os.environ[CIPHERS_VARIABLE] = CIPHERS
# Refused handshakes are reported by us, with the peer's name; gRPC's own lines would repeat them.
os.environ.setdefault(VERBOSITY_VARIABLE, "NONE")

import grpc  # noqa: E402 - after the variables that it reads

__all__ = ["CIPHERS", "CIPHERS_VARIABLE", "grpc", "offered_suites"]


def offered_suites() -> list[int]:
    """Which cipher suites this process's gRPC offers to a server: shows what it has read, and whenever it did."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(_HELLO_TIMEOUT_S)
        channel = grpc.secure_channel(
            f"127.0.0.1:{listener.getsockname()[1]}",
            grpc.ssl_channel_credentials(),
            options=[("grpc.enable_http_proxy", 0)],
        )
        opened.callback(channel.close)
        channel.subscribe(lambda _: None, try_to_connect=True)
        connection = opened.enter_context(listener.accept()[0])
        connection.settimeout(_HELLO_TIMEOUT_S)
        return _suites_of_hello(opened.enter_context(connection.makefile("rb")))


def _suites_of_hello(hello: BinaryIO) -> list[int]:
    """From the first bytes that a TLS client sends (RFC 8446, 4.1.2 and 5.1)."""
    # Headers of the record and of the message, an old version number, the client's random bytes.
    hello.read(5 + 4 + 2 + 32)
    session_bytes = int.from_bytes(hello.read(1), "big")
    hello.read(session_bytes)
    suites_bytes = int.from_bytes(hello.read(2), "big")
    return [int.from_bytes(hello.read(2), "big") for _ in range(suites_bytes // 2)]


def _speaks_only_tls_1_3() -> bool:
    """Whether a peer with an elliptic key cannot be spoken to in TLS 1.2; no, if that cannot be found out."""
    try:
        suites = offered_suites()
    except OSError:
        return False
    return _CIPHERS_NUMBER in suites and all(s == _CIPHERS_NUMBER or s >> 8 == _TLS_1_3 for s in suites)


if _loaded_before and not _speaks_only_tls_1_3():
    # Leave the environment of a process that we refuse as it was.
    for name in (CIPHERS_VARIABLE, VERBOSITY_VARIABLE):
        os.environ.pop(name)
        if name in _environment_before:
            os.environ[name] = _environment_before[name]
    raise GrpcLoadedBefore(
        "This process loaded gRPC before commonscale, in a state in which it also speaks TLS 1.2.",
        f"Add the line `import {__name__}` before the first `import grpc`, "
        f"or start the process with {CIPHERS_VARIABLE}={CIPHERS} in its environment.",
    )
