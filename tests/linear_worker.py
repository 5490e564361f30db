"""A worker without a process: a linear model by numpy, so that training runs in memory and has an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from commonscale.statistics.training.batchnorm import Layer
from commonscale.statistics.training.worker import Arrays, Local, Order, Ready


@dataclass
class LinearWorker:
    """Least squares by gradient descent; if `layered`, the columns also go through a BatchNorm layer's statistics."""

    x: np.ndarray
    y: np.ndarray
    layered: bool = False
    first: float = 0.0
    orders: list[tuple[str, int]] = field(default_factory=list)

    @property
    def evaluation(self) -> int:
        """The last rows are for evaluation."""
        return max(1, len(self.x) // 5)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Layer("norm", self.x.shape[1], 0.1),) if self.layered else ()

    def answer(self, query: object) -> object:
        """It is the table too, of which training asks nothing."""
        raise TypeError(type(query).__name__)

    async def prepare(self, local: Local) -> Ready:
        self.local = local
        weights = np.full(self.x.shape[1] + 1, self.first, dtype=local.settings["precision"])
        tensors = (("coef", (self.x.shape[1],)), ("intercept", (1,)))
        rows = len(self.x) - self.evaluation
        return Ready(rows, self.evaluation, tensors, self.layers, weights)

    async def work(self, order: Order) -> Arrays:
        self.orders.append((order.kind, order.round))
        weights = order.arrays["weights"].astype(np.float64)
        if order.kind == "evaluate":
            x, y = self.x[-self.evaluation :], self.y[-self.evaluation :]
            return {"loss": np.array([np.square(predicted(weights, x) - y).sum()])}
        x, y = self.x[: -self.evaluation], self.y[: -self.evaluation]
        found = trained(weights, x, y, self.local.settings["learning_rate"])
        answer: Arrays = {"weights": found.astype(self.local.settings["precision"])}
        if self.layered:
            around = x - order.arrays["mean"]
            sums = {"sum": around.sum(axis=0), "square": np.square(around).sum(axis=0)}
            # Others in each round, as those of a network that learns.
            naive = {"mean": order.round * x.mean(axis=0), "variance": order.round * x.var(axis=0, ddof=1)}
            answer |= {**sums, **naive, "count": np.array([float(len(x))])}
        return answer


def predicted(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(x @ weights[:-1] + weights[-1])


def trained(weights: np.ndarray, x: np.ndarray, y: np.ndarray, learning_rate: float) -> np.ndarray:
    """One step of gradient descent."""
    error = predicted(weights, x) - y
    gradient = np.append(x.T @ error, error.sum()) / len(x)
    return np.asarray(weights - learning_rate * gradient)


def workers(count: int, seed: int = 0, **options: object) -> dict[str, LinearWorker]:
    """Sites of different sizes and scales."""
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(count):
        x = rng.normal(number, 1.0 + number, (20 + 7 * number, 3))
        y = x @ [1.0, -2.0, 0.5] + rng.normal(0, 0.1, len(x))
        found[f"site-{number}"] = LinearWorker(x, y, **options)  # type: ignore[arg-type]
    return found
