"""A real Prometheus scrapes real daemons with the files that operators get. Needs no containers: in `make test`."""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.client import Client
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from tests.docker.engine import ROOT, free_port, until
from tests.patience import PATIENCE_S

FILES = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def prometheus() -> str:
    found = shutil.which("prometheus")
    if found is None:
        if os.environ.get("COMMONSCALE_REQUIRE_PROMTOOL"):
            pytest.fail("prometheus is required here and missing")
        pytest.skip("no prometheus: install the Debian package prometheus")
    return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Three sites that have finished one job."""
    directory = tmp_path_factory.mktemp("scraped")
    generator = np.random.default_rng(5)
    data = {}
    for site in ("north", "south", "west"):
        data[site] = directory / f"{site}.csv"
        np.savetxt(data[site], generator.normal(50, 9, (30, 1)), header="age", comments="")
    with LocalFederation(directory, data) as running:
        pipeline = Pipeline.model_validate({"sites": list(data), "steps": [{"columns": ["age"]}]})

        async def work() -> str:
            async with Client(running.analyst()) as client:
                return (await client.wait((await client.submit(pipeline)).id)).state

        assert anyio.run(work) == "done"
        yield running


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    """A process for the time of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment}, cwd=log.parent)
    try:
        yield
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(20)


def adapted(path: Path, target: Path, changes: dict[str, str]) -> Path:
    """A copy of a configuration with other addresses, asked more often; each change must find its place."""
    text = path.read_text()
    for old, new in {**changes, "scrape_interval: 15s": "scrape_interval: 1s"}.items():
        assert old in text, old
        text = text.replace(old, new)
    target.write_text(text)
    return target


def ask(port: int, query: str) -> list[dict[str, Any]]:
    """An instant query by Prometheus's own API."""
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return found


def test_a_real_prometheus_scrapes_both_daemons(prometheus: str, federation: LocalFederation, tmp_path: Path) -> None:
    """The ops team's server asks the coordinator; a hospital's agent asks its participant and sends on."""
    server, agent = free_port(), free_port()
    coordinator_http = json.loads(federation.coordinator.ready_path.read_text())["http_port"]
    north_http = json.loads(federation.participants["north"].ready_path.read_text())["http_port"]
    shutil.copy(FILES / "rules.yml", tmp_path)
    main = adapted(
        FILES / "prometheus.yml", tmp_path / "prometheus.yml", {"coordinator:7480": f"127.0.0.1:{coordinator_http}"}
    )
    changes = {"127.0.0.1:7481": f"127.0.0.1:{north_http}", "http://prometheus:9090": f"http://127.0.0.1:{server}"}
    site = adapted(FILES / "site.yml", tmp_path / "site.yml", changes)
    with ExitStack() as processes:
        command = [prometheus, f"--config.file={main}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{server}", "--web.enable-remote-write-receiver"]
        processes.enter_context(started(command, tmp_path / "server.log"))
        command = [prometheus, f"--config.file={site}", "--enable-feature=agent,expand-external-labels"]
        command += [f"--storage.agent.path={tmp_path / 'agent'}", f"--web.listen-address=127.0.0.1:{agent}"]
        processes.enter_context(started(command, tmp_path / "agent.log", SITE="north"))
        until("the coordinator is up", lambda: ask(server, 'up{job="coordinator"} == 1'))
        (found,) = until("the participant is up", lambda: ask(server, 'up{job="participant"} == 1'))
        assert found["metric"]["instance"] == "north"
        (online,) = ask(server, 'commonscale_sites_online{job="coordinator"}')
        assert online["value"][1] == "3"
        (done,) = ask(server, 'commonscale_jobs_total{job="coordinator",outcome="done"}')
        assert done["value"][1] == "1"
        (connected,) = until("in session", lambda: ask(server, 'commonscale_connected{instance="north"}'))
        assert connected["value"][1] == "1"
        assert len(ask(server, "commonscale_build")) == 2
        days = {entry["metric"]["job"]: float(entry["value"][1]) for entry in ask(server, CERTIFICATE_DAYS)}
        assert days.keys() == {"coordinator", "participant"}
        assert all(300 < left < 366 for left in days.values())
        assert ask(server, 'sum by (kind) (commonscale_round_seconds_count{job="coordinator"}) > 0')
        with urllib.request.urlopen(f"http://127.0.0.1:{server}/api/v1/rules", timeout=PATIENCE_S) as answer:
            rules = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
        assert len(rules) > 9
        assert all(rule["health"] in ("ok", "unknown") for rule in rules), rules


CERTIFICATE_DAYS = "(commonscale_certificate_expiry_timestamp_seconds - time()) / 86400"
