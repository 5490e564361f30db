"""The smallest of all sites' 64-bit keys, digit by digit, for many searches at once.

1. A round finds one digit of every answer: each interval is cut into m parts, and a private OR asks for each cut
   whether any site lies below it. The answer's part is the first one with a yes.
2. After all rounds the keys are known to the last bit that was asked for.

Reveals: the digits of the answers, to all sites and the coordinator.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

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


class KeySearch:
    """Searches for 64-bit keys as everyone follows them: a round finds the next digit of all."""

    def __init__(self, searches: int, bits: int = KEY_BITS) -> None:
        self.low: Keys = np.zeros(searches, dtype=np.uint64)
        self._left = KEY_BITS
        self._stop = KEY_BITS - bits

    def __bool__(self) -> bool:
        return self._left > self._stop and len(self.low) > 0

    def take(self, reached: Yes) -> None:
        """One more digit: as many parts as there are cuts that do not reach the answer."""
        rows = reached.reshape(len(self.low), -1)
        # A digit of d bits has 2^d parts, with 2^d - 1 cuts between them.
        self._left -= rows.shape[1].bit_length()
        self.low = self.low + ((~rows).sum(axis=1).astype(np.uint64) << np.uint64(self._left))


class Smallest(KeySearch):
    """The searches for the smallest of all sites' keys."""

    @property
    def _digit(self) -> int:
        return min(digit_bits(len(self.low)), self._left - self._stop)

    @property
    def question_count(self) -> int:
        """How many questions the next round asks."""
        return len(self.low) * ((1 << self._digit) - 1)

    def answers(self, mine: Keys) -> Yes:
        """Whether my key lies below the beginning of each part but the first."""
        step = np.uint64(1) << np.uint64(self._left - self._digit)
        cuts = self.low[:, np.newaxis] + step * np.arange(1, 1 << self._digit, dtype=np.uint64)
        return (mine[:, np.newaxis] < cuts).ravel()


async def smallest_keys(
    pool: Pool, reveal: Reveal, searches: int, mine: Callable[[], Keys], bits: int = KEY_BITS
) -> Keys:
    """The first bits of the smallest of all sites' keys, for each search."""
    # A site looks at its rows once for all rounds.
    search, number, own = Smallest(searches, bits), 0, cache(mine)
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
