"""A whole federation as real processes on this machine's loopback, with real certificates.

For the demo, the benchmarks and the end-to-end tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography.hazmat.primitives import serialization

from commonscale.config import AnalystConfig, Tls
from commonscale.errors import CommonscaleError
from commonscale.files import replace_file
from commonscale.identity import Identity, Role
from commonscale.pki import CertificateAuthority, create_request, load_request

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0

# A policy for trying out computations under encryption, with the quick parameters too.
ENCRYPTION: Mapping[str, Any] = {"sums": ["masks", "shares", "ckks"], "test_profile": True}


class Process:
    """One daemon: its configuration, its process, its log."""

    def __init__(self, name: str, directory: Path, command: Sequence[str]) -> None:
        self.name = name
        self.directory = directory
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """Where its log goes."""
        return self.directory / "log.jsonl"

    @property
    def ready_path(self) -> Path:
        """Where it says its ports."""
        return self.directory / "ready.json"

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, without waiting."""
        self.ready_path.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "--ready-file", str(self.ready_path)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

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


class LocalFederation:
    """A coordinator and participants in one directory; starts and stops them all."""

    def __init__(
        self, directory: Path, data: Mapping[str, Path | Mapping[str, Path]], *,
        policies: Mapping[str, Mapping[str, Any]] | None = None, missing: Sequence[str] = (), database: str = "sqlite:///coordinator.db",
        entry: Mapping[str, Sequence[str]] | None = None, models: Mapping[str, Path] | None = None,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.sites = list(data)
        self._entry = entry or {}
        self.ca = CertificateAuthority.create(directory / "pki", "local")
        self._policies = policies or {}
        self.coordinator = self._coordinator(database)
        self._data = data
        self._missing = list(missing)
        self._models = models or {}
        self.participants: dict[str, Process] = {}

    def __enter__(self) -> LocalFederation:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        except BaseException:
            self.stop()
            raise

    def start_coordinator(self) -> None:
        """Bring up what sites and analysts dial: from now on under the same port, so that it is found again."""
        self.coordinator.start()
        self.port = self.coordinator.wait_ready()["port"]
        self._write_coordinator_config()

    def stop(self) -> None:
        """End everything that was started."""
        processes = (*self.participants.values(), *self.coordinators())
        for process in processes:
            process.terminate()
        for process in processes:
            process.stop()

    def coordinators(self) -> Sequence[Process]:
        """All replicas: one here."""
        return (self.coordinator,)

    def analyst(self, name: str = "analyst") -> AnalystConfig:
        """Settings with which an analyst can submit."""
        directory = self.directory / name
        if not (directory / "analyst.toml").exists():
            tls = self.enrol(name, Role.ANALYST, directory)
            replace_file(
                directory / "analyst.toml",
                f'coordinator = "127.0.0.1:{self.port}"\n{_toml_tls(tls)}'.encode(),
            )
        return AnalystConfig(coordinator=f"127.0.0.1:{self.port}", tls=self._tls(name, directory))

    def enrol(self, name: str, role: Role, directory: Path, days: float = 365) -> Tls:
        """The whole enrolment of a member, in files."""
        hosts = ["localhost", "127.0.0.1"] if role is Role.COORDINATOR else []
        csr = create_request(directory / "tls", Identity(role, name), hosts)
        certificate = self.ca.approve(load_request(csr), days)
        replace_file(directory / "tls" / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        replace_file(directory / "tls" / "ca.crt", (self.ca.directory / "ca.crt").read_bytes())
        return self._tls(name, directory)

    def renew(self, name: str, directory: Path) -> None:
        """A new certificate for the same key, put in place under a running daemon."""
        certificate = self.ca.approve(load_request(directory / "tls" / f"{name}.csr"))
        replace_file(directory / "tls" / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))

    def _tls(self, name: str, directory: Path) -> Tls:
        tls = directory / "tls"
        return Tls(certificate=tls / f"{name}.crt", key=tls / f"{name}.key", ca=tls / "ca.crt")

    def _coordinator(self, database: str) -> Process:
        directory = self.directory / "coordinator"
        self._coordinator_tls = self.enrol("coordinator", Role.COORDINATOR, directory)
        self._database = database
        self.port = 0
        self._write_coordinator_config()
        entry = self._entry.get("coordinator", [sys.executable, "-m", "commonscale", "coordinator"])
        return Process("coordinator", directory, [*entry, "--config", str(directory / "coordinator.toml")])

    def _write_coordinator_config(self) -> None:
        text = (
            f'listen = "127.0.0.1:{self.port}"\nhttp_listen = "127.0.0.1:0"\n'
            f'database = "{self._database}"\n'
            f"{_toml_tls(self._coordinator_tls)}revocations = {json.dumps(str(self.ca.crl_path))}\n"
            '[dashboard]\nlisten = "127.0.0.1:0"\ntls = false\n'
        )
        replace_file(self.directory / "coordinator" / "coordinator.toml", text.encode())

    def _participant(self, site: str, data: Path | Mapping[str, Path]) -> Process:
        """A site with one table, or several by name."""
        directory = self.directory / site
        tls = self.enrol(site, Role.SITE, directory)
        rules = {"approval": "automatic", **self._policies.get(site, {})}
        policy = "".join(f"{key} = {json.dumps(value)}\n" for key, value in rules.items())
        tables = {"main": data} if isinstance(data, Path) else data
        sources = "".join(
            f"[data.{name}]\npath = {json.dumps(str(path))}\nmissing = {json.dumps(self._missing)}\n"
            for name, path in tables.items()
        )
        models = "".join(f"{name} = {json.dumps(str(path))}\n" for name, path in self._models.items())
        text = (
            f'coordinator = "127.0.0.1:{self.port}"\nhttp_listen = "127.0.0.1:0"\n'
            f"{_toml_tls(tls)}{sources}[policy]\n{policy}[page]\nlisten = '127.0.0.1:0'\n[models]\n{models}"
        )
        replace_file(directory / "participant.toml", text.encode())
        entry = self._entry.get(site, [sys.executable, "-m", "commonscale", "participant"])
        return Process(site, directory, [*entry, "--config", str(directory / "participant.toml")])


def _toml_tls(tls: Tls) -> str:
    lines = (f"{key} = {json.dumps(str(getattr(tls, key)))}\n" for key in ("certificate", "key", "ca"))
    return "[tls]\n" + "".join(lines)
