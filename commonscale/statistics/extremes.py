"""Minimum and maximum of pooled columns: an exact search, or comparisons under encryption.

Algorithm 4 (PPF min-max) of "Bridging Local and Federated Data Normalization in FL".

Method **search** replaces its comparisons: each site maps its smallest and largest value of every column to positions
on an axis that fits the values of all sites (statistics.axes), a maximum to the complement, so that everything is a
minimum, and a search finds their digits.
Methods **sequential**, **tree** and **all-pairs** compare under encryption (protocols.ckks.minmax); **auto** takes the
quickest by a simple model, the same at every role.

Differs from the paper: by search no range must be known, no encryption and no bootstrapping is needed, and the result
is exact.

Reveals: minimum and maximum of each pooled column, to all sites and the coordinator: every answer of a search is a
digit of them. By search also the axes, under encryption the bounds (statistics.bounds).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonscale.axis import Axis
from commonscale.options import CkksOptions, Prefer
from commonscale.ordering import NO_VALUE, Floats, Keys
from commonscale.pool import Pool
from commonscale.protocols.ckks import minmax
from commonscale.reveal import Reveal
from commonscale.sources import queries
from commonscale.statistics import bounds
from commonscale.statistics.axes import Axes, axes
from commonscale.statistics.search import digit_bits, smallest

RANGE = Reveal("range", "pooled minimum and maximum of each column")
# Of every answer, in one round: 15 questions for each, or 255.
DIGIT_BITS: dict[Prefer, int] = {"bytes": 4, "rounds": 8}
# Under encryption a difference below this part of a column's bound is noise.
_PRECISION = 2e-5


@dataclass(frozen=True)
class Extremes:
    """One number per column; not-a-number where no site has a value."""

    low: Floats
    high: Floats


async def extremes(
    pool: Pool,
    columns: Sequence[str],
    prefer: Prefer = "bytes",
    method: str = "search",
    ckks: CkksOptions | None = None,
) -> Extremes:
    """Minima and maxima."""
    if method != "search":
        return await _under_encryption(pool, columns, method, ckks or CkksOptions())
    found = await axes(pool, columns)
    answer, bits = pool.ask(queries.Extremes(tuple(columns))), [axis.bits for axis in found.axes]

    def mine() -> Keys:
        low, high = answer()
        return np.concatenate([_positions(found.axes, low), _complements(_positions(found.axes, high), bits)])

    at_a_time = min(DIGIT_BITS[prefer], digit_bits(len(bits) * 2))
    numbers = await smallest(pool, RANGE, 2 * bits, mine, at_a_time)
    minima, complements = np.split(numbers, 2)
    return Extremes(*(_values(found, ends) for ends in (minima, _complements(complements, bits))))


def _positions(axes: Sequence[Axis], values: Floats) -> Keys:
    """Of one value on each axis."""
    return np.concatenate([
        np.full(1, NO_VALUE) if np.isnan(value) else axis.positions(np.array([value]))
        for axis, value in zip(axes, values, strict=True)
    ])  # fmt: skip


def _complements(positions: Keys, bits: Sequence[int]) -> Keys:
    """Counted from the other end of each axis; no value stays none."""
    largest = np.array([(1 << each) - 1 for each in bits], dtype=np.uint64)
    return np.where(positions == NO_VALUE, NO_VALUE, largest - positions)


def _values(found: Axes, positions: Keys) -> Floats:
    """Not-a-number where there is none."""
    each = zip(found.axes, found.present, positions, strict=True)
    return np.array([axis.values(np.array([at]))[0] if there else np.nan for axis, there, at in each])


async def _under_encryption(pool: Pool, columns: Sequence[str], method: str, ckks: CkksOptions) -> Extremes:
    found = await bounds.magnitudes(pool, columns, ckks.max_abs)
    answer = pool.ask(queries.Extremes(tuple(columns)))

    def mine() -> Floats:
        low, high = answer()
        both = np.concatenate([high, -low])
        return np.where(np.isnan(both), minmax.LOWEST, np.nan_to_num(both) / np.tile(found.bounds, 2))

    layout = minmax.layout(method, len(pool.sites), len(columns), ckks.profile)
    async with pool.circuit(ckks, "comparison", minmax.rotations(method, layout)) as circuit:
        result = await minmax.METHODS[method](circuit, RANGE, layout, mine)
    largest, negated = np.split(result, 2)
    high, low = found.bounds * largest, -found.bounds * negated
    # Columns without spread get one value for both.
    flat = high - low <= _PRECISION * found.bounds
    middle = (low + high) / 2
    low, high = np.where(flat, middle, low), np.where(flat, middle, high)
    return Extremes(np.where(found.present, low, np.nan), np.where(found.present, high, np.nan))


def choose(
    method: str, sites: int, columns: int, profile: str, latency_ms: int, prefer: Prefer = "bytes"
) -> tuple[str, str]:
    """Which method runs, and why; with "auto" that with the least time by a simple model, the same at every role."""
    if method != "auto":
        return method, "asked for"
    # Seconds: rounds, each with its latency, its cost per site, and its bytes. Measured on two cores.
    numbers, bits = 2 * columns, min(DIGIT_BITS[prefer], digit_bits(2 * columns))
    # Of floats that have nothing in common; of whole numbers and decimals it is a third of that.
    times = {"search": (2 + 64 // bits) * (2 * latency_ms + 3 * sites + numbers * 2**bits * 8e-6) / 1000}
    keys_s = 0.4 * sites
    for name, rounds in (("all-pairs", 18), ("tree", 9 * (sites - 1).bit_length() + 4)):
        if fits(name, sites, profile):
            chunks = minmax.layout(name, sites, columns, profile).chunks
            times[name] = keys_s + rounds * (2 * latency_ms + 25 * sites * chunks) / 1000
    best = min(times, key=lambda name: times[name])
    estimates = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())
    why = f"{sites} sites, {columns} columns, {latency_ms} ms latency: estimated {estimates}"
    return best, why + ("; search is also exact" if best == "search" else "")


def fits(method: str, sites: int, profile: str) -> bool:
    """Whether a method under encryption has room for so many sites."""
    layout = minmax.layout(method, sites, 1, profile)
    return layout.slots // layout.rows >= 2
