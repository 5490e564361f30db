"""The example of Section 3: ten sites with a class each, points around ten places on a circle, one layer of BatchNorm.

The sites normalise 100 batches of 30 points each through the worker's layers; the centralized run normalises the same
points together by torch's BatchNorm. The normalization error is the mean Euclidean distance between the two (Figure
2c). With γ above 0 that share of a site's points is of any class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from commonscale_worker.batchnorm import Norms
from numpy.typing import NDArray

from bench.batchnorm_study.plan import FBN, SITES, Example
from commonscale.statistics.training.batchnorm import Layer, Statistics, updated

Floats = NDArray[np.float64]

ROUNDS, POINTS, RADIUS = 100, 30, 10.0


def batch(rng: np.random.Generator, gamma: float) -> Floats:
    """Points of all sites in a round: by site, point, coordinate."""
    own = np.repeat(np.arange(SITES)[:, None], POINTS, axis=1)
    classes = np.where(rng.random(own.shape) < gamma, rng.integers(0, SITES, own.shape), own)
    angle = 2 * np.pi * classes / SITES
    return RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=-1) + rng.normal(size=(*own.shape, 2))


def errors(example: Example) -> dict[str, Any]:
    """Distances from the centralized run, in the mean of all rounds and in the last; how far statistics are off."""
    rng = np.random.default_rng([example.seed, 3])
    centralized = torch.nn.BatchNorm1d(2, dtype=torch.float64)
    federated = _Sites(example.method)
    distances = []
    for number in range(1, ROUNDS + 1):
        points = batch(rng, example.gamma)
        together = centralized(torch.from_numpy(points.reshape(-1, 2))).detach().numpy()
        apart = federated.normalised(points, number).reshape(-1, 2) - together
        distances.append(float(np.sqrt((apart**2).sum(axis=1)).mean()))
    found, wanted = federated.statistics, (centralized.running_mean.numpy(), centralized.running_var.numpy())
    return {
        "error": float(np.mean(distances)),
        "last_error": distances[-1],
        "mean_off": float(np.abs(found.mean - wanted[0]).max()),
        "variance_off": float(np.abs(found.variance / wanted[1] - 1).max()),
    }


class _Sites:
    """One worker's layer, through which every site's points go in turn."""

    def __init__(self, method: str) -> None:
        self._norms = Norms(torch.nn.BatchNorm1d(2, dtype=torch.float64), method)
        self._layers = [Layer(*layer) for layer in self._norms.layers]
        self._collects = method == FBN
        self.statistics = Statistics.initial(2)

    def normalised(self, points: Floats, number: int) -> Floats:
        """A round: what comes out of the layer at each site; then the shared statistics move."""
        self._norms.begin(number, ROUNDS)
        outputs, results = [], []
        for mine in points:
            self._norms.set_statistics(self.statistics.mean, self.statistics.variance)
            outputs.append(self._norms.network(torch.from_numpy(mine)).detach().numpy())
            results.append(self._norms.results())
        if self._collects:
            sums = [np.concatenate([one["sum"], one["square"], one["count"]]) for one in results]
            self.statistics = updated(self._layers, self.statistics, np.sum(sums, axis=0), 1)
        else:
            mean, variance = (np.mean([one[name] for one in results], axis=0) for name in ("mean", "variance"))
            self.statistics = Statistics(mean, variance)
        return np.stack(outputs)
