"""Minimum and maximum of pooled columns: an exact search, or comparisons under encryption.

Algorithm 4 (PPF min-max) of "Bridging Local and Federated Data Normalization in FL".

Method **search** replaces its comparisons: each site maps its smallest and largest value of every column to 64-bit keys
of the same order (a maximum to the complement, so that everything is a minimum), and a search finds their digits.
Methods **sequential**, **tree** and **all-pairs** compare under encryption (protocols.ckks.minmax); **auto** takes the
quickest by a simple model, the same at every role.

Differs from the paper: by search no range must be known, no encryption and no bootstrapping is needed, and the result
is exact.

Reveals: minimum and maximum of each pooled column, to all sites and the coordinator: every answer of a search is a
digit of them. Under encryption also the bounds (statistics.bounds).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonscale.options import CkksOptions
from commonscale.ordering import NO_VALUE, Floats, Keys, from_keys, to_keys
from commonscale.pool import Pool
from commonscale.protocols.ckks import minmax
from commonscale.reveal import Reveal
from commonscale.sources import queries
from commonscale.statistics import bounds
from commonscale.statistics.search import digit_bits, smallest_keys

RANGE = Reveal("range", "pooled minimum and maximum of each column")
# Under encryption a difference below this part of a column's bound is noise.
_PRECISION = 2e-5


@dataclass(frozen=True)
class Extremes:
    """One number per column; not-a-number where no site has a value."""

    low: Floats
    high: Floats


async def extremes(
    pool: Pool, columns: Sequence[str], method: str = "search", ckks: CkksOptions | None = None
) -> Extremes:
    """Minima and maxima."""
    if method != "search":
        return await _under_encryption(pool, columns, method, ckks or CkksOptions())
    answer = pool.ask(queries.Extremes(tuple(columns)))

    def mine() -> Keys:
        low, high = answer()
        lowest = np.where(np.isnan(low), NO_VALUE, to_keys(np.nan_to_num(low)))
        return np.concatenate([lowest, bounds.complements(high)])

    found = await smallest_keys(pool, RANGE, 2 * len(columns), mine)
    minima, complements = np.split(found, 2)
    maxima = np.where(complements == NO_VALUE, NO_VALUE, ~complements)
    return Extremes(from_keys(minima), from_keys(maxima))


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


def choose(method: str, sites: int, columns: int, profile: str, latency_ms: int) -> tuple[str, str]:
    """Which method runs, and why; with "auto" that with the least time by a simple model, the same at every role."""
    if method != "auto":
        return method, "asked for"
    # Seconds: rounds, each with its latency, its cost per site, and its bytes. Measured on two cores.
    numbers = 2 * columns
    bits = digit_bits(numbers)
    times = {"search": 64 // bits * (2 * latency_ms + 3 * sites + numbers * 2**bits * 8e-6) / 1000}
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
