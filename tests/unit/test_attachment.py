"""Where a worker attaches: one at a time, what dies is asked again, and nothing that it says is believed unchecked."""

import contextlib
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
import zmq.auth
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb
from exceptiongroup import ExceptionGroup
from pydantic import ValidationError

from commonscale.concurrency import first_error
from commonscale.config import WorkerConfig
from commonscale.database import now_ms
from commonscale.errors import ConfigError, WorkerFailed
from participant.attachment import HIGH_WATER, MAX_DEATHS, Attachment
from tests.misbehaving.workers import (
    DAMAGES,
    FloodThatNeverReads,
    NoZeroMq,
    Peer,
    StrangerThatSendsDamage,
    WorkerThatNeverReads,
    WorkerThatSendsDamage,
    hello,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

MODELS = {"mlp": "ab" * 32}
PREPARE = pb.Prepare(id="job-1", model="mlp")
TASK = pb.Task(id="job/1/train", round=1, rounds=3, job="job-1")
WEIGHTS = {"weights": np.arange(5.0)}
# A worker of its own process that says Hello, notes every Prepare and Task, and answers only what it is told to.
PROCESS = """
import sys, zmq
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb

address, notes, answers = sys.argv[1:]
dealer = zmq.Context().socket(zmq.DEALER)
dealer.connect(address)
offer = pb.ModelOffer(name="mlp", digest="ab" * 32)
dealer.send_multipart(wire.frames(pb.Hello(versions=[1], models=[offer])))
while True:
    message = wire.parse(dealer.recv_multipart())
    if message.kind in ("prepare", "task"):
        with open(notes, "a") as file:
            file.write(message.kind + " " + message.body.id + "\\n")
    if message.kind == "prepare":
        dealer.send_multipart(wire.frames(pb.Prepared(id=message.body.id)))
    if message.kind == "task" and answers == "yes":
        for _ in range(2):
            dealer.send_multipart(wire.frames(pb.Result(id=message.body.id), message.arrays))
"""


def worker_process(attachment: Attachment, notes: Path, answers: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", PROCESS, attachment.address, str(notes), answers])


async def threaded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a peer does, beside the event loop."""
    return await anyio.to_thread.run_sync(function, *arguments)


async def until(holds: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in another process
            await anyio.sleep(0.01)


async def served(attachment: Attachment, work: Callable[[], Awaitable[None]]) -> None:
    """Work while the attachment serves; errors as themselves."""
    try:
        with anyio.fail_after(PATIENCE_S):
            async with attachment.serving():
                await work()
    except ExceptionGroup as group:
        raise first_error(group) from None


def ask(attachment: Attachment, task: pb.Task | None = TASK) -> Awaitable[wire.Message]:
    return attachment.ask((PREPARE, MODELS["mlp"]), task, WEIGHTS if task else {})


@pytest.fixture
def attachment(tmp_path: Path) -> Attachment:
    return Attachment("north", WorkerConfig(), tmp_path)


async def test_only_its_own_user_reaches_the_socket(attachment: Attachment, tmp_path: Path) -> None:
    """The file has mode 0600 while it is there, and goes at the end."""
    path = tmp_path / "worker.sock"

    async def work() -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_ISSOCK(path.stat().st_mode)

    await served(attachment, work)
    assert not path.exists()


async def test_a_socket_that_a_crash_has_left_is_replaced(attachment: Attachment, tmp_path: Path) -> None:
    """A participant that was killed starts again."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "worker.sock"))

    async def work() -> None:
        with Peer(attachment.address) as peer:
            assert (await threaded(peer.attach, MODELS)).kind == "welcome"

    await served(attachment, work)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """A slip in the configuration does not cost a table."""
    table = tmp_path / "table.csv"
    table.write_text("age\n41\n")
    with pytest.raises(ConfigError, match="no socket"):
        await served(Attachment("north", WorkerConfig(listen=f"ipc://{table}"), tmp_path), until_never)
    assert table.read_text() == "age\n41\n"


async def until_never() -> None:
    raise AssertionError("it serves")


@pytest.mark.parametrize("name", ["x" * 120, "x" * 300, "missing/worker.sock", "file/worker.sock"])
async def test_a_place_where_no_socket_can_be_is_told(tmp_path: Path, name: str) -> None:
    """Too long, or without a directory."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"worker|too long"):
        await served(Attachment("north", WorkerConfig(listen=f"ipc://{tmp_path / name}"), tmp_path), until_never)


@pytest.mark.parametrize(
    "listen", [{"listen": "tcp://127.0.0.1:0"}, {"listen": "tcp://127.0.0.1:0", "key": "key"}, {"listen": "inproc://x"}]
)
def test_a_worker_attaches_over_tcp_only_with_keys(listen: dict[str, str]) -> None:
    """The configuration refuses anything else."""
    with pytest.raises(ValidationError, match=r"only with keys|neither ipc"):
        WorkerConfig.model_validate(listen)


def curve_config(directory: Path) -> tuple[WorkerConfig, bytes, dict[str, tuple[bytes, bytes]]]:
    """A configuration with one listed key, the server's public key, and pairs of a listed and of an unlisted worker."""
    zmq.auth.create_certificates(directory, "server")
    pairs = {"listed": zmq.curve_keypair(), "unlisted": zmq.curve_keypair()}
    listed = pairs["listed"][0].decode()
    key = directory / "server.key_secret"
    config = WorkerConfig(listen="tcp://127.0.0.1:0", key=key, allowed_keys=[listed])
    return config, zmq.auth.load_certificate(key)[0], pairs


async def test_over_tcp_a_listed_key_attaches_and_no_other(tmp_path: Path) -> None:
    """The handshake of an unlisted key fails, and so does a connection without any."""
    config, server, pairs = curve_config(tmp_path)
    attachment = Attachment("north", config, tmp_path)

    def keys(who: str) -> dict[str, bytes]:
        public, secret = pairs[who]
        return {"curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": server}

    async def work() -> None:
        with Peer(attachment.address, **keys("unlisted")) as other, Peer(attachment.address) as plain:
            for refused in (other, plain):
                # After a handshake that has failed already there is nowhere to send it.
                refused.socket.sndtimeo = 1000
                with contextlib.suppress(zmq.Again):
                    await threaded(refused.socket.send_multipart, hello(MODELS))
            with Peer(attachment.address, **keys("listed")) as listed:
                assert (await threaded(listed.attach, MODELS)).kind == "welcome"
            await until(lambda: attachment.models is None)
            await anyio.sleep(1.0)
            assert attachment.models is None
            assert not other.heard()
            assert not plain.heard()

    await served(attachment, work)


async def test_a_key_file_that_is_none_is_told(tmp_path: Path) -> None:
    """As a ConfigError, and nothing stays behind."""
    (tmp_path / "key").write_text("no key")
    config = WorkerConfig(listen="tcp://127.0.0.1:0", key=tmp_path / "key", allowed_keys=["x" * 40])
    with pytest.raises(ConfigError, match="key"):
        await served(Attachment("north", config, tmp_path), until_never)


async def test_one_worker_at_a_time(attachment: Attachment) -> None:
    """A second one is rejected while the first is there, and welcomed once it is gone."""

    async def work() -> None:
        with Peer(attachment.address) as second:
            with Peer(attachment.address) as first:
                assert (await threaded(first.attach, MODELS)).kind == "welcome"
                answer = await threaded(second.attach, MODELS)
                assert answer.kind == "reject"
                assert "one at a time" in answer.body.reason
                assert attachment.models == MODELS
            await until(lambda: attachment.models is None)
            assert (await threaded(second.attach, MODELS)).kind == "welcome"

    await served(attachment, work)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (hello(MODELS, versions=(2, 3)), "version 1"),
        (hello({}), "1 to 100 models"),
        (hello({"mlp": "short"}), "1 to 100 models"),
        (hello({f"m{number}": "0" * 64 for number in range(101)}), "1 to 100 models"),
    ],
)
async def test_a_hello_that_does_not_fit_is_rejected(attachment: Attachment, frames: list[bytes], why: str) -> None:
    """With a reason, and nobody is attached."""

    async def work() -> None:
        with Peer(attachment.address) as peer:
            peer.socket.send_multipart(frames)
            assert why in (await threaded(peer.hear, "reject")).body.reason
            assert attachment.models is None

    await served(attachment, work)


