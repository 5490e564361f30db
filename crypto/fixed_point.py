"""Fixed point in Z256: a number v stands as v · 2^f, rounded, modulo 2^256, negative numbers in two's complement.

Sums of such vectors are exact. With f = 128, magnitudes from 3e-39 to 1.7e38 are carried, which covers the squared
deviations of 1e9 rows of values up to 1e12 (1e33) and the variance of values around 1e-9 (1e-18) with one scale for
all columns.

Whole arrays are worked on at a time. Numpy's shifts by 64 places or more give 0, or the sign: limbs rely on it.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from crypto.rings import Z256, RandomBytes, Vector

FRACTION_BITS = 128
# Up to here every power of two that comes up is exact as a float64.
MOST_FRACTION_BITS = 255

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = Sequence[float] | Floats | NDArray[np.integer]
_Signed = NDArray[np.int64]

_HALF = 1 << (8 * Z256.element_bytes - 1)
_FULL = np.uint64(2**64 - 1)
# Numbers are worked on piece by piece, so that what is used again lies in the cache still.
_PIECE = 1 << 14


class FixedPointOverflowError(ValueError):
    """A number, or a possible sum of such numbers, that a ring does not hold."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"element {index} is too large for a sum in fixed point")


def encode(
    values: Numbers,
    *,
    addends: int,
    spread: RandomBytes | None = None,
    exact: Flags | None = None,
    fraction_bits: int = FRACTION_BITS,
) -> Vector:
    """V · 2^f mod 2^256, halves away from zero, refusing what could wrap around in a sum of `addends` such vectors.

    With a source of randomness, a float is spread uniformly over its own last digit (± half an ulp). Without that,
    digits of an exact sum that are below the last digit of the largest addend would be those of the smaller ones
    alone. Integers are counts and stay exact, as do floats where `exact` says so.
    """
    if not 0 <= fraction_bits <= MOST_FRACTION_BITS:
        raise ValueError(f"{fraction_bits} bits after the point are not between 0 and {MOST_FRACTION_BITS}")
    bound = _HALF // addends
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        blurred = np.full(len(values), spread is not None)
        if exact is not None:
            blurred &= ~exact
        return _encode_floats(values.astype(np.float64, copy=False), bound, spread, blurred, fraction_bits)
    if isinstance(values, np.ndarray) and values.dtype.kind in "bi":
        return _encode_integers(values.astype(np.int64, copy=False), bound, fraction_bits)
    return _encode_mixed(list(values), bound, spread, exact, fraction_bits)


def _encode_mixed(
    values: list[float], bound: int, spread: RandomBytes | None, exact: Flags | None, fraction_bits: int
) -> Vector:
    """Floats as an array, and integers of any size by Python's arithmetic."""
    whole = np.array([isinstance(value, int | np.integer | np.bool_) for value in values], dtype=bool)
    places = np.flatnonzero(whole).tolist()
    integers = [int(values[at]) << fraction_bits for at in places]
    too_large = (at for at, integer in zip(places, integers, strict=True) if abs(integer) >= bound)
    first = next(too_large, len(values))
    floats = np.array([0.0 if is_whole else value for value, is_whole in zip(values, whole, strict=True)], np.float64)
    blurred = ~whole if exact is None else ~(whole | exact)
    # Should a float before that integer be too large too, it is the one to be named.
    vector = _encode_floats(floats[:first], bound, spread, blurred[:first] & (spread is not None), fraction_bits)
    if first < len(values):
        raise FixedPointOverflowError(first)
    vector[whole] = Z256.from_integers(integers)
    return vector


def _encode_integers(values: _Signed, bound: int, fraction_bits: int) -> Vector:
    least = -(-bound >> fraction_bits)  # integers of this size and more are too large
    if least < 1 << 63:
        too_large = (values >= least) | (values <= -least)
        if too_large.any():
            raise FixedPointOverflowError(int(too_large.argmax()))
    encoded = Z256.zeros(len(values))
    for here in _pieces(len(values)):
        encoded[here] = _place(values[here], np.full_like(values[here], fraction_bits)).T
    return encoded


def _encode_floats(
    values: Floats, bound: int, spread: RandomBytes | None, blurred: Flags, fraction_bits: int
) -> Vector:
    _refuse_large(values, bound, blurred, fraction_bits)
    words = _noise(values[blurred], len(values), spread, fraction_bits)
    encoded = Z256.zeros(len(values))
    for here in _pieces(len(values)):
        mantissas, shifts = _scaled(values[here], fraction_bits)
        noise, top_bits = _cut(words[here], np.where(blurred[here], shifts, 0))
        # Noise is below 2^shift; with its top bit set it stands for a negative number, the same less 2^shift.
        limbs = _place(mantissas - top_bits, shifts)
        limbs[: len(noise)] |= noise
        encoded[here] = limbs.T
    return encoded


def _pieces(length: int) -> Iterator[slice]:
    return (slice(at, at + _PIECE) for at in range(0, length, _PIECE))


def _refuse_large(values: Floats, bound: int, blurred: Flags, fraction_bits: int) -> None:
    """Raise for the first number that is not finite, or that is `bound` or may be by its spread."""
    nearly = float(Fraction(bound, 1 << fraction_bits)) * (1 - 2**-40)
    for at in np.flatnonzero(~(np.abs(values) < nearly)).tolist():
        value = float(values[at])
        if not math.isfinite(value):
            raise FixedPointOverflowError(at)
        half_ulp = _scale(math.ulp(value), fraction_bits) >> 1 if blurred[at] else 0
        if _scale(abs(value), fraction_bits) + half_ulp >= bound:
            raise FixedPointOverflowError(at)


