"""TLS 1.3 only, whoever loads gRPC first: a process either speaks no TLS 1.2 or does not start to speak."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from commonscale.config import Tls
from commonscale.grpc_loading import CIPHERS, CIPHERS_VARIABLE
from commonscale.identity import Role
from commonscale.localnet import LocalFederation
from tests.patience import PATIENCE_S

SET = f"import os; os.environ[{CIPHERS_VARIABLE!r}] = {CIPHERS!r}\n"
SET_OTHER = SET.replace(CIPHERS, "ECDHE-ECDSA-AES256-GCM-SHA384")
USE = "grpc.secure_channel('localhost:1', grpc.ssl_channel_credentials()).close()\n"
# What a process did before it came to us: safe, and not.
SAFE = {
    "ours first": "from commonscale import Client\nimport grpc\n",
    "grpc with the variable": f"{SET}import grpc\n{USE}",
    "grpc after the line that the error names": f"import commonscale.grpc_loading\nimport grpc\n{USE}",
}
UNSAFE = {
    "grpc without the variable": f"import grpc\n{USE}",
    "the variable too late": f"import grpc\n{USE}{SET}",
    "another value": f"{SET_OTHER}import grpc\n{USE}",
}

DIAL = """
import sys
from pathlib import Path
import anyio
from commonscale.config import Tls
from commonscale.errors import CommonscaleError
try:
    from commonscale.link import Link
except CommonscaleError as error:
    sys.exit(f"{type(error).__name__}: {error}")

async def work():
    link = Link(sys.argv[1], Tls(certificate=Path(sys.argv[2]), key=Path(sys.argv[3]), ca=Path(sys.argv[4])))
    try:
        await link.hello()
    except CommonscaleError as error:
        print(type(error).__name__)
    finally:
        await link.close()

anyio.run(work)
"""
SERVE = """
import sys
from pathlib import Path
import anyio
from commonscale.config import Tls
from commonscale.errors import CommonscaleError
try:
    from commonscale import rpc
except CommonscaleError as error:
    sys.exit(f"{type(error).__name__}: {error}")

async def work():
    server = rpc.new_server()
    tls = Tls(certificate=Path(sys.argv[2]), key=Path(sys.argv[3]), ca=Path(sys.argv[4]))
    print(server.add_secure_port("127.0.0.1:0", rpc.server_credentials(tls)), flush=True)
    await server.start()
    await anyio.to_thread.run_sync(sys.stdin.read)
    await server.stop(None)

anyio.run(work)
"""
# gRPC as it is without us.
PLAIN_DIAL = """
import sys, grpc
ca, key, certificate = (open(sys.argv[at], "rb").read() for at in (4, 3, 2))
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(ca, key, certificate))
try:
    grpc.channel_ready_future(channel).result(timeout=5)
except grpc.FutureTimeoutError:
    print("Unreachable")
"""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """Only its CA is used."""
    return LocalFederation(tmp_path_factory.mktemp("tls"), {})


@pytest.fixture(scope="module")
def coordinator_tls(consortium: LocalFederation, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return consortium.enrol("coordinator", Role.COORDINATOR, tmp_path_factory.mktemp("coordinator"))


@pytest.fixture(scope="module")
def site_tls(consortium: LocalFederation, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return consortium.enrol("north", Role.SITE, tmp_path_factory.mktemp("north"))


def bare_environment() -> dict[str, str]:
    """This process's, without what loading gRPC for it has set."""
    return {name: value for name, value in os.environ.items() if name != CIPHERS_VARIABLE}


def command(script: str, target: str, tls: Tls) -> list[str]:
    return [sys.executable, "-c", script, target, *map(str, (tls.certificate, tls.key, tls.ca))]


def run(asked: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        asked,
        env=bare_environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )


class Listener:
    """A server by OpenSSL, up to a version of TLS: notes which one it came to, and hangs up."""

    def __init__(self, tls: Tls, newest: ssl.TLSVersion) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(tls.certificate, tls.key)
        self.context.load_verify_locations(tls.ca)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.set_alpn_protocols(["h2"])
        self.context.maximum_version = newest
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.attempts = 0
        self.versions: set[str | None] = set()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                self.attempts += 1
                with connection, contextlib.suppress(OSError), self.context.wrap_socket(connection, True) as spoken:
                    self.versions.add(spoken.version())

    @contextlib.contextmanager
    def running(self) -> Iterator[Listener]:
        thread = threading.Thread(target=self.serve)
        thread.start()
        try:
            yield self
        finally:
            # Wakes accept, which closing alone does not.
            self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()
            thread.join()


