"""All values that a column may have, numbered in order: what a search for one of them counts through.

A search for a 64-bit key takes 64 binary digits. Where everyone knows what the values of all sites have in common,
there are fewer: values of two decimals are whole hundredths, and a digit that all values share needs no search.
"""

from dataclasses import dataclass

import numpy as np

from commonscale.ordering import KEY_BITS, Floats, Keys, from_keys

MAGNITUDE_BITS = KEY_BITS - 1
# Of whole numbers of the last decimal: below 2^50, rounding takes a float back to the number that it was made of.
DECIMAL_BITS = 50

_ONE = np.uint64(1)
_SIGN = np.uint64(1 << MAGNITUDE_BITS)


def magnitudes(values: Floats, decimals: int | None) -> Keys:
    """|x| as an integer of the same order: in units of the last decimal, or a float's own binary digits."""
    if decimals is None:
        return (np.abs(values) + 0.0).view(np.uint64)
    whole: Keys = np.abs(np.rint(values * 10.0**decimals)).astype(np.uint64)
    return whole


@dataclass(frozen=True)
class Axis:
    """Positions from 0 for the values of a column, which differ in sign and in some binary digits of |x| alone.

    As it stands: of any floats; a position is the key (commonscale.ordering).
    """

    decimals: int | None = None
    # The digits of |x| in which values may differ, and what the others are.
    varying: int = (1 << MAGNITUDE_BITS) - 1
    fixed: int = 0
    # Whether there are values below zero, and others.
    negative: bool = True
    positive: bool = True

    @property
    def bits(self) -> int:
        """How many binary digits a position has."""
        return self.varying.bit_count() + (self.negative and self.positive)

    @property
    def is_plain(self) -> bool:
        """Whether positions are keys."""
        return self == KEYS

    @property
    def _places(self) -> list[np.uint64]:
        """Of the digits that vary, from the lowest."""
        return [np.uint64(place) for place in range(MAGNITUDE_BITS) if self.varying >> place & 1]

    @property
    def _middle(self) -> np.uint64:
        """Below this position are negative values, the largest |x| first; from here on, others, the smallest first."""
        return np.uint64(1 << self.varying.bit_count() if self.negative else 0)

    def positions(self, values: Floats) -> Keys:
        """Of values that the axis has."""
        whole = magnitudes(values, self.decimals)
        packed = np.zeros(len(whole), dtype=np.uint64)
        for at, place in enumerate(self._places):
            packed |= (whole >> place & _ONE) << np.uint64(at)
        # The complement is -1 - packed.
        return self._middle + np.where(values < 0, ~packed, packed)

    def keys(self, positions: Keys) -> Keys:
        """A value is at or below a position if its key is at or below the position's."""
        if self.is_plain:
            return positions
        below = positions < self._middle
        packed = np.where(below, ~(positions - self._middle), positions - self._middle)
        whole: Keys = np.full(len(positions), self.fixed, dtype=np.uint64)
        for at, place in enumerate(self._places):
            whole |= (packed >> np.uint64(at) & _ONE) << place
        if self.decimals is not None:
            whole = (whole.astype(np.float64) / 10.0**self.decimals).view(np.uint64)
        return _SIGN + np.where(below, ~whole, whole)

    def values(self, positions: Keys) -> Floats:
        """The values at some positions."""
        return from_keys(self.keys(positions)) + 0.0


KEYS = Axis()
