"""Masks of integers of any width, and of integers modulo 2^64 under a group's key."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import masks

NAMES = ("east", "north", "south", "west")
GROUP = "~"
VECTOR = "9569c85d0f9c5af1"


def keys() -> tuple[dict[str, dict[str, bytes]], bytes]:
    """Pair keys of every site, the group's key as one more pair of the first; and that key."""
    found: dict[str, dict[str, bytes]] = {name: {} for name in NAMES}
    for at, one in enumerate(NAMES):
        for other in NAMES[at + 1 :]:
            found[one][other] = found[other][one] = secrets.token_bytes(32)
    group = secrets.token_bytes(32)
    found[NAMES[0]][GROUP] = group
    return found, group


widths = st.sampled_from([1, 8, 10, 40, 20_008])


@settings(max_examples=30)
@given(st.data(), widths, st.integers(1, 4))
def test_masked_integers_add_up_under_the_groups_mask(data: st.DataObject, width: int, length: int) -> None:
    """Pairwise masks cancel, the group's mask comes off, and what is left is the sum of Python's integers."""
    most = (256**width - 1) // len(NAMES)
    number = st.one_of(st.integers(0, most), st.sampled_from([0, 1, most]))
    values = {name: data.draw(st.lists(number, min_size=length, max_size=length)) for name in NAMES}
    pairs, group = keys()
    masked = [masks.apply_wide(values[name], width, name, pairs[name], b"context") for name in NAMES]
    assert all(len(vector) == width * length for vector in masked)
    total = masks.add_wide(masked, width)
    assert masks.remove_wide(total, width, group, b"context") == [
        sum(row) for row in zip(*values.values(), strict=True)
    ]


@given(st.lists(st.lists(st.integers(0, 2**80 - 1), min_size=3, max_size=3), min_size=1, max_size=5))
def test_sums_are_modulo_the_width(vectors: list[list[int]]) -> None:
    """As Python integers, little-endian."""
    raw = [b"".join(value.to_bytes(10, "little") for value in vector) for vector in vectors]
    expected = [sum(row) % 2**80 for row in zip(*vectors, strict=True)]
    assert masks.add_wide(raw, 10) == b"".join(value.to_bytes(10, "little") for value in expected)


def test_a_mask_comes_off_with_its_key_and_context_only() -> None:
    """Another key or another context leaves noise."""
    key = secrets.token_bytes(32)
    masked = masks.apply_wide([5, 6], 40, "a", {"b": key}, b"one")
    assert masks.remove_wide(masked, 40, key, b"one") == [5, 6]
    for other_key, context in ((key, b"two"), (bytes(32), b"one")):
        assert min(masks.remove_wide(masked, 40, other_key, context)) > 2**200


def test_a_mask_covers_the_whole_width() -> None:
    """The first and the last byte of a wide integer are as random as the others."""
    vectors = [masks.apply_wide([0], 10_000, "a", {"b": secrets.token_bytes(32)}, b"c") for _ in range(40)]
    bits = np.unpackbits(np.frombuffer(b"".join(vectors), np.uint8).reshape(40, -1), axis=1)
    np.testing.assert_allclose(bits.mean(), 0.5, atol=0.005)
    assert ((bits[:, :80].mean(axis=0) > 0) & (bits[:, :80].mean(axis=0) < 1)).all()
    assert ((bits[:, -80:].mean(axis=0) > 0) & (bits[:, -80:].mean(axis=0) < 1)).all()


def test_two_elements_have_two_masks() -> None:
    """Equal numbers side by side do not look equal."""
    masked = masks.apply_wide([7, 7], 32, "a", {"b": secrets.token_bytes(32)}, b"c")
    assert masked[:32] != masked[32:]


def test_vector() -> None:
    """Fixed keys give fixed bytes: sites of two releases add the same masks."""
    masked = masks.apply_wide([1, 2], 4, "a", {"b": bytes(32), "0": bytes(range(32))}, b"context")
    assert masked.hex() == VECTOR


def test_the_smaller_name_adds_and_the_larger_subtracts() -> None:
    """So that they cancel; the group's name is above every site's."""
    key = secrets.token_bytes(32)
    (mask,) = masks.remove_wide(bytes(16), 16, key, b"c")
    (added,) = masks.remove_wide(masks.apply_wide([0], 16, "a", {"b": key}, b"c"), 16, key, b"c")
    assert added == 0
    assert int.from_bytes(masks.apply_wide([0], 16, "b", {"a": key}, b"c"), "little") == mask
    assert all(name < GROUP for name in ("a", "z", "z9", "zz-top"))


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_counts_under_the_groups_mask(length: int) -> None:
    """The same modulo 2^64: the sum of all sites' vectors without the group's mask is the sum of the counts."""
    pairs, group = keys()
    vectors = {name: np.frombuffer(secrets.token_bytes(8 * length), "<u8").astype(np.uint64) for name in NAMES}
    masked = [masks.apply64(vectors[name], name, pairs[name], b"c") for name in NAMES]
    total = np.sum(masked, axis=0, dtype=np.uint64)
    expected = [sum(map(int, row)) % 2**64 for row in zip(*vectors.values(), strict=True)]
    assert masks.remove64(total, group, b"c").tolist() == expected
