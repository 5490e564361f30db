"""A federation whose dashboard is visited, and the things that happen in it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from commonscale.client import Client
from commonscale.config import ParticipantConfig, Tls, load
from commonscale.identity import Role
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from participant.approvals import Decision, decide
from participant.journal import SiteJobs, open_database
from tests.browser.conftest import aside
from tests.e2e.conftest import run, write_csv
from tests.patience import PATIENCE_S, eventually

SITES = ["north", "east", "south", "west"]


class WatchedFederation(LocalFederation):
    """Four sites: south lets a person decide, east's certificate ends soon, west's very soon."""

    days: ClassVar = {"east": 21.0, "west": 5.0}

    def __init__(self, directory: Path, **more: Any) -> None:
        generator = np.random.default_rng(7)
        columns = ["age", "lab_creatinine", "lab_potassium"]
        data = {
            site: write_csv(
                directory / f"{site}.csv", columns, generator.normal([50 + index, 80, 4], [9, 20, 0.4], (60, 3))
            )
            for index, site in enumerate(SITES)
        }
        policies = {"south": {"approval": "manual"}, "east": {"columns": ["age", "lab_potassium"]}}
        super().__init__(directory, data, policies=policies, **more)

    def enrol(self, name: str, role: Role, directory: Path, days: float = 365) -> Tls:
        """With the lifetimes above."""
        return super().enrol(name, role, directory, self.days.get(name, days))

    @property
    def origin(self) -> str:
        """Where the dashboard is."""
        return f"http://127.0.0.1:{self.coordinator.wait_ready()['dashboard_port']}"

    def keep_dashboard_port(self) -> None:
        """From now on a restarted coordinator serves it under the same address."""
        path = self.directory / "coordinator" / "coordinator.toml"
        port = self.coordinator.wait_ready()["dashboard_port"]
        text = path.read_text().replace(
            '[dashboard]\nlisten = "127.0.0.1:0"', f'[dashboard]\nlisten = "127.0.0.1:{port}"'
        )
        path.write_text(text)

    def observer(self, name: str) -> str:
        """A token for somebody."""
        config = self.directory / "coordinator" / "coordinator.toml"
        answer = command("observers", "add", name, "--config", str(config), "--format", "json")
        return str(json.loads(answer.splitlines()[-1])["token"])

    def submit(self, *, sites: list[str] | None = None, name: str, deadline_s: int = 120, steps: Any = None) -> str:
        """A job, submitted and not waited for; its id."""
        steps = steps or [{"columns": ["age"]}]
        pipeline = Pipeline.model_validate(
            {"name": name, "sites": sites or ["north", "east", "west"], "deadline_s": deadline_s, "steps": steps}
        )

        async def work() -> str:
            async with Client(self.analyst("mona")) as client:
                return (await client.submit(pipeline)).id

        return aside(lambda: run(work))

    def decide(self, job_id: str, decision: Decision, reason: str = "") -> None:
        """What the person at south does, once the job has arrived there."""
        database = open_database(load(ParticipantConfig, self.directory / "south" / "participant.toml"))
        jobs = SiteJobs(database)
        eventually(lambda: any(job.id == job_id and job.waiting for job in jobs.all()))
        decide(jobs, job_id, decision, reason, "test")
        database.close()

    def pause(self, site: str) -> None:
        """Its process does nothing any more, as on a machine that hangs."""
        self._signal(site, signal.SIGSTOP)

    def go_on(self, site: str) -> None:
        """Undo pause."""
        self._signal(site, signal.SIGCONT)

    def _signal(self, site: str, number: int) -> None:
        process = self.participants[site].process
        assert process is not None
        os.kill(process.pid, number)


def command(*arguments: str) -> str:
    """The commonscale command as a person runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "commonscale", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout
