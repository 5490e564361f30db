"""Additive shares of a vector: x = x_1 + … + x_n mod 2^256."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from crypto import ring

RandomBytes = Callable[[int], bytes]


def split_uniform(
    vector: ring.Vector, count: int, random_bytes: RandomBytes = secrets.token_bytes
) -> list[ring.Vector]:
    """n-1 uniformly random vectors and the difference: any n-1 of them say nothing about x."""
    size = len(vector) * ring.ELEMENT_BYTES
    shares = [ring.from_bytes(random_bytes(size)) for _ in range(count - 1)]
    rest = vector
    for share in shares:
        rest = ring.subtract(rest, share)
    return [*shares, rest]


def split_proportional(
    vector: ring.Vector, count: int, random_bytes: RandomBytes = secrets.token_bytes
) -> list[ring.Vector]:
    """x_i = x · r_i / sum(r), the parts of Wink and Nochta, for positive random r_i; the last takes the rounding.

    NOT hiding: every part keeps the sign and the zeros of x, and is proportional to it.
    """
    columns: list[list[int]] = []
    for number in ring.decode(vector):
        weights = [int.from_bytes(random_bytes(4), "little") + 1 for _ in range(count)]
        scaled = int(number * (1 << ring.FRACTION_BITS))
        parts = [scaled * weight // sum(weights) for weight in weights[:-1]]
        columns.append([*parts, scaled - sum(parts)])
    return [
        ring.from_bytes(b"".join((c[i] % ring.MODULUS).to_bytes(ring.ELEMENT_BYTES, "little") for c in columns))
        for i in range(count)
    ]
