"""Fixed point modulo 2^256, against Python's fractions."""

import math
import random
import secrets
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import fixed_point
from crypto.fixed_point import FixedPointOverflowError, decode, encode, to_floats
from crypto.rings import Z256, RandomBytes

finite = st.floats(min_value=-1e33, max_value=1e33, allow_nan=False)
LARGEST = math.nextafter(2.0**127, 0)
EDGES = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 2.0**-128, 2.0**-129, -(2.0**-129), 2.0**-130,
         math.nextafter(2.0**-129, 0), math.nextafter(2.0**-129, 1), 1.5 * 2.0**-128, 2.5 * 2.0**-128,
         -(2.5 * 2.0**-128), 2.0**-76, 2.0**-75, 2.0**-74, 1.0, -1.0, 2.0**64, 2.0**64 - 2.0**11, -(2.0**64),
         LARGEST, -LARGEST]  # fmt: skip
floats = st.one_of(st.floats(-LARGEST, LARGEST), finite, st.floats(-1e-30, 1e-30), st.sampled_from(EDGES))
fraction_bits = st.sampled_from([0, 1, 52, 63, 64, 65, 127, 128, 129, 192, 255])


def rounded(value: float, bits: int = 128) -> int:
    """V · 2^bits, halves away from zero."""
    magnitude = math.floor(abs(Fraction(value)) * 2**bits + Fraction(1, 2))
    return -magnitude if value < 0 else magnitude


@given(st.lists(floats, max_size=8))
def test_numbers_are_rounded_halves_away_from_zero(values: list[float]) -> None:
    """As fractions give it, for arrays, lists and with integers between."""
    expected = [rounded(value) for value in values]
    assert Z256.to_integers(encode(np.array(values), addends=1), signed=True) == expected
    assert Z256.to_integers(encode(values, addends=1), signed=True) == expected
    mixed = [number for value in values for number in (value, 7)]
    assert decode(encode(mixed, addends=1))[::2] == [Fraction(number, 2**128) for number in expected]
    assert decode(encode(mixed, addends=1))[1::2] == [7] * len(values)


@given(st.floats(-1, 1), fraction_bits, st.integers(-300, 255))
def test_any_number_of_bits_after_the_point(mantissa: float, bits: int, exponent: int) -> None:
    """The point may be elsewhere."""
    value = math.ldexp(mantissa, exponent - bits - 1)
    assert Z256.to_integers(encode(np.array([value]), addends=1, fraction_bits=bits), signed=True) == [
        rounded(value, bits)
    ]
    assert decode(encode([value], addends=1, fraction_bits=bits), fraction_bits=bits) == [
        Fraction(rounded(value, bits), 2**bits)
    ]


@pytest.mark.parametrize("bits", [-1, 256])
def test_the_point_stays_inside(bits: int) -> None:
    """256 bits have at most 255 after the point."""
    with pytest.raises(ValueError, match="bits after the point"):
        encode([1.0], addends=1, fraction_bits=bits)


