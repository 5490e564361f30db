"""The process that holds a worker's socket: what a peer does to libzmq ends that process, and nothing else."""

import io
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import numpy as np
import psutil
import pytest
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb
from exceptiongroup import ExceptionGroup

from bench.idle_model import module, name_of
from bench.worker_overhead import prepare, process
from commonscale.concurrency import first_error
from commonscale.config import WorkerConfig
from commonscale.errors import ConfigError, WorkerFailed
from commonscale.localnet import Worker
from participant import pipe, worker_gate
from participant.attachment import MAX_DEATHS
from participant.pipe import BadPipeError, Pipe
from participant.worker_gate import Running, WorkerGate
from tests.misbehaving.workers import Peer, ZeroMqByHand
from tests.patience import PATIENCE_S, eventually
from tests.unit.test_attachment import MODELS, curve_config, threaded, until

pytestmark = pytest.mark.anyio

SIZE = 1000


@dataclass
class Site:
    """A gate that serves, with a real worker behind it."""

    gate: WorkerGate
    directory: Path
    digest: str

    async def train(self, number: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        """One task: what it adds to weights of 0."""
        task = pb.Task(id=f"task-{number}", kind=pb.Task.KIND_TRAIN, round=number, rounds=9, job="job")
        weights = {"weights": np.zeros(SIZE, np.float32)}
        with anyio.fail_after(PATIENCE_S):
            answer = await self.gate.ask((prepare(self.directory, SIZE), self.digest), task, weights)
        return np.array(answer.arrays["weights"])

    async def restarted(self, pid: int | None) -> None:
        """Wait for another process than this one, with the worker attached."""
        await until(lambda: self.gate.pid not in (None, pid) and self.gate.models is not None)


@asynccontextmanager
async def serving(gate: WorkerGate) -> AsyncIterator[None]:
    try:
        async with gate.serving():
            yield
    except ExceptionGroup as group:
        raise first_error(group) from None


@asynccontextmanager
async def site(directory: Path, **config: object) -> AsyncIterator[Site]:
    (directory / "notes").mkdir()
    models = directory / "idle.py"
    models.write_text(module([SIZE], directory / "notes"))
    worker = Worker.of(models)
    gate = WorkerGate("north", WorkerConfig.model_validate(config), directory)
    async with serving(gate):
        with process(worker, gate.address):
            await until(lambda: gate.models is not None)
            yield Site(gate, directory, worker.models[name_of(SIZE)])


async def test_a_worker_trains_behind_the_gate(tmp_path: Path) -> None:
    """Only its own user reaches the socket, which goes at the end; nothing of the vault is in the other process."""
    path = tmp_path / "worker.sock"
    os.environ["COMMONSCALE_PASSPHRASE"] = "correct horse"
    try:
        async with site(tmp_path) as one:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert one.gate.models == {name_of(SIZE): one.digest}
            first = await one.train(1)
            assert first.shape == (SIZE,)
            np.testing.assert_array_equal(await one.train(2), first)
            assert one.gate.pid is not None
            other = psutil.Process(one.gate.pid)
            assert "correct horse" not in other.environ().values()
            assert other.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    finally:
        del os.environ["COMMONSCALE_PASSPHRASE"]
    assert not path.exists()
    assert not other.is_running()


async def test_a_peer_that_ends_libzmq_ends_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The assertion is real, the process is another one after it, the worker comes back and trains."""
    async with site(tmp_path) as one:
        before = await one.train(1)
        for _ in range(2):
            pid = one.gate.pid
            # It is a matter of milliseconds, so once may not be enough.
            while one.gate.pid == pid:
                await threaded(ZeroMqByHand(tmp_path / "worker.sock").hang_up_after_a_flood)
                with anyio.move_on_after(2.0):
                    await until(lambda pid=pid: one.gate.pid != pid)
            await one.restarted(pid)
        np.testing.assert_array_equal(await one.train(2), before)
    assert "Assertion failed: !_io_error" in capfd.readouterr().err


async def test_frames_without_end_meet_a_limit(tmp_path: Path) -> None:
    """A message that is never whole takes as much memory as that process may have; then its connection ends."""
    async with site(tmp_path, memory_mb=512) as one:
        before = psutil.Process().memory_info().rss
        taken = await threaded(ZeroMqByHand(tmp_path / "worker.sock").send_frames_without_end, 4 << 30)
        assert 100 << 20 < taken < 1 << 30
        assert (await one.train(1)).any()
        assert psutil.Process().memory_info().rss - before < 50 << 20


async def test_what_was_under_way_is_asked_for_again(tmp_path: Path) -> None:
    """A process that is killed in the middle of a task: the worker attaches to the next one, and the task ends."""
    async with site(tmp_path) as one:
        results = []

        async def asked() -> None:
            results.append(await one.train(1))

        async with anyio.create_task_group() as tasks:
            pid = one.gate.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            tasks.start_soon(asked)
            await anyio.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
        assert results[0].any()


async def test_a_process_that_ends_again_and_again_ends_the_task(tmp_path: Path) -> None:
    """With a typed error that names site and task; the gate goes on serving."""
    async with site(tmp_path) as one:
        ended = anyio.Event()

        async def killing() -> None:
            while not ended.is_set():
                pid = one.gate.pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    await until(lambda pid=pid: one.gate.pid != pid)
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(killing)
            with pytest.raises(
                WorkerFailed, match=rf"north: the process of its worker's socket ended {MAX_DEATHS} times"
            ):
                await one.train(1)
            ended.set()
        await one.restarted(None)
        assert (await one.train(2)).any()


async def test_a_place_that_is_taken_meanwhile_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Somebody put a file where the socket was: the gate tries again, and who asked meanwhile gets the answer."""
    path, results = tmp_path / "worker.sock", []
    async with site(tmp_path) as one:

        async def asked() -> None:
            results.append(await one.train(1))

        assert one.gate.pid is not None
        path.unlink()
        path.write_text("not ours")
        os.kill(one.gate.pid, signal.SIGKILL)
        await until(lambda: one.gate.pid is None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked)
            said = io.StringIO()

            def tried_again() -> bool:
                said.write("".join(capfd.readouterr()))
                return said.getvalue().count("is no socket") > 1

            await until(tried_again)
            assert not results
            path.unlink()
    assert results[0].any()


async def test_an_asker_that_gives_up_leaves_the_worker_to_the_next(tmp_path: Path) -> None:
    """A cancelled task is cancelled at the worker too."""
    gate = WorkerGate("north", WorkerConfig(), tmp_path)
    async with serving(gate):
        with Peer(gate.address) as peer:
            await threaded(peer.attach, MODELS)
            await until(lambda: gate.models == MODELS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.ask, (pb.Prepare(id="job-1", model="mlp"), MODELS["mlp"]), None, {})
                await threaded(peer.hear, "prepare")
                await until(lambda: gate.view().state == "working")
                tasks.cancel_scope.cancel()
            assert (await threaded(peer.hear, "cancel")).body.id == "job-1"
            await until(lambda: gate.view().state == "waiting")


SPOILT = """
import json, re, socket, sys
end = socket.socket(fileno=0)

def say(said, *parts):
    head = said if isinstance(said, bytes) else json.dumps(said).encode()
    lengths = [len(head), *map(len, parts)]
    end.sendall(bytes([len(lengths)]) + b"".join(length.to_bytes(8, "little") for length in lengths) + head)
    for part in parts:
        end.sendall(part)

say({"kind": "serving", "address": "ipc://somewhere"})
number = int(re.search(rb'"number": ([0-9]+)', end.recv(1 << 20)).group(1))
view = {"state": "waiting", "software": "", "models": {}, "task": "", "share": 0, "last_error": "", "last_error_ms": 0}
"""


class GateToAProcessThat(WorkerGate):
    """It runs this code instead of ours, once it has said that it serves and was asked something."""

    def __init__(self, directory: Path, code: str) -> None:
        super().__init__("north", WorkerConfig(), directory)
        self.code = SPOILT + code
        self.starts = 0

    def _start(self) -> Running:
        self.starts += 1
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([sys.executable, "-c", self.code], stdin=theirs.fileno())
        return Running(process, Pipe(ours, 1 << 30))


@pytest.mark.parametrize(
    "message",
    [
        "b'[' * 200000",
        "{}",
        "{'kind': 'answer'}",
        "{'kind': 'answer', 'number': number}, b'nonsense'",
        f"{{'kind': 'answer', 'number': number}}, {wire.frames(pb.Hello(software='w'))[0]!r}",
        f"{{'kind': 'answer', 'number': number}}, {wire.frames(pb.Prepared(id='other'))[0]!r}",
        "{'kind': 'view', 'view': view | {'share': float('nan')}}",
        "{'kind': 'view', 'view': view | {'models': 7}}",
        "{'kind': 'view', 'view': view | {'state': 'elsewhere'}}",
    ],
)
async def test_a_process_that_makes_no_sense_is_ended(tmp_path: Path, message: str) -> None:
    """Libzmq runs in it: what it says is checked; who asked gets an error, and another process is started."""
    gate = GateToAProcessThat(tmp_path, f"say({message})\nend.recv(1)")
    async with serving(gate):
        with pytest.raises(WorkerFailed, match="ended 3 times over job"), anyio.fail_after(PATIENCE_S):
            await gate.ask((pb.Prepare(id="job", model="mlp"), "d"), None, {})
        await until(lambda: gate.starts > MAX_DEATHS)
        assert gate.models is None
        assert "ended 3 times" in gate.view().last_error


async def test_a_process_that_takes_nothing_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives up on a long message can go; the process is ended, and so is the gate."""
    monkeypatch.setattr(pipe, "STUCK_S", 1.0)
    gate = GateToAProcessThat(tmp_path, "import time\ntime.sleep(1000)")
    async with serving(gate):
        with anyio.move_on_after(0.2):
            await gate.ask((pb.Prepare(id="job"), "d"), pb.Task(id="t"), {"weights": np.zeros(10_000_000)})
        await until(lambda: gate.starts > 1)
        await until(lambda: gate.pid is not None)


@pytest.mark.long
async def test_a_process_that_is_frozen_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows its view every few seconds, also while nobody asks anything."""
    monkeypatch.setattr(worker_gate, "SILENCE_S", 20.0)
    gate = WorkerGate("north", WorkerConfig(), tmp_path)
    async with serving(gate):
        pid = gate.pid
        assert pid is not None
        # It says something although nothing happens: longer than the silence that ends it.
        await anyio.sleep(21.0)
        assert gate.pid == pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: gate.pid not in (None, pid))


