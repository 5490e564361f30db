"""`docker compose up` from a fresh clone, and what an operator may do to it."""

import json
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from tests.docker.conftest import Analyst, approve, waiting_for_west
from tests.docker.engine import IMAGES, SITES, Stack, docker, run, until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.docker
WORKERS = [f"{site}-worker" for site in SITES]


def assert_as_pooled(analyst: Analyst, job: dict[str, object], rtol: float = 1e-12) -> None:
    """The job is done, with the numbers of the pooled table."""
    assert job["state"] == "done", job["error"]
    rows = np.vstack(list(analyst.hospitals.parts.values()))[:, :6]
    pooled = StandardScaler().fit(rows)
    found = job["result"][0]  # type: ignore[index]
    np.testing.assert_allclose(found["mean"], pooled.mean_, rtol=rtol)
    np.testing.assert_allclose(found["scale"], pooled.scale_, rtol=rtol)


def test_up_ends_with_the_demo_done(stack: Stack) -> None:
    """Enrolment by itself, one job with numbers and categories, equal to pooled scikit-learn; daemons go on serving."""
    assert stack.state("analyst")["ExitCode"] == 0, stack.logs("analyst")
    text = stack.logs("analyst")
    (error,) = re.findall(r"against pooled scikit-learn: (\S+);", text)
    assert float(error) < 1e-12
    assert "the same at all sites: yes." in text
    assert "One number per category at all hospitals that have it: yes." in text
    assert re.search(r"size_class .*together", text)
    stack.await_healthy("coordinator", *SITES, *WORKERS)


def test_up_trains_a_model(stack: Stack) -> None:
    """As good as one of the pooled table, better than any hospital's own; all have it, and no rows are left."""
    text = stack.logs("analyst")
    (line,) = re.findall(r"^ *accuracy (.*)$", text, re.M)
    pooled, together, *alone = (float(part.rstrip("%")) for part in line.split())
    assert len(alone) == len(SITES)
    assert together >= 98
    assert abs(together - pooled) < 2.5
    assert together > max(alone)
    assert "The same model at all hospitals: yes." in text
    for site in SITES:
        stack.execute(site, "sh", "-c", "ls /var/lib/commonscale/results/*/model.safetensors")
        assert stack.execute(site, "ls", "/var/lib/commonscale/scratch").stdout.split() == ["worker.sock"]


def test_a_worker_has_nothing_but_its_socket(stack: Stack) -> None:
    """No network, no table, no key, no state of its participant; what they share it cannot write."""
    for worker in WORKERS:
        assert stack.execute(worker, "ls", "/sys/class/net").stdout.split() == ["lo"]
        assert stack.execute(worker, "find", "/data", "/etc/commonscale", "-type", "f").stdout == ""
        assert stack.execute(worker, "ls", "/var/lib/commonscale").stdout.split() == ["results", "scratch"]
        assert stack.execute(worker, "ls", "/var/lib/commonscale/results").stdout == ""
        assert stack.execute(worker, "touch", "/var/lib/commonscale/scratch/x", check=False).returncode != 0
        assert "attached to" in stack.logs(worker)


def test_results_are_kept_in_volumes(stack: Stack) -> None:
    """Each hospital has its fitted objects."""
    for site in SITES:
        found = stack.execute(site, "sh", "-c", "ls /var/lib/commonscale/results/*/").stdout
        assert "0-zscore.skops" in found
        assert "parameters.json" in found


def test_a_key_is_only_where_it_was_made(stack: Stack) -> None:
    """Requests and certificates crossed the exchange, no key did; each member's volume has its own key alone."""

    def files(volume: str) -> list[str]:
        found = docker(
            "run", "--rm", "--user", "0", "--network", "none", "--volume", f"{stack.volume(volume)}:/looked-at:ro",
            "--entrypoint", "find", f"{IMAGES}/participant:latest", "/looked-at", "-type", "f",
        )  # fmt: skip
        return sorted(found.split())

    mail = files("mail")
    assert len([name for name in mail if name.endswith(".csr")]) == 6
    assert not [name for name in mail if "key" in name or "passphrase" in name]
    for site in SITES:
        assert [n for n in files(f"{site}-tls") if n.endswith(".key")] == [f"/looked-at/{site}.key"]
        assert files(f"{site}-data") == [f"/looked-at/{site}.csv"]


