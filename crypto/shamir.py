"""Shamir's secret sharing of a 32-byte secret over GF(p), p = 2^521 - 1: any t of n parts give it back."""

import secrets
from collections.abc import Callable, Sequence

PRIME = (1 << 521) - 1
SECRET_BYTES = 32
_VALUE_BYTES = 66
PART_BYTES = 2 + _VALUE_BYTES


def split(
    secret: bytes, count: int, threshold: int, random_below: Callable[[int], int] = secrets.randbelow
) -> list[bytes]:
    """f(1), …, f(n) of a random polynomial of degree t - 1 with f(0) = secret; fewer than t say nothing."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count:
        raise ValueError("a secret of 32 bytes, and a threshold between 1 and the number of parts")
    coefficients = [int.from_bytes(secret, "big"), *(random_below(PRIME) for _ in range(threshold - 1))]
    return [
        _part(x, sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME) for x in range(1, count + 1)
    ]


def combine(parts: Sequence[bytes]) -> bytes:
    """f(0) by interpolation. Too few or wrong parts give another secret, or ValueError."""
    points = [(int.from_bytes(part[:2], "big"), int.from_bytes(part[2:], "big")) for part in parts]
    if any(len(part) != PART_BYTES for part in parts) or len({x for x, _ in points}) != len(points):
        raise ValueError("parts are of one length, and each is there once")
    total = 0
    for x, y in points:
        numerator = denominator = 1
        for other, _ in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        total += y * numerator * pow(denominator, -1, PRIME)
    value = total % PRIME
    if value >> (8 * SECRET_BYTES):
        raise ValueError("the parts do not belong together")
    return value.to_bytes(SECRET_BYTES, "big")


def _part(x: int, y: int) -> bytes:
    return x.to_bytes(2, "big") + y.to_bytes(_VALUE_BYTES, "big")
