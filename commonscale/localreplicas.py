"""Two coordinators on one PostgreSQL, behind one address of this machine's loopback. For benchmarks and tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commonscale.localnet import LocalFederation, Process


class Balancer:
    """One address before several servers: each connection goes to the next one that answers."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        self._next = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        for _ in range(len(self.backends)):
            self._next += 1
            port = self.backends[self._next % len(self.backends)]
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port), timeout=5)
                server.settimeout(None)
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()
                break
        client.close()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """One direction, to its end; the other end then hears of it."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class ReplicatedFederation(LocalFederation):
    """A local federation with two coordinators that share nothing but their database."""

    def __init__(self, directory: Path, data: Any, **options: Any) -> None:
        self.balancer = Balancer()
        super().__init__(directory, data, **options)
        self.other = self._replica("other")

    def _replica(self, name: str) -> Process:
        directory = self.directory / name
        directory.mkdir()
        return Process(name, directory, [*self.coordinator.command[:-1], str(directory / "coordinator.toml")])

    def coordinators(self) -> Sequence[Process]:
        """Both replicas."""
        return (self.coordinator, self.other)

    def start_coordinator(self) -> None:
        """Both at once, on an empty database; then each stays on its port."""
        self._write(self.other, 0)
        for process in self.coordinators():
            process.start()
        for process in self.coordinators():
            port = process.wait_ready()["port"]
            self.balancer.backends.append(port)
            self._write(process, port)
        self.port = self.balancer.port

    def _write_coordinator_config(self) -> None:
        self._write(Process("coordinator", self.directory / "coordinator", []), 0)

    def _write(self, process: Process, port: int) -> None:
        tls = self._coordinator_tls
        text = (
            f'listen = "127.0.0.1:{port}"\nhttp_listen = "127.0.0.1:0"\ndatabase = "{self._database}"\n'
            'blob_store = "database"\n'
            f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\nca = "{tls.ca}"\n'
            f'revocations = "{self.ca.crl_path}"\n[dashboard]\nlisten = "127.0.0.1:0"\ntls = false\n'
        )
        (process.directory / "coordinator.toml").write_text(text)

    def stop(self) -> None:
        """End everything that was started."""
        super().stop()
        self.balancer.close()

    def driver(self, job_id: str) -> tuple[Process, Process]:
        """The replica that drives a job, and the one that does not."""
        for process, other in ((self.coordinator, self.other), (self.other, self.coordinator)):
            lines = process.log_path.read_text().splitlines()
            if any(f'"{job_id}"' in line and '"job submitted"' in line for line in lines):
                return process, other
        raise AssertionError(f"nobody drives {job_id}")
