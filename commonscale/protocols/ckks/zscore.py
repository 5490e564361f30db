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

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from commonscale.ordering import Floats
from commonscale.protocols.ckks.levels import Chunks, Circuit, Handle, Opening, lengths
from commonscale.reveal import Reveal
from crypto.ckks.arithmetic import with_levels
from crypto.ckks.inverse import inverse, line

# Opening adds noise of about 1e-9; numbers are lifted over it, and two primes hold them.
GAIN = 2.0**24
TOWERS = 2

# A site's counts and sums of every column, or sums of deviations and of their squares.
Pair = tuple[Floats, Floats]


async def moments(
    circuit: Circuit,
    reveals: tuple[Reveal, Reveal],
    bounds: Floats,
    present: NDArray[np.bool_],
    max_rows: float,
    sums: Callable[[], Pair],
    deviations: Callable[[Floats], Callable[[], Floats]],
) -> tuple[Floats, Floats]:
    """Means and variances (of columns that are not present: 0). A site gives functions for its own numbers.

    Slots without a count would have no inverse: the first site fills them.
    """
    # Two slots per column: its deviations and their squares are divided by the count in one go.
    columns = len(bounds)
    used = lengths(2 * columns, circuit.profile.slots)
    slope, offset = line(max_rows)

    def counts() -> Chunks:
        mine = slope / max_rows * (sums()[0] + np.where(present, 0.0, max_rows * circuit.first))
        return circuit.split(np.tile(mine, 2), slope * circuit.first)

    def totals() -> Chunks:
        return circuit.split(np.concatenate([sums()[1] * GAIN / bounds / max_rows, np.zeros(columns)]))

    async def opened(reveal: Reveal, total: Handle, share: Handle) -> Floats:
        """Total / n in every slot."""
        quotient = await circuit.mul(total, share)
        return await circuit.open(quotient, Opening(used, reveal, towers=TOWERS)) / GAIN

    # 1. The inverse takes offset + slope·n/M.
    count, total = await circuit.input([counts, totals], len(used))
    # 2.
    share = await inverse(circuit, await circuit.add(count, offset), max_rows)
    # 3.
    (share,) = await with_levels(circuit, 1, [share])
    mean = bounds * (await opened(reveals[0], total, share))[:columns]
    deviation = deviations(mean)

    def around() -> Chunks:
        """Deviations are at most 2V, their squares at most 4V²."""
        shift, square = deviation()
        parts = shift / (2 * bounds), square / (4 * bounds**2)
        return circuit.split(np.concatenate(parts) * GAIN / max_rows)

    # 4.
    (spread,) = await circuit.input([around], len(used))
    found = await opened(reveals[1], spread, share)
    drift = 2 * bounds * found[:columns]
    return mean + drift, np.maximum(4 * bounds**2 * found[columns:] - drift**2, 0.0)
