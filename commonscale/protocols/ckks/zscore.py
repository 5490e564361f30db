"""PPF z-score: mean and variance of pooled columns, without the counts.

Algorithm 1 of "Bridging Local and Federated Data Normalization in FL":
1. Each site encrypts its sums and counts of every column; the coordinator adds them up.
2. The coordinator computes the inverse of the counts under encryption, with collective refreshes.
3. Sums times inverse are the means, opened to all.
4. Each site encrypts its sums of squared deviations from the mean; times the inverse they are the variances.

Numbers are scaled by bounds that all know: sums by V·M and counts by M, with M the most rows there may be.

Differs from the paper: the inverse is a Chebyshev doubling instead of Goldschmidt's (quicker and more exact); the
deviations x - μ are summed too, to correct mean and variance for the rounding of μ.

Reveals: mean and variance of each pooled column, and the bounds V, to all sites and the coordinator; no count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from commonscale.protocols.ckks.circuit import Circuit, Handle
from commonscale.transforms.ordering import Floats
from crypto.ckks.arithmetic import with_levels
from crypto.ckks.inverse import inverse, line

# Opening adds noise of about 1e-9; numbers are lifted over it, and two primes hold them.
GAIN = 2.0**24
TOWERS = 2

# A site's counts and sums of every column, or sums of deviations and of their squares.
Pair = tuple[Floats, Floats]


async def moments(
    circuit: Circuit,
    bounds: Floats,
    present: NDArray[np.bool_],
    max_rows: float,
    fills: bool,
    sums: Callable[[], Pair] | None,
    deviations: Callable[[Floats], Pair] | None,
) -> tuple[Floats, Floats]:
    """Means and variances (of columns that are not present: 0). A site gives functions for its own numbers.

    Slots without a count would have no inverse: one site `fills` them.
    """
    columns, slots = len(bounds), circuit.profile.slots
    chunks = -(-columns // slots)
    slope, offset = line(max_rows)

    def split(vector: Floats, rest: float = 0.0) -> list[Floats]:
        padded = np.full(chunks * slots, rest)
        padded[:columns] = vector
        return np.split(padded, chunks)

    def counts() -> list[Floats]:
        assert sums is not None
        mine = sums()[0] + np.where(present, 0.0, max_rows if fills else 0.0)
        return split(mine * slope / max_rows, slope if fills else 0.0)

    def scaled(pair: Callable[[], Pair] | None, which: int, scale: Floats) -> Callable[[], list[Floats]] | None:
        return (lambda: split(pair()[which] * GAIN / scale / max_rows)) if pair else None

    async def opened(name: str, total: Handle, share: Handle) -> Floats:
        """Total / n in every slot."""
        numbers = await circuit.open(await circuit.mul(total, share), [slots] * chunks, name, TOWERS)
        return np.concatenate(numbers)[:columns] / GAIN

    # 1. The inverse takes offset + slope·n/M.
    count = await circuit.input(counts if sums else None, chunks)
    total = await circuit.input(scaled(sums, 1, bounds), chunks)
    # 2.
    share = await inverse(circuit, await circuit.add(count, offset), max_rows)
    # 3.
    (share,) = await with_levels(circuit, 1, [share])
    mean = bounds * await opened("mean", total, share)
    # 4. Deviations are at most 2V, their squares at most 4V².
    around = (lambda: deviations(mean)) if deviations else None
    shift = await circuit.input(scaled(around, 0, 2 * bounds), chunks)
    square = await circuit.input(scaled(around, 1, 4 * bounds**2), chunks)
    drift = 2 * bounds * await opened("drift", shift, share)
    return mean + drift, np.maximum(4 * bounds**2 * await opened("variance", square, share) - drift**2, 0.0)
