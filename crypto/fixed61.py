"""Fixed point modulo the prime p = 2^61 - 1: long vectors of numbers of a known size, such as a model's update.

A number v stands as v · 2^f, rounded, modulo p; negative numbers as p - |v · 2^f|. Rounding is random (up with the
probability of what is cut off): the digits below the last one would otherwise be those of the smaller addends alone.

Numbers whose size nobody knows beforehand travel as two elements each, v · 2^f = high · 2^40 + low: sums of both parts
are exact, and together they reach from 9e-13 to 1e18.
"""

import math
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from crypto import field61
from crypto.fixed_point import FixedPointOverflowError
from crypto.rings import RandomBytes, Vector

Floats = NDArray[np.float64]

FRACTION_BITS = 40
# Elements up to here stand for positive numbers: all below 2^60.
_HALF = field61.PRIME // 2
_P, _60 = np.uint64(field61.PRIME), np.uint64(60)
_LOW = float(1 << 40)


def _random_bytes(count: int) -> bytes:
    """AES-256-CTR under a key of the system's: for long vectors ten times as quick as asking the system for all."""
    return Cipher(algorithms.AES(secrets.token_bytes(32)), modes.CTR(bytes(16))).encryptor().update(bytes(count))


def encode(
    values: Floats,
    *,
    addends: int,
    fraction_bits: int = FRACTION_BITS,
    random_bytes: RandomBytes = _random_bytes,
) -> Vector:
    """V · 2^f mod p, refusing what is not finite and what could wrap around in a sum of `addends` such vectors."""
    # Exact, as a power of two.
    scaled = values * 2.0**fraction_bits
    _refuse_large(scaled, addends)
    # Above 2^53 there is nothing behind the point that could be rounded.
    scaled += np.frombuffer(random_bytes(4 * len(values)), "<u4") * 2.0**-32
    return _elements(np.floor(scaled, out=scaled))


def decode(vector: Vector, *, fraction_bits: int = FRACTION_BITS) -> Floats:
    """The numbers that a sum stands for, as the nearest doubles."""
    found: Floats = _signed(vector) * np.float64(2.0**-fraction_bits)
    return found


def encode_parts(values: Floats, *, addends: int, random_bytes: RandomBytes = _random_bytes) -> Vector:
    """All high parts, then all low parts; refuses what is not finite or could wrap around.

    A double's digits end somewhere, and those of a small addend would show below where a large one's end: each is
    spread over its last digit. What is carried from the low parts to the high ones would show too, such as how many
    addends are negative: a random number of carries goes the other way, and comes out when both are put together.
    """
    # Half of the room is for carries.
    _refuse_large(values, 2 * addends)
    high = np.floor(values)
    uniform = np.frombuffer(random_bytes(8 * len(values)), "<u8").astype(np.float64) * 2.0**-64
    # Of the double, in steps of the low part; at least one, by which what is cut off is rounded at random.
    last_digit = np.maximum(np.spacing(np.abs(values)) * _LOW, 1.0)
    low = np.floor((values - high) * _LOW + (uniform - 0.5) * last_digit + 0.5).astype(np.int64)
    carries = np.frombuffer(random_bytes(8 * len(values)), "<u8") % np.uint64(_carry_range(addends))
    low += carries.astype(np.int64) << 40
    return np.concatenate([_wrapped(high.astype(np.int64) - carries.astype(np.int64)), _wrapped(low)])


def _carry_range(addends: int) -> int:
    """As many as leave room for a sum of so many low parts."""
    return max(1, min(1 << 16, (_HALF // addends) >> 42))


def decode_parts(vector: Vector) -> Floats:
    """The numbers that a sum of parts stands for, rounded once."""
    high, low = np.split(_signed(vector), 2)
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    return np.array([math.ldexp(float((above << FRACTION_BITS) + below), -FRACTION_BITS) for above, below in pairs])


def _refuse_large(scaled: Floats, addends: int) -> None:
    # One is left for rounding. What is no number is neither.
    limit = _HALF // addends - 1
    if len(scaled) and not -limit < scaled.min() <= scaled.max() < limit:
        raise FixedPointOverflowError(int((np.abs(scaled) < limit).argmin()))


def _elements(whole: Floats) -> Vector:
    return _wrapped(whole.astype(np.int64))


def _wrapped(integers: NDArray[np.int64]) -> Vector:
    # A negative number stands as something above 2^63, to which p is added around 2^64.
    wrapped = integers.view(np.uint64)
    found: Vector = np.minimum(wrapped, wrapped + _P)
    return found


def _signed(vector: Vector) -> NDArray[np.int64]:
    negative = vector >> _60
    negative *= _P
    found: NDArray[np.int64] = (vector - negative).view(np.int64)
    return found
