"""A whole federation as real processes on this machine's loopback, with real certificates.

For the demo, the benchmarks and the end-to-end tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from commonscale import config
from commonscale.config import AnalystConfig, Tls
from commonscale.errors import CommonscaleError
from commonscale.files import replace_file
from commonscale.forking import ForkedProgram
from commonscale.identity import Identity, Role
from commonscale.names import LEAF_DAYS
from commonscale.pki import CertificateAuthority, create_request, load_request, pem

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0
# A policy for trying out computations under encryption, with the quick parameters too.
ENCRYPTION: Mapping[str, Any] = {
    "methods": ["masks", "shares", "ckks", "oprf", "apsi", "otmppsi", "ring"],
    "test_profile": True,
}


class Process:
    """One daemon: its configuration, its process, its log."""

    def __init__(self, name: str, directory: Path, command: Sequence[str]) -> None:
        self.name = name
        self.directory = directory
        self.command = list(command)
        self.log_path = directory / "log.jsonl"
        # Where it says its ports.
        self.ready_path = directory / "ready.json"
        self.process: subprocess.Popen[bytes] | ForkedProgram | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        self.ready_path.unlink(missing_ok=True)
        self._launch([*self.command, "--ready-file", str(self.ready_path)])

    def _launch(self, command: Sequence[str]) -> None:
        if LocalFederation.forks and ForkedProgram.can_run(command):
            self.process = ForkedProgram(command, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_ready(self) -> dict[str, int]:
        """Its ports, once it serves."""
        stop = time.monotonic() + START_TIMEOUT_S
        while not self.ready_path.exists():
            if self.process is None or self.process.poll() is not None or time.monotonic() > stop:
                raise CommonscaleError(f"{self.name} did not start: {self.log_path.read_text()[-2000:]}")
            time.sleep(0.02)
        ports: dict[str, int] = json.loads(self.ready_path.read_text())
        return ports

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> int:
        """End it gently; returns its exit code."""
        self.terminate()
        if self.process is None:
            return 0
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.kill()
        return self.process.wait()


@dataclass(frozen=True)
class Worker:
    """An ML worker of a site: the Python that runs it, the module (or file) with its models, their digests by name."""

    module: str | Path
    models: Mapping[str, str]
    python: str = sys.executable
    # What the site lets be trained, beside these models.
    policy: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, module: str | Path, python: str = sys.executable, policy: Mapping[str, Any] | None = None) -> Worker:
        """Asks the worker's own command for the digests."""
        command = [python, "-m", "commonscale_worker", "models", str(module), "--format", "json"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return cls(module, {model["name"]: model["digest"] for model in json.loads(listed)}, python, policy or {})


class LocalFederation:
    """A coordinator and participants in one directory; starts and stops them all."""

    blob_store = "files"
    # Whether daemons begin as forks of one process (commonscale.forking): they are there at once.
    forks: ClassVar[bool] = False

    def __init__(
        self, directory: Path, data: Mapping[str, Path | Mapping[str, Path]], *,
        policies: Mapping[str, Mapping[str, Any]] | None = None, missing: Sequence[str] = (), database: str = "sqlite:///coordinator.db",
        entry: Mapping[str, Sequence[str]] | None = None, models: Mapping[str, Path] | None = None,
        workers: Mapping[str, Worker] | None = None,
    ) -> None:  # fmt: skip
        # Daemons read paths from where their configuration is.
        self.directory = directory.absolute()
        self.sites = list(data)
        self.port = 0
        self.participants: dict[str, Process] = {}
        self._data, self._database, self._missing = data, database, list(missing)
        self._policies, self._entry, self._models = policies or {}, entry or {}, models or {}
        self._workers = workers or {}
        self.workers: dict[str, Process] = {}
        self.ca = CertificateAuthority.create(self.directory / "pki", "local")
        self._coordinator_tls = self.enrol("coordinator", Role.COORDINATOR, self.directory / "coordinator")
        self.coordinator = self.new_coordinator("coordinator")

    def __enter__(self) -> LocalFederation:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Bring everything up; returns when all sites are connected."""
        try:
            self.start_coordinator()
            for site, path in self._data.items():
                self.participants[site] = self._participant(site, path)
                self.participants[site].start()
            for participant in self.participants.values():
                participant.wait_ready()
            for site, worker in self._workers.items():
                self.workers[site] = self._worker(site, worker)
                self.workers[site].start()
            for site in self._workers:
                self.wait_attached(site)
        except BaseException:
            self.stop()
            raise

    def start_coordinator(self) -> None:
        """Bring up what sites and analysts dial: from now on under the same port, so that it is found again."""
        for process in self.coordinators():
            process.start()
        for process in self.coordinators():
            self.port = process.wait_ready()["port"]
            self._configure(process, self.port)

    def stop(self) -> None:
        """End everything that was started."""
        processes = (*self.workers.values(), *self.participants.values(), *self.coordinators())
        for process in processes:
            process.terminate()
        for process in processes:
            process.stop()

    def wait_attached(self, site: str, times: int = 1) -> None:
        """Wait until a participant has said so often that its worker has attached."""
        log, stop = self.participants[site].log_path, time.monotonic() + START_TIMEOUT_S
        while log.read_text().count('"worker attached"') < times:
            worker = self.workers[site]
            if worker.process is None or worker.process.poll() is not None or time.monotonic() > stop:
                raise CommonscaleError(f"The worker of {site} did not attach: {worker.log_path.read_text()[-2000:]}")
            time.sleep(0.02)

    def coordinators(self) -> Sequence[Process]:
        """All replicas: one here."""
        return (self.coordinator,)

    def analyst(self, name: str = "analyst") -> AnalystConfig:
        """Settings with which an analyst can submit."""
        path = self.directory / name / "analyst.toml"
        if not path.exists():
            tls = self.enrol(name, Role.ANALYST, path.parent)
            _write(path, {"coordinator": f"127.0.0.1:{self.port}"}, tls=tls.model_dump(exclude_none=True))
        return config.load(AnalystConfig, path)

    def enrol(self, name: str, role: Role, directory: Path, days: float = LEAF_DAYS) -> Tls:
        """The whole enrolment of a member, in files."""
        hosts = ["localhost", "127.0.0.1"] if role is Role.COORDINATOR else []
        create_request(directory / "tls", Identity(role, name), hosts)
        replace_file(directory / "tls" / "ca.crt", (self.ca.directory / "ca.crt").read_bytes())
        return self.renew(name, directory, days)

    def renew(self, name: str, directory: Path, days: float = LEAF_DAYS) -> Tls:
        """A new certificate for the same key, put in place under a running daemon."""
        tls = directory / "tls"
        replace_file(tls / f"{name}.crt", pem(self.ca.approve(load_request(tls / f"{name}.csr"), days)))
        return Tls(certificate=tls / f"{name}.crt", key=tls / f"{name}.key", ca=tls / "ca.crt")

    def new_coordinator(self, name: str) -> Process:
        """One more coordinator with the same certificate and database, in a directory of its own; not started."""
        directory = self.directory / name
        entry = self._entry.get("coordinator", [sys.executable, "-m", "commonscale", "coordinator"])
        process = Process(name, directory, [*entry, "--config", str(directory / "coordinator.toml")])
        self._configure(process, 0)
        return process

    def _configure(self, coordinator: Process, port: int) -> None:
        keys = {"listen": f"127.0.0.1:{port}", "http_listen": "127.0.0.1:0", "database": self._database}
        _write(
            coordinator.directory / "coordinator.toml",
            keys | {"blob_store": self.blob_store},
            tls={**self._coordinator_tls.model_dump(exclude_none=True), "revocations": self.ca.crl_path},
            dashboard={"listen": "127.0.0.1:0", "tls": False},
        )

    def _worker_tables(self, site: str) -> dict[str, Mapping[str, Any]]:
        if site not in self._workers:
            return {}
        worker = self._workers[site]
        return {"worker": {}, "policy.train": worker.policy, "policy.train.models": worker.models}

    def _worker(self, site: str, worker: Worker) -> Process:
        socket = f"ipc://{self.directory / site / 'state' / 'worker.sock'}"
        command = [worker.python, "-m", "commonscale_worker", "run", str(worker.module), "--socket", socket]
        return WorkerProcess(f"{site}-worker", self.directory / site / "worker", command)

    def _participant(self, site: str, data: Path | Mapping[str, Path]) -> Process:
        """A site with one table, or several by name."""
        directory = self.directory / site
        tables = {"main": data} if isinstance(data, Path) else data
        _write(
            directory / "participant.toml",
            {"coordinator": f"127.0.0.1:{self.port}", "http_listen": "127.0.0.1:0"},
            tls=self.enrol(site, Role.SITE, directory).model_dump(exclude_none=True),
            policy={"approval": "automatic", **self._policies.get(site, {})},
            **self._worker_tables(site),
            page={"listen": "127.0.0.1:0"},
            models={name: path.absolute() for name, path in self._models.items()},
            **{f"data.{name}": {"path": path.absolute(), "missing": self._missing} for name, path in tables.items()},
        )
        entry = self._entry.get(site, [sys.executable, "-m", "commonscale", "participant"])
        return Process(site, directory, [*entry, "--config", str(directory / "participant.toml")])


class WorkerProcess(Process):
    """A worker has no ports."""

    def start(self) -> None:
        """Start it, without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._launch(self.command)


def _write(path: Path, keys: Mapping[str, Any], **tables: Mapping[str, Any]) -> None:
    """A configuration file; what JSON writes of texts, numbers and lists is TOML too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value, default=str)}" for key, value in table.items())]
    replace_file(path, "\n".join([*lines, ""]).encode())