async def test_a_cancel_right_behind_its_question_counts(tmp_path: Path) -> None:
    """Both lie in the pipe when the process reads them: the worker is not left with work that nobody waits for."""
    gate = WorkerGate("north", WorkerConfig(), tmp_path)
    async with serving(gate):
        with Peer(gate.address) as peer:
            await threaded(peer.attach, MODELS)
            await until(lambda: gate.models == MODELS)
            large = {"weights": np.zeros(10_000_000)}
            with anyio.move_on_after(0.02):
                await gate.ask((pb.Prepare(id="given-up", model="mlp"), MODELS["mlp"]), pb.Task(id="t"), large)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.ask, (pb.Prepare(id="job-1", model="mlp"), MODELS["mlp"]), None, {})
                while (await threaded(peer.hear, "prepare")).body.id != "job-1":
                    pass
                tasks.cancel_scope.cancel()


async def test_a_configuration_that_cannot_work_is_told_at_once(tmp_path: Path) -> None:
    """As it is when there is no process in between."""
    table = tmp_path / "table.csv"
    table.write_text("age\n41\n")
    with pytest.raises(ConfigError, match="no socket") as raised:
        async with serving(WorkerGate("north", WorkerConfig(listen=f"ipc://{table}"), tmp_path)):
            raise AssertionError("it serves")
    assert raised.value.remedy
    assert table.exists()


