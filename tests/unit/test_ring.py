"""Fixed point modulo 2^256."""

from __future__ import annotations

import math
import secrets
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import ring

finite = st.floats(min_value=-1e33, max_value=1e33, allow_nan=False)
vectors = st.lists(finite, min_size=1, max_size=8)


@given(vectors)
def test_decode_inverts_encode_up_to_the_last_bit(values: list[float]) -> None:
    """What is decoded differs from what was encoded by at most half of 2^-128."""
    for value, decoded in zip(values, ring.decode(ring.encode(values, addends=2)), strict=True):
        assert abs(Fraction(value) - decoded) <= Fraction(1, 2**129)


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=6))
def test_sums_are_exact(rows: list[tuple[float, float, float]]) -> None:
    """The decoded sum is the sum of the decoded addends, whatever their signs and sizes."""
    parts = [ring.encode(list(column), addends=3) for column in zip(*rows, strict=True)]
    expected = [sum(numbers) for numbers in zip(*(ring.decode(part) for part in parts), strict=True)]
    assert ring.decode(ring.add_all(parts)) == expected


@given(st.binary(min_size=32, max_size=96), st.binary(min_size=96, max_size=96))
def test_addition_agrees_with_big_integers(a: bytes, b: bytes) -> None:
    """Limb-wise addition and negation are addition and negation modulo 2^256."""
    a = a[: len(a) // 32 * 32]
    b = b[: len(a)]
    x, y = ring.from_bytes(a), ring.from_bytes(b)
    for at in range(0, len(a), 32):
        p, q = (int.from_bytes(raw[at : at + 32], "little") for raw in (a, b))
        for result, expected in ((ring.add(x, y), p + q), (ring.subtract(x, y), p - q)):
            assert int.from_bytes(ring.to_bytes(result)[at : at + 32], "little") == expected % ring.MODULUS


def test_the_stated_range_is_carried() -> None:
    """Squares of 1e9 rows of 1e12, and the variance of a value of 1e-9, fit side by side."""
    large, small = ring.decode(ring.encode([1e24 * 1e9, 1e-18], addends=1000))
    assert float(large) == 1e33
    assert abs(float(small) / 1e-18 - 1) < 1e-15


@pytest.mark.parametrize("value", [1e39, -1e39, float("inf"), float("nan")])
def test_what_does_not_fit_is_refused(value: float) -> None:
    """An overflow is an error that names the element, never a wrong number."""
    with pytest.raises(ring.FixedPointOverflowError) as caught:
        ring.encode([1.0, value], addends=3)
    assert caught.value.index == 1


def test_the_bound_leaves_room_for_all_addends() -> None:
    """Numbers that fit alone but not ten times are refused for ten sites."""
    value = float(2**126)
    ring.encode([value], addends=1)
    with pytest.raises(ring.FixedPointOverflowError):
        ring.encode([value], addends=10)


def test_a_vector_has_whole_elements() -> None:
    """Truncated bytes are no vector."""
    with pytest.raises(ValueError, match="whole number"):
        ring.from_bytes(bytes(33))


def test_vectors_of_different_lengths_are_not_added() -> None:
    """Adding them would silently broadcast."""
    with pytest.raises(ValueError, match="cannot be added"):
        ring.add(ring.encode([1.0], addends=1), ring.encode([1.0, 2.0], addends=1))


def test_golden_bytes() -> None:
    """The wire form of 1.5 and -1 never changes."""
    one_and_a_half, minus_one = (ring.to_bytes(ring.encode([v], addends=1)).hex() for v in (1.5, -1.0))
    assert one_and_a_half == "00" * 15 + "80" + "01" + "00" * 15
    assert minus_one == "00" * 16 + "ff" * 16
    assert ring.encode([1.5], addends=1).dtype == np.uint64


def test_the_total_does_not_show_the_last_digits_of_the_smallest_addend() -> None:
    """Floats are spread over their last digit: below the largest addend's, the total is random."""
    numbers = [[52_000_000.123], [0.3731], [61_000_000.456]]
    step = Fraction(math.ulp(numbers[2][0]))

    def rest(random_below: ring.RandomBelow | None) -> float:
        parts = [ring.encode(number, addends=3, random_below=random_below) for number in numbers]
        return float(ring.decode(ring.add_all(parts))[0] % step / step)

    assert len({rest(None) for _ in range(20)}) == 1, "exact sums leave the small addend's digits in view"
    spread = sorted(rest(secrets.randbelow) for _ in range(400))
    assert max(abs(value - index / 400) for index, value in enumerate(spread)) < 0.12, "uniform (Kolmogorov-Smirnov)"


def test_counts_stay_exact_and_floats_nearly() -> None:
    """The spread is half of the last digit at most; integers have none."""
    for value in (1234567.0, 0.1, -3e20, 5e-324, 0.0):
        count, number = ring.decode(ring.encode([10**9, value], addends=3, random_below=secrets.randbelow))
        assert count == 10**9
        assert abs(number - Fraction(value)) <= Fraction(math.ulp(value)) / 2 + Fraction(1, 2**128)
