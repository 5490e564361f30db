"""Yeo-Johnson by secure sums."""

from __future__ import annotations

from typing import Any

from commonscale.channel import Channel
from commonscale.protocols import bounds, secure_sum, yeo_johnson
from commonscale.stepspec import YeoJohnsonStep
from commonscale.transforms.results import FittedYeoJohnson


def protocol(step: YeoJohnsonStep, _: int) -> str:
    """Its name in the disclosure report."""
    return f"yeo-johnson/{step.sums}"


def reveals(_: YeoJohnsonStep, __: int) -> dict[str, str]:
    """What everyone learns when a message of a kind is sent to all."""
    return {
        "bounds.1.Answers": bounds.reveals(()),
        "mean.Total": "pooled count, mean and sum of sign(x)·log(1+|x|) of each column",
        "variance.Total": "pooled variance of each column",
        "search.1.Total": "pooled second moments of each column's transformation at the candidates for lambda",
        "transformed.Total": "pooled mean and variance of each transformed column",
    }


async def party(ch: Channel, step: YeoJohnsonStep, table: Any) -> FittedYeoJohnson:
    """A site's role."""
    way = secure_sum.WAYS[step.sums]
    found = await yeo_johnson.party(ch, table, step.columns, way, standardize=step.standardize)
    return FittedYeoJohnson(tuple(step.columns), *found)


async def coordinator(ch: Channel, step: YeoJohnsonStep) -> FittedYeoJohnson:
    """The coordinator's role."""
    way = secure_sum.WAYS[step.sums]
    found = await yeo_johnson.coordinator(ch, step.columns, way, standardize=step.standardize)
    return FittedYeoJohnson(tuple(step.columns), *found)