async def test_a_port_that_was_chosen_stays(tmp_path: Path) -> None:
    """A worker finds the next process where the first one was."""
    config, _, _ = curve_config(tmp_path)
    gate = WorkerGate("north", config, tmp_path)
    async with serving(gate):
        address, pid = gate.address, gate.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: gate.pid not in (None, pid))
        assert gate.address == address
        assert not address.endswith(":0")


PARTICIPANT = """
import anyio, sys
from pathlib import Path
from commonscale.config import WorkerConfig
from participant.worker_gate import WorkerGate

async def main():
    gate = WorkerGate("north", WorkerConfig(), Path(sys.argv[1]))
    async with gate.serving():
        print(gate.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_it_ends_with_its_participant_and_leaves_the_next_ones_socket(tmp_path: Path) -> None:
    """After a SIGKILL nobody says stop: it goes at once, and removes nothing."""
    command = [sys.executable, "-c", PARTICIPANT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:  # noqa: ASYNC220 - waited for in a thread
        assert killed.stdout is not None
        other = psutil.Process(int(await threaded(killed.stdout.readline)))
        killed.kill()
    async with serving(WorkerGate("north", WorkerConfig(), tmp_path)):
        await threaded(eventually, lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE)
        assert (tmp_path / "worker.sock").exists()
        with Peer(f"ipc://{tmp_path / 'worker.sock'}") as peer:
            assert (await threaded(peer.attach, MODELS)).kind == "welcome"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00",
        b"\xff",
        b"\x01" + b"\xff" * 8,
        b"\x01" + (2).to_bytes(8, "little") + b"[]",
        b"\x01" + (1).to_bytes(8, "little") + b"{",
    ],
)
async def test_nonsense_on_the_pipe_is_an_error(raw: bytes) -> None:
    """Libzmq runs at its other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(raw)
        with pytest.raises(BadPipeError):
            await Pipe(ours, 1 << 20).receive()


async def test_a_message_leaves_whole_although_its_sender_is_cancelled() -> None:
    """What follows is read as what it is."""
    ours, theirs = socket.socketpair()
    one, two = Pipe(ours, 1 << 30), Pipe(theirs, 1 << 30)
    large = np.arange(5_000_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, {"number": 1}, wire.frames(pb.Result(id="x"), {"weights": large}))
        await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            first = await two.receive()
    await one.send({"number": 2})
    assert first.said == {"number": 1}
    np.testing.assert_array_equal(wire.parse(first.parts).arrays["weights"], large)
    assert (await two.receive()).said == {"number": 2}
    await two.close()
    with pytest.raises((EOFError, OSError)):
        await one.receive()
