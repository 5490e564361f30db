"""`commonscale-worker check`: a model trains one round on made-up rows, and a person reads what is wrong."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from typing import NamedTuple

import numpy as np

from commonscale_worker.data import Data
from commonscale_worker.errors import BatchnormUnset, ModelError, Unsuitable, WorkerError, text_of
from commonscale_worker.jobs import Job
from commonscale_worker.registry import Offer
from commonscale_worker.v1 import worker_pb2 as pb
from commonscale_worker.vectors import Tensors

FEATURES = 5
ROWS = 60
BATCH_ROWS = 16


class Case(NamedTuple):
    """A kind of target."""

    name: str
    classes: int


CASES = (Case("2 classes", 2), Case("3 classes", 3), Case("a number", 0))


def check(offer: Offer) -> bool:
    """Say in sentences how the model does; whether it can be offered."""
    fits, right = 0, True
    for case in CASES:
        try:
            _say(offer, case, _tried(offer, case))
            fits += 1
        except Unsuitable as error:
            _say(offer, case, f"not for this: {error}")
        except WorkerError as error:
            _say(offer, case, f"wrong: {error}")
            right = False
        except Exception as error:  # noqa: BLE001 - whatever a model raises is what a person wants to read
            traceback.print_exc()
            _say(offer, case, f"wrong: {text_of(error)}")
            right = False
    if right and not fits:
        sys.stdout.write(f"{offer.name}: wrong: there is no kind of target that it is for\n")
    return right and fits > 0


def _tried(offer: Offer, case: Case) -> str:
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            job, note = _job(offer, case, ""), ""
        except BatchnormUnset:
            job, note = _job(offer, case, "fbn"), "; it has BatchNorm: choose batchnorm in [train], tried here with fbn"
        _train(job)
    seconds = time.perf_counter() - started
    return f"ok, {job.parameters:,} parameters, {seconds:.2f} seconds{note}"


def _job(offer: Offer, case: Case, batchnorm: str) -> Job:
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, FEATURES))
    y = np.arange(ROWS) % case.classes if case.classes else x.sum(axis=1)
    settings = pb.Settings(
        seed=1, precision="float32", batchnorm=batchnorm, epochs=1, batch_rows=BATCH_ROWS, learning_rate=0.01
    )
    prepare = pb.Prepare(
        id="check",
        model=offer.name,
        features=[f"feature {number}" for number in range(FEATURES)],
        classes=[f"class {number}" for number in range(case.classes)],
        settings=settings,
    )
    return Job(offer, prepare, Data(x, y, np.arange(ROWS) % 4 == 0, case.classes, settings.precision))


def _train(job: Job) -> None:
    task = pb.Task(id="check/1", kind=pb.Task.KIND_TRAIN, round=1, rounds=2, job="check")
    given = {**job.first, **_statistics(job)}
    reported: list[float] = []
    after = job.train(task, given, reported.append)["weights"]
    if (after == given["weights"]).all():
        raise ModelError("a round of training changed no weight")
    if not reported:
        raise ModelError("fit never called round.progress, so a round could not be cancelled")
    if (job.train(task, given, reported.append)["weights"] != after).any():
        raise ModelError("the same round from the same weights gave others: take what is random from the seed")
    job.evaluate({**given, "weights": after})


def _statistics(job: Job) -> Tensors:
    channels = sum(layer.channels for layer in job.layers)
    return {"mean": np.zeros(channels), "variance": np.ones(channels)} if job.layers else {}


def _say(offer: Offer, case: Case, sentence: str) -> None:
    sys.stdout.write(f"{offer.name}: {case.name}: {sentence}\n")
