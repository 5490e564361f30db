"""Counts and signed fixed point in the prime field."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import field61
from crypto.fixed_point import FixedPointOverflowError
from crypto.rings import FIELD61
from crypto.small_numbers import decode_small, encode_small

small = st.one_of(
    st.floats(-1e6, 1e6),
    st.floats(-1e-6, 1e-6),
    st.sampled_from([-0.0, 0.5, -0.5, 2.0**-21, 3 * 2.0**-21, 5e-324]),
)


@given(st.lists(st.tuples(small, small, small), min_size=1, max_size=6))
def test_sums_are_exact(rows: list[tuple[float, float, float]]) -> None:
    """The sum is that of the rounded numbers, whatever their signs."""
    parts = [encode_small(column, fraction_bits=20, addends=3) for column in zip(*rows, strict=True)]
    # Python rounds a fraction's halves to even.
    expected = [sum(round(Fraction(number) * 2**20) for number in row) for row in rows]
    assert (decode_small(FIELD61.add_all(parts), fraction_bits=20) * 2**20).tolist() == expected


@given(st.integers(-10, 60), st.integers(1, 1000), st.integers(-2, 2), st.booleans())
def test_the_bound_is_met_exactly(bits: int, addends: int, steps: int, negative: bool) -> None:
    """Taken if `addends` times itself fits into half of the field, refused from the next float on."""
    most = (field61.PRIME // 2) // addends
    value = math.ldexp(float(most), -bits)
    for _ in range(abs(steps)):
        value = math.nextafter(value, math.inf if steps > 0 else 0)
    signed = -value if negative else value
    if round(Fraction(value) * Fraction(2) ** bits) <= most:
        (found,) = decode_small(encode_small([signed], fraction_bits=bits, addends=addends), fraction_bits=bits)
        assert abs(Fraction(found) - Fraction(signed)) <= Fraction(1, 2) / Fraction(2) ** bits
    else:
        with pytest.raises(FixedPointOverflowError):
            encode_small([signed], fraction_bits=bits, addends=addends)


@pytest.mark.parametrize("value", [1e300, -1e300, float("inf"), float("nan"), 2.0**60])
@pytest.mark.parametrize("bits", [0, 1000])
def test_what_does_not_fit_is_refused(value: float, bits: int) -> None:
    """With the index of the first; what overflows while it is scaled, too."""
    with pytest.raises(FixedPointOverflowError) as caught:
        encode_small([0.0, value, 1e300], fraction_bits=bits, addends=1)
    assert caught.value.index == 1


@given(st.integers(-(field61.PRIME // 2), field61.PRIME // 2))
def test_the_nearest_float_is_decoded(number: int) -> None:
    """Elements over half of p are negative."""
    vector = np.array([number % field61.PRIME], dtype=np.uint64)
    assert decode_small(vector, fraction_bits=30).tolist() == [float(Fraction(number, 2**30))]
