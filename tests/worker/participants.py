"""A participant as a worker sees it: a ROUTER on a socket in a folder, and a file of rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zmq
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb

PATIENCE_MS = 30_000
Array = np.ndarray[Any, Any]


class Participant:
    """The other end of the worker's protocol; the peer is whoever said Hello last."""

    def __init__(self, folder: Path, address: str | None = None) -> None:
        self.address = address or f"ipc://{folder}/worker.sock"
        self.bind()

    def bind(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(self.address)

    def close(self) -> None:
        """Returns when the socket's file is gone; bind() comes back as a participant that was started again."""
        self._context.destroy(linger=0)

    def receive(self, *kinds: str) -> wire.Message:
        """The next message, which must be of one of these kinds; Progress is passed over unless it is one."""
        while True:
            assert self._socket.poll(PATIENCE_MS), f"nothing came, instead of {kinds}"
            self._peer, *frames = self._socket.recv_multipart()
            message = wire.parse(frames)
            if message.kind in kinds:
                return message
            assert message.kind == "progress", message

    def quiet(self, milliseconds: int) -> bool:
        return not self._socket.poll(milliseconds)

    def send(self, body: Any, arrays: Mapping[str, Array] | None = None) -> None:
        self._socket.send_multipart([self._peer, *wire.frames(body, arrays)])

    def welcome(self) -> pb.Hello:
        hello: pb.Hello = self.receive("hello").body
        self.send(pb.Welcome(version=1, site="north"))
        return hello

    def prepare(self, prepare: pb.Prepare) -> wire.Message:
        self.send(prepare)
        return self.receive("prepared", "failed")

    def task(self, task: pb.Task, arrays: Mapping[str, Array]) -> wire.Message:
        self.send(task, arrays)
        assert self.receive("accepted").body.id == task.id
        return self.receive("result", "failed", "cancelled")


def write_rows(path: Path, x: Array, y: Array, evaluation: Array) -> list[str]:
    """A file as a participant writes it; the names of its features."""
    names = [f"f{number}" for number in range(x.shape[1])]
    columns = [*(pa.array(column, pa.float64()) for column in x.T), pa.array(y, pa.float64()), pa.array(evaluation)]
    table = pa.table(columns, [*names, "@target", "@evaluation"])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return names


def made_up(rows: int = 200, features: int = 4, classes: int = 2, seed: int = 7) -> tuple[Array, Array, Array]:
    """Rows that a linear model can tell apart; no classes: a number."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, features))
    truth = np.random.default_rng(1).normal(size=(features, max(classes, 1)))
    y = (x @ truth).argmax(axis=1).astype(float) if classes else (x @ truth)[:, 0]
    return x, y, np.arange(rows) % 5 == 0


def prepare_of(
    folder: Path, model: str, classes: int = 2, rows: tuple[Array, Array, Array] | None = None, **settings: Any
) -> pb.Prepare:
    """A job on made-up rows."""
    x, y, evaluation = rows or made_up(classes=classes)
    names = write_rows(folder / "rows.arrow", x, y, evaluation)
    wanted: dict[str, Any] = {"seed": 1, "precision": "float64", "epochs": 1, "batch_rows": 16, "learning_rate": 0.1}
    return pb.Prepare(
        id="job",
        model=model,
        data_path=str(folder / "rows.arrow"),
        features=names,
        classes=[f"class {number}" for number in range(classes)],
        settings=pb.Settings(**{**wanted, **settings}),
    )


def start_worker(folder: Path, module: Path, arguments: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`commonscale-worker run` as its own process."""
    command = [sys.executable, "-m", "commonscale_worker.cli", "run", str(module)]
    socket = ["--socket", str(folder / "worker.sock")]
    return subprocess.Popen([*command, *(arguments or socket)], stderr=subprocess.PIPE, text=True, cwd=folder)
