"""The worker's side of the protocol, by a real process on a real socket."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zmq
import zmq.auth
from commonscale_worker import attaching, wire
from commonscale_worker.attaching import Keys, endpoint
from commonscale_worker.errors import WorkerError
from commonscale_worker.v1 import worker_pb2 as pb

from tests.worker.participants import Participant, prepare_of

Start = Callable[..., "subprocess.Popen[str]"]
TRAIN, EVALUATE = pb.Task.KIND_TRAIN, pb.Task.KIND_EVALUATE


def task(identity: str, number: int = 1, kind: pb.Task.Kind = TRAIN, job: str = "job") -> pb.Task:
    return pb.Task(id=identity, kind=kind, round=number, rounds=10, job=job)


def started(participant: Participant, folder: Path, model: str, **settings: float) -> wire.Arrays:
    """A worker said Hello and is prepared for a job; its first weights."""
    participant.welcome()
    answer = participant.prepare(prepare_of(folder, model, **settings))
    assert answer.kind == "prepared", answer
    return {"weights": answer.arrays["weights"]}


def begun(folder: Path) -> int:
    """Rounds that the slow model has begun."""
    return len((folder / "begun").read_text().split())


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_hello_offers_every_model_with_its_digest(participant: Participant, worker: Start) -> None:
    """What a policy pins is what the worker says."""
    worker()
    hello = participant.welcome()
    assert [offer.name for offer in hello.models] == ["softmax", "slow", "broken"]
    assert all(len(offer.digest) == 64 for offer in hello.models)
    assert list(hello.versions) == [1]
    assert hello.software.startswith("commonscale-worker ")


def test_a_job_is_trained_and_measured(participant: Participant, worker: Start, folder: Path) -> None:
    """Weights go round, and the loss falls."""
    worker()
    weights = started(participant, folder, "softmax")
    losses = []
    for number in range(1, 4):
        result = participant.task(task(f"train {number}", number), weights)
        weights = {"weights": result.arrays["weights"]}
        measured = participant.task(task(f"evaluate {number}", number, EVALUATE), weights).arrays
        losses.append(measured["loss"][0])
        assert measured["confusion"].sum() == measured["scores"].sum() == 40
    assert losses == sorted(losses, reverse=True)


def test_what_prepared_says_of_the_model(participant: Participant, worker: Start, folder: Path) -> None:
    """Rows, tensors in order, and first weights in the job's precision."""
    worker()
    participant.welcome()
    answer = participant.prepare(prepare_of(folder, "softmax", precision="float32", classes=3))
    assert (answer.body.rows, answer.body.evaluation_rows) == (160, 40)
    assert [(part.name, part.dtype, list(part.shape)) for part in answer.body.tensors] == [("weights", "<f4", [4, 3])]
    assert answer.arrays["weights"].dtype == np.float32


def test_stop_ends_the_worker(participant: Participant, worker: Start) -> None:
    """With exit code 0."""
    process = worker()
    participant.welcome()
    participant.send(pb.Stop())
    assert ended(process)[0] == 0


def test_a_rejected_worker_says_why(participant: Participant, worker: Start) -> None:
    """With exit code 3."""
    process = worker()
    participant.receive("hello")
    participant.send(pb.Reject(reason="another worker is attached"))
    code, said = ended(process)
    assert code == 3
    assert "another worker is attached" in said


@pytest.mark.parametrize(
    ("rate", "code", "text"),
    [
        (1, "memory", "MemoryError"),
        (2, "diverged", "no finite numbers"),
        (3, "model", "SystemExit"),
        (4, "model", "row 17"),
    ],
)
def test_what_user_code_raises_is_told(
    participant: Participant, worker: Start, folder: Path, rate: float, code: str, text: str
) -> None:
    """As a word that may leave the site and a text that stays; the worker goes on."""
    worker()
    weights = started(participant, folder, "broken", learning_rate=rate)
    for _ in range(2):
        failed = participant.task(task("t"), weights)
        assert (failed.kind, failed.body.code) == ("failed", code)
        assert text in failed.body.text


def test_data_that_is_not_there(participant: Participant, worker: Start, folder: Path) -> None:
    """Fails with "data", and the next Prepare is tried anew."""
    worker()
    participant.welcome()
    prepare = prepare_of(folder, "softmax")
    (folder / "rows.arrow").rename(folder / "elsewhere")
    assert participant.prepare(prepare).body.code == "data"
    (folder / "elsewhere").rename(folder / "rows.arrow")
    assert participant.prepare(prepare).kind == "prepared"


