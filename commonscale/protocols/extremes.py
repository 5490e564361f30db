"""Exact minimum and maximum of pooled columns, by searching the digits of the answer.

Replaces the comparisons of Algorithm 4 (PPF min-max) of "Bridging Local and Federated Data Normalization in FL":
1. Each site maps its smallest and largest value of every column to 64-bit keys of the same order (a maximum to the
   complement, so that everything is a minimum).
2. A round finds one digit of every answer: each interval is cut into m parts, and a private OR asks for each cut
   whether any site lies below it. The answer's part is the first one with a yes.
3. After 64/log2(m) rounds the keys are known to the last bit; the sites agree on what they were told.

Differs from the paper: no range must be known, no encryption and no bootstrapping is needed, and the result is exact.

Reveals: minimum and maximum of each pooled column, to all sites and the coordinator: every answer is a digit of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols import agreement, private_or
from commonscale.protocols.private_or import Yes
from commonscale.protocols.transcript import Transcript
from commonscale.stepspec import digit_bits
from commonscale.transforms.ordering import KEY_BITS, NO_VALUE, Floats, Keys, from_keys, to_keys


class TableExtremes(Protocol):
    """A site's table, as far as extremes need it."""

    def extremes(self, columns: Sequence[str]) -> list[tuple[float, float] | None]:
        """The smallest and largest present value of each column; None where there is none."""


class Smallest:
    """The search for the smallest keys, as everyone follows it."""

    def __init__(self, searches: int, bits: int = KEY_BITS) -> None:
        self.low: Keys = np.zeros(searches, dtype=np.uint64)
        self._left = KEY_BITS
        self._stop = KEY_BITS - bits
        self._digit = min(digit_bits(searches), bits)

    def __bool__(self) -> bool:
        return self._left > self._stop

    def _cuts(self) -> Keys:
        """The beginnings of all parts but the first, a row a search."""
        step = np.uint64(1) << np.uint64(self._left - self._digit)
        return self.low[:, np.newaxis] + step * np.arange(1, 1 << self._digit, dtype=np.uint64)

    def question_count(self) -> int:
        """How many questions the next round asks."""
        return len(self.low) * ((1 << self._digit) - 1)

    def answers(self, mine: Keys) -> Yes:
        """Whether my key lies below each cut."""
        return (mine[:, np.newaxis] < self._cuts()).ravel()

    def take(self, anyone: Yes) -> None:
        """One more digit: as many parts as nobody lies below the end of."""
        digits = (~anyone.reshape(len(self.low), -1)).sum(axis=1).astype(np.uint64)
        self._left -= self._digit
        self.low = self.low + (digits << np.uint64(self._left))
        self._digit = min(self._digit, self._left - self._stop) or 1


async def party(ch: Channel, table: TableExtremes, columns: Sequence[str]) -> tuple[Floats, Floats]:
    """Role of a site: returns minima and maxima."""
    mine = await offload(own_keys, table, columns)  # 1.
    low = await search_party(ch, mine)
    return split(low, len(columns))


async def coordinator(ch: Channel, columns: Sequence[str]) -> tuple[Floats, Floats]:
    """Role of the coordinator."""
    return split(await search_coordinator(ch, 2 * len(columns)), len(columns))


async def search_party(ch: Channel, mine: Keys, bits: int = KEY_BITS, *, agree: bool = True) -> Keys:
    """A site's part in finding the first bits of the smallest of all sites' keys; step 3 may be left to the caller."""
    search, transcript, number = Smallest(len(mine), bits), Transcript(), 0
    while search:  # 2.
        number += 1
        answer = partial(search.answers, mine)
        search.take(await private_or.party(ch.scope(str(number)), search.question_count(), answer, transcript))
    if agree:
        await agreement.party(ch, transcript.digest)  # 3.
    return search.low


async def search_coordinator(ch: Channel, searches: int, bits: int = KEY_BITS, *, agree: bool = True) -> Keys:
    """The coordinator's part."""
    search, transcript, number = Smallest(searches, bits), Transcript(), 0
    while search:  # 2.
        number += 1
        search.take(await private_or.coordinator(ch.scope(str(number)), search.question_count(), transcript))
    if agree:
        await agreement.coordinator(ch)  # 3.
    return search.low


def own_keys(table: TableExtremes, columns: Sequence[str]) -> Keys:
    """Keys of the minima, then complements of the keys of the maxima; NO_VALUE where a column is empty."""
    found = table.extremes(columns)
    present = np.array([pair is not None for pair in found])
    low, high = (np.array([pair[side] if pair else 0.0 for pair in found]) for side in (0, 1))
    return np.concatenate([np.where(present, to_keys(low), NO_VALUE), np.where(present, ~to_keys(high), NO_VALUE)])


def split(low: Keys, columns: int) -> tuple[Floats, Floats]:
    """Minima and maxima from found keys; not-a-number where no site has a value."""
    minima, complements = low[:columns], low[columns:]
    maxima = np.where(complements == NO_VALUE, NO_VALUE, ~complements)
    return from_keys(minima), from_keys(maxima)
