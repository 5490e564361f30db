"""Linear checks of a sum: random combinations of a vector, with weights from a key that only the sites hold.

Each site adds the combinations of its own vector to what it sends; those of the total must be their sum. Whoever
forms the sum without the key and changes it by d ≠ 0 passes one combination only if Σ w_k·d_k = 0 modulo the prime
p = 2^61 - 1. As some d_k has an inverse, that is one value of w_k for any choice of the other weights, and no weight
takes a value with a probability above 2^-60.
"""

import numpy as np

from crypto import field61, masks
from crypto.rings import FIELD61, Vector

_PIECE = 1 << 13
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
    total = 0
    for at in range(0, len(vector), _PIECE):
        products = field61.multiply(weights[at : at + _PIECE], vector[at : at + _PIECE])
        # Halves, so that their sums fit into 64 bits.
        total += (int((products >> _32).sum()) << 32) + int((products & _LOW).sum())
    return total % field61.PRIME
