"""Sites that lie about their statistics and their updates, by the attacks of the BatchNorm study.

Each knows what all honest sites would say, which is more than a real one does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.batchnorm_study.attacks import BY_NAME
from commonscale.statistics.training.worker import Arrays, Local, Order, Ready
from tests.linear_worker import LinearWorker


@dataclass
class LyingWorker(LinearWorker):
    """Says what its attack tells it to say of its BatchNorm layer and its weights; trains nothing."""

    attack: str = "sf"
    honest: list[LinearWorker] = field(default_factory=list)

    async def prepare(self, local: Local) -> Ready:
        for site in self.honest:
            await site.prepare(local)
        return await super().prepare(local)

    async def work(self, order: Order) -> Arrays:
        truth = await super().work(order)
        if order.kind == "evaluate":
            return truth
        answers = [await site.work(order) for site in self.honest]
        before = order.arrays["weights"].astype(np.float64)
        updates, means, variances = (
            np.stack([answer[name] for answer in answers]) for name in ("weights", "mean", "variance")
        )
        sent = BY_NAME[self.attack].sent
        update, _ = sent(updates - before, np.ones_like(updates))
        mean, variance = sent(means, variances)
        variance = np.maximum(variance, 0.0)
        shift, count = mean - order.arrays["mean"], truth["count"][0]
        lies = {"mean": mean, "variance": variance, "sum": shift * count, "square": (variance + shift**2) * count}
        return {**truth, **lies, "weights": before + update}


def with_liars(sites: dict[str, LinearWorker], attack: str, liars: int) -> dict[str, LinearWorker]:
    """The same sites, of which the last few lie."""
    names = list(sites)
    honest = [sites[name] for name in names[:-liars]]
    found = dict(sites)
    for name in names[-liars:]:
        # Copies: what honest ones are asked by a liar is not in their books.
        known = [LinearWorker(site.x, site.y, site.layered, site.first) for site in honest]
        found[name] = LyingWorker(sites[name].x, sites[name].y, sites[name].layered, attack=attack, honest=known)
    return found
