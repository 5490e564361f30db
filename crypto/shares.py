"""Additive shares of a vector: x = x_1 + … + x_n."""

import secrets

from crypto.rings import Z256, RandomBytes, Ring, Vector


def split(ring: Ring, vector: Vector, parts: int, random_bytes: RandomBytes = secrets.token_bytes) -> list[Vector]:
    """n-1 uniformly random vectors and the difference: any n-1 of them say nothing about x."""
    shares = [ring.random(len(vector), random_bytes) for _ in range(parts - 1)]
    return [*shares, ring.subtract(vector, ring.add_all([ring.zeros(len(vector)), *shares]))]


def split_proportional(vector: Vector, parts: int, random_bytes: RandomBytes = secrets.token_bytes) -> list[Vector]:
    """x_i = x · r_i / sum(r) in Z256, the parts of Wink and Nochta, for random r_i > 0; the last takes the rounding.

    NOT hiding: every part keeps the sign and the zeros of x, and is proportional to it.
    """
    columns: list[list[int]] = []
    for number in Z256.to_integers(vector, signed=True):
        weights = [int.from_bytes(random_bytes(4), "little") + 1 for _ in range(parts)]
        pieces = [number * weight // sum(weights) for weight in weights[:-1]]
        columns.append([*pieces, number - sum(pieces)])
    return [Z256.from_integers([column[part] for column in columns]) for part in range(parts)]