def _scale(value: float, fraction_bits: int) -> int:
    """A number that is not negative, times 2^f, halves up."""
    numerator, denominator = value.as_integer_ratio()
    return ((numerator << (fraction_bits + 1)) // denominator + 1) >> 1


def _scaled(values: Floats, fraction_bits: int) -> tuple[_Signed, _Signed]:
    """Integers m and s >= 0 with v · 2^f = m · 2^s, rounded, where 2^s is v's ulp or 1."""
    bits = values.view(np.int64)
    # A float64 is its mantissa times 2^(exponent - 1075); the leading bit of a mantissa is not written.
    exponents = (bits >> 52) & 0x7FF
    mantissas = (bits & ((1 << 52) - 1)) | (np.minimum(exponents, 1) << 52)
    shifts = np.maximum(exponents, 1) + (fraction_bits - 1075)
    # Digits below the fixed point are rounded away; beyond 62 places nothing is left of a mantissa.
    dropped = np.clip(-shifts, 0, 62)
    magnitudes = (mantissas + ((np.int64(1) << dropped) >> 1)) >> dropped
    return np.where(bits < 0, -magnitudes, magnitudes), np.maximum(shifts, 0)


def _noise(blurred: Floats, length: int, spread: RandomBytes | None, fraction_bits: int) -> Vector:
    """For each of `length` numbers as many random words as the largest ulp among the blurred ones has digits for."""
    if spread is None or not len(blurred):
        return np.zeros((length, 0), dtype=np.uint64)
    _, (digits,) = _scaled(np.abs(blurred).max(keepdims=True), fraction_bits)
    words = -(-int(digits) // 64)
    raw = spread(8 * words * length)
    return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False).reshape(length, words)


def _cut(words: Vector, digits: _Signed) -> tuple[Vector, _Signed]:
    """So many low digits of each row, limb by limb, and the highest of them (0 if there is none).

    Uniform words give exactly uniform numbers below 2^digits, that is, below an ulp. Both ends of ± half an ulp are
    the same modulo an ulp, so the upper one is left out: what is below the last digit of a sum is then uniform exactly.
    """
    noise = np.array(words.T, order="C")
    top_bits = np.zeros_like(digits)
    for at, word in enumerate(noise):
        np.bitwise_and(word, ~(_FULL << np.maximum(digits - 64 * at, 0).view(np.uint64)), out=word)
        # Where the highest digit is in another word, the shift is by 64 places or more, or wraps around to that.
        top_bits |= ((word >> (digits - (64 * at + 1)).view(np.uint64)) & np.uint64(1)).view(np.int64)
    return noise, top_bits


def _place(mantissas: _Signed, shifts: _Signed) -> Vector:
    """M · 2^shift modulo 2^256, one row per limb."""
    limbs = np.empty((Z256.limbs, len(mantissas)), dtype=np.uint64)
    for at in range(Z256.limbs):
        left = shifts - 64 * at
        moved = np.where(left >= 0, mantissas << np.maximum(left, 0), mantissas >> np.maximum(-left, 0))
        limbs[at] = moved.view(np.uint64)
    return limbs


def decode(vector: Vector, *, fraction_bits: int = FRACTION_BITS) -> list[Fraction]:
    """The numbers that a vector stands for, exactly: for a few of them."""
    return [Fraction(number, 1 << fraction_bits) for number in Z256.to_integers(vector, signed=True)]


def to_floats(vector: Vector, *, fraction_bits: int = FRACTION_BITS) -> Floats:
    """The nearest float64 of each number, ties to even."""
    found = np.empty(len(vector), dtype=np.float64)
    for here in _pieces(len(vector)):
        found[here] = _piece_to_floats(np.ascontiguousarray(vector[here].T), fraction_bits)
    return found


def _piece_to_floats(limbs: Vector, fraction_bits: int) -> Floats:
    negative = limbs[-1] >> np.uint64(63)
    window = _negated_where(limbs, negative)[::-1]
    nothing = np.zeros_like(negative)
    exponents = np.full(limbs.shape[1], 64 * (Z256.limbs - 1) - fraction_bits)
    for _ in range(Z256.limbs - 1):
        empty = window[0] == 0
        window = [np.where(empty, lower, limb) for limb, lower in zip(window, [*window[1:], nothing], strict=True)]
        exponents -= 64 * empty
    first, second, *rest = window
    lead = 64 - _bit_lengths(first)
    unsigned_lead = lead.view(np.uint64)
    leading = (first << unsigned_lead) | (second >> (64 - lead).view(np.uint64))
    # What is below 64 leading bits decides only whether a tie is one: a last bit that is set says that it is none.
    below = (second << unsigned_lead) | rest[0] | rest[1]
    leading |= (below != 0).view(np.uint8)
    magnitudes = np.ldexp(leading.astype(np.float64), exponents - lead)
    return np.where(negative != 0, -magnitudes, magnitudes)


def _negated_where(limbs: Vector, negative: Vector) -> list[Vector]:
    """~x + 1 where `negative` is 1."""
    flip, carry, found = -negative, negative, []
    for limb in limbs:
        flipped = (limb ^ flip) + carry
        carry = (flipped < carry).astype(np.uint64)
        found.append(flipped)
    return found


def _bit_lengths(x: Vector) -> _Signed:
    """As int.bit_length, but below -63 for 0: by the exponent of a float that cannot be rounded up to the next."""
    rounded_down = (x & ~(x >> np.uint64(1))).astype(np.float64)
    return (rounded_down.view(np.int64) >> 52) - 1022
