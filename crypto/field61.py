"""GF(p) with p = 2^61 - 1, on whole arrays of 64-bit integers."""

from collections.abc import Sequence

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
    return _below_prime((x & _P) + (x >> _61))


def from_low_bits(x: Elements) -> Elements:
    """The low 61 bits of 64-bit integers as elements; p is 0."""
    return _below_prime(x & _P)


def _below_prime(x: Elements) -> Elements:
    # Subtracting p from less than p wraps around to something large.
    lowest: Elements = np.minimum(x, x - _P)
    return lowest


def add(a: Elements, b: Elements) -> Elements:
    """A + b."""
    return reduce(a + b)


def subtract(a: Elements, b: Elements) -> Elements:
    """A - b."""
    difference = a - b
    # Below zero it has wrapped around to something large.
    lowest: Elements = np.minimum(difference, difference + _P)
    return lowest


def add_all(vectors: Sequence[Elements]) -> Elements:
    """The sum of at least one vector."""
    total = vectors[0].copy()
    for count, vector in enumerate(vectors[1:], 1):
        if count % 7 == 0:
            # Eight elements are at most 8p = 2^64 - 8; folded they are at most p + 7, to which seven more may come.
            total = (total & _P) + (total >> _61)
        total += vector
    return reduce(total)


def add_low_bits(words: Sequence[Elements]) -> Elements:
    """The sum of the low 61 bits of at least one vector of 64-bit integers."""
    total, part = words[0] & _P, np.empty_like(words[0])
    for count, word in enumerate(words[1:], 1):
        if count % 7 == 0:
            # As in add_all.
            total = (total & _P) + (total >> _61)
        total += np.bitwise_and(word, _P, out=part)
    return reduce(total)


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


def inverses(x: Elements) -> Elements:
    """1/x of every element, by Fermat: x^(p-2); 0 stays 0."""
    found, power, exponent = np.ones_like(x), x, PRIME - 2
    while exponent:
        if exponent & 1:
            found = multiply(found, power)
        power, exponent = multiply(power, power), exponent >> 1
    return found
