"""A federation that trains while its pages are looked at."""

import json
from pathlib import Path
from typing import Any, ClassVar

from commonscale.client import Client, Job
from commonscale.localnet import LocalFederation, Worker
from tests import patients
from tests.browser.conftest import aside
from tests.browser.dashboards import WatchedFederation
from tests.e2e.conftest import run


class TrainingFederation(WatchedFederation):
    """Three sites with a worker each."""

    days: ClassVar = {}

    def __init__(self, directory: Path) -> None:
        workers = dict.fromkeys(patients.SITES, Worker.of(patients.MODELS))
        LocalFederation.__init__(self, directory, patients.write_tables(directory), workers=workers)

    def train(self, name: str, rounds: int, **more: Any) -> str:
        """A job that trains, submitted and not waited for; its id."""

        async def work() -> str:
            async with Client(self.analyst("mona")) as client:
                return (await client.submit(patients.training(name, rounds, **more))).id

        return aside(lambda: run(work))

    def job(self, job_id: str, analyst: str = "mona", wait: bool = False) -> Job:
        """As an analyst sees it."""

        async def work() -> Job:
            async with Client(self.analyst(analyst)) as client:
                return await (client.wait(job_id) if wait else client.get(job_id))

        return aside(lambda: run(work))

    def hold(self, site: str, number: int) -> None:
        """Let a site's worker hold still in a round, until it is let go."""
        patients.hold(self, site, number)

    def let_go(self, site: str) -> None:
        """Undo hold."""
        patients.let_go(self, site)

    def fail(self, text: str) -> Job:
        """A job whose model stumbles over something at every site, after its end."""
        for site in patients.SITES:
            (self.directory / site / "fault").write_text(text)
        return self.job(self.train("first-try", rounds=30, model="faulty"), wait=True)

    def site_origin(self, site: str) -> str:
        """Where a site's own page is."""
        return f"http://127.0.0.1:{json.loads(self.participants[site].ready_path.read_text())['page_port']}"

    def site_token(self, site: str) -> str:
        """What opens it."""
        return (self.directory / site / "state" / "page.token").read_text().strip()
