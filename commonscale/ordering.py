"""Floats as 64-bit integers in the same order, and quantiles as scikit-learn interpolates them.

Searching over these keys needs no range and no precision: 64 bits are the answer to the last digit.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

KEY_BITS = 64
# Above every number's key: stands for "no value".
NO_VALUE = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_SIGN = np.uint64(1 << 63)

K = TypeVar("K", Floats, np.float64)


def to_keys(values: Floats) -> Keys:
    """A < b as numbers means key(a) < key(b) as integers; -0.0 and 0.0 are one. No value may be missing."""
    # Adding 0.0 turns -0.0 into 0.0 and leaves every other number as it is.
    bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def from_keys(keys: Keys) -> Floats:
    """The numbers again; NO_VALUE becomes not-a-number."""
    bits = np.where(keys & _SIGN, keys ^ _SIGN, ~keys)
    return np.where(keys == NO_VALUE, np.nan, bits.view(np.float64))


@dataclass(frozen=True)
class Position:
    """Where a quantile lies among n ordered values: `below` and `above` are ranks from 1; `weight` is above's part."""

    below: int
    above: int
    weight: float


def position(count: int, quantile: float) -> Position:
    """As numpy's linear method: between two neighbours of (n - 1)·q."""
    virtual = (count - 1) * quantile
    below = int(np.floor(virtual))
    weight = virtual - below
    return Position(below + 1, below + 2 if weight else below + 1, weight)


def interpolate(below: float, above: float, weight: float) -> float:
    """Numpy's own formula, so that the last digit is the same."""
    a, b, t = np.float64(below), np.float64(above), np.float64(weight)
    with np.errstate(over="ignore"):
        difference = b - a
        return float(b - difference * (1 - t) if t >= 0.5 else a + difference * t)


def middle(below: float, above: float) -> float:
    """The median of an even number of values: numpy takes the mean of the two."""
    return float(np.mean([below, above]))
