"""A participant's socket and a real worker process over ipc: a model's weights there and back, beside the training."""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
from commonscale_worker.v1 import worker_pb2 as pb

from bench.idle_model import module, name_of, noted_s
from commonscale.config import WorkerConfig
from commonscale.localnet import Worker
from participant.handover import EVALUATION, TARGET
from participant.worker_gate import WorkerGate

REPEATS = 5
START_S = 60.0


def row(directory: Path, size: int) -> dict[str, Any]:
    """Figures of a vector alone, without a federation around it."""
    return {"protocol": "training", "variant": "worker", "parameters": size, "overhead_s": measure(directory, size)}


def measure(directory: Path, size: int) -> float:
    """Seconds from the task to the whole answer, less the training: the median of a few rounds after the first."""
    directory.mkdir(exist_ok=True)
    notes = directory / f"notes-{size}"
    notes.mkdir()
    models = directory / f"idle-{size}.py"
    models.write_text(module([size], notes))
    # What the socket logs must not stand among the figures.
    with contextlib.redirect_stdout(sys.stderr):
        lasted = anyio.run(_rounds, directory, Worker.of(models), size)
    trained = noted_s(notes, size, range(1, len(lasted)))
    return round(statistics.median(lasted[number] - trained[number][0] for number in trained), 4)


async def _rounds(directory: Path, worker: Worker, size: int) -> list[float]:
    """What each round took, from the task to the answer."""
    gate = WorkerGate("bench", WorkerConfig(), directory)
    async with gate.serving():
        with process(worker, gate.address):
            with anyio.fail_after(START_S):
                while gate.models is None:  # noqa: ASYNC110 - a process of its own attaches
                    await anyio.sleep(0.02)
            return await _asked(gate, prepare(directory, size), worker.models[name_of(size)], size)


@contextlib.contextmanager
def process(worker: Worker, address: str) -> Iterator[None]:
    """A real worker that attaches there."""
    command = [worker.python, "-m", "commonscale_worker", "run", str(worker.module), "--socket", address]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def _asked(gate: WorkerGate, ready: pb.Prepare, digest: str, size: int) -> list[float]:
    answer = await gate.ask((ready, digest), None, {})
    weights, lasted = answer.arrays["weights"], []
    for number in range(REPEATS + 1):
        task = pb.Task(id=f"task-{number}", kind=pb.Task.KIND_TRAIN, round=number, rounds=REPEATS, job=ready.id)
        start = time.perf_counter()
        answer = await gate.ask((ready, digest), task, {"weights": weights})
        lasted.append(time.perf_counter() - start)
        weights = answer.arrays["weights"]
        assert len(weights) == size
    return lasted


def prepare(directory: Path, size: int) -> pb.Prepare:
    """A job of two rows, which the model does not look at."""
    file = directory / "rows.arrow"
    table = pa.table({"x": np.zeros(2), TARGET: np.zeros(2), EVALUATION: np.zeros(2, bool)})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    settings = pb.Settings(precision="float32", epochs=1, batch_rows=32, learning_rate=0.01, optimizer="sgd")
    return pb.Prepare(id="job", model=name_of(size), data_path=str(file), features=["x"], settings=settings)
