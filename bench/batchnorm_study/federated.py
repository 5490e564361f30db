"""One training: ten sites' jobs of the worker in this process, and between their rounds the arithmetic of the sites.

Distributed stochastic gradient descent (Algorithm 3 of the paper): one step per round with the momentum at the sites,
whose mean update every site applies. Local training and BatchNorm are the worker's (`Job`), the running statistics of
Federated BatchNorm are those of `commonscale.statistics.training`; what is left out is the masking in between. The
centralized run is one job on the same batches merged, with torch's BatchNorm (Remark 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from commonscale_worker.batches import batches, permutation
from commonscale_worker.data import Data
from commonscale_worker.errors import Diverged
from commonscale_worker.jobs import Job
from commonscale_worker.registry import Offer
from commonscale_worker.settings import Settings
from commonscale_worker.v1 import worker_pb2 as pb
from numpy.typing import NDArray

from bench.batchnorm_study.aggregation import Aggregation
from bench.batchnorm_study.data import CLASSES, Images, partition
from bench.batchnorm_study.networks import Network
from bench.batchnorm_study.plan import CENTRALIZED, NAIVE, SITES, Run
from commonscale.statistics.training.batchnorm import Layer, Statistics

Floats = NDArray[np.float64]


class Federation:
    """The sites of one run, and the model that they share."""

    def __init__(self, run: Run, images: Images) -> None:
        self._run = run
        self._jobs = _jobs(run, images)
        first = self._jobs[0]
        self._weights: Floats = first.first["weights"].astype(np.float64)
        self._aggregation = Aggregation(run, [Layer(*layer) for layer in first.layers])
        self._statistics = Statistics.initial(sum(layer.channels for layer in first.layers))

    def round(self, number: int) -> None:
        """One step of every site."""
        task = pb.Task(
            id=str(number), kind=pb.Task.KIND_TRAIN, round=number, rounds=self._run.setup.rounds, job="study"
        )
        arrays = self._arrays()
        found = [job.train(task, arrays, lambda _share: None) for job in self._jobs]
        update = np.mean([one["weights"].astype(np.float64) - self._weights for one in found], axis=0)
        # As the worker's next task has them.
        self._weights = (self._weights + update).astype(np.float32).astype(np.float64)
        self._statistics = self._aggregation(self._statistics, found)

    def accuracy(self) -> float:
        """Share of the test images that the model names rightly."""
        counts = self._jobs[0].evaluate(self._arrays())["confusion"]
        return float(np.trace(counts) / counts.sum())

    def _arrays(self) -> dict[str, Any]:
        mean, variance = self._statistics.mean, self._statistics.variance
        return {"weights": self._weights.astype(np.float32), "mean": mean, "variance": variance}


def train(run: Run, images: Images) -> dict[str, Any]:
    """Accuracy after every few rounds and at the end; a training that ran away knows nothing: one class in ten."""
    federation = Federation(run, images)
    curve: list[tuple[int, float]] = []
    diverged = 0
    for number in range(1, run.setup.rounds + 1):
        try:
            federation.round(number)
            if number in run.setup.measured:
                curve.append((number, federation.accuracy()))
        except Diverged:
            diverged = number
            break
    curve += [(number, 1 / CLASSES) for number in run.setup.measured[len(curve) :]]
    return {"accuracy": curve[-1][1], "diverged": diverged, "curve": curve}


def _jobs(run: Run, images: Images) -> list[Job]:
    """One per site, or one for all; the first has the test images."""
    owned = partition(images.labels[: images.training], run.split, SITES, run.seed)
    settings = _settings(run)
    if run.method == CENTRALIZED:
        owned = [_merged(run, owned, Settings.of(settings))]
        settings.batch_rows *= SITES
    test = images.training + np.arange(run.setup.test_images)
    nobody = test[:0]
    return [_job(run, images, settings, rows, nobody if number else test) for number, rows in enumerate(owned)]


def _settings(run: Run) -> pb.Settings:
    setup = run.setup
    return pb.Settings(
        seed=run.seed,
        precision="float32",
        batchnorm=NAIVE if run.method == CENTRALIZED else run.method,
        steps=1,
        batch_rows=setup.batch_rows,
        learning_rate=setup.learning_rate,
        momentum=setup.momentum,
        learning_rate_steps=setup.rates,
    )


def _merged(run: Run, owned: Sequence[NDArray[np.intp]], settings: Settings) -> NDArray[np.intp]:
    """Rows in such an order that a job which takes them all once, a batch per round, merges the sites' batches."""
    taken = [
        rows[chosen]
        for number in range(1, run.setup.rounds + 1)
        for rows in owned
        for chosen in batches(settings, number, len(rows))
    ]
    sequence = np.concatenate(taken)
    placed = np.empty_like(sequence)
    placed[permutation(settings.seed, 0, len(sequence))] = sequence
    return placed


def _job(run: Run, images: Images, settings: pb.Settings, rows: NDArray[np.intp], test: NDArray[np.intp]) -> Job:
    everything = np.concatenate([rows, test])
    is_test = np.arange(len(everything)) >= len(rows)
    data = Data(everything[:, None], images.labels[everything], is_test, CLASSES, "float32")
    prepare = pb.Prepare(id="study", model=run.setup.model, features=["image"], settings=settings)
    prepare.classes.extend(map(str, range(CLASSES)))
    return Job(Offer(run.setup.model, "", lambda: Network(run.setup.model, images)), prepare, data)
