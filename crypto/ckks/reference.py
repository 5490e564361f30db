"""The common reference string: uniform polynomials from a public seed.

Nobody chooses them and nobody sends them: every party expands AES-256-CTR under SHAKE-256(seed, label) to the same
coefficients. A label is used for one purpose only; two refreshes under one label would show the difference of masks.
"""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from crypto.ckks.skeleton import Coefficients, Shape


def expand(shape: Shape, seed: bytes, label: str) -> Coefficients:
    """Uniform coefficients below each row's prime, by rejection."""
    rows = [_row(modulus, shape.ring_dim, seed, f"{label}/{index}") for index, modulus in enumerate(shape.moduli)]
    return np.stack(rows)


def _row(modulus: int, length: int, seed: bytes, label: str) -> Coefficients:
    bits = modulus.bit_length()
    mask = np.uint64((1 << bits) - 1)
    key = hashlib.shake_256(b"commonscale/v1/crs\0" + len(seed).to_bytes(4, "big") + seed + label.encode()).digest(32)
    # The key serves this one row only, so the counter may start at zero.
    source = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    kept = np.empty(0, dtype=np.uint64)
    # At least half of all words of that many bits are below the prime.
    words = length * (1 << bits) // modulus * 33 // 32 + 64
    while len(kept) < length:
        drawn = np.frombuffer(source.update(bytes(8 * words)), dtype="<u8") & mask
        kept = np.concatenate([kept, drawn[drawn < np.uint64(modulus)]])
    return kept[:length]
