"""Robust scaling and quantiles: by pooled counts, privately under encryption, or as the paper does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from commonscale.channel import Channel
from commonscale.protocols import agreement, bounds, quantiles
from commonscale.protocols.count_sum import (
    HubMasks,
    HubShares,
    HubSums,
    Integers,
    PartyMasks,
    PartyShares,
    PartySums,
)
from commonscale.protocols.transcript import Transcript
from commonscale.steps import extremes
from commonscale.stepspec import QuantilesStep, RanksStep, RobustStep
from commonscale.transforms.ordering import Floats
from commonscale.transforms.results import FittedQuantiles, FittedRobust

_PARTY: dict[str, type[PartySums]] = {"masks": PartyMasks, "shares": PartyShares}
_HUB: dict[str, type[HubSums]] = {"masks": HubMasks, "shares": HubShares}


def protocol(step: RanksStep, _: int) -> str:
    """Its name in the disclosure report."""
    return f"{step.transform}/{step.variant}" + (f"/{step.sums}" if step.variant == "counts" else "")


def reveals(step: RanksStep, _: int) -> dict[str, str]:
    """What everyone learns when a message of a kind is sent to all."""
    answers = "pooled quantiles of each column"
    count = {"n.TotalCounts": "pooled count of present values of each column"}
    if step.variant == "private":
        return count | {"digit-1.Opened": f"{answers}, digit by digit"}
    if step.variant == "counts":
        total = "Opened" if step.sums == "ckks" else "TotalCounts"
        return {
            f"n.{total}": "pooled count of present values of each column",
            f"1.{total}": f"{answers}, and pooled counts at the cuts of the search",
        }
    return {
        "n.Opened": "pooled count of present values of each column",
        "bounds.1.Answers": bounds.reveals(step.ckks.max_abs),
        **extremes.opening("sequential"),
        "q0-1.less.Opened": f"{answers}, and pooled counts below and above the middles of the search",
    }


def levels(step: RanksStep) -> list[float]:
    """The quantiles that a step needs."""
    if isinstance(step, RobustStep):
        low, high = step.quantile_range
        return [low / 100, 0.5, high / 100]
    assert isinstance(step, QuantilesStep)
    return list(step.quantiles)


async def party(ch: Channel, step: RanksStep, table: Any) -> FittedRobust | FittedQuantiles:
    """A site's role."""
    role = {"counts": _party_counts, "private": _party_private, "binary": _party_binary}[step.variant]
    return _fitted(step, *await role(ch, step, table))


async def coordinator(ch: Channel, step: RanksStep) -> FittedRobust | FittedQuantiles:
    """The coordinator's role."""
    role = {"counts": _hub_counts, "private": _hub_private, "binary": _hub_binary}[step.variant]
    return _fitted(step, *await role(ch, step))


def _fitted(step: RanksStep, counts: Integers, found: Floats) -> FittedRobust | FittedQuantiles:
    columns, n = tuple(step.columns), tuple(int(count) for count in counts)
    if isinstance(step, RobustStep):
        return FittedRobust(
            columns, n, found, step.quantile_range, step.with_centering, step.with_scaling, step.unit_variance
        )
    assert isinstance(step, QuantilesStep)
    return FittedQuantiles(columns, n, step.quantiles, found)


async def _party_counts(ch: Channel, step: RanksStep, table: Any) -> tuple[Integers, Floats]:
    if step.sums == "ckks":
        from commonscale.steps.encryption import party_sums

        sums: PartySums = await party_sums(ch, step.ckks)
    else:
        sums = _PARTY[step.sums]()
    return await quantiles.party(ch, table, step.columns, levels(step), sums)


async def _hub_counts(ch: Channel, step: RanksStep) -> tuple[Integers, Floats]:
    work = partial(quantiles.coordinator, ch, step.columns, levels(step))
    if step.sums == "ckks":
        from commonscale.steps.encryption import coordinator_sums

        return await coordinator_sums(ch, step.ckks, work)
    return await work(_HUB[step.sums]())


async def _party_private(ch: Channel, step: RanksStep, table: Any) -> tuple[Integers, Floats]:
    from commonscale.protocols.ckks import ranks
    from commonscale.steps.encryption import needs, party_circuit

    keys = await quantiles.own_keys(table, step.columns)
    transcript = Transcript()
    counts = await PartyMasks().add(ch.scope("n"), len(keys), partial(quantiles.sizes, keys), transcript)
    await agreement.party(ch.scope("n"), transcript.digest)
    circuit = await party_circuit(ch, step.ckks, needs(step.ckks, "comparison"))
    return counts, await ranks.search(circuit, counts, levels(step), keys)


async def _hub_private(ch: Channel, step: RanksStep) -> tuple[Integers, Floats]:
    from commonscale.protocols.ckks import ranks
    from commonscale.protocols.ckks.circuit import Circuit
    from commonscale.steps.encryption import coordinator_circuit, needs

    counts = await HubMasks().add(ch.scope("n"), len(step.columns), Transcript())
    await agreement.coordinator(ch.scope("n"))

    async def work(circuit: Circuit) -> Floats:
        return await ranks.search(circuit, counts, levels(step), None)

    return counts, await coordinator_circuit(ch, step.ckks, needs(step.ckks, "comparison"), work)


async def _party_binary(ch: Channel, step: RanksStep, table: Any) -> tuple[Integers, Floats]:
    from commonscale.concurrency import offload
    from commonscale.steps.encryption import party_sums

    sums = await party_sums(ch.scope("counts"), step.ckks)
    values = await offload(table.ordered, step.columns)
    transcript = Transcript()

    async def add(scope: str, length: int, count: Callable[[], Integers]) -> Integers:
        return await sums.add(ch.scope(scope), length, count, transcript)

    def sizes() -> Integers:
        return np.array([len(column) for column in values], dtype=np.uint64)

    counts = await add("n", len(values), sizes)
    low, high = await extremes.party_encrypted(ch, "sequential", step, table)
    found = await _binary(add, step, counts, low, high, values)
    await agreement.party(ch.scope("answers"), transcript.digest)
    return counts, found


async def _hub_binary(ch: Channel, step: RanksStep) -> tuple[Integers, Floats]:
    from commonscale.protocols.ckks.counts import HubCkksSums
    from commonscale.steps.encryption import coordinator_sums

    async def work(sums: HubCkksSums) -> tuple[Integers, Floats]:
        transcript = Transcript()

        async def add(scope: str, length: int, _: Callable[[], Integers]) -> Integers:
            return await sums.add(ch.scope(scope), length, transcript)

        counts = await add("n", len(step.columns), lambda: np.empty(0, dtype=np.uint64))
        low, high = await extremes.coordinator_encrypted(ch, "sequential", step)
        found = await _binary(add, step, counts, low, high, [np.empty(0) for _ in step.columns])
        await agreement.coordinator(ch.scope("answers"))
        return counts, found

    return await coordinator_sums(ch.scope("counts"), step.ckks, work)


async def _binary(
    add: Any, step: RanksStep, counts: Integers, low: Floats, high: Floats, values: list[Floats]
) -> Floats:
    """Algorithm 2, lines 20 to 24: one quantile after the other."""
    from commonscale.protocols.ckks import binary

    found = [
        await binary.kth(
            add, f"q{number}", counts, low, high, binary.target(counts, quantile), step.epsilon, values
        )
        for number, quantile in enumerate(levels(step))
    ]  # fmt: skip
    return np.stack(found, axis=1)
