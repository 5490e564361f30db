"""Linear checks of a sum: random combinations of a vector, with weights from a key that only the sites hold.

Each site adds the combinations of its own vector to what it sends; those of the total must be their sum. Whoever
forms the sum without the key and changes it by d ≠ 0 passes one combination only if Σ w_k·d_k = 0 modulo the prime
p = 2^61 - 1. As some d_k has an inverse, that is one value of w_k for any choice of the other weights, and no weight
takes a value with a probability above 2^-60.
"""

import numpy as np

from crypto import field61, masks
from crypto.rings import FIELD61, Vector

_PIECE = 1 << 14
_LOW = np.uint64(2**32 - 1)
_32 = np.uint64(32)


def linear(vector: Vector, key: bytes, context: bytes, count: int = 1) -> Vector:
    """`count` combinations of a vector over FIELD61, linear in the vector; each misses a change with 2^-60."""
    return np.array(
        [_combination(vector, key, b"check\0" + number.to_bytes(4, "big") + context) for number in range(count)],
        dtype=np.uint64,
    )


def _combination(vector: Vector, key: bytes, context: bytes) -> int:
    weights = masks.mask(FIELD61, key, context, len(vector))
    scratch = np.empty((6, min(_PIECE, len(vector))), dtype=np.uint64)
    total = 0
    for at in range(0, len(vector), _PIECE):
        total += _product(weights[at : at + _PIECE], vector[at : at + _PIECE], scratch)
    return total % field61.PRIME


def _product(a: Vector, b: Vector, scratch: Vector) -> int:
    """Σ a_k·b_k as an integer, from halves a = a1·2^32 + a0: nothing is reduced before it is added up."""
    a0, a1, b0, b1, low, spare = scratch[:, : len(a)]
    for whole, lower, upper in ((a, a0, a1), (b, b0, b1)):
        np.bitwise_and(whole, _LOW, out=lower)
        np.right_shift(whole, _32, out=upper)
    np.multiply(a0, b0, out=low)
    # Below 2^62, as upper halves are below 2^29.
    middle = np.multiply(a1, b0, out=b0)
    middle += np.multiply(a0, b1, out=a0)
    high = np.multiply(a1, b1, out=a1)
    return _sum(low, spare) + (_sum(middle, spare) << 32) + (_sum(high, spare) << 64)


def _sum(words: Vector, spare: Vector) -> int:
    """Of halves, whose sums fit into 64 bits; the words are gone afterwards."""
    upper = int(np.right_shift(words, _32, out=spare).sum())
    words &= _LOW
    return (upper << 32) + int(words.sum())
