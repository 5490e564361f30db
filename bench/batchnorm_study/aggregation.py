"""What becomes of the statistics that sites send after a round, honest or not. numpy alone.

naive, fixbn  the sites' own running statistics, averaged or aggregated robustly
fbn           Algorithm 2 from sums; with dishonest sites or a robust rule, from each site's own mean and variance
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.batchnorm_study import attacks
from bench.batchnorm_study.plan import DISHONEST, FBN, NO_ATTACK, SITES, UNDEFENDED, Run
from commonscale.statistics.training.batchnorm import Layer, Statistics, batch_moments, moved, updated
from commonscale.statistics.training.robust_rules import Robustly, batch_statistics

Floats = NDArray[np.float64]
Results = Sequence[Mapping[str, Floats]]


@dataclass(frozen=True)
class Aggregation:
    """Of one run."""

    run: Run
    layers: Sequence[Layer]

    def __call__(self, before: Statistics, found: Results) -> Statistics:
        """The next shared statistics, from what the sites' workers found."""
        if self.run.method != FBN:
            return self._of_running_statistics(found)
        if self.run.attack == NO_ATTACK and self.run.defence == UNDEFENDED:
            return updated(self.layers, before, np.sum([_sums(one) for one in found], axis=0), 1)
        return self.of_batches(before, found)

    def of_batches(self, before: Statistics, found: Results) -> Statistics:
        """Lines 4 to 10 of Algorithm 2, with any aggregate."""
        moments = [batch_moments(self.layers, _sums(one)) for one in found]
        shifts, variances, counts = (np.stack(part) for part in zip(*moments, strict=True))
        count = counts.sum(axis=0)
        unbiased = count / (count - 1.0)
        # What a site of the paper sends, and lies about, are running statistics (lines 5 to 7).
        beta = np.repeat([layer.momentum for layer in self.layers], [layer.channels for layer in self.layers])
        kept = (1.0 - beta) * before.variance
        means, sent = self._sent(before.mean + beta * shifts, kept + beta * unbiased * variances)
        shift, variance = batch_statistics(
            self._aggregate, (means - before.mean) / beta, (sent - kept) / (beta * unbiased)
        )
        return moved(self.layers, before, shift, unbiased * np.maximum(variance, 0.0), count > 0, 1)

    def _of_running_statistics(self, found: Results) -> Statistics:
        means, variances = self._sent(*(np.stack([one[name] for one in found]) for name in ("mean", "variance")))
        return Statistics(self._aggregate(means), np.maximum(self._aggregate(variances), 0.0))

    @property
    def _aggregate(self) -> Robustly:
        return Robustly(self.run.defence.rule, DISHONEST, self.run.defence.nnm)

    def _sent(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        if self.run.attack == NO_ATTACK:
            return means, variances
        dishonest = np.random.default_rng([self.run.seed, 2]).permutation(SITES)[:DISHONEST]
        return attacks.attacked(attacks.BY_NAME[self.run.attack], means, variances, dishonest)


def _sums(one: Mapping[str, Floats]) -> Floats:
    return np.concatenate([one["sum"], one["square"], one["count"]])