async def test_a_killed_worker_gets_its_task_again(attachment: Attachment, tmp_path: Path) -> None:
    """With the same id, after the same Prepare; of two Results the first counts, the second is dropped."""
    notes, answers = tmp_path / "notes", list[wire.Message]()

    async def asked() -> None:
        answers.append(await ask(attachment))

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            first = worker_process(attachment, notes, "no")
            tasks.start_soon(asked)
            await until(lambda: notes.exists() and "task" in notes.read_text())
            first.kill()
            await until(lambda: attachment.models is None)
            first.wait()
            second = worker_process(attachment, notes, "yes")
        await anyio.sleep(0.1)
        assert attachment.view().state == "waiting"
        second.kill()
        second.wait()

    await served(attachment, work)
    assert notes.read_text().split("\n")[:-1] == ["prepare job-1", "task job/1/train"] * 2
    assert len(answers) == 1
    assert answers[0].kind == "result"
    np.testing.assert_array_equal(answers[0].arrays["weights"], WEIGHTS["weights"])


async def test_three_deaths_over_one_task_end_it(attachment: Attachment, tmp_path: Path) -> None:
    """With an error that names the task."""
    notes = tmp_path / "notes"

    async def deaths() -> None:
        for number in range(MAX_DEATHS):
            process = worker_process(attachment, notes, "no")
            await until(lambda number=number: notes.exists() and notes.read_text().count("task") > number)
            process.kill()
            process.wait()
            await until(lambda: attachment.models is None)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deaths)
            with pytest.raises(WorkerFailed, match=r"ended 3 times while it worked on job/1/train"):
                await ask(attachment)

    await served(attachment, work)
    assert attachment.view().last_error == "It ended 3 times while it worked on job/1/train."


