"""What a model is: five methods that numpy alone can fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from commonscale_worker.data import Data
from commonscale_worker.settings import Settings
from commonscale_worker.vectors import Array, Tensors

# Of the second class's predicted probability, in hundredths.
SCORE_BINS = 100
# No probability is taken for smaller in the logarithm of a loss.
SMALLEST = 1e-15


@dataclass(frozen=True)
class Round:
    """The round that is being trained, and where to say how far it is."""

    # Counted from 1.
    number: int
    rounds: int
    # Called with a share between 0 and 1. It raises Cancelled when nobody wants the round any more: call it often, and
    # let that exception pass.
    progress: Callable[[float], None] = lambda _share: None


class Metrics(NamedTuple):
    """Sums over the evaluation rows; they are pooled over all sites before anybody sees them."""

    loss: float
    # Rows of each true class (down) that were given each class (across).
    confusion: Array | None = None
    # With two classes: rows of each class by the predicted probability of the second one, in hundredths.
    scores: Array | None = None


@runtime_checkable
class Model(Protocol):
    """A model that can be averaged over sites: its weights are tensors of the same shapes everywhere."""

    def prepare(self, data: Data, settings: Settings, features: Sequence[str], classes: Sequence[str]) -> None:
        """Make the model for this job; no classes: the target is a number. First weights depend on the seed only."""

    def get_weights(self) -> Tensors:
        """All weights by name, in an order that is the same at every site and in every round."""

    def set_weights(self, weights: Tensors) -> None:
        """Go on from these: the same names and shapes; the arrays are the model's own from here."""

    def fit(self, round: Round) -> None:  # noqa: A002
        """Train one round on `data.x` and `data.y`, from the weights that were set."""

    def evaluate(self) -> Metrics:
        """Measure the weights that were set on `data.x_evaluation` and `data.y_evaluation`."""


class Layer(NamedTuple):
    """A BatchNorm layer whose statistics are pooled."""

    name: str
    channels: int
    # Weight of a new batch in the running statistics.
    momentum: float


@runtime_checkable
class Normalized(Protocol):
    """A model with BatchNorm layers whose statistics the sites pool."""

    def layers(self) -> list[Layer]:
        """The layers, in order."""

    def set_statistics(self, mean: Array, variance: Array) -> None:
        """The shared running statistics of all layers, one after the other."""

    def get_statistics(self) -> Tensors:
        """What a round's Result says of them, by the names of the protocol."""


@runtime_checkable
class Remembering(Protocol):
    """A model that keeps something at the site from one round to the next, beside the weights."""

    def needs_memory(self) -> bool:
        """Whether a round without it would give other weights."""

    def get_memory(self) -> object:
        """A copy of it."""

    def set_memory(self, memory: object) -> None:
        """Go back to such a copy: a round that is repeated starts from what it started from before."""


@runtime_checkable
class OwnData(Protocol):
    """A model that brings its own rows; the job's data is not read for it."""

    rows: int
    evaluation_rows: int


def class_metrics(probabilities: Array, y: Array, loss: float | None = None) -> Metrics:
    """Metrics of predicted probabilities (one column per class); the loss is the log loss unless given."""
    classes = probabilities.shape[1]
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (y, probabilities.argmax(axis=1)), 1)
    if loss is None:
        chosen = np.asarray(probabilities, np.float64)[np.arange(len(y)), y]
        loss = float(-np.log(np.clip(chosen, SMALLEST, 1)).sum())
    scores = None
    if classes == 2:
        scores = np.zeros((2, SCORE_BINS), np.int64)
        bins = np.floor(np.asarray(probabilities[:, 1], np.float64) * SCORE_BINS)
        np.add.at(scores, (y, np.clip(np.nan_to_num(bins), 0, SCORE_BINS - 1).astype(np.int64)), 1)
    return Metrics(loss, confusion, scores)


def value_metrics(predicted: Array, y: Array, loss: float | None = None) -> Metrics:
    """Metrics of predicted values; the loss is the squared error unless given."""
    if loss is None:
        difference = np.asarray(predicted, np.float64).reshape(-1) - np.asarray(y, np.float64)
        loss = float((difference**2).sum())
    return Metrics(loss)
