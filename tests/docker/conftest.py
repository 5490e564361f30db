"""One set of images and one federation for all tests with containers."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commonscale.cli.demo_hospitals import Hospitals
from tests.docker.engine import IMAGES, SITES, Stack, compose_command, copy_of_the_tree, docker, run, until


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine; tests are skipped where there is none, unless it is required."""
    answers = compose_command() and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    if not answers:
        if os.environ.get("COMMONSCALE_REQUIRE_DOCKER"):
            pytest.fail("a Docker engine and docker compose are required here and missing")
        pytest.skip("no Docker engine or no docker compose")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="session")
def images(tree: Path) -> dict[str, str]:
    """All three images, built from the copy."""
    network = os.environ.get("COMMONSCALE_BUILD_NETWORK", "host")
    names = {}
    for target in ("participant", "coordinator", "worker"):
        names[target] = f"{IMAGES}/{target}:latest"
        arguments = ("--quiet", "--network", network, "--file", "deploy/Dockerfile", "--target", target)
        run("docker", "build", *arguments, "--tag", names[target], ".", cwd=tree, timeout_s=1200)
    return names


@pytest.fixture(scope="session")
def stack(tree: Path, images: dict[str, str]) -> Iterator[Stack]:
    """`docker compose up` as it stands in the repository; up to the end of its one-shot services."""
    running = Stack(tree)
    try:
        running.compose("up", "-d")
        for service in ("analyst", "dashboard-login"):
            docker("wait", running.container(service))
        yield running
    finally:
        running.down()


# Numbers and categories for most tests; under encryption (with parameters that are quick and not secure) where messages
# have to be large.
PIPELINE = """
name = "{name}"
sites = ["north", "east", "south", "west"]
deadline_s = 900

[[steps]]
transform = "zscore"
columns = {columns}
{more}
"""


class Analyst:
    """A container with the analyst's certificate in which commands can be run, as on the analyst's machine."""

    def __init__(self, stack: Stack, name: str) -> None:
        self._stack = stack
        self.container = name
        self.hospitals = Hospitals.split_by_diagnosis()

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`commonscale …`."""
        return run("docker", "exec", self.container, "commonscale", *arguments, check=check)

    def submit(self, job: str, *, encrypted: bool = False, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Hand in a z-score job, without waiting for its end."""
        more = 'method = "ckks"\nckks = { profile = "test" }' if encrypted else ""
        columns = self.hospitals.columns[:6]
        text = PIPELINE.format(name=job, columns=json.dumps(columns), more=more)
        run("docker", "exec", "-i", self.container, "sh", "-c", f"cat > /tmp/{job}.toml", input=text)
        return self.command("submit", f"/tmp/{job}.toml", "--no-wait", "--job-id", job, check=check)

    def show(self, job: str) -> dict[str, Any]:
        """A job as the coordinator describes it."""
        found: dict[str, Any] = json.loads(
            self.command("jobs", "show", job, "--format", "json").stdout.splitlines()[-1]
        )
        return found

    def awaited(self, job: str) -> list[str]:
        """Which sites it waits for."""
        found: list[str] = self.show(job)["progress"]["awaited"]
        return found

    def finish(self, job: str) -> dict[str, Any]:
        """Follow it to its end, across whatever happens to the coordinator."""
        done = self.command("jobs", "watch", job, "--format", "json")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="session")
def patient(stack: Stack) -> Stack:
    """The same federation, in which jobs wait for a person at west, and quick encryption is allowed."""
    for site in SITES:
        path = stack.directory / "deploy" / "compose" / f"{site}.toml"
        quick = '[policy]\ntest_profile = true\nmethods = ["masks", "shares", "ckks"]\n'
        text = path.read_text().replace("[policy]\n", quick)
        if site == "west":
            text = text.replace('approval = "automatic"', 'approval = "manual"')
        # In place: the container has the file, not its name.
        path.write_text(text)
    stack.compose("restart", *SITES)
    stack.await_healthy(*SITES)
    return stack


@pytest.fixture(scope="session")
def analyst(patient: Stack, images: dict[str, str]) -> Iterator[Analyst]:
    name = f"{patient.project}-somebody"
    config = patient.directory / "deploy" / "compose" / "analyst.toml"
    docker(
        "run", "--detach", "--name", name, "--network", patient.network("analysts"), "--read-only", "--tmpfs", "/tmp",
        "--volume", f"{patient.volume('analyst-tls')}:/etc/commonscale/tls:ro",
        "--volume", f"{config}:/etc/commonscale/analyst.toml:ro",
        "--env", "COMMONSCALE_CONFIG=/etc/commonscale/analyst.toml", "--no-healthcheck",
        "--entrypoint", "sleep", images["participant"], "3600",
    )  # fmt: skip
    try:
        yield Analyst(patient, name)
    finally:
        docker("rm", "--force", name)


def waiting_for_west(analyst: Analyst, job: str, *, encrypted: bool = False) -> None:
    """Submit a job and see it stop at west, in mid-job: the others have answered."""
    analyst.submit(job, encrypted=encrypted)
    until(f"{job} waits for west alone", lambda: analyst.awaited(job) == ["west"])


def approve(stack: Stack, job: str) -> None:
    """The person at west decides."""
    stack.execute("west", "commonscale", "approvals", "approve", job)