def test_long_vectors() -> None:
    """More numbers than are worked on at a time, and none."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal(40_000) * 10.0 ** rng.integers(-40, 37, 40_000)
    encoded = encode(values, addends=2)
    assert Z256.to_integers(encoded, signed=True) == [rounded(value) for value in values.tolist()]
    np.testing.assert_array_equal(to_floats(encoded), [float(number) for number in decode(encoded)])
    assert encode([], addends=2).shape == encode(np.array([]), addends=2, spread=bytes).shape == (0, 4)
    assert to_floats(encode([], addends=2)).shape == (0,)


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=6))
def test_sums_are_exact(rows: list[tuple[float, float, float]]) -> None:
    """The decoded sum is the sum of the decoded addends, whatever their signs and sizes."""
    parts = [encode(list(column), addends=3) for column in zip(*rows, strict=True)]
    expected = [sum(numbers) for numbers in zip(*(decode(part) for part in parts), strict=True)]
    assert decode(Z256.add_all(parts)) == expected


def test_the_stated_range_is_carried() -> None:
    """Squares of 1e9 rows of 1e12, and the variance of a value of 1e-9, fit side by side."""
    large, small = decode(encode([1e24 * 1e9, 1e-18], addends=1000))
    assert float(large) == 1e33
    assert abs(float(small) / 1e-18 - 1) < 1e-15


integers = st.one_of(
    st.integers(-(2**126), 2**126), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -1, -(2**63), 2**63 - 1])
)


@given(st.lists(integers, max_size=6))
def test_integers_of_any_size_are_exact(values: list[int]) -> None:
    """In a list; and in an array, with and without a sign, as far as these go."""
    assert decode(encode(values, addends=1, spread=secrets.token_bytes)) == values
    small = [value for value in values if -(2**63) <= value < 2**63]
    assert decode(encode(np.array(small, dtype=np.int64), addends=1, spread=secrets.token_bytes)) == small
    flags = [value % 2 == 1 for value in values]
    assert decode(encode(np.array(flags, dtype=bool), addends=1, spread=secrets.token_bytes)) == flags
    natural = [abs(value) for value in small]
    assert decode(encode(np.array(natural, dtype=np.uint64), addends=1, spread=secrets.token_bytes)) == natural


@pytest.mark.parametrize("value", [1e39, -1e39, float("inf"), float("-inf"), float("nan"), 10**39, -(10**39)])
@pytest.mark.parametrize("spread", [None, secrets.token_bytes])
def test_what_does_not_fit_is_refused(value: float, spread: RandomBytes | None) -> None:
    """An overflow is an error that names the first such element, never a wrong number."""
    with pytest.raises(FixedPointOverflowError) as caught:
        encode([1.0, value, 3, -1e39, 10**39], addends=3, spread=spread)
    assert caught.value.index == 1
    if isinstance(value, float):
        with pytest.raises(FixedPointOverflowError) as caught:
            encode(np.array([1.0, LARGEST / 4, value, value]), addends=3, spread=spread)
        assert caught.value.index == 2


@given(st.integers(1, 1000), st.integers(0, 255), st.integers(-3, 3), st.booleans())
def test_the_bound_is_met_exactly(addends: int, bits: int, steps: int, negative: bool) -> None:
    """A number is taken if `addends` times itself fits, and refused from the next float on."""
    bound = 2**255 // addends
    value = float(Fraction(bound, 2**bits))
    for _ in range(abs(steps)):
        value = math.nextafter(value, math.inf if steps > 0 else 0)
    signed = -value if negative else value
    for given_as in ([signed], np.array([signed])):
        if rounded(value, bits) < bound:
            assert decode(encode(given_as, addends=addends, fraction_bits=bits), fraction_bits=bits) == [signed]
        else:
            with pytest.raises(FixedPointOverflowError):
                encode(given_as, addends=addends, fraction_bits=bits)


@given(st.integers(1, 1000), st.integers(190, 255), st.integers(-2, 2), st.booleans())
def test_the_bound_of_integers_is_met_exactly(addends: int, bits: int, steps: int, negative: bool) -> None:
    """In a list or an array."""
    bound = 2**255 // addends
    value = (bound >> bits) + steps
    signed = -value if negative else value
    for given_as in ([signed], np.array([signed])):
        if abs(value) << bits < bound:
            assert decode(encode(given_as, addends=addends, fraction_bits=bits), fraction_bits=bits) == [signed]
        else:
            with pytest.raises(FixedPointOverflowError):
                encode(given_as, addends=addends, fraction_bits=bits)


def test_a_spread_number_does_not_pass_the_bound_either() -> None:
    """What only the spread could carry over the bound is refused, whatever is drawn."""
    # Just below a third of 2^127, with less than half an ulp to it.
    value = float(Fraction(2**127, 3))
    assert 0 < Fraction(2**127, 3) - Fraction(value) < Fraction(math.ulp(value)) / 2
    encode([value], addends=3)
    encode(np.array([value]), addends=3, spread=bytes, exact=np.array([True]))
    with pytest.raises(FixedPointOverflowError):
        encode([value], addends=3, spread=bytes)


def test_golden_bytes() -> None:
    """The wire form of 1.5 and -1 never changes."""
    one_and_a_half, minus_one = (Z256.to_bytes(encode([v], addends=1)).hex() for v in (1.5, -1.0))
    assert one_and_a_half == "00" * 15 + "80" + "01" + "00" * 15
    assert minus_one == "00" * 16 + "ff" * 16
    assert encode([1.5], addends=1).dtype == np.uint64


@given(st.lists(floats, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_spread_is_the_drawn_number_of_the_ulps_digits(values: list[float], source: random.Random) -> None:
    """With s digits below v's last one, the s low bits that were drawn are added, as a signed number of s bits."""
    drawn: list[bytes] = []

    def draw(size: int) -> bytes:
        drawn.append(source.randbytes(size))
        return drawn[-1]

    found = decode(encode(values, addends=1, spread=draw))
    (raw,) = drawn
    width = len(raw) // len(values)
    for at, value in enumerate(values):
        digits = max(0, math.frexp(math.ulp(value))[1] - 1 + 128)
        noise = int.from_bytes(raw[at * width : (at + 1) * width], "little") % 2**digits
        signed = noise - 2**digits if digits and noise >= 2 ** (digits - 1) else noise
        assert found[at] * 2**128 == rounded(value) + signed


