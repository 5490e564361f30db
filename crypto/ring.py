"""Fixed-point vectors over the integers modulo 2^256.

A number v stands as rint(v · 2^128) mod 2^256, negative numbers in two's complement; a vector of n
numbers is an (n, 4) array of 64-bit limbs, least significant first. Sums of such vectors are exact.
Magnitudes from 3e-39 to 1.7e38 are carried, which covers the squared deviations of 1e9 rows of values
up to 1e12 (1e33) and the variance of values around 1e-9 (1e-18) with one scale for all columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LIMBS = 4
ELEMENT_BYTES = 8 * LIMBS
FRACTION_BITS = 128
MODULUS = 1 << (64 * LIMBS)

Vector = NDArray[np.uint64]
RandomBelow = Callable[[int], int]


class FixedPointOverflowError(ValueError):
    """A number, or a possible sum of such numbers, that 256 bits do not hold."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"element {index} is too large for a sum in 256-bit fixed point")


def encode(values: Sequence[float], *, addends: int, random_below: RandomBelow | None = None) -> Vector:
    """rint(v · 2^128) mod 2^256, refusing what could wrap around in a sum of `addends` such vectors.

    With a source of randomness, a float is spread uniformly over its own last digit (± half an ulp). Without that,
    digits of an exact sum that are below the last digit of the largest addend would be those of the smaller ones
    alone. Integers are counts and stay exact.
    """
    bound = MODULUS // 2 // addends
    encoded = bytearray()
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise FixedPointOverflowError(index)
        scaled = _scale(value)
        if random_below is not None and isinstance(value, float):
            half_ulp = _scale(math.ulp(value)) >> 1
            scaled += random_below(2 * half_ulp + 1) - half_ulp
        if abs(scaled) >= bound:
            raise FixedPointOverflowError(index)
        encoded += scaled.to_bytes(ELEMENT_BYTES, "little", signed=True)
    return from_bytes(bytes(encoded))


def _scale(value: float) -> int:
    """rint(value · 2^128), halves away from zero."""
    numerator, denominator = value.as_integer_ratio()
    magnitude = ((abs(numerator) << (FRACTION_BITS + 1)) // denominator + 1) >> 1
    return magnitude if numerator >= 0 else -magnitude


def decode(vector: Vector) -> list[Fraction]:
    """The numbers that a vector stands for, exactly."""
    raw = to_bytes(vector)
    steps = range(0, len(raw), ELEMENT_BYTES)
    scaled = (int.from_bytes(raw[at : at + ELEMENT_BYTES], "little", signed=True) for at in steps)
    return [Fraction(number, 1 << FRACTION_BITS) for number in scaled]


def add(a: Vector, b: Vector) -> Vector:
    """A + b mod 2^256, limb by limb with carries."""
    if a.shape != b.shape:
        raise ValueError(f"vectors of {len(a)} and {len(b)} elements cannot be added")
    total = np.empty_like(a)
    carry: Vector = np.zeros(len(a), dtype=np.uint64)
    for limb in range(LIMBS):
        partial = a[:, limb] + b[:, limb]
        total[:, limb] = partial + carry
        carry = ((partial < a[:, limb]) | (total[:, limb] < partial)).astype(np.uint64)
    return total


def negate(a: Vector) -> Vector:
    """-a mod 2^256: two's complement."""
    one = np.zeros_like(a)
    one[:, 0] = 1
    return add(~a, one)


def subtract(a: Vector, b: Vector) -> Vector:
    """A - b mod 2^256."""
    return add(a, negate(b))


def add_all(vectors: Sequence[Vector]) -> Vector:
    """The sum of at least one vector."""
    total = vectors[0]
    for vector in vectors[1:]:
        total = add(total, vector)
    return total


def to_bytes(vector: Vector) -> bytes:
    """Little-endian, 32 bytes an element."""
    return vector.astype("<u8", copy=False).tobytes()


def from_bytes(raw: bytes) -> Vector:
    """Inverse of to_bytes. Any multiple of 32 bytes is a vector."""
    if len(raw) % ELEMENT_BYTES:
        raise ValueError(f"{len(raw)} bytes are not a whole number of {ELEMENT_BYTES}-byte elements")
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64).reshape(-1, LIMBS)
