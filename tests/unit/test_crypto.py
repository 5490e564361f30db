"""Shares and signatures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import fixed_point, shares, signing
from crypto.rings import FIELD61, Z256, Ring, Vector, Wide


@pytest.mark.parametrize("ring", [FIELD61, Z256, Wide(5)])
@pytest.mark.parametrize("parts", [1, 2, 10, 300])
def test_shares_add_up(ring: Ring, parts: int) -> None:
    """All shares together give the vector back."""
    vector = ring.random(7)
    found = shares.split(ring, vector, parts)
    assert len(found) == parts
    assert (ring.add_all(found) == vector).all()


@given(values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5), parts=st.integers(2, 6))
def test_proportional_shares_add_up(values: list[float], parts: int) -> None:
    """All shares together give the vector back, exactly."""
    vector = fixed_point.encode(values, addends=parts)
    found = shares.split_proportional(vector, parts)
    assert len(found) == parts
    assert (Z256.add_all(found) == vector).all()


def test_uniform_shares_hide_and_proportional_ones_do_not() -> None:
    """The reason for the default: a proportional part keeps the sign and the zeros, a uniform one does not."""
    values = [float(v) for v in range(-500, 500)]
    vector = fixed_point.encode(values, addends=3)

    def signs(parts: list[Vector]) -> np.ndarray:
        return np.sign([float(x) for x in fixed_point.decode(parts[0])])

    assert (signs(shares.split_proportional(vector, 3)) == np.sign(values)).mean() > 0.99
    assert abs((signs(shares.split(Z256, vector, 3)) == np.sign(values)).mean() - 0.5) < 0.06


def test_shares_take_their_randomness_as_an_argument() -> None:
    """With fixed bytes the shares are fixed: there can be vectors."""
    vector = fixed_point.encode([1.0], addends=2)
    first, second = shares.split(Z256, vector, 2, random_bytes=lambda n: b"\x01" * n)
    assert Z256.to_bytes(first) == b"\x01" * 32
    assert (Z256.add(first, second) == vector).all()


def test_a_signature_is_bound_to_its_context() -> None:
    """The same body signed for one slot does not pass in another, nor does a shifted split of the bytes."""
    key = signing.generate()
    signature = signing.sign(key, b"slot 1", b"body")
    signing.verify(key.public_key(), b"slot 1", b"body", signature)
    for context, body in ((b"slot 2", b"body"), (b"slot 1", b"other"), (b"slot 1b", b"ody")):
        with pytest.raises(ValueError, match="does not match"):
            signing.verify(key.public_key(), context, body, signature)