def test_the_dashboard_is_on_a_published_port(stack: Stack) -> None:
    """On the loopback, behind the token that was printed."""
    (token,) = re.findall(r"^(cs_\S+)$", stack.logs("dashboard-login"), re.M)
    base = f"http://127.0.0.1:{stack.port}"
    assert f"{base}/" in stack.logs("dashboard-login")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{base}/api/overview", timeout=PATIENCE_S)
    assert refused.value.code == 401
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    form = urllib.parse.urlencode({"token": token}).encode()
    browser.open(urllib.request.Request(f"{base}/login", form, {"Origin": base}), timeout=PATIENCE_S)
    overview = json.load(browser.open(f"{base}/api/overview", timeout=PATIENCE_S))
    assert {site["name"] for site in overview["sites"]} == set(SITES)
    described = docker("inspect", "--format", "{{json .HostConfig.PortBindings}}", stack.container("coordinator"))
    bindings = json.loads(described)
    assert {b["HostIp"] for published in bindings.values() for b in published} == {"127.0.0.1"}


CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
except OSError:
    sys.exit(1)
"""


def test_a_hospital_reaches_the_coordinator_and_nobody_else(stack: Stack) -> None:
    """Not by name, not by address, not outside; and nothing reaches it, the coordinator neither."""

    def reaches(service: str, host: str, port: int) -> bool:
        return stack.execute(service, "python", "-c", CONNECT, host, str(port), check=False).returncode == 0

    def address(service: str, network: str) -> str:
        described = docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", stack.container(service))
        return str(json.loads(described)[stack.network(network)]["IPAddress"])

    assert reaches("north", "coordinator", 7443)
    # By name, and by an address on which something answers those who may ask.
    assert not reaches("north", "east", 7481)
    assert reaches("east", address("coordinator", "east"), 7443)
    assert not reaches("north", address("coordinator", "east"), 7443)
    # The network that leads out, which the host reaches.
    outside = address("coordinator", "front")
    socket.create_connection((outside, 7443), 5).close()
    assert not reaches("north", outside, 7443)
    for network in ("north", "east", "south", "west", "analysts"):
        assert docker("network", "inspect", "--format", "{{.Internal}}", stack.network(network)) == "true"
    # No port of the hospital answers from outside it, though they do inside.
    for port in (7481, 7482):
        assert reaches("north", "127.0.0.1", port)
        assert not reaches("coordinator", address("north", "north"), port)


def test_up_again_needs_no_second_enrolment(stack: Stack) -> None:
    """The same keys and certificates, another job."""
    look = ("north", "sha256sum", "/etc/commonscale/tls/north.crt", "/etc/commonscale/tls/north.key")
    before = stack.execute(*look).stdout
    first = re.findall(r"^job (demo-\w+): done", stack.logs("analyst"), re.M)
    stack.compose("up", "-d")
    docker("wait", stack.container("analyst"))
    assert stack.state("analyst")["ExitCode"] == 0
    jobs = re.findall(r"^job (demo-\w+): done", stack.logs("analyst"), re.M)
    assert len(jobs) == len(first) + 1
    assert len(set(jobs)) == len(jobs)
    assert stack.execute(*look).stdout == before
    assert stack.logs("enrol-north").count("enrolled: site north") == 1


def test_daemons_run_without_rights(stack: Stack) -> None:
    """A user without a name, no capability, no new ones, nothing to write to but volumes, no compiler."""
    for service in ("coordinator", "north", "north-worker"):
        status = stack.execute(service, "cat", "/proc/1/status").stdout
        assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.M)
        assert re.search(r"^CapEff:\s+0+$", status, re.M)
        assert re.search(r"^CapBnd:\s+0+$", status, re.M)
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
        for path in ("/x", "/app/x", "/etc/commonscale/x", "/etc/commonscale/tls/x", "/usr/local/x"):
            assert stack.execute(service, "touch", path, check=False).returncode != 0, path
        stack.execute(service, "touch", "/tmp/x")
        for tool in ("gcc", "cc", "g++", "make", "ld"):
            assert stack.execute(service, "sh", "-c", f"command -v {tool}", check=False).returncode != 0, tool
        assert stack.execute(service, "/app/bin/python", "-c", "import pip", check=False).returncode != 0


@pytest.mark.parametrize("service", ["north", "coordinator"])
def test_sigterm_drains(stack: Stack, service: str) -> None:
    """`docker stop` ends a daemon by itself, with exit code 0, long before it would be killed; then it starts again."""
    stack.await_healthy(service)
    start = time.monotonic()
    docker("stop", "--time", "30", stack.container(service))
    assert time.monotonic() - start < 20
    assert stack.state(service)["ExitCode"] == 0, stack.logs(service)[-2000:]
    assert '"draining"' in stack.logs(service) or '"stopping"' in stack.logs(service)
    docker("start", stack.container(service))
    stack.await_healthy(service)
    if service == "north":
        # Its worker ended with it, and is attached to the new one.
        until("a worker", lambda: stack.logs(service).count('"worker attached"') == 2)


def test_a_cut_network_heals(patient: Stack, analyst: Analyst) -> None:
    """A hospital loses its network in mid-job: the job waits, and completes with the same numbers when it is back."""
    waiting_for_west(analyst, "partition")
    docker("network", "disconnect", patient.network("north"), patient.container("north"))
    approve(patient, "partition")
    until("the job waits for north", lambda: analyst.awaited("partition") == ["north"])
    time.sleep(5)
    assert analyst.awaited("partition") == ["north"]
    assert analyst.show("partition")["state"] in ("inviting", "running")
    docker("network", "connect", patient.network("north"), patient.container("north"))
    assert_as_pooled(analyst, analyst.finish("partition"))
    patient.await_healthy("north")


def test_the_coordinator_is_killed_in_mid_job(patient: Stack, analyst: Analyst) -> None:
    """SIGKILL while a job is under way, a site answers meanwhile, the coordinator comes back: the same numbers."""
    waiting_for_west(analyst, "killed")
    docker("kill", "--signal", "KILL", patient.container("coordinator"))
    until("it is gone", lambda: not patient.state("coordinator")["Running"])
    assert patient.state("coordinator")["ExitCode"] == 137
    approve(patient, "killed")
    docker("start", patient.container("coordinator"))
    assert_as_pooled(analyst, analyst.finish("killed"))


# A volume that is full after a few large messages; kept mounted by the container that uses it.
SMALL = """
services:
  coordinator:
    volumes:
      - small:/var/lib/commonscale