async def test_an_asker_that_gives_up_sends_cancel(attachment: Attachment) -> None:
    """A worker that never answers is told to stop; its late Result has no effect on what is asked next."""

    async def work() -> None:
        with Peer(attachment.address) as peer:
            await threaded(peer.attach, MODELS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, attachment)
                await threaded(peer.hear, "prepare")
                peer.say(pb.Prepared(id="job-1"))
                await threaded(peer.hear, "task")
                assert attachment.view().state == "working"
                tasks.cancel_scope.cancel()
            assert (await threaded(peer.hear, "cancel")).body.id == TASK.id
            assert attachment.view().state == "waiting"
            peer.say(pb.Result(id=TASK.id), {"weights": np.zeros(1)})
            peer.say(pb.Cancelled(id=TASK.id))
            await anyio.sleep(0.2)
            answers: list[wire.Message] = []

            async def asked() -> None:
                answers.append(await attachment.ask((PREPARE, MODELS["mlp"]), pb.Task(id="next", round=2), WEIGHTS))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked)
                assert (await threaded(peer.hear, "task")).body.id == "next"
                peer.say(pb.Result(id="next"), WEIGHTS)
            assert answers[0].body.id == "next"

    await served(attachment, work)


async def test_an_asker_gives_up_on_a_worker_that_does_not_listen(attachment: Attachment) -> None:
    """Neither its Cancel nor anybody else waits for a peer whose queue is full."""

    async def work() -> None:
        with WorkerThatNeverReads(attachment.address) as deaf:
            await threaded(deaf.attach, MODELS)
            large = {"weights": np.zeros(1 << 20)}
            for _ in range(2 * HIGH_WATER + 4):
                deaf.say(pb.Prepared(id="job-1"))
                with anyio.move_on_after(0.2):
                    await attachment.ask((PREPARE, MODELS["mlp"]), TASK, large)
            with anyio.fail_after(5), Peer(attachment.address) as other:
                assert (await threaded(other.attach, MODELS)).kind == "reject"
            assert attachment.models == MODELS
        await until(lambda: attachment.models is None)

    await served(attachment, work)


async def exchanged(attachment: Attachment, answer: Callable[[Peer, str], None]) -> wire.Message:
    """What an asker gets if a worker answers its task so."""
    found: list[wire.Message] = []

    def worker(peer: Peer) -> None:
        peer.hear("prepare")
        peer.say(pb.Prepared(id="job-1"))
        answer(peer, peer.hear("task").body.id)

    async def work() -> None:
        with WorkerThatSendsDamage(attachment.address, seed=3) as peer:
            await threaded(peer.attach, MODELS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(threaded, worker, peer)
                found.append(await ask(attachment))

    await served(attachment, work)
    return found[0]


async def test_the_text_of_a_failure_stays_at_the_site(attachment: Attachment) -> None:
    """The error has the code and the site's name; the site's own view has the text, without control characters."""

    def fail(peer: Peer, task: str) -> None:
        peer.say(pb.Failed(id=task, code="data", text="could not convert 'Miller, 1949'\x1b[2J"))

    before_ms = now_ms()
    with pytest.raises(WorkerFailed, match=r"north: its worker could not go on \(data\)") as raised:
        await exchanged(attachment, fail)
    assert "Miller" not in str(raised.value)
    assert raised.value.remedy
    assert "Miller, 1949" in attachment.view().last_error
    assert attachment.view().last_error_ms >= before_ms
    assert "\x1b" not in attachment.view().last_error


async def test_a_code_that_is_none_is_not_handed_on(attachment: Attachment) -> None:
    """A cell in the place of the code goes nowhere."""
    with pytest.raises(WorkerFailed, match=r"\(other\)") as raised:
        await exchanged(attachment, lambda peer, task: peer.say(pb.Failed(id=task, code="Miller, 1949")))
    assert "Miller" not in str(raised.value)


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "flipped bit"])
async def test_a_damaged_answer_ends_the_task(attachment: Attachment, damage: str) -> None:
    """With a typed error, whatever the damage."""

    def answer(peer: Peer, task: str) -> None:
        assert isinstance(peer, WorkerThatSendsDamage)
        peer.answer_with(damage, task)

    with pytest.raises(WorkerFailed, match="makes no sense"):
        await exchanged(attachment, answer)
    assert "makes no sense" in attachment.view().last_error


