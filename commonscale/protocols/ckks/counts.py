"""Sums of counts under the collective key: no multiplication, so a small parameter set with a public key only.

1. Each site encrypts its counts and sends them with its signed word on everything told before.
2. The coordinator adds the ciphertexts and asks all sites to open the sum, showing them everyone's word.
3. Opened numbers are rounded: noise is far below a half.

Reveals: the sums, to all sites and the coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Overflow
from commonscale.protocols import agreement
from commonscale.protocols.ckks import decryption
from commonscale.protocols.ckks.gathering import message, parse
from commonscale.protocols.ckks.key_set import PartyKeys
from commonscale.protocols.count_sum import Count, Integers
from commonscale.protocols.transcript import Transcript
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import EncryptedInput
from crypto.ckks.evaluator import Evaluator, Numbers

# Two primes hold 2^30 with 40 bits of scale and room for the noise.
TOWERS = 2
MAX_COUNT = 1 << 30


@dataclass(frozen=True)
class PartyCkksSums:
    """A site's end."""

    keys: PartyKeys = field(repr=False)

    @property
    def capacity(self) -> int:
        """One ciphertext."""
        return self.keys.ctx.profile.slots

    async def add(self, ch: Channel, length: int, count: Count, transcript: Transcript) -> Integers:
        """Role of a site."""
        ctx, before = self.keys.ctx, transcript.digest

        def encrypted() -> EncryptedInput:
            counts = count()
            if counts.size and int(counts.max()) > MAX_COUNT // len(ch.parties):
                raise Overflow(f"{ch.me} has too many rows for sums by ckks.", "Use sums = 'masks'.")
            made = message(
                EncryptedInput, [ctx.encrypt(self.keys.public_key, c) for c in _chunks(counts, self.capacity)]
            )
            made.transcript.CopyFrom(agreement.confirm(ch, before))
            return made

        async def make() -> EncryptedInput:
            return await offload(encrypted)

        await ch.send(HUB, EncryptedInput, make)  # 1.
        lengths = [len(part) for part in _chunks(np.zeros(length), self.capacity)]
        opened = await decryption.party(ch, ctx, self.keys.share, TOWERS, lengths, (ch, before))  # 2.
        return _rounded(ch, opened, transcript)


@dataclass(frozen=True)
class HubCkksSums:
    """The coordinator's end."""

    evaluator: Evaluator

    @property
    def capacity(self) -> int:
        """One ciphertext."""
        return self.evaluator.ctx.profile.slots

    async def add(self, ch: Channel, length: int, transcript: Transcript) -> Integers:
        """Role of the coordinator."""
        lengths = [len(part) for part in _chunks(np.zeros(length), self.capacity)]
        shape = self.evaluator.ctx.fresh_shape
        received = await ch.gather(EncryptedInput)

        def added() -> list[object]:
            parts = [parse(ch, site, m, shape, len(lengths)) for site, m in received.items()]
            return [self.evaluator.load(shape.add(column)) for column in zip(*parts, strict=True)]

        words = [m.transcript for m in received.values()]
        totals = await offload(added)
        opened = await decryption.coordinator(ch, self.evaluator, TOWERS, totals, lengths, words)  # 2.
        return _rounded(ch, opened, transcript)


def _chunks(vector: NDArray[Any], capacity: int) -> list[Numbers]:
    return [vector[at : at + capacity].astype(np.float64) for at in range(0, len(vector), capacity)]


def _rounded(ch: Channel, opened: list[Numbers], transcript: Transcript) -> Integers:
    numbers = np.concatenate(opened)
    if (np.abs(numbers) > MAX_COUNT + 1).any():
        raise BadMessage(f"The sums in {ch.prefix}Opened of {ch.run} are no counts.", "A site sent a damaged addend.")
    transcript.add(numbers.astype("<f8").tobytes())
    counts: Integers = np.maximum(np.rint(numbers), 0).astype(np.uint64)
    return counts
