"""Models that the tests offer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import commonscale_worker as cw
import numpy as np
from commonscale_worker.models import class_metrics, value_metrics
from commonscale_worker.vectors import Tensors


@cw.model("softmax")
class Softmax:
    """A plain model in numpy: logistic regression by full gradients."""

    def prepare(self, data: cw.Data, settings: cw.Settings, features: Sequence[str], classes: Sequence[str]) -> None:
        self.data, self.settings, self.classes = data, settings, len(classes)
        self.weights = np.zeros((len(features), len(classes) or 1), settings.precision)

    def get_weights(self) -> Tensors:
        return {"weights": self.weights}

    def set_weights(self, weights: Tensors) -> None:
        self.weights = weights["weights"]

    def fit(self, round: cw.Round) -> None:  # noqa: A002
        target = np.eye(self.classes)[self.data.y] if self.classes else self.data.y[:, None]
        for step in range(5):
            error = self._predicted(self.data.x) - target
            self.weights -= self.settings.learning_rate * self.data.x.T @ error / self.data.rows
            round.progress((step + 1) / 5)

    def evaluate(self) -> cw.Metrics:
        predicted = self._predicted(self.data.x_evaluation)
        return (class_metrics if self.classes else value_metrics)(predicted, self.data.y_evaluation)

    def _predicted(self, x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        powers = x @ self.weights
        return np.exp(powers) / np.exp(powers).sum(axis=1, keepdims=True) if self.classes else powers


@cw.model("slow")
class Slow(Softmax):
    """Trains until it is cancelled, or for two seconds per round; a file says how many rounds were begun."""

    def fit(self, round: cw.Round) -> None:  # noqa: A002
        with Path("begun").open("a") as file:
            file.write(f"{round.number}\n")
        for part in range(200):
            time.sleep(0.01)
            round.progress(part / 200)
        super().fit(round)


@cw.model("broken")
class Broken(Softmax):
    """Fails in ways that the learning rate chooses."""

    def fit(self, round: cw.Round) -> None:  # noqa: A002
        if self.settings.learning_rate == 1:
            raise MemoryError
        if self.settings.learning_rate == 2:
            self.weights[:] = np.nan
        elif self.settings.learning_rate == 3:
            raise SystemExit("user code ends the process")
        else:
            raise ValueError("row 17 is strange")
