"""What may connect to a participant's socket besides its worker: the daemon refuses it, goes on, and trains.

Damaged and hostile messages before Hello, after Welcome and in the middle of a task; `make test` sends a few of them,
`make test-long` 2,000 in each state.
"""

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from commonscale_worker import cli, registry
from commonscale_worker.jobs import Job as WorkersJob
from sklearn.datasets import make_classification

from commonscale.client import Job
from commonscale.localnet import LocalFederation, Worker
from tests.e2e.conftest import submit
from tests.misbehaving.workers import (
    DAMAGES,
    FloodThatNeverReads,
    NoZeroMq,
    SecondWorker,
    StrangerThatSendsDamage,
    WorkerThatNeverReads,
    WorkerThatSendsDamage,
)
from tests.patience import PATIENCE_S, eventually

log = logging.getLogger(__name__)

SITES = ["north", "south", "west"]
COLUMNS = [f"x{number}" for number in range(6)]
MODULE = """
import commonscale_worker as cw
from sklearn.linear_model import SGDClassifier

@cw.model("risk-sgd")
class Sgd(cw.SklearnModel):
    estimator = SGDClassifier(loss="log_loss")
"""
MAX_GROWTH_BYTES = 50 << 20
# As an answer to a task, all of these are refused for certain.
ANSWERS = [name for name in DAMAGES if name != "flipped bit"]


