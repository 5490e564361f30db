"""Shamir's secret sharing."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import shamir


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.data())
def test_any_threshold_of_parts_gives_the_secret_back(secret: bytes, count: int, data: st.DataObject) -> None:
    """Whichever they are."""
    threshold = data.draw(st.integers(1, count))
    parts = shamir.split(secret, count, threshold)
    for chosen in itertools.combinations(parts, threshold):
        assert shamir.combine(chosen) == secret


def test_fewer_parts_give_something_else() -> None:
    """With two of three, every secret is as likely: what comes out is another one, or no secret at all."""
    secret = bytes(range(32))
    parts = shamir.split(secret, 5, 3)
    for pair in itertools.combinations(parts, 2):
        with contextlib.suppress(ValueError):
            assert shamir.combine(pair) != secret


def test_damaged_or_repeated_parts_are_refused() -> None:
    """A part twice, a part cut short."""
    parts = shamir.split(bytes(32), 3, 2)
    for bad in ([parts[0], parts[0]], [parts[0], parts[1][:-1]]):
        with pytest.raises(ValueError, match="parts"):
            shamir.combine(bad)
