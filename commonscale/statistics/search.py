"""The smallest of all sites' integers, digit by digit, for many searches at once.

1. A round finds one digit of every answer: each interval is cut into m parts, and a private OR asks for each cut
   whether any site lies below it. The answer's part is the first one with a yes.
2. After all rounds they are known to the last bit.

Reveals: the digits of the answers, to all sites and the coordinator.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from commonscale.ordering import KEY_BITS, Keys
from commonscale.pool import Pool
from commonscale.protocols.sums import Yes
from commonscale.reveal import Reveal

# A round's message stays below this, so that it is one chunk on the wire.
MAX_MESSAGE_BYTES = 1 << 20

_POWER_BITS = 5
_POWER_SHIFT = np.uint64(KEY_BITS - _POWER_BITS)
_TOP_POWER = (1 << _POWER_BITS) - 1


def digit_bits(searches: int) -> int:
    """How many bits of every answer a round finds."""
    fitting = (bits for bits in (16, 8, 4, 2) if searches * ((1 << bits) - 1) * 8 <= MAX_MESSAGE_BYTES)
    return next(fitting, 1)


class KeySearch(ABC):
    """Searches for integers, as everyone follows them: a round finds the next binary digits of all."""

    def __init__(self, bits: Sequence[int]) -> None:
        self.low: Keys = np.zeros(len(bits), dtype=np.uint64)
        # Binary digits of each that are not known yet.
        self.left = np.array(bits, dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self.left.any())

    @property
    @abstractmethod
    def digits(self) -> NDArray[np.int64]:
        """How many of them the next round finds, of each search."""

    @property
    def cuts(self) -> NDArray[np.int64]:
        """Through the interval of each search: d binary digits make 2^d parts, with 2^d - 1 cuts between them."""
        return (1 << self.digits) - 1

    def take(self, reached: Yes) -> None:
        """One more digit: as many parts as there are cuts that do not reach the answer, search after search."""
        ends, digits = np.cumsum(self.cuts), self.digits
        not_reached = np.concatenate([[0], np.cumsum(~reached)])
        parts = not_reached[ends] - not_reached[ends - self.cuts]
        self.left = self.left - digits
        self.low = self.low + (parts.astype(np.uint64) << self.left.astype(np.uint64))


class Smallest(KeySearch):
    """The searches for the smallest of all sites' integers."""

    def __init__(self, bits: Sequence[int], at_a_time: int) -> None:
        super().__init__(bits)
        self._at_a_time = at_a_time

    @property
    def digits(self) -> NDArray[np.int64]:
        """As many as there may be at a time."""
        return np.minimum(self.left, self._at_a_time)

    @property
    def question_count(self) -> int:
        """How many questions the next round asks."""
        return int(self.cuts.sum())

    def answers(self, mine: Keys) -> Yes:
        """Whether my integer lies below the beginning of each part but the first."""
        number = np.concatenate([np.arange(1, cuts + 1, dtype=np.uint64) for cuts in self.cuts])
        steps = np.repeat(np.uint64(1) << (self.left - self.digits).astype(np.uint64), self.cuts)
        below: Yes = np.repeat(mine, self.cuts) < np.repeat(self.low, self.cuts) + steps * number
        return below


async def smallest_keys(
    pool: Pool, reveal: Reveal, searches: int, mine: Callable[[], Keys], bits: int = KEY_BITS
) -> Keys:
    """The first bits of the smallest of all sites' keys, for each search."""
    shift = np.uint64(KEY_BITS - bits)
    found = await smallest(pool, reveal, [bits] * searches, lambda: mine() >> shift, digit_bits(searches))
    return found << shift


async def smallest(pool: Pool, reveal: Reveal, bits: Sequence[int], mine: Callable[[], Keys], at_a_time: int) -> Keys:
    """The smallest of all sites' integers of so many binary digits, for each search.

    A site that has none takes part with one that has more digits.
    """
    # A site looks at its rows once for all rounds.
    search, number, own = Smallest(bits, at_a_time), 0, cache(mine)
    while search:  # 1.
        number += 1
        search.take(await pool.any_says(reveal, search.question_count, lambda: search.answers(own()), number))
    return search.low  # 2.


async def power_above(pool: Pool, reveal: Reveal, count: int, mine: Callable[[], Sequence[int]]) -> list[int]:
    """For several numbers from 1 to 2^31 at each site: the smallest power of two that no site's exceeds."""

    def keys() -> Keys:
        # Complements, because the search finds the smallest.
        exponents = [_TOP_POWER - (number - 1).bit_length() for number in mine()]
        return np.array(exponents, dtype=np.uint64) << _POWER_SHIFT

    found = await smallest_keys(pool, reveal, count, keys, _POWER_BITS)
    return [1 << (_TOP_POWER - int(key >> _POWER_SHIFT)) for key in found]
