"""Trains one network for each method on the same sites, and compares their F1.

In a seed all methods share the rows of every site, their split into training and test rows (80/20, classes in their
shares), the generator of the first weights and the order of batches. FedAvg has one local epoch a round, for a fixed
number of rounds; the F1 is the median of those after the last five rounds, from the sum of the sites' confusion
matrices on their own test rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from commonscale_worker.networks.averaging import federated_average
from commonscale_worker.networks.model import Architecture, Task, Weights, init, predict
from commonscale_worker.networks.training import Adam, Training, local_epoch
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from bench.encoding_study import paper
from bench.encoding_study.data import DATASETS, Dataset, Table
from bench.encoding_study.encoding import METHODS, Embedding, Encoded, Federation, Site, encode
from bench.encoding_study.partition import partition

TEST_SHARE = 0.2
LAST_ROUNDS = 5
LEARNING_RATE = 1e-3
Confusion = npt.NDArray[np.int64]  # [truth, prediction]


@dataclass(frozen=True)
class Plan:
    """What is run."""

    datasets: tuple[str, ...] = tuple(DATASETS)
    methods: tuple[str, ...] = tuple(METHODS)
    most_rows: int | None = None
    seeds: int = 5


FULL = Plan()
SMALL = Plan(most_rows=4000, seeds=3)


@dataclass(frozen=True)
class Result:
    """Of one method, data set and seed."""

    inputs: int
    f1: float
    macro_f1: float


def run(
    plan: Plan,
    directory: Path,
    *,
    seed: int = 0,
    embedding: Embedding | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """One row for each method and data set: mean and spread over the seeds."""
    rows = []
    for name in plan.datasets:
        table = DATASETS[name].load(directory)
        found: dict[str, list[Result]] = {method: [] for method in plan.methods}
        for i in range(plan.seeds):
            federation = replace(federate(DATASETS[name], table, plan, seed + i), embedding=embedding)
            for method, results in found.items():
                if method == "fasttext" and embedding is None:
                    continue
                say(f"{name}, seed {seed + i}, {method}")
                results.append(run_method(DATASETS[name], federation, method, seed + i))
        rows += [_row(name, method, results) for method, results in found.items()]
    return rows


def sites(plan: Plan, directory: Path, *, seed: int = 0) -> list[dict[str, Any]]:
    """How much the sites differ: one row for each, of the first seed."""
    rows = []
    for name in plan.datasets:
        federation = federate(DATASETS[name], DATASETS[name].load(directory), plan, seed)
        held = federation.values()
        for i, site in enumerate(federation.sites):
            labels = np.concatenate([site.train.labels, site.test.labels])
            rows.append(
                {
                    "dataset": name,
                    "site": i + 1,
                    "rows": len(labels),
                    "positive": float(labels.mean()),
                    "values": sum(map(len, held[i])),
                    "values_of_all": sum(map(len, federation.union())),
                    "columns_without_a_value": sum(
                        len(v) < len(u) for v, u in zip(held[i], federation.union(), strict=True)
                    ),
                }
            )
    return rows


def federate(dataset: Dataset, table: Table, plan: Plan, seed: int) -> Federation:
    """Rows dealt out to sites, each site's split into training and test rows."""
    if plan.most_rows is not None and len(table) > plan.most_rows:
        kept = np.random.default_rng([seed, 0]).choice(len(table), plan.most_rows, replace=False)
        table = table.take(np.sort(kept))
    sites = []
    for rows in partition(table):
        train, test = train_test_split(rows, test_size=TEST_SHARE, random_state=seed, stratify=table.labels[rows])
        sites.append(Site(table.take(train), table.take(test)))
    return Federation(dataset.categorical, sites)


def run_method(dataset: Dataset, federation: Federation, method: str, seed: int) -> Result:
    """Encode, train, score."""
    encoded = encode(METHODS[method], replace(federation, rng=np.random.default_rng([seed, 1])))
    architecture = Architecture(encoded.inputs, dataset.hidden, 1, Task.BINARY)
    rng = np.random.default_rng([seed, 2])
    training = Training(dataset.batch_rows, Adam(LEARNING_RATE))
    with threadpool_limits(1):
        _, matrices = train(encoded, init(architecture, rng), dataset, training, rng)
    last = matrices[-LAST_ROUNDS:]
    return Result(encoded.inputs, float(np.median([f1(m) for m in last])), float(np.median([macro(m) for m in last])))


def train(
    encoded: Encoded, weights: Weights, dataset: Dataset, training: Training, rng: np.random.Generator
) -> tuple[Weights, list[Confusion]]:
    """Weights after the last round, and the confusion matrix after each.

    A column that is zero in every row has no gradient: its weights stay as they began and change nothing. So only the
    weights of the other columns are trained.
    """
    weights = [weights[0][encoded.used], *weights[1:]]
    architecture = Architecture(len(encoded.used), dataset.hidden, 1, Task.BINARY)
    matrices = []
    for _ in range(dataset.rounds):
        weights = federated_average(
            [(local_epoch(architecture, weights, p.x, p.y, training, rng), len(p)) for p in encoded.train]
        )
        predictions = [predict(architecture, weights, part.x) for part in encoded.test]
        matrices.append(
            sum(
                (confusion(p.y, found) for p, found in zip(encoded.test, predictions, strict=True)),
                np.zeros((2, 2), int),
            )
        )
    return weights, matrices


def confusion(truth: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> Confusion:
    """Of one site: rows by their class and the class they were given."""
    return np.bincount(2 * truth + predicted, minlength=4).reshape(2, 2)


def f1(matrix: Confusion) -> float:
    """Of the positive class: 2·TP / (2·TP + FP + FN); 0 if there is none."""
    hits = 2.0 * matrix[1, 1]
    wrong = matrix[0, 1] + matrix[1, 0]
    return float(hits / (hits + wrong)) if hits + wrong else 0.0


def macro(matrix: Confusion) -> float:
    """Mean of both classes' F1."""
    return (f1(matrix) + f1(matrix[::-1, ::-1])) / 2


def _row(dataset: str, method: str, results: Sequence[Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"dataset": dataset, "method": method, "inputs": results[0].inputs if results else None}
    for name in ("f1", "macro_f1"):
        values = [getattr(result, name) for result in results]
        row[name] = float(np.mean(values)) if values else None
        row[f"{name}_sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return row | {"seeds": len(results), "paper_f1": paper.f1(dataset, method)}
