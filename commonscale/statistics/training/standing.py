"""How far a training is: what those who watch are told after each round. Pooled numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass

from commonscale.statistics.training.evaluation import Metrics
from commonscale.statistics.training.model_state import History

# More points than a curve on a screen can show.
MAX_POINTS = 200


@dataclass(frozen=True)
class Standing:
    """Rounds that are done, of how many, and how good the model was after some of them."""

    done: int
    rounds: int
    stopped: bool
    lost: tuple[str, ...]
    metrics: tuple[Metrics, ...]


def standing(history: History, rounds: int) -> Standing:
    """From what everyone knows."""
    return Standing(history.rounds, rounds, history.stopped, history.lost, thinned(history.metrics))


def thinned(metrics: Sequence[Metrics], most: int = MAX_POINTS) -> tuple[Metrics, ...]:
    """At most so many, evenly; the newest is always among them."""
    every = -(-len(metrics) // most) or 1
    return tuple(reversed(metrics[::-1][::every]))