def dialled(script: str, coordinator_tls: Tls, site_tls: Tls, newest: ssl.TLSVersion) -> set[str | None]:
    """The versions of TLS that a client and a server of up to `newest` came to."""
    with Listener(coordinator_tls, newest).running() as listener:
        asked = command(script, listener.address, site_tls)
        done = run(asked)
    assert done.stdout == "Unreachable\n"
    assert listener.attempts
    return listener.versions


def reached(port: int, tls: Tls, version: ssl.TLSVersion) -> bool:
    """Whether OpenSSL's client gets through with this version."""
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1") as spoken,
        ):
            return spoken.selected_alpn_protocol() == "h2"
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.parametrize("before", SAFE)
def test_a_client_refuses_a_server_of_tls_1_2(before: str, coordinator_tls: Tls, site_tls: Tls) -> None:
    """Whose certificate is good; with one of TLS 1.3 it speaks."""
    script = SAFE[before] + DIAL
    assert dialled(script, coordinator_tls, site_tls, ssl.TLSVersion.TLSv1_2) == set()
    assert dialled(script, coordinator_tls, site_tls, ssl.TLSVersion.TLSv1_3) == {"TLSv1.3"}


def test_grpc_alone_would_speak_tls_1_2(coordinator_tls: Tls, site_tls: Tls) -> None:
    """The test above would see a TLS 1.2 handshake."""
    assert dialled(PLAIN_DIAL, coordinator_tls, site_tls, ssl.TLSVersion.TLSv1_2) == {"TLSv1.2"}


@pytest.mark.parametrize("before", SAFE)
def test_a_server_refuses_a_client_of_tls_1_2(before: str, coordinator_tls: Tls, site_tls: Tls) -> None:
    """Whose certificate is good; with TLS 1.3 it gets through."""
    asked = command(SAFE[before] + SERVE, "", coordinator_tls)
    with subprocess.Popen(
        asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=bare_environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert not reached(port, site_tls, ssl.TLSVersion.TLSv1_2)
        assert reached(port, site_tls, ssl.TLSVersion.TLSv1_3)
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("script", [DIAL, SERVE], ids=["client", "server"])
@pytest.mark.parametrize("before", UNSAFE)
def test_a_process_that_could_speak_tls_1_2_is_told_what_to_add(before: str, script: str, site_tls: Tls) -> None:
    """GRPC was loaded before us and has read other ciphers: our modules do not load, and the error names the line."""
    asked = command(UNSAFE[before] + script, "127.0.0.1:1", site_tls)
    done = subprocess.run(
        asked,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=bare_environment(),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("GrpcLoadedBefore: ")
    assert "`import commonscale.grpc_loading` before the first `import grpc`" in done.stderr
    assert f"{CIPHERS_VARIABLE}={CIPHERS}" in done.stderr


def test_grpc_loaded_but_not_used_is_safe_or_refused(coordinator_tls: Tls, site_tls: Tls) -> None:
    """Releases differ in when they read their ciphers; in none does a TLS 1.2 handshake come about."""
    with Listener(coordinator_tls, ssl.TLSVersion.TLSv1_2).running() as listener:
        asked = command("import grpc\n" + DIAL, listener.address, site_tls)
        done = run(asked)
    assert listener.versions == set()
    assert done.stdout == "Unreachable\n" or done.stderr.startswith("GrpcLoadedBefore: ")


def test_a_refused_process_keeps_its_environment(tmp_path: Path) -> None:
    """Nothing of ours stays behind in it."""
    script = UNSAFE["grpc without the variable"] + (
        "import os\nbefore = dict(os.environ)\n"
        "import commonscale\n"
        "try:\n    commonscale.Client\nexcept commonscale.ConfigError:\n    assert dict(os.environ) == before\n"
        "else:\n    raise SystemExit('it loaded')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S, env=bare_environment(), cwd=tmp_path)