@dataclass
class Attacked:
    """The federation, and its first site as an attacker sees it."""

    net: LocalFederation
    models: dict[str, str]

    @property
    def path(self) -> Path:
        return self.net.directory / "north" / "state" / "worker.sock"

    @property
    def address(self) -> str:
        return f"ipc://{self.path}"

    @property
    def log(self) -> str:
        return self.net.participants["north"].log_path.read_text()

    @property
    def process(self) -> psutil.Process:
        started = self.net.participants["north"].process
        assert started is not None
        assert started.poll() is None, "the participant has ended"
        return psutil.Process(started.pid)

    @property
    def rss(self) -> int:
        """Of the daemon and of the process that holds the socket."""
        gates = eventually(self.process.children)
        return sum(one.memory_info().rss for one in [self.process, *gates])

    def train(self) -> Job:
        """A training job of all sites, to its end."""
        local = {"model": "risk-sgd", "columns": COLUMNS, "target": "target", "classes": ["no", "yes"]}
        train = {**local, "rounds": 5, "precision": "float64"}
        steps = [{"transform": "zscore", "columns": COLUMNS}]
        return submit(self.net, {"name": "t", "sites": SITES, "deadline_s": PATIENCE_S, "steps": steps, "train": train})

    def detach(self) -> None:
        """End the honest worker, and wait until that is noticed."""
        gone = self.log.count('"worker is gone"')
        self.net.workers["north"].stop()
        eventually(lambda: self.log.count('"worker is gone"') > gone)

    def attach(self) -> None:
        """Start the honest worker again, once the place is free."""
        times = self.log.count('"worker attached"')
        self.net.workers["north"].start()
        self.net.wait_attached("north", times + 1)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Three sites with scikit-learn workers that have trained once."""
    directory = tmp_path_factory.mktemp("h")
    x, y = make_classification(360, len(COLUMNS), n_informative=4, class_sep=1.5, random_state=5)
    data = {}
    for number, site in enumerate(SITES):
        table = [[*row, "yes" if one else "no"] for row, one in zip(x.tolist(), y, strict=True)]
        rows = [",".join(map(str, row)) for row in table[number::3]]
        data[site] = directory / f"{site}.csv"
        data[site].write_text("\n".join([",".join([*COLUMNS, "target"]), *rows, ""]))
    module = directory / "hostile_worker_models.py"
    module.write_text(MODULE)
    worker = Worker.of(module)
    if not any(offer.name == "risk-sgd" for offer in registry.offers()):
        # For hostile workers that answer a Prepare as an honest one does.
        cli.load(str(module))
    with LocalFederation(directory / "f", data, workers=dict.fromkeys(SITES, worker)) as net:
        attacked = Attacked(net, dict(worker.models))
        assert_trained(attacked.train())
        yield attacked


def assert_trained(job: Job) -> None:
    losses = [measured["loss"] for measured in job.result[-1]["metrics"]]
    assert job.state == "done"
    assert len(losses) >= 5
    assert losses[-1] < losses[0]
    assert job.result[-1]["metrics"][-1]["accuracy"] > 0.75


def refusals(log: str) -> list[str]:
    """Reasons, as far as they were logged one by one."""
    lines = map(json.loads, filter(lambda line: line.startswith("{"), log.splitlines()))
    return [line["why"] for line in lines if line["event"] == "worker message refused"]


def in_a_task(hostile: WorkerThatSendsDamage) -> str:
    """Prepares as an honest worker does; returns the id of the task that follows."""
    prepare = hostile.hear("prepare").body
    prepared = WorkersJob(registry.offered("risk-sgd"), prepare)
    hostile.say(prepared.prepared, prepared.first)
    return str(hostile.hear("task").body.id)


def spoil_a_task(
    attacked: Attacked, hostile: WorkerThatSendsDamage, answer: str, count: int, pool: ThreadPoolExecutor
) -> Job:
    """A job whose first task is answered with damage, after as many messages of no effect from in- and outside."""
    ended: Future[Job] = pool.submit(attacked.train)
    task = in_a_task(hostile)
    hostile.send_oddities(count // 2, task)
    with SecondWorker(attacked.address) as second:
        assert second.insist(attacked.models, 3) == {"reject"}
    with StrangerThatSendsDamage(attacked.address, seed=count) as stranger:
        stranger.send_damage(count - count // 2, task)
    hostile.heard()
    hostile.answer_with(answer, task)
    return ended.result(PATIENCE_S)


def attack(attacked: Attacked, count: int, answers: list[str]) -> int:
    """So many messages in each state; returns by how many bytes the participant grew."""
    attacked.detach()
    before = attacked.process
    rss = attacked.rss
    with ThreadPoolExecutor(1) as pool, WorkerThatSendsDamage(attacked.address, seed=1) as hostile:
        # Before Hello.
        hostile.send_damage(count)
        hostile.send_other_ids(count // 10)
        with FloodThatNeverReads(attacked.address) as flood:
            flood.flood(count)
            NoZeroMq(attacked.path).send(count // 10)
        hostile.settle(attacked.models)
        # Idle after Welcome.
        hostile.send_damage_attached(count)
        hostile.send_oddities(count // 10)
        with FloodThatNeverReads(attacked.address) as flood:
            flood.flood(count)
        hostile.settle(attacked.models)
        # In a task.
        for answer in answers:
            ended = spoil_a_task(attacked, hostile, answer, count // len(answers), pool)
            assert ended.state == "failed", (answer, ended.state)
            assert "north" in ended.wire.error, (answer, ended.wire.error)
            assert "makes no sense" in ended.wire.error, (answer, ended.wire.error)
    eventually(lambda: attacked.log.rstrip().splitlines()[-1], lambda line: '"worker is gone"' in line)
    assert attacked.process == before
    return attacked.rss - rss


def assert_went_on(attacked: Attacked, growth: int) -> None:
    """The honest worker trains, strangers in between; nothing came that the log has no sentence for."""
    attacked.attach()
    ended = threading.Event()

    def disturb() -> None:
        with StrangerThatSendsDamage(attacked.address, seed=9) as stranger:
            while not ended.is_set():
                stranger.send_damage(20)

    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb)
        try:
            assert_trained(attacked.train())
        finally:
            ended.set()
        disturbing.result(PATIENCE_S)
    log.info("the participant grew by %.1f MiB", growth / 2**20)
    assert growth < MAX_GROWTH_BYTES
    assert "Traceback" not in attacked.log
    assert len(set(refusals(attacked.log))) >= 3


def test_a_participant_outlives_hostile_workers(attacked: Attacked) -> None:
    """60 damaged messages before Hello, after Welcome and in a task: the same process, no larger, trains on."""
    assert_went_on(attacked, attack(attacked, 60, ["empty of impossible shape", "wrong count"]))


def test_a_worker_that_does_not_listen_holds_up_nobody(attacked: Attacked) -> None:
    """Other peers are answered meanwhile, its end is noticed, and the next worker trains."""
    attacked.detach()
    with WorkerThatNeverReads(attacked.address) as deaf:
        deaf.attach(attacked.models)
        for number in range(30):
            # Each one that leaves lets the participant look whether its worker is still there.
            with StrangerThatSendsDamage(attacked.address, seed=number) as stranger:
                assert stranger.attach(attacked.models).kind == "reject"
    eventually(lambda: attacked.log.rstrip().splitlines()[-1], lambda line: '"worker is gone"' in line)
    attacked.attach()
    assert_trained(attacked.train())


@pytest.mark.long
def test_a_participant_outlives_2000_hostile_messages_in_each_state(attacked: Attacked) -> None:
    """Every kind of damage as the answer to a task too."""
    assert_went_on(attacked, attack(attacked, 2000, ANSWERS))
