"""What a site adds in a round of training, and what every site makes of the sum.

A site adds n_i/n · (w_i - w): its update, weighted by its share of all rows. What BatchNorm layers pool goes along in
the same vector: the sums S1, S2 and N of Federated BatchNorm as two elements each, or averages of running statistics,
which are updated like weights.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from commonscale.errors import Overflow
from commonscale.hidden import Hidden, known
from commonscale.statistics.training import batchnorm, server_rules
from commonscale.statistics.training.batchnorm import Statistics
from commonscale.statistics.training.model_state import Model
from commonscale.statistics.training.worker import Arrays, Ready
from crypto import fixed61
from crypto.fixed_point import FixedPointOverflowError
from crypto.rings import Vector

if TYPE_CHECKING:
    from commonscale.transforms.training import Train

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sizes:
    """What is known of all sites together."""

    rows: int
    evaluation_rows: int
    parameters: int
    channels: int
    layers: int


@dataclass(frozen=True)
class Contribution:
    """Of one round."""

    options: "Train"
    sizes: Sizes
    sites: int
    number: int

    @property
    def shares_statistics(self) -> bool:
        """Whether sites average running statistics of their own."""
        first_half = 2 * self.number <= self.options.rounds
        return self.options.batchnorm == "naive" or (self.options.batchnorm == "fixbn" and first_half)

    @property
    def robust_statistics(self) -> bool:
        """Whether statistics take another way than the sum."""
        pooled = self.shares_statistics or self.options.batchnorm == "fbn"
        return bool(self.options.robust.rule) and pooled and self.sizes.channels > 0

    @property
    def averages(self) -> bool:
        """Whether running statistics are in the sum, updated like weights."""
        return self.shares_statistics and not self.robust_statistics

    @property
    def sums(self) -> int:
        """Numbers that Federated BatchNorm adds up."""
        if self.options.batchnorm != "fbn" or self.robust_statistics:
            return 0
        return 2 * self.sizes.channels + self.sizes.layers

    @property
    def updated(self) -> int:
        """Numbers that are updated by averages."""
        return self.sizes.parameters + (2 * self.sizes.channels if self.averages else 0)

    @property
    def length(self) -> int:
        """Elements."""
        return self.updated + 2 * self.sums

    @property
    def steps(self) -> int:
        """Batches that an average site goes through in a round."""
        local, rows = self.options.local, self.sizes.rows
        if local.steps:
            return local.steps
        at_once = local.batch_rows or rows
        return local.epochs * max(1, -(-rows // (self.sites * at_once)))

    @staticmethod
    def update(model: Model, trained: Arrays) -> Floats:
        """What a worker has changed in the weights."""
        return np.asarray(trained["weights"].astype(np.float64) - model.weights)

    def encoded(
        self, site: str, ready: Ready | Hidden, model: Model | Hidden, trained: Arrays | Hidden, addends: int
    ) -> Vector:
        """A site's vector."""
        mine, before, after = known(ready), known(model), known(trained)
        update = self.update(before, after)
        if self.averages:
            mean, variance = before.statistics.mean, before.statistics.variance
            update = np.concatenate([update, after["mean"] - mean, after["variance"] - variance])
        # As a factor to be added over all sites, of which some may not be chosen.
        factor = np.full(len(update), mine.rows / self.sizes.rows)
        if self.options.changes_sites:
            # Statistics move by a mean of the chosen sites' own, whoever they are: factors that add up to 1.
            factor[self.sizes.parameters :] = 1 / self.sites
        vector = encoded(site, mine, update * factor, addends)
        if not self.sums:
            return vector
        try:
            return np.concatenate([vector, fixed61.encode_parts(self._layer_sums(mine, after), addends=addends)])
        except FixedPointOverflowError:
            raise diverged(site, "a BatchNorm layer's sums") from None

    @property
    def counts_alike(self) -> bool:
        """Whether a site's own count of values would show its rows to the other sites.

        Counts of different sets of sites give each site's by linear algebra. Of batches, only a site with fewer rows
        than a batch has another count than all others.
        """
        local = self.options.local
        return self.options.changes_sites or bool(local.steps and local.batch_rows)

    def _layer_sums(self, ready: Ready, after: Arrays) -> Floats:
        """Of BatchNorm layers: sums, sums of squares, counts.

        Where counts would show rows, every site counts as if it had as many as the average site.
        """
        first, second, counts = after["sum"], after["square"], after["count"]
        if self.counts_alike:
            alike = self.alike_counts(ready, after)
            factor = np.repeat(alike / np.maximum(counts, 1.0), [layer.channels for layer in ready.layers])
            first, second, counts = first * factor, second * factor, alike
        return np.concatenate([first, second, counts])

    def alike_counts(self, ready: Ready, after: Arrays) -> Floats:
        """Per layer, the number of values of a channel that the average site has: the same at all sites."""
        counts = after["count"]
        # A picture has many values of a channel.
        per_row = np.maximum(np.rint(counts / self._rows_seen(ready.rows)), 1.0)
        return np.where(counts > 0, per_row * self._rows_seen(max(1, self.sizes.rows // self.sites)), 0.0)

    def _rows_seen(self, rows: int) -> int:
        """How many rows a site that has so many goes through in a round."""
        local = self.options.local
        return local.steps * (min(local.batch_rows, rows) or rows) if local.steps else local.epochs * rows

    def applied(self, ready: Ready, model: Model, total: Vector, scale: float) -> Model:
        """The next model, from the sum."""
        update = fixed61.decode(total[: self.updated]) * scale
        parameters = self.sizes.parameters
        statistics = model.statistics
        if self.averages:
            mean, variance = np.split(update[parameters:], 2)
            statistics = Statistics(statistics.mean + mean, np.maximum(statistics.variance + variance, 0.0))
        if self.sums:
            sums = fixed61.decode_parts(total[self.updated :])
            statistics = batchnorm.updated(ready.layers, statistics, sums, self.steps)
        after = self.stepped(model, update[:parameters])
        return Model(after.weights, after.rule, statistics)

    def stepped(self, model: Model, update: Floats) -> Model:
        """The next weights, from the average update."""
        weights, rule = server_rules.apply(self.options.server, model.weights, update, model.rule)
        return Model(rounded(weights, self.options.precision), rule, model.statistics)


def encoded(site: str, ready: Ready, update: Floats, addends: int) -> Vector:
    """An update as elements, or an error that names its tensor."""
    try:
        return fixed61.encode(update, addends=addends)
    except FixedPointOverflowError as error:
        raise diverged(site, f"tensor {ready.tensor_at(error.index)!r}") from None


def diverged(site: str, what: str) -> Overflow:
    """Before it is sent."""
    return Overflow(
        f"{site}: {what} is not finite, or too large to be added securely (over a million in all).",
        "Lower the learning rate, or put the columns on a common scale first; none of this was sent.",
    )


def rounded(weights: Floats, precision: str) -> Floats:
    """As the workers will have them."""
    return weights.astype(precision).astype(np.float64)