def test_an_unknown_model_fails(participant: Participant, worker: Start, folder: Path) -> None:
    """With a sentence that names it."""
    worker()
    participant.welcome()
    failed = participant.prepare(prepare_of(folder, "forest"))
    assert (failed.body.code, failed.body.text) == ("model", "this worker offers no model 'forest'")


def test_a_task_without_its_prepare_fails(participant: Participant, worker: Start) -> None:
    """With "data"."""
    worker()
    participant.welcome()
    assert participant.task(task("t"), {"weights": np.zeros(8)}).body.code == "data"


@pytest.mark.parametrize("size", [0, 7, 9])
def test_weights_of_another_length_fail(participant: Participant, worker: Start, folder: Path, size: int) -> None:
    """They are not cut."""
    worker()
    started(participant, folder, "softmax")
    arrays = {"weights": np.zeros(size)} if size else {}
    assert participant.task(task("t"), arrays).body.code == "other"


def test_a_round_is_cancelled(participant: Participant, worker: Start, folder: Path) -> None:
    """Soon, though user code is running; the same task can be asked for again."""
    worker()
    weights = started(participant, folder, "slow")
    participant.send(task("t"), weights)
    participant.receive("accepted")
    participant.send(pb.Cancel(id="t"))
    assert participant.receive("cancelled").body.id == "t"
    assert participant.task(task("t"), weights).kind == "result"


def test_progress_is_told_sparingly(participant: Participant, worker: Start, folder: Path) -> None:
    """Two times a second, of 200 reports within two seconds."""
    worker()
    weights = started(participant, folder, "slow")
    participant.send(task("t"), weights)
    participant.receive("accepted")
    shares = []
    while (message := participant.receive("progress", "result")).kind == "progress":
        shares.append(message.body.share)
    assert 2 <= len(shares) <= 30
    assert shares == sorted(shares)


def test_a_task_that_comes_again_is_trained_once(participant: Participant, worker: Start, folder: Path) -> None:
    """While it is trained it goes on; afterwards the same Result is sent again."""
    worker()
    weights = started(participant, folder, "slow")
    participant.send(task("t"), weights)
    participant.send(task("t"), weights)
    assert [participant.receive("accepted").kind for _ in range(2)] == ["accepted"] * 2
    first = participant.receive("result")
    assert participant.quiet(300)
    second = participant.task(task("t"), weights)
    assert begun(folder) == 1
    assert np.array_equal(first.arrays["weights"], second.arrays["weights"])


def test_another_task_replaces_the_one_under_way(participant: Participant, worker: Start, folder: Path) -> None:
    """The participant no longer waits for the first."""
    worker()
    weights = started(participant, folder, "slow")
    participant.send(task("old"), weights)
    participant.receive("accepted")
    participant.send(task("new"), weights)
    participant.receive("accepted")
    assert participant.receive("cancelled").body.id == "old"
    assert participant.receive("result").body.id == "new"


def test_a_lost_connection_begins_with_hello_again(participant: Participant, worker: Start, folder: Path) -> None:
    """What was trained meanwhile is sent when it is asked for again; nothing comes before the Hello."""
    worker()
    weights = started(participant, folder, "slow")
    participant.send(task("t"), weights)
    participant.receive("accepted")
    participant.close()
    time.sleep(2.5)
    participant.bind()
    participant.welcome()
    assert participant.task(task("t"), weights).kind == "result"
    assert begun(folder) == 1


def test_training_goes_on_over_a_lost_connection(participant: Participant, worker: Start, folder: Path) -> None:
    """A job that is known is prepared at once, and a task that is asked for in its middle is not begun again."""
    worker()
    weights = started(participant, folder, "slow")
    participant.send(task("t"), weights)
    participant.receive("accepted")
    participant.close()
    participant.bind()
    participant.welcome()
    assert participant.prepare(prepare_of(folder, "slow")).kind == "prepared"
    assert participant.task(task("t"), weights).kind == "result"
    assert begun(folder) == 1


