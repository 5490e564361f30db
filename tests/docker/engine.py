"""Docker and docker compose by their commands: what an operator types is what is tested."""

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMAGES = "commonscale-test"
SITES = ("north", "east", "south", "west")
# Nothing takes longer unless it hangs, also on a busy machine.
LIMIT_S = 300


def run(
    *command: str, check: bool = True, timeout_s: float = LIMIT_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A command's output as text; its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **options)
    if check and done.returncode:
        last = done.stdout[-3000:] + done.stderr[-3000:]
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{last}")
    return done


def docker(*arguments: str, **options: Any) -> str:
    """`docker …`, its standard output."""
    return run("docker", *arguments, **options).stdout.strip()


def compose_command() -> list[str] | None:
    """`docker compose` or `docker-compose`, whichever is here."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def until(what: str, look: Callable[[], Any], limit_s: float = 120.0) -> Any:
    """The first true answer."""
    stop = time.monotonic() + limit_s
    while not (found := look()):
        if time.monotonic() > stop:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.5)
    return found


def copy_of_the_tree(target: Path) -> Path:
    """As a fresh clone: what is, or would be, in the repository."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Stack:
    """One compose project with a name of its own; everything it makes is removed by that name."""

    directory: Path
    files: list[str] = field(default_factory=lambda: ["docker-compose.yml"])

    def __post_init__(self) -> None:
        self.project = f"commonscale-test-{secrets.token_hex(3)}"
        self.port = free_port()
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "COMMONSCALE_IMAGES": IMAGES,
            "COMMONSCALE_DASHBOARD_PORT": str(self.port),
        }

    def compose(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`docker compose …` in the project."""
        command = compose_command()
        assert command is not None
        named = [part for file in self.files for part in ("-f", file)]
        return run(*command, *named, *arguments, check=check, cwd=self.directory, env=self.environment)

    def container(self, service: str) -> str:
        """A service's container."""
        label = f"label=com.docker.compose.project={self.project}"
        found = docker("ps", "-aq", "--filter", label, "--filter", f"label=com.docker.compose.service={service}")
        assert found, f"no container of {service}"
        return found.splitlines()[0]

    def state(self, service: str) -> dict[str, Any]:
        """What the engine says of a service's container."""
        found: dict[str, Any] = json.loads(docker("inspect", "--format", "{{json .State}}", self.container(service)))
        return found

    def logs(self, service: str) -> str:
        """Everything that a service has said."""
        done = run("docker", "logs", self.container(service))
        return done.stdout + done.stderr

    def execute(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container."""
        return run("docker", "exec", self.container(service), *command, check=check)

    def network(self, name: str) -> str:
        """The engine's name for one of the project's networks."""
        return f"{self.project}_{name}"

    def volume(self, name: str) -> str:
        """The engine's name for one of the project's volumes."""
        return f"{self.project}_{name}"

    def await_healthy(self, *services: str) -> None:
        """Until the health checks of all of them pass."""
        for service in services:
            until(f"{service} healthy", partial(self._is_healthy, service))

    def _is_healthy(self, service: str) -> bool:
        health: dict[str, Any] = self.state(service).get("Health", {})
        return health.get("Status") == "healthy"

    def down(self) -> None:
        """Remove containers, networks and volumes of this project."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)
