"""Aggregation that a few wrong vectors cannot move far: coordinate-wise median and trimmed mean, with or without NNM.

Section 5 of "Federated BatchNorm". Of n vectors, up to f < n/2 may be anything.

median         per coordinate, the middle of the n values
trimmed-mean   per coordinate, the mean without the f largest and the f smallest
NNM            first, each vector becomes the mean of its n - f nearest ones, itself included

numpy alone: whoever has the vectors can compute it, and comes to the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rule = Literal["mean", "median", "trimmed-mean"]
Aggregate = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Robustly:
    """One way to aggregate the rows of a matrix, one row per site."""

    rule: Rule
    # f
    dishonest: int
    nnm: bool = False

    def __call__(self, vectors: Floats) -> Floats:
        """One vector for all."""
        mixed = mixed_with_nearest(vectors, self.dishonest) if self.nnm else vectors
        if self.rule == "mean":
            return np.asarray(mixed.mean(axis=0))
        if self.rule == "median":
            return np.asarray(np.median(mixed, axis=0))
        return trimmed_mean(mixed, self.dishonest)


def trimmed_mean(vectors: Floats, dishonest: int) -> Floats:
    """Per coordinate, without so many of the largest and the smallest."""
    kept = np.sort(vectors, axis=0)[dishonest : len(vectors) - dishonest]
    return np.asarray(kept.mean(axis=0))


def mixed_with_nearest(vectors: Floats, dishonest: int) -> Floats:
    """NNM: every row becomes the mean of those nearest to it."""
    # A long vector is never squared twice: |a - b|² from inner products would lose the digits of what is close.
    distances = np.array([((vectors - row) ** 2).sum(axis=1) for row in vectors])
    # Of equal distances, the first: the same choice everywhere.
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : len(vectors) - dishonest]
    return np.stack([vectors[chosen].mean(axis=0) for chosen in nearest])


def batch_statistics(aggregate: Aggregate, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Mean and (biased) variance of a pooled batch, from the sites' own means and (biased) variances.

    Line 10 of Algorithm 2 with another aggregate than the mean: M = agg(means), V = agg(variances) + agg((means - M)²).
    With the mean, and batches of one size, this is the exact variance.
    """
    mean = aggregate(means)
    return mean, aggregate(variances) + aggregate((means - mean) ** 2)