def test_a_killed_worker_is_replaced(participant: Participant, worker: Start, folder: Path) -> None:
    """The next one trains the same task, with the same numbers."""
    first = worker()
    weights = started(participant, folder, "slow")
    participant.send(task("t"), weights)
    participant.receive("accepted")
    first.send_signal(signal.SIGKILL)
    worker()
    assert np.array_equal(started(participant, folder, "slow")["weights"], weights["weights"])
    again = participant.task(task("t"), weights)
    other = participant.task(task("u"), weights)
    assert np.array_equal(again.arrays["weights"], other.arrays["weights"])


def test_a_worker_may_come_before_its_participant(folder: Path, worker: Start) -> None:
    """It waits."""
    worker()
    time.sleep(1)
    participant = Participant(folder)
    participant.welcome()
    participant.close()


def test_damaged_messages_are_left_out(participant: Participant, worker: Start, folder: Path) -> None:
    """The worker says so and goes on."""
    worker()
    participant.welcome()
    for frames in ([b"\xff\xff"], [b""], [pb.Header(version=1, arrays=[pb.Array(name="x")]).SerializeToString()]):
        participant._socket.send_multipart([participant._peer, *frames])
    assert participant.prepare(prepare_of(folder, "softmax")).kind == "prepared"


def test_another_version_is_not_spoken(participant: Participant, worker: Start) -> None:
    """The worker ends, with a sentence."""
    process = worker()
    participant.receive("hello")
    participant.send(pb.Welcome(version=2))
    code, said = ended(process)
    assert code == 3
    assert "version 2" in said


def test_over_tcp_with_curve(folder: Path, worker: Start) -> None:
    """Keys come from files, as zmq.auth writes them or bare."""
    public, secret = zmq.curve_keypair()
    _, own = zmq.curve_keypair()
    (folder / "server.key").write_bytes(public)
    (folder / "own.key").write_bytes(own)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.curve_server, router.curve_publickey, router.curve_secretkey = True, public, secret
    port = router.bind_to_random_port("tcp://127.0.0.1")
    keys = ("--curve-key", str(folder / "own.key"), "--curve-server", str(folder / "server.key"))
    worker(arguments=("--socket", f"tcp://127.0.0.1:{port}", *keys))
    assert router.poll(30_000)
    assert wire.parse(router.recv_multipart()[1:]).kind == "hello"
    context.destroy(linger=0)


def test_keys_of_both_kinds_of_files(folder: Path) -> None:
    """A certificate of zmq.auth and a bare secret key mean the same."""
    public_file, secret_file = zmq.auth.create_certificates(folder, "worker")
    public, secret = zmq.auth.load_certificate(secret_file)
    assert secret is not None
    (folder / "bare").write_bytes(secret)
    (folder / "bare public").write_bytes(public)
    assert Keys.read(secret_file, public_file) == Keys.read(folder / "bare", folder / "bare public")
    assert secret.decode() not in repr(Keys.read(secret_file, public_file))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("tcp://host:1", "CURVE"), ("udp://host", "neither a path"), ("ipc://" + "x" * 108, "longer than 107")],
)
def test_addresses_that_are_refused(address: str, sentence: str) -> None:
    """TCP without keys, and what is no address."""
    with pytest.raises(WorkerError, match=sentence):
        endpoint(address, None)


def test_a_file_that_is_no_key(folder: Path) -> None:
    """Is named."""
    (folder / "key").write_text("nothing")
    with pytest.raises(WorkerError, match="cannot be read"):
        Keys.read(folder / "key", folder / "key")


def test_a_script_calls_run(participant: Participant, folder: Path) -> None:
    """With the address from the environment."""
    script = folder / "script.py"
    script.write_text("import commonscale_worker as cw\nimport tests.worker.offered\ncw.run()\n")
    root = Path(__file__).parents[2]
    environment = {"COMMONSCALE_WORKER_SOCKET": participant.address, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True)
    assert participant.welcome().models
    participant.send(pb.Stop())
    assert ended(process)[0] == 0


def test_no_more_jobs_are_kept_than_fit(participant: Participant, worker: Start, folder: Path) -> None:
    """The one that waited longest is forgotten; its tasks fail with "data"."""
    worker()
    weights = started(participant, folder, "softmax")
    for number in range(attaching.KEPT_JOBS):
        prepare = prepare_of(folder, "softmax")
        prepare.id = f"job {number}"
        assert participant.prepare(prepare).kind == "prepared"
    assert participant.task(task("a"), weights).body.code == "data"
    assert participant.task(task("b", job="job 0"), weights).kind == "result"
