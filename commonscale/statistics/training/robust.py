"""Rounds that a few dishonest sites cannot spoil: aggregates of single sites' numbers instead of their sum.

Section 5 of "Federated BatchNorm". A sum hides single addends, also wrong ones; a robust rule needs to see them.

Method **clear**: every site announces its own numbers to everyone, and every site applies the rule (median or trimmed
mean, with or without NNM) to all of them. For statistics of BatchNorm layers, or for the updates of the model too.

Method **counts**, the coordinate-wise median without showing anybody's number, for statistics alone:
1. Per coordinate, each site is a column with one value. The search for ranked elements (statistics.quantiles) asks
   round by round how many sites lie at or below some cuts, and adds up the answers.
2. The middle one of n values is known to the last bit; of an even number, the mean of the two in the middle.

Each site counts alike: rows are not asked for, because a site that lies could lie about them too, and would show them.

Resists: up to f < n/2 sites that send other numbers than theirs. In `counts` only numbers: a site that adds something
else than 0 or 1 to a count can move the search anywhere, since masked counts carry no proof; what cannot be a count of
sites is refused. Not resisted: sites that are wrong about the model's update while only statistics are robust.

Reveals: `clear` every site's own numbers to everyone; `counts` the medians and the numbers of sites at or below the
cuts, so single values near the median, without names, to everyone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from commonscale.errors import BadMessage
from commonscale.hidden import Hidden, known
from commonscale.ordering import Keys, to_keys
from commonscale.pool import CAPACITY, Pool
from commonscale.reveal import Reveal
from commonscale.sources.cuts import counts_up_to
from commonscale.sources.queries import CountsAt, Integers
from commonscale.statistics.quantiles import MEDIAN, RankSearch
from commonscale.statistics.training import batchnorm
from commonscale.statistics.training.batchnorm import Statistics
from commonscale.statistics.training.contribution import Contribution
from commonscale.statistics.training.model_state import Model
from commonscale.statistics.training.robust_rules import Robustly, batch_statistics
from commonscale.statistics.training.worker import Arrays, Ready

Floats = NDArray[np.float64]

UPDATES = Reveal("updates", "every site's own update of the model in each round")
STATISTICS = Reveal("statistics", "every site's own BatchNorm statistics in each round")
MEDIANS = Reveal(
    "medians", "medians over the sites of BatchNorm statistics in each round, and numbers of sites at or below cuts"
)
SPREADS = Reveal("spreads", "medians of the sites' squared distances from these, and numbers of sites at or below cuts")


async def update(pool: Pool, rule: Robustly, length: int, mine: Callable[[], Floats]) -> Floats | Hidden:
    """The aggregate of the sites' own updates."""
    rows = await pool.announce(UPDATES, length, mine)
    return await pool.at_sites(lambda: rule(rows))


@dataclass(frozen=True)
class Moments:
    """Per channel, mean (less the shared one) and variance; per layer, the values of a channel at the average site."""

    shift: Floats
    variance: Floats
    count: Floats

    def vector(self) -> Floats:
        """One after the other."""
        return np.concatenate([self.shift, self.variance, self.count])


@dataclass(frozen=True)
class StatisticsRound:
    """BatchNorm statistics after a round, robustly."""

    own: Contribution

    @property
    def _is_pooled(self) -> bool:
        """Whether a pooled batch is described, as in FBN, and not an average of running statistics."""
        return self.own.options.batchnorm == "fbn"

    async def pooled(
        self, pool: Pool, ready: Ready | Hidden, model: Model | Hidden, trained: Arrays | Hidden
    ) -> Statistics | Hidden:
        """All roles; only sites of the pool have something to add."""
        mine = cache(lambda: self._moments(known(ready), known(model), known(trained)))
        in_clear = self.own.options.robust.method == "clear"
        found = await (self._in_clear if in_clear else self._by_counts)(pool, mine)
        return await pool.at_sites(lambda: self._applied(known(ready), known(model), found, len(pool.sites)))

    async def _in_clear(self, pool: Pool, mine: Callable[[], Moments]) -> Moments:
        rows = await pool.announce(STATISTICS, self._length, lambda: mine().vector())
        rule = self.own.options.robust.rule_of(len(pool.sites))
        shift, variance, count = self._split(rows)
        if self._is_pooled:
            return Moments(*batch_statistics(rule, shift, variance), rule(count))
        return Moments(rule(shift), rule(variance), rule(count))

    async def _by_counts(self, pool: Pool, mine: Callable[[], Moments]) -> Moments:
        shift, variance, count = self._split(await median(pool, MEDIANS, self._length, lambda: mine().vector()))
        if self._is_pooled:
            channels = self.own.sizes.channels
            variance = variance + await median(pool, SPREADS, channels, lambda: (mine().shift - shift) ** 2)
        return Moments(shift, variance, count)

    @property
    def _length(self) -> int:
        return 2 * self.own.sizes.channels + (self.own.sizes.layers if self._is_pooled else 0)

    def _split(self, numbers: Floats) -> list[Floats]:
        channels = self.own.sizes.channels
        return np.split(numbers, [channels, 2 * channels], axis=-1)

    def _moments(self, ready: Ready, model: Model, trained: Arrays) -> Moments:
        if not self._is_pooled:
            return Moments(trained["mean"] - model.statistics.mean, trained["variance"], np.zeros(0))
        sums = np.concatenate([trained["sum"], trained["square"], trained["count"]])
        shift, variance, _ = batchnorm.batch_moments(ready.layers, sums)
        # Not its own, which would show its rows.
        return Moments(shift, variance, self.own.alike_counts(ready, trained))

    def _applied(self, ready: Ready, model: Model, found: Moments, sites: int) -> Statistics:
        variance = np.maximum(found.variance, 0.0)
        if not self._is_pooled:
            return Statistics(model.statistics.mean + found.shift, variance)
        n = np.repeat(sites * found.count, [layer.channels for layer in ready.layers])
        unbiased = variance * (n / np.maximum(n - 1.0, 1.0))
        return batchnorm.moved(ready.layers, model.statistics, found.shift, unbiased, n > 0, self.own.steps)


async def median(pool: Pool, reveal: Reveal, length: int, mine: Callable[[], Floats]) -> Floats:
    """Per coordinate, the median of the sites' numbers, by counts alone."""
    count = len(pool.sites)
    search, number = RankSearch(np.full(length, count, dtype=np.uint64), (MEDIAN,), CAPACITY), 0
    columns, own = tuple(map(str, range(length))), cache(lambda: to_keys(mine()))
    while search:  # 1.
        number += 1
        query = search.query(columns)
        total = await pool.add_counts(reveal, query.length, partial(_below, query, own), number=number)
        await pool.at_sites(partial(_check, query, total, count, reveal))
        search.take(search.reached(total))
    return search.values().ravel()  # 2.


def _below(query: CountsAt, own: Callable[[], Keys]) -> Integers:
    keys = own()
    counts = (counts_up_to([cuts], keys[cuts.column : cuts.column + 1]) for cuts in query.cuts)
    return np.concatenate([one for found in counts for one in found])


def _check(query: CountsAt, total: Integers, sites: int, reveal: Reveal) -> None:
    """Sites at or below a cut are at or below the next one too, and never more than there are."""
    ends = np.cumsum([cuts.count for cuts in query.cuts])[:-1]
    rising = all((np.diff(part.astype(np.int64)) >= 0).all() for part in np.split(total, ends))
    if (total > sites).any() or not rising:
        raise BadMessage(f"The sums in {reveal.scope} are no counts of {sites} sites.", "A site sent a damaged addend.")
