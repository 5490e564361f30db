"""Sums of counts under the collective key: no multiplication, so a small parameter set with a public key only.

1. Each site encrypts its counts and sends them with its signed word on everything announced before.
2. The coordinator adds the ciphertexts and asks all sites to open the sum, showing them everyone's word.
3. Opened numbers are rounded: noise is far below a half.

Reveals: the sums, to all sites and the coordinator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonscale.errors import BadMessage, Overflow
from commonscale.options import CkksOptions
from commonscale.pool import Counter
from commonscale.protocols.ckks.circuit import RunningCircuit, with_keys
from commonscale.protocols.ckks.levels import Chunks, Opening, lengths
from commonscale.reveal import Reveal
from commonscale.sources.queries import CountsAt, Integers

if TYPE_CHECKING:
    from commonscale.running import RunningPool

# Two primes hold 2^30 with 40 bits of scale and room for the noise.
TOWERS = 2
MAX_COUNT = 1 << 30


@asynccontextmanager
async def counter(pool: RunningPool, options: CkksOptions) -> AsyncIterator[Counter]:
    """All roles: sums of counts while the keys are in place."""
    async with with_keys(pool.ch.scope("counts"), pool.transcript, options, "counts") as circuit:
        yield EncryptedCounter(pool, circuit, circuit.profile.slots)


@dataclass(frozen=True)
class EncryptedCounter:
    """Counts by ckks."""

    pool: RunningPool
    circuit: RunningCircuit
    capacity: int

    async def count(self, reveal: Reveal, query: CountsAt, number: int = 0) -> Integers:
        """The pooled counts that a query asks for."""
        ch, answer = self.pool.ch.scope("counts").under(reveal, number), self.pool.ask(query)

        def mine() -> Chunks:
            counts = answer()
            if counts.size and int(counts.max()) > MAX_COUNT // len(ch.sites):
                raise Overflow(f"{ch.me} has too many rows for counts by ckks.", "Use method = 'masks'.")
            return self.circuit.split(counts.astype(np.float64))

        opening = Opening(lengths(query.length, self.capacity), reveal, number, TOWERS)
        numbers = await self.circuit.open_sum(mine, opening)  # 1. and 2.
        if (np.abs(numbers) > MAX_COUNT + 1).any():
            raise BadMessage(f"The sums in {ch.prefix}Opened of {ch.run} are no counts.", "A site sent a bad addend.")
        counts: Integers = np.maximum(np.rint(numbers), 0).astype(np.uint64)  # 3.
        return counts
