"""The smallest power of two that no site's number exceeds, for several numbers at once.

A search over keys (see extremes) for the exponent: five bits, one round. The sites do not agree on the answer here:
what they agree on at the end (a layout, sums) has the lengths that follow from it.

Reveals: that power of two, to all sites and the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonscale.channel import Channel
from commonscale.protocols.extremes import search_coordinator, search_party
from commonscale.transforms.ordering import KEY_BITS, Keys

_BITS = 5
_SHIFT = np.uint64(KEY_BITS - _BITS)
_TOP = (1 << _BITS) - 1


async def party(ch: Channel, numbers: Sequence[int]) -> list[int]:
    """Role of a site with numbers from 1 to 2^31."""
    # Complements, because the search finds the smallest.
    exponents = [_TOP - (number - 1).bit_length() for number in numbers]
    return _powers(await search_party(ch, np.array(exponents, dtype=np.uint64) << _SHIFT, _BITS, agree=False))


async def coordinator(ch: Channel, count: int) -> list[int]:
    """Role of the coordinator."""
    return _powers(await search_coordinator(ch, count, _BITS, agree=False))


def _powers(keys: Keys) -> list[int]:
    return [1 << (_TOP - int(key >> _SHIFT)) for key in keys]
