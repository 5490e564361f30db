"""A flood of handshakes, by anybody who can open a connection, ends no coordinator.

gRPC frees the certificates that it replaces under handshakes of the same moment. Whoever gives it new ones at every
handshake, as the coordinator once did, can be ended by strangers, before they have shown any certificate.
"""

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from commonscale import config
from commonscale.config import CoordinatorConfig
from commonscale.link import Link
from commonscale.localnet import LocalFederation
from tests.e2e.conftest import run
from tests.patience import PATIENCE_S

AT_ONCE = 12
FLOOD_S = 5
WITH_NEW_ONES = """
import asyncio, sys
from commonscale import rpc
from commonscale.grpc_loading import grpc

key, certificate, ca = (open(path, "rb").read() for path in sys.argv[1:4])


def anew():
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)


async def main():
    server = rpc.new_server()
    credentials = grpc.dynamic_ssl_server_credentials(anew(), anew, require_client_authentication=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    print(port, flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
"""


def flood(port: int, until: Callable[[], bool]) -> int:
    """Handshakes without a certificate, many at once, until something holds; how many there were."""
    counts = [0] * AT_ONCE

    def work(number: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while not until():
            # The other side may refuse, hang up, or be gone.
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                context.wrap_socket(plain).close()
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def test_a_coordinator_outlives_a_flood_of_handshakes(federation: LocalFederation) -> None:
    """It goes on serving those who have certificates."""
    stop = time.monotonic() + FLOOD_S
    assert flood(federation.port, lambda: time.monotonic() > stop) > AT_ONCE
    process = federation.coordinator.process
    assert process is not None
    assert process.poll() is None

    async def hello() -> str:
        link = Link(f"127.0.0.1:{federation.port}", federation.renew("a", federation.directory / "a"))
        try:
            return (await link.hello()).name
        finally:
            await link.close()

    assert run(hello) == "coordinator"


@pytest.mark.long
def test_a_server_that_takes_new_certificates_at_every_handshake_is_ended(federation: LocalFederation) -> None:
    """The flood would end it. If this fails, gRPC has learned to replace them safely."""
    tls = config.load(CoordinatorConfig, federation.directory / "coordinator" / "coordinator.toml").tls
    command = [sys.executable, "-c", WITH_NEW_ONES, tls.key, tls.certificate, tls.ca]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port, stop = int(server.stdout.readline()), time.monotonic() + PATIENCE_S
            flood(port, lambda: server.poll() is not None or time.monotonic() > stop)
            assert server.poll() in (-6, -11)
        finally:
            server.kill()
