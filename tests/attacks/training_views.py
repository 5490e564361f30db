"""Training jobs that lose a site in mid-job, and everything that their coordinator sees and their sites do."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.errors import SiteLost
from commonscale.pipeline import Pipeline
from commonscale.statistics.training import rounds
from commonscale.statistics.training.evaluation import SCORE_BINS
from commonscale.statistics.training.worker import Arrays, Order
from commonscale.v1.protocols_pb2 import MaskedVector, Total
from crypto.rings import FIELD61, Vector
from tests.federation import JOB, Federation
from tests.linear_worker import LinearWorker, predicted
from tests.patience import PATIENCE_S

NAMES = [f"site-{number}" for number in range(6)]
SAMPLE, ROUNDS, LOSS_IN = 4, 10, 5
LEARNING_RATE = 0.01


class Recording(MemoryMailbox):
    """Keeps everything that ever went through the coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Slot, bytes]] = []

    async def put(self, slot: Slot, payload: bytes) -> None:
        self.seen.append((slot, payload))
        await super().put(slot, payload)

    @property
    def content(self) -> bytes:
        return b"".join(payload for _, payload in self.seen)


@dataclass
class Disturbance:
    """Who is silent from one round on: the first that is asked to train in it."""

    round: int
    lost: str = ""


@dataclass
class Classifier(LinearWorker):
    """Tells whether y is above 0, notes what it answers for the one who checks, and may fall silent."""

    name: str = ""
    disturbance: Disturbance = field(default_factory=lambda: Disturbance(0))
    answers: dict[int, Arrays] = field(default_factory=dict)
    measured: dict[int, Arrays] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.x) - self.evaluation

    @property
    def class_counts(self) -> list[int]:
        above = self.y[-self.evaluation :] > 0
        return [int((~above).sum()), int(above.sum())]

    async def work(self, order: Order) -> Arrays:
        if order.kind == "train" and order.round == self.disturbance.round:
            self.disturbance.lost = self.disturbance.lost or self.name
            if self.disturbance.lost == self.name:
                await anyio.sleep_forever()
        answer = await super().work(order)
        if order.kind == "train":
            self.answers[order.round] = {**answer, "before": np.array(order.arrays["weights"])}
            return answer
        scores = predicted(order.arrays["weights"], self.x[-self.evaluation :])
        actual = (self.y[-self.evaluation :] > 0).astype(int)
        confusion, bins = np.zeros((2, 2), np.int64), np.zeros((2, SCORE_BINS), np.int64)
        np.add.at(confusion, (actual, (scores > 0).astype(int)), 1)
        np.add.at(bins, (actual, (SCORE_BINS / (1 + np.exp(-scores))).astype(int).clip(0, SCORE_BINS - 1)), 1)
        self.measured[order.round] = {**answer, "confusion": confusion, "scores": bins}
        return self.measured[order.round]


def classifiers(disturbance: Disturbance) -> dict[str, Classifier]:
    """Sites of different sizes and scales."""
    rng = np.random.default_rng(3)
    found = {}
    for number, name in enumerate(NAMES):
        x = rng.normal(0.3 * number, 1.0 + number / 3, (41 + 13 * number, 3))
        y = x @ [1.0, -2.0, 0.5] + rng.normal(0, 0.1, len(x))
        found[name] = Classifier(x, y, layered=True, name=name, disturbance=disturbance)
    return found


@dataclass
class Recorded:
    """A job to its end: what the coordinator saw, what the sites had."""

    view: Recording
    sites: dict[str, Classifier]
    found: dict[str, Any]
    lost: str
    federation: Federation

    @property
    def total_rows(self) -> int:
        return sum(site.rows for site in self.sites.values())

    def contribution(self, name: str, number: int) -> np.ndarray:
        """What a site added to the update of a round: what nobody else may know."""
        answer, site = self.sites[name].answers[number], self.sites[name]
        return np.asarray((answer["weights"] - answer["before"]) * (site.rows / self.total_rows))

    def vectors(self, number: int, attempt: int) -> dict[str, Vector]:
        """What came for the update of one attempt at a round."""
        wanted = f"{JOB}/0/{number}", f"update.{attempt}.MaskedVector"
        return {
            slot.sender: FIELD61.from_bytes(raw, len(raw) // 8)
            for slot, payload in self.view.seen
            if (slot.run, slot.kind) == wanted
            for raw in [MaskedVector.FromString(payload).elements]
        }

    def totals(self) -> Iterator[tuple[Slot, list[str], np.ndarray]]:
        """Every sum that was opened to the coordinator, with those who sent something for it."""
        for slot, payload in self.view.seen:
            if slot.sender == COORDINATOR and slot.kind.endswith(".Total"):
                sent = slot.kind.removesuffix("Total") + "MaskedVector"
                senders = {other.sender for other, _ in self.view.seen if (other.run, other.kind) == (slot.run, sent)}
                yield slot, sorted(senders), np.frombuffer(Total.FromString(payload).elements, "<u8")


def recorded(
    directory: Path,
    *,
    loss_in: int = LOSS_IN,
    mailboxes: Callable[[Recording], Mapping[str, Any]] | None = None,
    lost: str = "",
    **options: Any,
) -> Recorded:
    """All roles to their end but the site that is lost; `lost` names one that the coordinator only calls so."""
    disturbance = Disturbance(0 if lost else loss_in)
    sites = classifiers(disturbance)
    # Whole tables in each round, as a worker does that is told so.
    local = {"learning_rate": LEARNING_RATE, "steps": 1, "batch_rows": 0}
    train = {"model": "linear", "columns": ["a", "b", "c"], "target": "y", "classes": ["no", "yes"], "local": local}
    train |= {"precision": "float64", "rounds": ROUNDS, "sample": SAMPLE, "batchnorm": "fbn", "patience_s": 3}
    pipeline = Pipeline.model_validate(
        {"sites": NAMES, "train": {**train, "evaluation": {"every": 2, "share": 0.2}, **options}}
    )
    federation, found = Federation(directory, NAMES), dict[str, Any]()
    view = federation.mailbox = Recording()
    others = mailboxes(view) if mailboxes else {}

    async def everyone() -> None:
        async def role(name: str, work: Any) -> None:
            try:
                found[name] = await work
            except SiteLost:
                assert name == lost
            # A site that is silent never comes to an end.
            if len(found) == len(NAMES) and (lost or disturbance.lost):
                tasks.cancel_scope.cancel()

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(role, COORDINATOR, federation.coordinator(pipeline, others.get(COORDINATOR)))
                for name, site in sites.items():
                    tasks.start_soon(role, name, federation.site(name, pipeline, site, others.get(name)))

    anyio.run(everyone)
    return Recorded(view, sites, found, lost or disturbance.lost, federation)


@pytest.fixture(name="fixed_lots")
def lots_that_are_the_same_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots come from the roster, whose keys are new in every run; a test needs the same sets each time."""
    drawn = rounds.chosen_sites
    monkeypatch.setattr(rounds, "chosen_sites", lambda sites, count, _, number: drawn(sites, count, b"lots", number))