volumes:
  small:
    driver_opts: {type: tmpfs, device: tmpfs, o: "size=80m,uid=10001,gid=10001,mode=0750"}
"""
FILL = """
import os, sys
path, leave = "/var/lib/commonscale/fill", int(sys.argv[1])
with open(path, "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(65536))
    except OSError:
        pass
    file.truncate(max(0, os.fstat(file.fileno()).st_size - leave))
"""


def test_a_full_disk_pauses_jobs(patient: Stack, analyst: Analyst) -> None:
    """The coordinator's disk is full: the job waits, nothing acknowledged is lost; with room again it completes."""
    (patient.directory / "small.yml").write_text(SMALL)
    patient.files = ["docker-compose.yml", "small.yml"]
    patient.compose("up", "-d", "--no-deps", "coordinator")
    patient.await_healthy("coordinator", *SITES)
    waiting_for_west(analyst, "full", encrypted=True)
    patient.execute("coordinator", "python", "-c", FILL, "0")
    approve(patient, "full")
    # The coordinator tells everyone who wants something written.
    until("the sites are told why", lambda: "disk is full" in patient.logs("north"))
    time.sleep(5)
    assert analyst.show("full")["state"] in ("inviting", "running")
    another = analyst.submit("another", check=False)
    patient.execute("coordinator", "rm", "/var/lib/commonscale/fill")
    assert_as_pooled(analyst, analyst.finish("full"), rtol=1e-5)
    patient.await_healthy("coordinator")
    if another.returncode == 0:
        # What was acknowledged is kept, full disk or not.
        approve(patient, "another")
        assert_as_pooled(analyst, analyst.finish("another"))
    else:
        told = (another.stdout + another.stderr).strip()
        assert told.splitlines()[-1].startswith("error: "), told
        assert "Traceback" not in told


def test_the_worker_image_has_what_trains(images: dict[str, str]) -> None:
    """Its command, the libraries that it trains with, and a user without rights."""
    hardened = ("--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")
    assert "check" in docker("run", *hardened, images["worker"], "--help")
    code = "import commonscale_worker.attaching, sklearn.linear_model, os; print(os.getuid())"
    done = run("docker", "run", *hardened, "--entrypoint", "python", images["worker"], "-c", code, check=False)
    assert done.stdout.strip() == "10001", done.stderr
