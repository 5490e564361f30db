"""K-th ranked elements that reveal their own digits and nothing else of the distribution.

The search of quantiles.py, but a round opens only whether a pooled count reaches the rank, not the count:
1. Each site encrypts its counts at all cuts, divided by n, once for every search that asks for them.
2. The coordinator adds them up (the first site has subtracted (k - 1/2)/n) and computes the sign under encryption.
3. The signs are opened: one bit a question, and all bits of a round follow from one digit of the answer.

Reveals: n and the k-th elements, to all sites and the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commonscale.protocols.ckks.circuit import Circuit
from commonscale.protocols.quantiles import Quantiles, Ranks
from commonscale.transforms.ordering import Floats, Keys
from crypto.ckks.sign import sign


async def search(
    circuit: Circuit, counts: NDArray[np.uint64], quantiles: Sequence[float], keys: Sequence[Keys] | None
) -> Floats:
    """The quantiles of every column; a site gives its own keys, in order."""
    wanted = Quantiles(counts, quantiles)
    size = counts[wanted.columns].astype(np.float64)
    ranks = Ranks(wanted.columns, wanted.ranks, circuit.profile.slots, shared=False)
    number = 0
    while ranks:
        number += 1
        ranks.take(await _reached(circuit, f"digit-{number}", ranks, size, keys))
    await circuit.finish()
    return wanted.values(ranks.low)


async def _reached(
    circuit: Circuit, name: str, ranks: Ranks, size: Floats, keys: Sequence[Keys] | None
) -> NDArray[np.bool_]:
    """Whether the pooled count at each cut reaches the rank: one row a search."""
    slots, questions = circuit.profile.slots, ranks.question_count
    chunks = -(-questions // slots)
    each = questions // len(size)
    n = np.repeat(size, each)

    def split(vector: Floats, rest: float) -> list[Floats]:
        padded = np.full(chunks * slots, rest)
        padded[:questions] = vector
        return np.split(padded, chunks)

    def mine() -> list[Floats]:
        assert keys is not None
        # The thresholds stand with the first site, so that no plain vector differs between ciphertexts.
        return split(ranks.count(keys) / n - circuit.first * (np.repeat(ranks.ranks, each) - 0.5) / n, circuit.first)

    (total,) = await circuit.input([mine if keys is not None else None], chunks)
    found = await sign(circuit, total, resolution=0.5 / float(size.max()))
    lengths = [min(slots, questions - at) for at in range(0, questions, slots)]
    opened = np.concatenate(await circuit.open(found, lengths, name, finish=np.sign))
    reached: NDArray[np.bool_] = opened.reshape(len(size), each) > 0
    return reached
