"""Signed fixed point of few digits in FIELD61.

A number v stands as v · 2^f, rounded, modulo p = 2^61 - 1, a negative one as p less its size. Sums are exact as long as
they fit, and what might not fit is refused before it is added.
"""

from collections.abc import Sequence

import numpy as np

from crypto import field61
from crypto.fixed_point import FixedPointOverflowError, Floats
from crypto.rings import Vector


def encode_small(values: Sequence[float] | Floats, *, fraction_bits: int, addends: int) -> Vector:
    """V · 2^f mod p, halves to even, refusing what could wrap around in a sum of `addends` such vectors.

    There is no spread over the last digit, and none is needed while values are below 2^(52 - f): then all of them
    have all digits down to the fixed point, and nobody's stand alone in the sum.
    """
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), fraction_bits))
    # Neither infinite nor NaN is below.
    fits = np.abs(scaled) < 2.0**62
    integers = np.where(fits, scaled, 0.0).astype(np.int64)
    bad = ~fits | (np.abs(integers) > (field61.PRIME // 2) // addends)
    if bad.any():
        raise FixedPointOverflowError(int(bad.argmax()))
    return np.where(integers < 0, integers + field61.PRIME, integers).view(np.uint64)


def decode_small(vector: Vector, *, fraction_bits: int) -> Floats:
    """The nearest float64 of each number."""
    integers = vector.view(np.int64)
    signed = np.where(integers > field61.PRIME // 2, integers - field61.PRIME, integers)
    return np.ldexp(signed.astype(np.float64), -fraction_bits)
