"""The runs: deal out, normalize, train by federated averaging with early stopping, score on the merged test rows.

In each seed all arms share one split, one partition, one initial network and one order of batches: only the
normalization differs. Validation and test rows are normalized where they are, then merged for evaluation, as in the
paper. The network gets its features in single precision, as the usual frameworks do.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from commonscale_worker.networks.averaging import federated_average
from commonscale_worker.networks.losses import Targets
from commonscale_worker.networks.model import Architecture, Task, Weights, init, loss, predict
from commonscale_worker.networks.training import Adam, Training, local_epoch
from sklearn.metrics import f1_score, r2_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from bench.normalization_study.data import DATASETS, Part, Split, load_split
from bench.normalization_study.partition import HIGH, IID, LOW, Imbalance, partition
from bench.normalization_study.scaling import ARMS, FROM_FEDERATION, FROM_POOL, NORMALIZATIONS, Arm, scale

SEEDS = 3


@dataclass(frozen=True)
class Plan:
    """What is run, and how long each run may take."""

    datasets: tuple[str, ...] = tuple(DATASETS)
    clients: tuple[int, ...] = (10, 20, 30)
    imbalances: tuple[Imbalance, ...] = (IID, *HIGH, *LOW)
    most_rows: int | None = None
    most_rounds: int = 200
    patience: int = 20


FULL = Plan()
SMALL = Plan(clients=(10,), imbalances=(IID, *HIGH), most_rows=1000, most_rounds=40, patience=10)
# The paper names neither batch nor learning rate: chosen on the validation loss of pooled z-scores on IID clients.
TRAINING = Training(batch_rows=32, optimizer=Adam(learning_rate=1e-2))


@dataclass(frozen=True)
class Cell:
    """One partition of one data set: every arm runs on it."""

    dataset: str
    clients: int
    imbalance: Imbalance
    seed: int


@dataclass(frozen=True)
class Result:
    """Score of each arm, and by how much federated and pooled normalization differ in any training value."""

    scores: dict[Arm, float]
    apart: dict[str, float]


def cells(plan: Plan, seed: int) -> list[Cell]:
    """Every cell of the plan."""
    return [
        Cell(name, clients, imbalance, seed + i)
        for name in plan.datasets
        for clients in plan.clients
        for imbalance in plan.imbalances
        for i in range(SEEDS)
    ]


def run(
    plan: Plan, directory: Path, *, seed: int = 0, processes: int = 1, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """One row for each arm of each setting: mean and spread of the score over the seeds."""
    todo = cells(plan, seed)
    arguments = [(plan, directory, cell) for cell in todo]
    results: dict[Cell, Result] = {}
    # A fresh interpreter each: no threads or locks are copied into it.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for cell, result in zip(todo, pool.map(_run_cell, arguments), strict=True):
            results[cell] = result
            say(f"{len(results)}/{len(todo)}: {cell.dataset}, {cell.clients} clients, {cell.imbalance.kind}")
    return _rows(results, seed)


def _run_cell(arguments: tuple[Plan, Path, Cell]) -> Result:
    with threadpool_limits(1):
        return run_cell(*arguments)


def run_cell(plan: Plan, directory: Path, cell: Cell) -> Result:
    """Score of every arm on one partition."""
    dataset = DATASETS[cell.dataset]
    split = load_split(dataset, directory, seed=cell.seed, most_rows=plan.most_rows)
    clients = partition(split, cell.imbalance, cell.clients, np.random.default_rng([cell.seed, 1]))
    scores: dict[Arm, float] = {}
    trained: dict[Arm, Part] = {}
    for arm in ARMS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # local fits on a handful of rows overflow: that is part of the study
            scaled = scale(clients, *arm)
        trained[arm] = merged([client.train for client in scaled])
        rng = np.random.default_rng([cell.seed, 2])
        single = [_single(client) for client in scaled]
        weights, _ = train(dataset.architecture, single, plan, TRAINING, rng)
        test = merged([client.test for client in single])
        scores[arm] = score(dataset.architecture, test.y, predict(dataset.architecture, weights, test.x))
    apart = {n: float(np.abs(trained[n, FROM_FEDERATION].x - trained[n, FROM_POOL].x).max()) for n in NORMALIZATIONS}
    return Result(scores, apart)


def _single(client: Split) -> Split:
    return Split(*(Part(part.x.astype(np.float32), part.y) for part in client.parts()))


def train(
    architecture: Architecture, clients: Sequence[Split], plan: Plan, training: Training, rng: np.random.Generator
) -> tuple[Weights, int]:
    """Best weights by validation loss, and the rounds: FedAvg, one local epoch a round, until patience ends."""
    validation = merged([client.validation for client in clients])
    weights = best = init(architecture, rng)
    lowest, since, rounds = loss(architecture, weights, validation.x, validation.y), 0, 0
    while since < plan.patience and rounds < plan.most_rounds:
        weights = federated_average(
            [(local_epoch(architecture, weights, c.train.x, c.train.y, training, rng), len(c.train)) for c in clients]
        )
        value = loss(architecture, weights, validation.x, validation.y)
        rounds, since = rounds + 1, since + 1
        if value < lowest:
            lowest, best, since = value, weights, 0
    return best, rounds


def merged(parts: Sequence[Part]) -> Part:
    """All rows in one part."""
    return Part(np.vstack([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def score(architecture: Architecture, truth: Targets, predicted: Targets) -> float:
    """Macro F1 of classes, R² of values."""
    if architecture.task is Task.REGRESSION:
        return float(r2_score(truth, np.nan_to_num(predicted.astype(np.float64))))
    return float(f1_score(truth, predicted, average="macro", zero_division=0.0))


def _rows(results: dict[Cell, Result], seed: int) -> list[dict[str, Any]]:
    rows = []
    for first in (cell for cell in results if cell.seed == seed):
        same = [r for c, r in results.items() if replace(c, seed=seed) == first]
        for normalization, where in ARMS:
            values = [r.scores[normalization, where] for r in same]
            rows.append(
                {
                    "dataset": first.dataset,
                    "clients": first.clients,
                    "imbalance": first.imbalance.kind,
                    "level": first.imbalance.level or "-",
                    "normalization": normalization,
                    "where": where,
                    "metric": DATASETS[first.dataset].metric,
                    "score": float(np.mean(values)),
                    "score_sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
                    "seeds": len(values),
                    "off_pooled": max(r.apart[normalization] for r in same) if where == FROM_FEDERATION else None,
                }
            )
    return rows
