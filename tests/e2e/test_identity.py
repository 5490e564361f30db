"""Identity over the wire: who may connect, and what each role may call."""

import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from commonscale import config, rpc
from commonscale.channel.slot import Slot
from commonscale.client import Client
from commonscale.config import AnalystConfig, ParticipantConfig, Tls
from commonscale.errors import IncompatiblePeer, NotAllowed, Unreachable
from commonscale.grpc_loading import grpc
from commonscale.identity import Identity, Role
from commonscale.link import Link, RelayMailbox
from commonscale.localnet import LocalFederation
from commonscale.pki import CertificateAuthority, create_request, load_request
from commonscale.v1 import jobs_pb2, jobs_pb2_grpc
from coordinator.services import SERVICES
from tests.e2e.conftest import GOOD, job, run, submit

# This loads grpc, too, so it stands after.
# isort: split
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.patience import PATIENCE_S, eventually


def hello(federation: LocalFederation, tls: Tls) -> jobs_pb2.HelloResponse:
    async def work() -> jobs_pb2.HelloResponse:
        link = Link(f"127.0.0.1:{federation.port}", tls)
        try:
            return await link.hello()
        finally:
            await link.close()

    return run(work)


def healthz(federation: LocalFederation, name: str) -> tuple[int, str]:
    process = federation.coordinator if name == "coordinator" else federation.participants[name]
    port = process.wait_ready()["http_port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_foreign_certificate_is_refused(federation: LocalFederation, tmp_path: Path) -> None:
    """Another CA's member does not get through the handshake."""
    foreign = CertificateAuthority.create(tmp_path / "pki", "foreign")
    csr = create_request(tmp_path / "tls", Identity(Role.SITE, "a"), [])
    (tmp_path / "tls" / "a.crt").write_bytes(
        foreign.approve(load_request(csr)).public_bytes(serialization.Encoding.PEM)
    )
    tls = Tls(certificate=tmp_path / "tls/a.crt", key=tmp_path / "tls/a.key", ca=federation.ca.directory / "ca.crt")
    with pytest.raises(Unreachable):
        hello(federation, tls)


def test_an_expired_certificate_is_refused(federation: LocalFederation, tmp_path: Path) -> None:
    """By the handshake."""
    with pytest.raises(Unreachable):
        hello(federation, federation.enrol("late", Role.SITE, tmp_path, days=-1))


def test_a_coordinator_of_another_ca_is_refused(federation: LocalFederation, tmp_path: Path) -> None:
    """A member that pins another CA does not talk to this coordinator, and doctor is recommended."""
    tls = federation.enrol("pinned", Role.SITE, tmp_path)
    foreign = CertificateAuthority.create(tmp_path / "pki", "foreign")
    (tmp_path / "tls" / "ca.crt").write_bytes((foreign.directory / "ca.crt").read_bytes())
    with pytest.raises(Unreachable, match="commonscale doctor"):
        hello(federation, tls)


def test_only_tls_1_3_is_spoken(federation: LocalFederation) -> None:
    """OpenSSL's client gets through with 1.3 and not with 1.2."""
    tls = federation.analyst().tls
    protocols = {}
    for version in ("-tls1_2", "-tls1_3"):
        command = [
            "openssl", "s_client", "-connect", f"127.0.0.1:{federation.port}", version, "-alpn", "h2",
            "-cert", str(tls.certificate), "-key", str(tls.key), "-CAfile", str(tls.ca),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
        )
        protocols[version] = "Verify return code: 0" in done.stdout and "Cipher is TLS_" in done.stdout
    assert protocols == {"-tls1_2": False, "-tls1_3": True}


@pytest.mark.parametrize("role", [Role.OBSERVER, Role.AGGREGATOR, Role.SITE])
def test_only_analysts_submit(federation: LocalFederation, tmp_path: Path, role: Role) -> None:
    """The role is in the certificate."""
    from commonscale.pipeline import Pipeline

    settings = AnalystConfig(
        coordinator=f"127.0.0.1:{federation.port}", tls=federation.enrol(f"x-{role.value}", role, tmp_path)
    )

    async def work() -> None:
        async with Client(settings) as client:
            await client.submit(Pipeline.model_validate(job(GOOD, ["age"])))

    with pytest.raises(NotAllowed, match=f"{role.value} x-{role.value} does not allow this call"):
        run(work)


def test_an_observer_may_look(federation: LocalFederation, tmp_path: Path) -> None:
    """But not cancel."""
    settings = AnalystConfig(
        coordinator=f"127.0.0.1:{federation.port}", tls=federation.enrol("watcher", Role.OBSERVER, tmp_path)
    )

    async def work() -> None:
        async with Client(settings) as client:
            assert isinstance(await client.list(), list)
            with pytest.raises(NotAllowed):
                await client.cancel("anything")

    run(work)


def test_an_analyst_cannot_use_the_relay(federation: LocalFederation) -> None:
    """Nor read what sites send."""
    done = submit(federation, job(GOOD, ["age"]))

    async def work() -> None:
        link = Link(f"127.0.0.1:{federation.port}", federation.analyst().tls)
        try:
            await RelayMailbox(link).get(Slot(f"{done.id}/0", "mean.Total", "@coordinator", "@all"))
        finally:
            await link.close()

    with pytest.raises(NotAllowed):
        run(work)


@pytest.mark.parametrize(("protocol", "words"), [("99", "with protocol 99"), (None, "with protocol none")])
def test_an_incompatible_peer_is_refused_by_name(federation: LocalFederation, protocol: str | None, words: str) -> None:
    """Before its call is looked at."""
    metadata = () if protocol is None else ((rpc.PROTOCOL_KEY, protocol), (rpc.VERSION_KEY, "9.9"))

    async def work() -> None:
        async with rpc.connect(f"127.0.0.1:{federation.port}", federation.analyst().tls) as channel:
            await jobs_pb2_grpc.JobServiceStub(channel).List(
                jobs_pb2.ListRequest(), metadata=metadata, timeout=PATIENCE_S
            )

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        run(work)
    error = rpc.from_wire(caught.value, "The coordinator")
    assert isinstance(error, IncompatiblePeer)
    assert "analyst analyst runs commonscale" in str(error)
    assert words in str(error)


def test_health_is_served_and_watched(federation: LocalFederation) -> None:
    """grpc.health.v1 for each service, over mTLS; /healthz and /metrics over HTTP on both daemons."""

    async def work() -> list[Any]:
        async with rpc.connect(f"127.0.0.1:{federation.port}", federation.analyst().tls) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            found: list[Any] = [
                (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)).status
                for service in ("", *SERVICES)
            ]
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="commonscale.v1.RelayService"), timeout=PATIENCE_S)
            found.append((await anext(aiter(watch))).status)
            return found

    assert set(run(work)) == {health_pb2.HealthCheckResponse.SERVING}
    for name in ("coordinator", "a"):
        assert healthz(federation, name)[0] == 200
        process = federation.coordinator if name == "coordinator" else federation.participants[name]
        port = process.wait_ready()["http_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
            metrics = response.read().decode()
        assert "commonscale_build{" in metrics
        assert "commonscale_certificate_expiry_timestamp_seconds" in metrics


@pytest.mark.long
def test_a_renewed_certificate_needs_no_restart(federation: LocalFederation) -> None:
    """Of the coordinator's, new handshakes see it at once; of a site's, its next session does."""
    federation.renew("coordinator", federation.directory / "coordinator")
    federation.renew("c", federation.directory / "c")
    log = federation.participants["c"].log_path
    eventually(lambda: "renewed certificate taken into use" in log.read_text())
    assert submit(federation, job(GOOD, ["age"])).state == "done"


@pytest.mark.long
def test_a_revoked_site_is_out_while_the_others_go_on(federation: LocalFederation) -> None:
    """Without restarting anything: its calls are refused, its health says why, the others finish their job."""
    assert submit(federation, job([*GOOD, "narrow"], ["age"])).state == "done"
    federation.ca.revoke("narrow")
    eventually(lambda: "site narrow is revoked" in healthz(federation, "narrow")[1])
    tls = config.load(ParticipantConfig, federation.directory / "narrow" / "participant.toml").tls
    with pytest.raises(NotAllowed, match=r"site narrow is revoked.*operator"):
        hello(federation, tls)
    assert submit(federation, job(GOOD, ["age"])).state == "done"
    assert healthz(federation, "a")[0] == 200
