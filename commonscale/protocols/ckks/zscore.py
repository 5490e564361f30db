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
    # Two slots a column: its deviations and their squares are divided by the count in one go.
    columns, slots = len(bounds), circuit.profile.slots
    chunks = -(-2 * columns // slots)
    slope, offset = line(max_rows)

    def split(first: Floats, second: Floats, rest: float = 0.0) -> list[Floats]:
        padded = np.full(chunks * slots, rest)
        padded[: 2 * columns] = np.concatenate([first, second])
        return np.split(padded, chunks)

    def counts() -> list[Floats]:
        assert sums is not None
        mine = slope / max_rows * (sums()[0] + np.where(present, 0.0, max_rows if fills else 0.0))
        return split(mine, mine, slope if fills else 0.0)

    def totals() -> list[Floats]:
        assert sums is not None
        return split(sums()[1] * GAIN / bounds / max_rows, np.zeros(columns))

    async def opened(name: str, total: Handle, share: Handle) -> Floats:
        """Total / n in every slot."""
        numbers = await circuit.open(await circuit.mul(total, share), lengths, name, TOWERS)
        return np.concatenate(numbers) / GAIN

    lengths = [min(slots, 2 * columns - at) for at in range(0, 2 * columns, slots)]
    # 1. The inverse takes offset + slope·n/M.
    count, total = await circuit.input([counts, totals] if sums else [None, None], chunks)
    # 2.
    share = await inverse(circuit, await circuit.add(count, offset), max_rows)
    # 3.
    (share,) = await with_levels(circuit, 1, [share])
    mean = bounds * (await opened("mean", total, share))[:columns]

    def around() -> list[Floats]:
        """Deviations are at most 2V, their squares at most 4V²."""
        assert deviations is not None
        shift, square = deviations(mean)
        return split(shift * GAIN / (2 * bounds) / max_rows, square * GAIN / (4 * bounds**2) / max_rows)

    # 4.
    (spread,) = await circuit.input([around if deviations else None], chunks)
    found = await opened("variance", spread, share)
    await circuit.finish()
    drift = 2 * bounds * found[:columns]
    return mean + drift, np.maximum(4 * bounds**2 * found[columns:] - drift**2, 0.0)