def test_the_total_does_not_show_the_last_digits_of_the_smallest_addend() -> None:
    """Floats are spread over their last digit: below the largest addend's, the total is random."""
    numbers = [[52_000_000.123], [0.3731], [61_000_000.456]]
    step = Fraction(math.ulp(numbers[2][0]))

    def rest(spread: RandomBytes | None) -> float:
        parts = [encode(number, addends=3, spread=spread) for number in numbers]
        return float(decode(Z256.add_all(parts))[0] % step / step)

    assert len({rest(None) for _ in range(20)}) == 1, "exact sums leave the small addend's digits in view"
    spread = sorted(rest(secrets.token_bytes) for _ in range(400))
    assert max(abs(value - index / 400) for index, value in enumerate(spread)) < 0.12, "uniform (Kolmogorov-Smirnov)"


@pytest.mark.parametrize("value", [1.0, -1.0, 61_000_000.456, 1e30, 0.1])
def test_the_spread_is_uniform_over_one_ulp(value: float) -> None:
    """From half an ulp below to half an ulp above."""
    encoded = encode(np.full(4000, value), addends=3, spread=secrets.token_bytes)
    offsets = sorted(float((number - Fraction(value)) / Fraction(math.ulp(value))) for number in decode(encoded))
    assert -0.5 <= offsets[0] < -0.49
    assert 0.49 < offsets[-1] < 0.5
    # A distance over 0.04 has a probability of 5e-6.
    assert max(abs(offset + 0.5 - index / 4000) for index, offset in enumerate(offsets)) < 0.04


def test_counts_stay_exact_and_floats_nearly() -> None:
    """The spread is half of the last digit at most; integers have none, nor have floats that are said to be exact."""
    for value in (1234567.0, 0.1, -3e20, 5e-324, 0.0):
        count, number = decode(encode([10**9, value], addends=3, spread=secrets.token_bytes))
        assert count == 10**9
        assert abs(number - Fraction(value)) <= Fraction(math.ulp(value)) / 2 + Fraction(1, 2**128)
    values: list[Sequence[float] | np.ndarray] = [[2.0, 3, 5.0, 7.0], np.array([2.0, 3.0, 5.0, 7.0])]
    for numbers in values:
        exact = np.array([True, True, False, True])
        found = decode(encode(numbers, addends=3, spread=secrets.token_bytes, exact=exact))
        assert found[:2] == [2, 3]
        assert found[3] == 7
        assert found[2] != 5


def test_numbers_whose_last_digit_is_not_above_the_point_are_not_spread() -> None:
    """There is nothing to be drawn, and nothing is."""

    def refuse(size: int) -> bytes:
        assert size == 0
        return b""

    assert decode(encode([2.0**-76, 3e-39, 0.0], addends=3, spread=refuse))[0] == Fraction(1, 2**76)


limb = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1, 2**53, 2**10, 2**11, 3 * 2**10]))


@given(st.lists(st.lists(limb, min_size=4, max_size=4), min_size=1, max_size=6), fraction_bits)
def test_floats_are_the_nearest(rows: list[list[int]], bits: int) -> None:
    """Ties to even, as Python rounds a fraction."""
    vector = np.array(rows, dtype=np.uint64)
    expected = [float(number) for number in decode(vector, fraction_bits=bits)]
    assert to_floats(vector, fraction_bits=bits).tolist() == expected


@given(st.integers(0, 2**54), st.integers(0, 201), st.sampled_from([-1, 0, 1]), st.booleans())
def test_ties_go_to_even(mantissa: int, shift: int, nudge: int, negative: bool) -> None:
    """54 bits are a tie every second time; one more or less, however far below, is none."""
    number = (mantissa << shift) + nudge
    (found,) = to_floats(Z256.from_integers([-number if negative else number]))
    assert found == float(Fraction(-number if negative else number, 2**128))


@given(st.lists(floats, max_size=6))
def test_floats_come_back(values: list[float]) -> None:
    """What had no digits below the point is what it was."""
    values = [value for value in values if abs(value) >= 2.0**-75]
    assert to_floats(encode(values, addends=1)).tolist() == values


def test_vectors_are_left_alone() -> None:
    """Encoding and decoding change neither values nor vectors."""
    values = np.array([1.5, -2.5])
    vector = encode(values, addends=2, spread=secrets.token_bytes)
    before = vector.copy()
    decode(vector), to_floats(vector)
    assert (vector == before).all()
    assert values.tolist() == [1.5, -2.5]
    assert fixed_point.FRACTION_BITS == 128