async def test_what_has_no_effect_has_none(attachment: Attachment) -> None:
    """Results of other ids and progress that is no number: the task goes on, its share stays between 0 and 1."""
    shares: list[float] = []

    def answer(peer: Peer, task: str) -> None:
        assert isinstance(peer, WorkerThatSendsDamage)
        for _ in range(100):
            peer.send_oddities(1, task)
            shares.append(attachment.view().share)
        peer.say(pb.Result(id=task), WEIGHTS)

    assert (await exchanged(attachment, answer)).body.id == TASK.id
    assert all(0 <= share <= 1 for share in shares)


async def test_progress_that_is_no_number_counts_as_none(attachment: Attachment) -> None:
    """The page shows numbers only."""

    def answer(peer: Peer, task: str) -> None:
        peer.say(pb.Progress(id=task, share=float("nan")))
        peer.say(pb.Result(id=task), WEIGHTS)

    await exchanged(attachment, answer)
    assert attachment.view().share == 0.0


async def test_a_worker_that_says_hello_again_counts_as_one_that_came_back(attachment: Attachment) -> None:
    """It gets its task again, and three times over one task is too often."""

    def again(peer: Peer, task: str) -> None:
        for _ in range(MAX_DEATHS - 1):
            peer.socket.send_multipart(hello(MODELS))
            peer.hear("prepare")
            peer.say(pb.Prepared(id="job-1"))
            assert peer.hear("task").body.id == task
        peer.socket.send_multipart(hello(MODELS))

    with pytest.raises(WorkerFailed, match="ended 3 times"):
        await exchanged(attachment, again)


async def test_a_worker_that_came_back_with_another_model_gets_nothing(attachment: Attachment) -> None:
    """What the policy pins is checked at every attachment."""

    def changed(peer: Peer, _: str) -> None:
        peer.socket.send_multipart(hello({"mlp": "cd" * 32}))

    with pytest.raises(WorkerFailed, match="as the policy pins it"):
        await exchanged(attachment, changed)


async def test_a_flood_leaves_the_daemon_its_time(attachment: Attachment, tmp_path: Path) -> None:
    """While strangers send as fast as they can, other tasks of the event loop have their turn, and a worker trains."""
    longest = 0.0

    async def others() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await anyio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    def answer(peer: Peer, task: str) -> None:
        peer.say(pb.Result(id=task), WEIGHTS)

    async def floods() -> None:
        await until(lambda: attachment.models is not None)
        with FloodThatNeverReads(attachment.address) as one, FloodThatNeverReads(attachment.address, 1) as two:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(threaded, one.flood, 3000)
                tasks.start_soon(threaded, two.flood, 3000)
                tasks.start_soon(threaded, NoZeroMq(tmp_path / "worker.sock").send, 50)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        tasks.start_soon(floods)
        assert (await exchanged(attachment, answer)).kind == "result"
        tasks.cancel_scope.cancel()
    # Not a measure: without turns it would be as long as the flood.
    assert longest < 10.0


async def test_strangers_end_nothing(attachment: Attachment) -> None:
    """Damage from a peer that is not attached does not touch the task under way."""

    def answer(peer: Peer, task: str) -> None:
        with StrangerThatSendsDamage(attachment.address, seed=8) as stranger:
            stranger.send_damage(100, task)
            stranger.say(pb.Result(id=task), {"weights": np.zeros(1)})
            stranger.hear("reject")
        peer.say(pb.Result(id=task), WEIGHTS)

    found = await exchanged(attachment, partial(answer))
    np.testing.assert_array_equal(found.arrays["weights"], WEIGHTS["weights"])
