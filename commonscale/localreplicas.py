"""Two coordinators on one PostgreSQL, behind one address of this machine's loopback. For benchmarks and tests."""

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

    blob_store = "database"

    def __init__(self, directory: Path, data: Any, **options: Any) -> None:
        super().__init__(directory, data, **options)
        self.balancer = Balancer()
        self.other = self.new_coordinator("other")

    def coordinators(self) -> Sequence[Process]:
        """Both replicas."""
        return (self.coordinator, self.other)

    def start_coordinator(self) -> None:
        """Both at once, on an empty database; then each stays on its port."""
        super().start_coordinator()
        self.balancer.backends = [process.wait_ready()["port"] for process in self.coordinators()]
        self.port = self.balancer.port

    def stop(self) -> None:
        """End everything that was started."""
        super().stop()
        self.balancer.close()

    def driver(self, job_id: str) -> tuple[Process, Process]:
        """The replica that drives a job, and the one that does not."""
        for process, other in ((self.coordinator, self.other), (self.other, self.coordinator)):
            lines = process.log_path.read_text().splitlines()
            # A look at the open jobs may come between the job's row and the word that it was submitted.
            begun = (line for line in lines if '"job submitted"' in line or '"job taken over"' in line)
            if any(f'"{job_id}"' in line for line in begun):
                return process, other
        raise AssertionError(f"nobody drives {job_id}")
