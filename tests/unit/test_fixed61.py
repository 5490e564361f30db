"""Fixed point modulo 2^61 - 1: exact where it can be, rounded at random elsewhere, refused before it wraps around."""

import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import field61, fixed61
from crypto.fixed_point import FixedPointOverflowError
from crypto.rings import FIELD61

# Whole multiples of the last digit: without noise nothing is left to be rounded.
EXACT = st.integers(-(2**52), 2**52).map(lambda whole: whole * 2.0**-40)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@given(st.lists(EXACT, min_size=1, max_size=50))
def test_numbers_of_few_digits_come_back_as_they_are(values: list[float]) -> None:
    """Of either sign, and what they stand as are elements of the field."""
    vector = fixed61.encode(floats(*values), addends=3, random_bytes=bytes)
    assert [int(element) for element in vector] == [int(value * 2**40) % field61.PRIME for value in values]
    assert fixed61.decode(vector).tolist() == values


def test_the_largest_elements_have_their_sign() -> None:
    """Around the middle of the field, where positive numbers end."""
    half = field61.PRIME // 2
    vector = np.array([0, half, half + 1, field61.PRIME - 1], dtype=np.uint64)
    expected = floats(0, half, half + 1 - field61.PRIME, -1) * 2.0**-40
    assert fixed61.decode(vector).tolist() == expected.tolist()


def test_what_is_cut_off_is_its_chance_to_be_rounded_up() -> None:
    """Numbers that end between two digits; no noise and the most noise take them down and up."""
    values = floats(2.25, -2.25) * 2.0**-40
    for noise, whole in ((b"\x00", [2, -3]), (b"\xff", [3, -2])):
        found = fixed61.encode(values, addends=3, random_bytes=lambda count, byte=noise: byte * count)
        assert found.tolist() == [number % field61.PRIME for number in whole]
    often = fixed61.decode(fixed61.encode(np.full(100_000, 0.25 * 2.0**-40), addends=3)) * 2.0**40
    assert set(often.tolist()) == {0.0, 1.0}
    # Eight standard deviations.
    assert abs(often.mean() - 0.25) < 8 * np.sqrt(0.25 * 0.75 / len(often))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20, -(2.0**20), 1e300])
def test_what_could_wrap_around_is_refused_by_its_place(bad: float) -> None:
    """Also what is no number at all."""
    with np.errstate(over="ignore"), pytest.raises(FixedPointOverflowError) as refused:
        fixed61.encode(floats(1.0, -1.0, bad, 0.0), addends=1)
    assert refused.value.index == 2


def test_arguments_stay_as_they_are() -> None:
    """A vector that is encoded or decoded can be used again."""
    values, vector = np.linspace(-1, 1, 100), FIELD61.random(100)
    before = values.copy(), vector.copy()
    fixed61.encode(values, addends=3)
    fixed61.decode(vector)
    assert (values == before[0]).all()
    assert (vector == before[1]).all()


@given(st.integers(1, 30), st.integers(0, 40))
def test_masks_of_many_words_are_sums_of_elements(added: int, subtracted: int) -> None:
    """However often the sum has to be folded, and of words whose low bits are all ones."""
    full = b"\xff" * 16
    plus = [full, *(secrets.token_bytes(16) for _ in range(added))]
    minus = [full, *(secrets.token_bytes(16) for _ in range(subtracted))]
    vector = np.array([0, field61.PRIME - 1], dtype=np.uint64)
    expected = [
        (int(vector[at]) + sum(_element(raw, at) for raw in plus) - sum(_element(raw, at) for raw in minus))
        % field61.PRIME
        for at in range(2)
    ]
    assert FIELD61.masked(vector, plus, minus).tolist() == expected


def _element(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[8 * at : 8 * at + 8], "little") % 2**61 % field61.PRIME


def test_parts_show_neither_signs_nor_last_digits() -> None:
    """High parts would count the negative ones, and below a large number a small one's digits would stand."""
    signs = [np.array([-0.2]), np.array([0.3]), np.array([-0.4])]
    totals = [field61.add_all([fixed61.encode_parts(one, addends=3) for one in signs]) for _ in range(200)]
    assert len({int(total[0]) for total in totals}) > 150
    assert {round(float(fixed61.decode_parts(total)[0]), 9) for total in totals} == {-0.3}
    large, small = np.array([3.3e9]), np.array([0.123456789])
    low = {int(fixed61.encode_parts(large, addends=2)[1]) % (1 << 17) for _ in range(200)}
    assert len(low) > 150
    total = field61.add_all([fixed61.encode_parts(one, addends=2) for one in (large, small)])
    assert fixed61.decode_parts(total)[0] == pytest.approx(3.3e9 + 0.123456789, rel=1e-15)
