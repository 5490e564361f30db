"""Which rows a batch takes: from the job's seed and the round's number alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commonscale_worker.settings import Settings
from commonscale_worker.vectors import Array


def permutation(seed: int, number: int, rows: int) -> Array:
    """An order of the rows, another one for every number."""
    return np.random.default_rng([seed, number]).permutation(rows)


def batches(settings: Settings, round_number: int, rows: int) -> Iterator[Array]:
    """The batches of a round."""
    return _steps(settings, round_number, rows) if settings.steps else _epochs(settings, round_number, rows)


def batches_per_round(settings: Settings, rows: int) -> int:
    """How many they are."""
    return settings.steps or settings.epochs * len(_starts(settings.batch_rows, rows))


def _epochs(settings: Settings, round_number: int, rows: int) -> Iterator[Array]:
    """Whole passes, each in its own order."""
    starts = _starts(settings.batch_rows, rows)
    for epoch in range(settings.epochs):
        order = permutation(settings.seed, (round_number - 1) * settings.epochs + epoch, rows)
        for start, end in zip(starts, [*starts[1:], rows]):
            yield order[start:end]


def _starts(batch_rows: int, rows: int) -> list[int]:
    """A last batch of one row is joined to the one before it: BatchNorm finds no variance in one row."""
    size = min(batch_rows, rows) or rows
    starts = list(range(0, rows, size))
    return starts[:-1] if len(starts) > 1 and rows - starts[-1] == 1 else starts


def _steps(settings: Settings, round_number: int, rows: int) -> Iterator[Array]:
    """A round goes on in the pass where the one before it ended, so that all rows are seen equally often."""
    size = min(settings.batch_rows, rows) or rows
    position = (round_number - 1) * settings.steps * size
    for _ in range(settings.steps):
        passed, start = divmod(position, rows)
        taken = permutation(settings.seed, passed, rows)[start : start + size]
        if len(taken) < size:
            taken = np.concatenate([taken, permutation(settings.seed, passed + 1, rows)[: size - len(taken)]])
        yield taken
        position += size
