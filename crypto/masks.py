"""Pairwise masks: m_ij = AES-256-CTR(HKDF(k_ij, context)), added by one site of a pair, subtracted by the other.

k_ij = HKDF-SHA256(X25519(a_i, A_j), salt = roster digest) from keys that live for one job. Every context
(run and slot) gives an independent mask; using one context for two different vectors would reveal their
difference, so callers make a masked vector once and keep its bytes. That goes for vectors of two rings too: the
bytes that a mask is made of do not depend on the ring.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from crypto.rings import Ring, Vector

# Masks are made and added piece by piece, so that what is added lies in the cache still.
_PIECE_BYTES = 1 << 17


def pair_key(own: X25519PrivateKey, theirs: X25519PublicKey, roster_digest: bytes) -> bytes:
    """k_ij, the same at both sites of a pair."""
    return HKDF(SHA256(), 32, salt=roster_digest, info=b"commonscale/v1/pair").derive(own.exchange(theirs))


def mask(ring: Ring, key: bytes, context: bytes, n: int) -> Vector:
    """The mask of one key for one context: n uniformly random elements."""
    return ring.uniform(_stream(key, context).update(bytes(n * ring.element_bytes)), n)


def apply(ring: Ring, vector: Vector, me: str, pair_keys: Mapping[str, bytes], context: bytes) -> Vector:
    """x_i + sum over j>i of m_ij - sum over j<i of m_ij; over all sites the masks add up to zero."""
    after = [key for other, key in pair_keys.items() if me < other]
    before = [key for other, key in pair_keys.items() if not me < other]
    return _combine(ring, vector, after, before, context)


def remove(ring: Ring, vector: Vector, key: bytes, context: bytes) -> Vector:
    """Take one key's mask away again."""
    return _combine(ring, vector, [], [key], context)


def _combine(ring: Ring, vector: Vector, add: Sequence[bytes], subtract: Sequence[bytes], context: bytes) -> Vector:
    plus, minus = ([_stream(key, context) for key in keys] for keys in (add, subtract))
    step = max(1, _PIECE_BYTES // ring.element_bytes)
    zeros = memoryview(bytes(min(step, len(vector)) * ring.element_bytes))
    total = np.empty_like(vector)
    for at in range(0, len(vector), step):
        piece = vector[at : at + step]
        these = zeros[: len(piece) * ring.element_bytes]
        added, subtracted = ([stream.update(these) for stream in streams] for streams in (plus, minus))
        total[at : at + step] = ring.masked(piece, added, subtracted)
    return total


def _stream(key: bytes, context: bytes) -> CipherContext:
    stream_key = HKDFExpand(SHA256(), 32, info=b"commonscale/v1/mask\0" + context).derive(key)
    # The key serves this one stream only, so the counter may start at zero.
    return Cipher(algorithms.AES(stream_key), modes.CTR(bytes(16))).encryptor()
