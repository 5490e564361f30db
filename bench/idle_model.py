"""A model for benchmarks: any number of parameters, and a round of local training that costs next to nothing.

Each worker notes the seconds of its rounds in a file of its own, so that they can be taken away from what was measured.
"""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from commonscale_worker import Data, Metrics, Round, Settings
from commonscale_worker.registry import register

Tensors = dict[str, np.ndarray[Any, Any]]


def offer(sizes: Sequence[int], notes: str) -> None:
    """For a worker's module: one model for each number of parameters."""
    for size in sizes:
        register(name_of(size), partial(Idle, size, Path(notes)), Idle)


def name_of(size: int) -> str:
    """The model with so many parameters."""
    return f"idle-{size}"


def module(sizes: Sequence[int], notes: Path) -> str:
    """The text of a worker's module that offers models of these sizes."""
    return f"from bench.idle_model import offer\n\noffer({list(sizes)!r}, {str(notes)!r})\n"


def noted_s(notes: Path, size: int, rounds: range) -> Mapping[int, list[float]]:
    """By round, what its training took at each worker, as noted last."""
    found: dict[int, list[float]] = {}
    for file in notes.glob("*.txt"):
        lines = [line.split() for line in file.read_text().splitlines()]
        mine = {int(number): float(seconds) for of, number, seconds in lines if int(of) == size}
        for number in rounds:
            found.setdefault(number, []).append(mine[number])
    return found


class Idle:
    """One tensor, which a round moves a little."""

    def __init__(self, size: int, notes: Path) -> None:
        self._weights: np.ndarray[Any, Any] = np.zeros(size)
        self._notes = notes / f"{os.getpid()}.txt"

    def prepare(self, data: Data, settings: Settings, features: Sequence[str], classes: Sequence[str]) -> None:
        """From the job's seed."""
        generator = np.random.default_rng(settings.seed)
        self._weights = generator.normal(0, 0.05, len(self._weights)).astype(settings.precision)
        # Different at every worker.
        self._step = np.random.default_rng(os.getpid()).normal(0, 1e-3, len(self._weights)).astype(settings.precision)

    def get_weights(self) -> Tensors:
        """All weights."""
        return {"weights": self._weights}

    def set_weights(self, weights: Tensors) -> None:
        """Go on from these."""
        self._weights = weights["weights"]

    def fit(self, round: Round) -> None:  # noqa: A002
        """One addition."""
        start = time.perf_counter()
        self._weights += self._step
        seconds = time.perf_counter() - start
        with self._notes.open("a") as file:
            file.write(f"{len(self._weights)} {round.number} {seconds}\n")

    def evaluate(self) -> Metrics:
        """Of no interest here."""
        return Metrics(0.0)
