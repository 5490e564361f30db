"""Masks, shares and signatures."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from crypto import masks, ring, shares, signing

NAMES = ("a", "b", "c", "d")


def pair_keys() -> dict[str, dict[str, bytes]]:
    private = {name: X25519PrivateKey.generate() for name in NAMES}
    return {
        me: {o: masks.pair_key(private[me], private[o].public_key(), b"roster") for o in NAMES if o != me}
        for me in NAMES
    }


@given(st.lists(st.lists(st.floats(-1e12, 1e12), min_size=3, max_size=3), min_size=4, max_size=4))
def test_masks_cancel_in_the_sum(rows: list[list[float]]) -> None:
    """Over all sites nothing of the masks is left."""
    keys = pair_keys()
    vectors = [ring.encode(row, addends=4) for row in rows]
    masked = [masks.apply(v, me, keys[me], b"run") for me, v in zip(NAMES, vectors, strict=True)]
    assert (ring.add_all(masked) == ring.add_all(vectors)).all()


def test_a_masked_vector_looks_random() -> None:
    """Bits of a masked zero vector are balanced: its own value does not show."""
    zeros = ring.encode([0.0] * 2000, addends=4)
    raw = np.frombuffer(ring.to_bytes(masks.apply(zeros, "a", pair_keys()["a"], b"run")), dtype=np.uint8)
    assert abs(np.unpackbits(raw).mean() - 0.5) < 0.005


def test_each_context_has_its_own_mask() -> None:
    """A mask is never used for two slots."""
    assert (masks.expand(bytes(32), b"mean", 4) != masks.expand(bytes(32), b"variance", 4)).any()


def test_mask_vector() -> None:
    """The expansion of a fixed key, as HMAC and `openssl enc -aes-256-ctr` give it too, never changes."""
    assert ring.to_bytes(masks.expand(bytes(range(32)), b"run", 1)).hex() == (
        "c4f05796846a0e6fc3b8824a2639d3d1914a1faba8ce8a1203577ba56c1fe593"
    )


@pytest.mark.parametrize("split", [shares.split_uniform, shares.split_proportional])
@given(values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5), count=st.integers(2, 6))
def test_shares_add_up(split, values: list[float], count: int) -> None:  # type: ignore[no-untyped-def]
    """All shares together give the vector back, exactly."""
    vector = ring.encode(values, addends=count)
    parts = split(vector, count)
    assert len(parts) == count
    assert (ring.add_all(parts) == vector).all()


def test_uniform_shares_hide_and_proportional_ones_do_not() -> None:
    """The reason for the default: a proportional part keeps the sign and the zeros, a uniform one does not."""
    values = [float(v) for v in range(-500, 500)]
    vector = ring.encode(values, addends=3)

    def signs(parts: list[ring.Vector]) -> np.ndarray:
        return np.sign([float(x) for x in ring.decode(parts[0])])

    assert (signs(shares.split_proportional(vector, 3)) == np.sign(values)).mean() > 0.99
    assert abs((signs(shares.split_uniform(vector, 3)) == np.sign(values)).mean() - 0.5) < 0.06


def test_shares_take_their_randomness_as_an_argument() -> None:
    """With fixed bytes the shares are fixed: there can be vectors."""
    vector = ring.encode([1.0], addends=2)
    first, second = shares.split_uniform(vector, 2, random_bytes=lambda n: b"\x01" * n)
    assert ring.to_bytes(first) == b"\x01" * 32
    assert (ring.add(first, second) == vector).all()


def test_a_signature_is_bound_to_its_context() -> None:
    """The same body signed for one slot does not pass in another, nor does a shifted split of the bytes."""
    key = signing.generate()
    signature = signing.sign(key, b"slot 1", b"body")
    signing.verify(key.public_key(), b"slot 1", b"body", signature)
    for context, body in ((b"slot 2", b"body"), (b"slot 1", b"other"), (b"slot 1b", b"ody")):
        with pytest.raises(ValueError, match="does not match"):
            signing.verify(key.public_key(), context, body, signature)
