"""Where a training goes on from after a checkpoint: what everyone knows, and what only the sites have.

The bytes are a line of JSON and, at a site, the arrays behind it, as raw little-endian numbers: in single precision
where nothing is lost by that, as of weights that the workers have so. Whoever reads them wrote them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commonscale.hidden import HIDDEN, Hidden
from commonscale.results import canonical_json
from commonscale.statistics.training.batchnorm import Statistics
from commonscale.statistics.training.evaluation import Metrics
from commonscale.statistics.training.server_rules import RuleState

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """At a site: weights, what the server's rule remembers, running statistics."""

    weights: Floats
    rule: RuleState
    statistics: Statistics

    def arrays(self) -> tuple[Floats, ...]:
        """In a fixed order."""
        return self.weights, self.rule.first, self.rule.second, self.statistics.mean, self.statistics.variance


@dataclass(frozen=True)
class History:
    """What everyone knows of a training so far."""

    rounds: int = 0
    stopped: bool = False
    metrics: tuple[Metrics, ...] = ()
    # Sites that were silent for too long.
    lost: tuple[str, ...] = ()
    # The round in which a site trained last.
    trained: Mapping[str, int] = field(default_factory=dict)

    def after(self, number: int, sites: Sequence[str]) -> "History":
        """One round more, in which these sites have trained."""
        return replace(self, rounds=number, trained={**self.trained, **dict.fromkeys(sites, number)})

    def without(self, sites: tuple[str, ...]) -> "History":
        """With sites that are out."""
        return replace(self, lost=(*self.lost, *sites))

    def measured(self, metrics: Metrics, patience: int) -> "History":
        """With new figures: training stops when the loss was not below its lowest for `patience` of them."""
        found = (*self.metrics, metrics)
        lowest = min(range(len(found)), key=lambda at: found[at].loss)
        return replace(self, metrics=found, stopped=bool(patience) and len(found) - 1 - lowest >= patience)


def to_bytes(history: History, model: Model | Hidden) -> bytes:
    """A checkpoint's state."""
    arrays = [] if isinstance(model, Hidden) else [_shortest(array) for array in model.arrays()]
    head = {
        "rounds": history.rounds,
        "stopped": history.stopped,
        "metrics": [one.plain() for one in history.metrics],
        "lost": history.lost,
        "trained": history.trained,
        "arrays": [[array.dtype.str, len(array)] for array in arrays],
    }
    return b"".join([canonical_json(head).encode(), b"\n", *(array.tobytes() for array in arrays)])


def _shortest(array: Floats) -> NDArray[np.floating[Any]]:
    """In single precision if that is exact."""
    with np.errstate(over="ignore"):
        single = array.astype("<f4")
    return single if (single == array).all() else array.astype("<f8")


def from_bytes(state: bytes) -> tuple[History, Model | Hidden]:
    """Inverse of to_bytes."""
    line, _, raw = state.partition(b"\n")
    head = json.loads(line)
    history = History(
        head["rounds"], head["stopped"], tuple(map(Metrics.from_plain, head["metrics"])), tuple(head["lost"]),
        head["trained"],
    )  # fmt: skip
    if not head["arrays"]:
        return history, HIDDEN
    found, start = [], 0
    for dtype, length in head["arrays"]:
        found.append(np.frombuffer(raw, dtype, length, start).astype(np.float64))
        start += length * np.dtype(dtype).itemsize
    weights, first, second, mean, variance = found
    return history, Model(weights, RuleState(first, second), Statistics(mean, variance))
