"""Z-score: by secure sums, or under encryption without revealing the counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from commonscale.channel import Channel
from commonscale.errors import OutOfRange
from commonscale.protocols import bounds, secure_sum, zscore
from commonscale.protocols.bounds import Bounds
from commonscale.stepspec import Step, ZScoreStep
from commonscale.transforms.moments import Moments
from commonscale.transforms.ordering import Floats
from commonscale.transforms.results import FittedStandard

# Under encryption a spread below this part of a column's bound is noise.
_PRECISION = 1e-5


def protocol(step: ZScoreStep, _: int) -> str:
    """Its name in the disclosure report."""
    return f"zscore/{step.sums}"


def reveals(step: ZScoreStep, _: int) -> dict[str, str]:
    """What everyone learns when a message of a kind is sent to all."""
    if step.sums != "ckks":
        return zscore.reveals(step.rounds == "one")
    return {
        "bounds.1.Answers": bounds.reveals(step.ckks.max_abs),
        "mean.Opened": "pooled mean of each column",
        "variance.Opened": "pooled variance of each column",
    }


def warning(step: Step) -> str:
    """What a way to add shows the sites beside the sums, if anything."""
    return secure_sum.WAYS[step.sums].warning if isinstance(step, ZScoreStep) and step.sums != "ckks" else ""


async def party(ch: Channel, step: ZScoreStep, table: Any) -> FittedStandard:
    """A site's role."""
    if step.sums == "ckks":
        return await _party_encrypted(ch, step, table)
    way = secure_sum.WAYS[step.sums]
    return FittedStandard(await zscore.party(ch, table, step.columns, way, one_round=step.rounds == "one"))


async def coordinator(ch: Channel, step: ZScoreStep) -> FittedStandard:
    """The coordinator's role."""
    if step.sums == "ckks":
        return await _coordinator_encrypted(ch, step)
    way = secure_sum.WAYS[step.sums]
    return FittedStandard(await zscore.coordinator(ch, step.columns, way, one_round=step.rounds == "one"))


async def _party_encrypted(ch: Channel, step: ZScoreStep, table: Any) -> FittedStandard:
    from commonscale.protocols.ckks.zscore import moments
    from commonscale.steps.encryption import needs, party_circuit

    columns, most = step.columns, step.max_rows // len(ch.parties)
    found = await bounds.party(ch.scope("bounds"), table, columns, step.ckks.max_abs)

    def sums() -> tuple[Floats, Floats]:
        rows = table.sums(columns)
        for column, row in zip(columns, rows, strict=True):
            if row[0] > most:
                raise OutOfRange(
                    f"{ch.me}: column {column!r} has more values than max_rows = {step.max_rows} leaves to a site.",
                    "Declare more max_rows.",
                )
        return np.array([row[0] for row in rows], dtype=np.float64), np.array([row[1] for row in rows])

    def deviations(means: Floats) -> tuple[Floats, Floats]:
        rows = table.deviations(columns, means.tolist())
        return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])

    circuit = await party_circuit(ch, step.ckks, needs(step.ckks, "inverse"))
    mean, variance = await moments(
        circuit, found.bounds, found.present, step.max_rows, bool(circuit.first), sums, deviations
    )
    return _fitted(step, found, mean, variance)


async def _coordinator_encrypted(ch: Channel, step: ZScoreStep) -> FittedStandard:
    from commonscale.protocols.ckks.circuit import Circuit
    from commonscale.protocols.ckks.zscore import moments
    from commonscale.steps.encryption import coordinator_circuit, needs

    found = await bounds.coordinator(ch.scope("bounds"), step.columns, step.ckks.max_abs)

    async def work(circuit: Circuit) -> tuple[Floats, Floats]:
        return await moments(circuit, found.bounds, found.present, step.max_rows, False, None, None)

    mean, variance = await coordinator_circuit(ch, step.ckks, needs(step.ckks, "inverse"), work)
    return _fitted(step, found, mean, variance)


def _fitted(step: ZScoreStep, found: Bounds, mean: Floats, variance: Floats) -> FittedStandard:
    variance = np.where(variance <= np.square(_PRECISION * found.bounds), 0.0, variance)
    mean, variance = (np.where(found.present, numbers, np.nan) for numbers in (mean, variance))
    return FittedStandard(Moments(tuple(step.columns), None, tuple(mean.tolist()), tuple(variance.tolist())))
