"""The common reference string: uniform polynomials from a public seed.

Nobody chooses them and nobody sends them: every party expands SHAKE-256(seed, label) to the same coefficients. A
label is used for one purpose only; two refreshes under one label would show the difference of two masks.
"""

from __future__ import annotations

import hashlib

import numpy as np

from crypto.ckks.skeleton import Coefficients, Shape


def expand(shape: Shape, seed: bytes, label: str) -> Coefficients:
    """Uniform coefficients below each row's prime, by rejection."""
    rows = [_row(modulus, shape.ring_dim, seed, f"{label}/{index}") for index, modulus in enumerate(shape.moduli)]
    return np.stack(rows)


def _row(modulus: int, length: int, seed: bytes, label: str) -> Coefficients:
    bits = modulus.bit_length()
    mask = np.uint64((1 << bits) - 1)
    source = hashlib.shake_256(b"commonscale/v1/crs\0" + len(seed).to_bytes(4, "big") + seed + label.encode())
    # At least half of all words of that many bits are below the prime.
    words = length * (1 << bits) // modulus
    while True:
        words += words // 8 + 64
        drawn = np.frombuffer(source.digest(8 * words), dtype="<u8") & mask
        kept = drawn[drawn < np.uint64(modulus)]
        if len(kept) >= length:
            return kept[:length].astype(np.uint64)
