"""The dashboard of a real coordinator: who gets in, what it shows, and that looking costs a job nothing."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from commonscale.client import Client
from commonscale.errors import NotAllowed
from commonscale.identity import Role
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from tests.e2e.conftest import job, run, submit, write_csv
from tests.patience import PATIENCE_S, eventually

SITES = ["a", "b", "c"]


class Visitor:
    """A browser without a screen."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.port, self.context = port, context
        self.cookie = ""

    def connection(self) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection("localhost", self.port, context=self.context, timeout=PATIENCE_S)
        return http.client.HTTPConnection("localhost", self.port, timeout=PATIENCE_S)

    def ask(self, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
        connection = self.connection()
        scheme = "https" if self.context else "http"
        headers = {"Cookie": self.cookie, "Origin": f"{scheme}://localhost:{self.port}"}
        connection.request("GET" if form is None else "POST", path, urlencode(form) if form else None, headers)
        response = connection.getresponse()
        if (cookie := response.getheader("set-cookie")) is not None:
            self.cookie = cookie.split(";")[0]
            self.cookie_flags = cookie.split(";", 1)[1]
        text = response.read().decode()
        connection.close()
        return response.status, text

    def get(self, path: str) -> Any:
        status, text = self.ask(path)
        assert status == 200, text
        return json.loads(text)

    def log_in(self, token: str) -> int:
        return self.ask("/login", {"token": token})[0]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    directory = tmp_path_factory.mktemp("dashboard")
    generator = np.random.default_rng(3)
    data = {
        site: write_csv(directory / f"{site}.csv", ["age", "chol"], generator.normal(50, 9, (40, 2))) for site in SITES
    }
    with LocalFederation(directory, data) as running:
        yield running


def ports(federation: LocalFederation) -> dict[str, int]:
    found: dict[str, int] = json.loads(federation.coordinator.ready_path.read_text())
    return found


def observers(federation: LocalFederation, *arguments: str) -> Any:
    config = federation.directory / "coordinator" / "coordinator.toml"
    command = [sys.executable, "-m", "commonscale", "observers", *arguments, "--config", str(config)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def new_token(federation: LocalFederation, name: str) -> str:
    return str(json.loads(observers(federation, "add", name, "--format", "json"))["token"])


@pytest.fixture(scope="module")
def visitor(federation: LocalFederation) -> Visitor:
    visitor = Visitor(ports(federation)["dashboard_port"])
    assert visitor.log_in(new_token(federation, "ops")) == 303
    return visitor


def test_strangers_see_the_way_in_and_nothing_else(federation: LocalFederation) -> None:
    """Every page, every snapshot, every stream."""
    stranger = Visitor(ports(federation)["dashboard_port"])
    assert stranger.ask("/")[0] == stranger.ask("/jobs/x")[0] == 303
    for path in ("/api/overview", "/api/events", "/api/jobs/x", "/api/jobs/x/events"):
        assert stranger.ask(path)[0] == 401
    assert stranger.log_in("cs_wrong") == 401
    assert stranger.log_in("x" * 10_000) == 413
    assert "commonscale observers add" in stranger.ask("/login")[1]
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd"):
        assert stranger.ask(path)[0] in (400, 404)


def test_a_removed_observer_is_out_at_once(federation: LocalFederation) -> None:
    """Its cookie too, and a stream that is open."""
    late = Visitor(ports(federation)["dashboard_port"])
    assert late.log_in(new_token(federation, "late")) == 303
    assert "httponly" in late.cookie_flags.lower()
    assert "samesite=strict" in late.cookie_flags.lower()
    connection = late.connection()
    connection.request("GET", "/api/events", headers={"Cookie": late.cookie})
    stream = connection.getresponse()
    assert stream.readline() == b"event: overview\n"
    observers(federation, "remove", "late")
    assert late.ask("/api/overview")[0] == 401
    assert b"data:" in stream.read()
    assert "late" not in observers(federation, "list")


def test_a_job_is_shown_with_its_rounds_and_without_its_results(federation: LocalFederation, visitor: Visitor) -> None:
    """Who sent how much when, what was revealed to whom; never a number that was computed."""
    ended = submit(federation, job(SITES, ["age", "chol"]))
    overview = eventually(lambda: visitor.get("/api/overview"), lambda shown: shown["totals"]["done"] >= 1)
    assert overview["visitor"] == "ops"
    assert [site["name"] for site in overview["sites"] if site["online"]] == SITES
    assert overview["jobs"][0]["id"] == ended.id
    shown = visitor.get(f"/api/jobs/{ended.id}")
    assert [entry["kind"] for entry in shown["rounds"]][:2] == ["Signed", "Roster"]
    assert shown["rounds"][-1]["kind"] == "Outcome"
    assert set(shown["rounds"][0]["senders"]) == set(SITES)
    assert shown["awaiting"] == []
    assert shown["disclosures"] == ended.disclosures
    seconds = sum(entry["seconds"] for entry in shown["protocols"])
    assert seconds <= (shown["ended_at_ms"] - shown["submitted_at_ms"]) / 1000 + 1e-6
    text = json.dumps(shown) + json.dumps(overview)
    for number in (*ended.result[0]["mean"], *ended.result[0]["scale"]):
        assert repr(number)[:8] not in text
    assert visitor.ask("/api/jobs/none") == (404, '{"error":"There is no job none."}')


def test_refusals_and_errors_are_listed_with_what_to_do(federation: LocalFederation, visitor: Visitor) -> None:
    """A certificate that does not fit, and a site that cannot take part."""
    ended = submit(federation, job(SITES, ["age", "weight"]))
    assert ended.state in ("failed", "refused")
    observer = federation.analyst().model_copy(
        update={"tls": federation.enrol("watcher", Role.OBSERVER, federation.directory / "watcher")}
    )

    async def trespass() -> None:
        async with Client(observer) as client:
            await client.submit(Pipeline.model_validate(job(SITES, ["age"])))

    with pytest.raises(NotAllowed):
        run(trespass)

    def incidents() -> dict[str, Any]:
        return {incident["who"]: incident for incident in visitor.get("/api/overview")["incidents"]}

    found = eventually(incidents, lambda shown: {f"job {ended.id}", "observer watcher"} <= set(shown))
    assert "weight" in found[f"job {ended.id}"]["message"]
    assert found["observer watcher"]["what"] == "NotAllowed"
    assert all(incident["remedy"] for incident in found.values())


@pytest.mark.long
def test_a_browser_that_does_not_read_holds_up_no_job(federation: LocalFederation, visitor: Visitor) -> None:
    """Ninety of them, with tiny windows, on a busy stream: jobs go on, the process does not grow."""
    stuck = []
    for _ in range(90):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", visitor.port))
        connection.sendall(f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n\r\n".encode())
        stuck.append(connection)
    try:
        time.sleep(1)
        for _ in range(3):
            ended = submit(federation, job(SITES, ["age", "chol"]))
            assert ended.state == "done"
        eventually(lambda: visitor.get("/api/overview")["totals"], lambda totals: totals["open"] == 0)
    finally:
        for connection in stuck:
            connection.close()


def tls_visitor(federation: LocalFederation, port: int, name: str = "", role: Role | None = None) -> Visitor:
    context = ssl.create_default_context(cafile=str(federation.ca.directory / "ca.crt"))
    if role is not None:
        tls = federation.enrol(name, role, federation.directory / name)
        context.load_cert_chain(tls.certificate, tls.key)
    return Visitor(port, context)


@pytest.fixture(scope="module")
def tls_coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A coordinator alone, whose dashboard speaks TLS as it does by default."""
    federation = LocalFederation(tmp_path_factory.mktemp("tls"), {})
    path = federation.directory / "coordinator" / "coordinator.toml"
    path.write_text(path.read_text().replace("tls = false\n", ""))
    federation.coordinator.start()
    federation.coordinator.wait_ready()
    yield federation
    federation.coordinator.stop()


@pytest.mark.long
def test_a_certificate_opens_without_a_token(tls_coordinator: LocalFederation) -> None:
    """Of an observer or an analyst; a site's does not, nor one that was revoked."""
    port = ports(tls_coordinator)["dashboard_port"]
    watcher = tls_visitor(tls_coordinator, port, "watcher", Role.OBSERVER)
    assert watcher.get("/api/overview")["visitor"] == "observer watcher"
    assert tls_visitor(tls_coordinator, port, "mona", Role.ANALYST).get("/api/overview")["visitor"] == "analyst mona"
    assert tls_visitor(tls_coordinator, port, "north", Role.SITE).ask("/api/overview")[0] == 401
    tls_coordinator.ca.revoke("watcher")
    eventually(lambda: watcher.ask("/api/overview")[0], lambda status: status == 401)


@pytest.mark.long
def test_a_token_opens_over_tls_with_a_safe_cookie(tls_coordinator: LocalFederation) -> None:
    """And plain HTTP gets nothing at all."""
    port = ports(tls_coordinator)["dashboard_port"]
    visitor = tls_visitor(tls_coordinator, port)
    assert visitor.log_in(new_token(tls_coordinator, "ops")) == 303
    assert "secure" in visitor.cookie_flags.lower()
    assert visitor.get("/api/overview")["coordinator"]["name"] == "coordinator"
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        Visitor(port).ask("/login")


@pytest.mark.long
def test_a_renewed_certificate_is_served_without_a_restart(tls_coordinator: LocalFederation) -> None:
    """New connections get it within seconds."""
    port = ports(tls_coordinator)["dashboard_port"]
    before = ssl.get_server_certificate(("127.0.0.1", port))
    tls_coordinator.renew("coordinator", tls_coordinator.directory / "coordinator")
    eventually(lambda: ssl.get_server_certificate(("127.0.0.1", port)), lambda found: found != before)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('listen = "127.0.0.1:0"\ntls', 'listen = "nowhere"\ntls'), "is not an address"),
        (("tls = false", "secure = false"), "unknown key 'dashboard.secure'"),
    ],
)
def test_a_dashboard_that_cannot_be_served_is_one_sentence(
    federation: LocalFederation, tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    """And exit code 2, without a traceback."""
    text = (federation.directory / "coordinator" / "coordinator.toml").read_text().replace(*change)
    text = text.replace(f'"127.0.0.1:{federation.port}"', '"127.0.0.1:0"')
    (tmp_path / "coordinator.toml").write_text(text)
    command = [sys.executable, "-m", "commonscale", "coordinator", "--config", str(tmp_path / "coordinator.toml")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
