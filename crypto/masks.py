"""Pairwise masks: m_ij = AES-256-CTR(HKDF(k_ij, context)), added by one site of a pair, subtracted by the other.

k_ij = HKDF-SHA256(X25519(a_i, A_j), salt = roster digest) from keys that live for one job. Every context
(run and slot) gives an independent mask; using one context for two different vectors would reveal their
difference, so callers make a masked vector once and keep its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from crypto import ring

Integers = NDArray[np.uint64]


def pair_key(own: X25519PrivateKey, theirs: X25519PublicKey, roster_digest: bytes) -> bytes:
    """k_ij, the same at both sites of a pair."""
    return HKDF(SHA256(), 32, salt=roster_digest, info=b"commonscale/v1/pair").derive(own.exchange(theirs))


def expand(key: bytes, context: bytes, length: int) -> ring.Vector:
    """The pair's mask for one context: `length` uniformly random ring elements."""
    return ring.from_bytes(_stream(key, context, length * ring.ELEMENT_BYTES))


def _stream(key: bytes, context: bytes, size: int) -> bytes:
    stream_key = HKDFExpand(SHA256(), 32, info=b"commonscale/v1/mask\0" + context).derive(key)
    # The key serves this one stream only, so the counter may start at zero.
    return Cipher(algorithms.AES(stream_key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def apply(vector: ring.Vector, me: str, pair_keys: Mapping[str, bytes], context: bytes) -> ring.Vector:
    """x_i + sum over j>i of m_ij - sum over j<i of m_ij; over all sites the masks add up to zero."""
    for other, key in pair_keys.items():
        mask = expand(key, context, len(vector))
        vector = ring.add(vector, mask) if me < other else ring.subtract(vector, mask)
    return vector


def apply64(vector: Integers, me: str, pair_keys: Mapping[str, bytes], context: bytes) -> Integers:
    """The same for a vector of integers modulo 2^64."""
    masked = vector.astype("<u8")
    for other, key in pair_keys.items():
        mask = np.frombuffer(_stream(key, context, 8 * len(vector)), "<u8")
        # Unsigned arithmetic wraps around: that is the modulus.
        masked = masked + mask if me < other else masked - mask
    return masked


def remove64(vector: Integers, key: bytes, context: bytes) -> Integers:
    """Take one key's mask away again."""
    mask: Integers = np.frombuffer(_stream(key, context, 8 * len(vector)), "<u8").astype(np.uint64)
    return vector - mask


def checks64(vector: Integers, key: bytes, context: bytes, count: int) -> Integers:
    """Sums of the vector, weighted by numbers that only holders of the key know, modulo 2^64: linear in the vector."""
    found = np.empty(count, dtype=np.uint64)
    for number in range(count):
        label = b"check\0" + number.to_bytes(4, "big") + context
        found[number] = np.dot(np.frombuffer(_stream(key, label, 8 * len(vector)), "<u8"), vector)
    return found


def apply_wide(values: Sequence[int], width: int, me: str, pair_keys: Mapping[str, bytes], context: bytes) -> bytes:
    """The same for integers modulo 256^width, little-endian; no limbs, for a few numbers of any size."""
    masked = list(values)
    for other, key in pair_keys.items():
        mask = _integers(_stream(key, context, width * len(values)), width)
        masked = [v + m if me < other else v - m for v, m in zip(masked, mask, strict=True)]
    return _wide(masked, width)


def remove_wide(elements: bytes, width: int, key: bytes, context: bytes) -> list[int]:
    """Take one key's mask away again."""
    values, mask = _integers(elements, width), _integers(_stream(key, context, len(elements)), width)
    return [(v - m) % (1 << (8 * width)) for v, m in zip(values, mask, strict=True)]


def add_wide(vectors: Sequence[bytes], width: int) -> bytes:
    """Sums modulo 256^width."""
    return _wide([sum(row) for row in zip(*(_integers(vector, width) for vector in vectors), strict=True)], width)


def _integers(raw: bytes, width: int) -> list[int]:
    return [int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)]


def _wide(values: Sequence[int], width: int) -> bytes:
    return b"".join((value % (1 << (8 * width))).to_bytes(width, "little") for value in values)
