"""GF(p) with p = 2^61 - 1, on whole arrays of 64-bit integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PRIME = (1 << 61) - 1

Elements = NDArray[np.uint64]

_P = np.uint64(PRIME)
_LOW = np.uint64((1 << 32) - 1)
_32, _29, _3, _61 = np.uint64(32), np.uint64(29), np.uint64(3), np.uint64(61)
_LOW29 = np.uint64((1 << 29) - 1)


def reduce(x: Elements) -> Elements:
    """Any 64-bit integers as elements: 2^61 is 1."""
    folded = (x & _P) + (x >> _61)
    return np.where(folded >= _P, folded - _P, folded)


def add(a: Elements, b: Elements) -> Elements:
    """A + b."""
    return reduce(a + b)


def multiply(a: Elements, b: Elements) -> Elements:
    """A·b from products of halves: a = a1·2^32 + a0 with a1 < 2^29."""
    a0, a1, b0, b1 = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a1 * b0 + a0 * b1  # below 2^62
    low, high = a0 * b0, a1 * b1  # below 2^64 and 2^58
    # 2^64 = 8, and middle·2^32 = (middle >> 29)·2^61 + (middle & (2^29 - 1))·2^32.
    total = (low & _P) + (low >> _61) + (high << _3) + (middle >> _29)
    return reduce(reduce(total) + ((middle & _LOW29) << _32))


def inverse(x: int) -> int:
    """1/x of one element."""
    return pow(x, -1, PRIME)


def lagrange_at_zero(points: list[int]) -> list[int]:
    """λ_i with f(0) = Σ λ_i·f(x_i) for every f of lower degree than there are points."""
    found = []
    for x in points:
        value = 1
        for other in points:
            if other != x:
                value = value * other % PRIME * inverse(other - x) % PRIME
        found.append(value)
    return found
