"""Min-max and max-abs: an exact search, or comparisons under encryption."""

from __future__ import annotations

from typing import Any

import numpy as np

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols import bounds, extremes
from commonscale.stepspec import Choice, ExtremesStep, MinMaxStep
from commonscale.transforms.ordering import Floats
from commonscale.transforms.results import FittedMaxAbs, FittedMinMax

# Under encryption a difference below this part of a column's bound is noise.
_PRECISION = 2e-5


def protocol(step: ExtremesStep, sites: int) -> str:
    """Its name in the disclosure report."""
    return f"{step.transform}/{step.choice(sites).variant}"


def reveals(step: ExtremesStep, sites: int) -> dict[str, str]:
    """What everyone learns when a message of a kind is sent to all."""
    variant = step.choice(sites).variant
    if variant == "search":
        return {"search.1.Answers": "pooled minimum and maximum of each column, digit by digit"}
    bound = {"bounds.1.Answers": bounds.reveals(step.ckks.max_abs)}
    return bound | opening(variant)


def opening(variant: str) -> dict[str, str]:
    """What the openings of a variant reveal."""
    if variant == "sequential":
        return {"maxima.Opened": "pooled maximum of each column", "minima.Opened": "pooled minimum of each column"}
    return {"extremes.Opened": "pooled minimum and maximum of each column"}


async def party(ch: Channel, step: ExtremesStep, table: Any) -> FittedMinMax | FittedMaxAbs:
    """A site's role."""
    choice = step.choice(len(ch.parties))
    if choice.variant == "search":
        low, high = await extremes.party(ch.scope("search"), table, step.columns)
    else:
        low, high = await party_encrypted(ch, choice.variant, step, table)
    return _fitted(step, choice, low, high)


async def coordinator(ch: Channel, step: ExtremesStep) -> FittedMinMax | FittedMaxAbs:
    """The coordinator's role."""
    choice = step.choice(len(ch.parties))
    if choice.variant == "search":
        low, high = await extremes.coordinator(ch.scope("search"), step.columns)
    else:
        low, high = await coordinator_encrypted(ch, choice.variant, step)
    return _fitted(step, choice, low, high)


def _fitted(step: ExtremesStep, choice: Choice, low: Floats, high: Floats) -> FittedMinMax | FittedMaxAbs:
    columns = tuple(step.columns)
    if isinstance(step, MinMaxStep):
        return FittedMinMax(columns, low, high, step.feature_range, step.clip, choice.variant, choice.why)
    return FittedMaxAbs(columns, np.maximum(np.abs(low), np.abs(high)), choice.variant, choice.why)


async def party_encrypted(ch: Channel, variant: str, step: Any, table: Any) -> tuple[Floats, Floats]:
    """A site's role in comparisons under encryption."""
    from commonscale.protocols.ckks import minmax
    from commonscale.steps.encryption import needs, party_circuit, profile

    found = await bounds.party(ch.scope("bounds"), table, step.columns, step.ckks.max_abs)
    own = await offload(table.extremes, step.columns)

    def mine() -> Floats:
        low, high = (np.array([pair[side] if pair else 0.0 for pair in own]) for side in (0, 1))
        there = np.array([pair is not None for pair in own] * 2)
        return np.where(there, np.concatenate([high, -low]) / np.tile(found.bounds, 2), minmax.LOWEST)

    used = profile(step.ckks, "comparison")
    plan = minmax.layout(variant, len(ch.parties), len(step.columns), used.slots)
    circuit = await party_circuit(ch, step.ckks, needs(step.ckks, "comparison", minmax.rotations(variant, plan)))
    result = await minmax.VARIANTS[variant](circuit, plan, ch.parties.index(ch.me), mine)
    await circuit.finish()
    return _extremes(found, result)


async def coordinator_encrypted(ch: Channel, variant: str, step: Any) -> tuple[Floats, Floats]:
    """The coordinator's role in comparisons under encryption."""
    from commonscale.protocols.ckks import minmax
    from commonscale.protocols.ckks.circuit import Circuit
    from commonscale.steps.encryption import coordinator_circuit, needs, profile

    found = await bounds.coordinator(ch.scope("bounds"), step.columns, step.ckks.max_abs)
    used = profile(step.ckks, "comparison")
    plan = minmax.layout(variant, len(ch.parties), len(step.columns), used.slots)

    async def work(circuit: Circuit) -> Floats:
        result = await minmax.VARIANTS[variant](circuit, plan, 0, None)
        await circuit.finish()
        return result

    result = await coordinator_circuit(
        ch, step.ckks, needs(step.ckks, "comparison", minmax.rotations(variant, plan)), work
    )
    return _extremes(found, result)


def _extremes(found: bounds.Bounds, result: Floats) -> tuple[Floats, Floats]:
    """Minima and maxima from scaled maxima and negated minima; columns without spread get one value for both."""
    high, low = found.bounds * result[: len(found.bounds)], -found.bounds * result[len(found.bounds) :]
    flat = high - low <= _PRECISION * found.bounds
    middle = (low + high) / 2
    low, high = np.where(flat, middle, low), np.where(flat, middle, high)
    return np.where(found.present, low, np.nan), np.where(found.present, high, np.nan)
