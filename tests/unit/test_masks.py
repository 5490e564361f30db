"""Masks in every ring, linear checks, and masks of integers modulo 2^64 under a group's key."""

import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import checks, field61, masks
from crypto.rings import FIELD61, Z256, Ring, Wide

NAMES = ("east", "north", "south", "west")
GROUP = "~"
RINGS: dict[str, Ring] = {"field61": FIELD61, "z256": Z256, **{f"wide{w}": Wide(w) for w in (1, 8, 10, 40, 200_008)}}
every_ring = pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)


def keys() -> tuple[dict[str, dict[str, bytes]], bytes]:
    """Pair keys of every site, the group's key as one more pair of the first; and that key."""
    found: dict[str, dict[str, bytes]] = {name: {} for name in NAMES}
    for at, one in enumerate(NAMES):
        for other in NAMES[at + 1 :]:
            found[one][other] = found[other][one] = secrets.token_bytes(32)
    group = secrets.token_bytes(32)
    found[NAMES[0]][GROUP] = group
    return found, group


@every_ring
@pytest.mark.parametrize("length", [0, 1, 5, 20_001])
def test_masked_vectors_add_up_under_the_groups_mask(ring: Ring, length: int) -> None:
    """Pairwise masks cancel, the group's mask comes off, and the sum is left; in vectors of more than one piece too."""
    length = min(length, 2_000_000 // ring.element_bytes)
    pairs, group = keys()
    vectors = {name: ring.random(length) for name in NAMES}
    masked = [masks.apply(ring, vectors[name], name, pairs[name], b"context") for name in NAMES]
    opened = masks.remove(ring, ring.add_all(masked), group, b"context")
    assert (opened == ring.add_all(list(vectors.values()))).all()


@every_ring
def test_masks_are_added_and_subtracted_whole(ring: Ring) -> None:
    """What is made piece by piece is what `mask` gives: added for names after mine, subtracted for those before."""
    length = min(20_001, 2_000_000 // ring.element_bytes)
    before, after = secrets.token_bytes(32), secrets.token_bytes(32)
    vector = ring.random(length)
    expected = ring.add(
        ring.subtract(vector, masks.mask(ring, before, b"c", length)), masks.mask(ring, after, b"c", length)
    )
    assert (masks.apply(ring, vector, "m", {"a": before, "z": after}, b"c") == expected).all()


def test_the_groups_name_is_above_every_sites() -> None:
    """So that its mask is added, never subtracted."""
    assert all(name < GROUP for name in ("a", "z", "z9", "zz-top"))


def test_a_site_without_others_masks_nothing() -> None:
    """No keys, no masks."""
    vector = Z256.random(3)
    assert (masks.apply(Z256, vector, "a", {}, b"c") == vector).all()


@every_ring
def test_a_mask_comes_off_with_its_key_and_context_only(ring: Ring) -> None:
    """Another key or another context leaves noise."""
    key, vector = secrets.token_bytes(32), ring.zeros(40)
    masked = masks.apply(ring, vector, "a", {"b": key}, b"one")
    assert (masks.remove(ring, masked, key, b"one") == vector).all()
    for other_key, context in ((key, b"two"), (bytes(32), b"one")):
        assert (masks.remove(ring, masked, other_key, context) != vector).sum() >= 30


@every_ring
def test_a_masked_vector_looks_random(ring: Ring) -> None:
    """Bits of a masked zero vector are balanced, those of its first and last byte too."""
    n = 200_000 // ring.element_bytes + 40
    masked = masks.apply(ring, ring.zeros(n), "m", {"a": secrets.token_bytes(32), "z": secrets.token_bytes(32)}, b"c")
    used = 61 if ring is FIELD61 else 8 * ring.element_bytes
    raw = np.frombuffer(ring.to_bytes(masked), np.uint8).reshape(n, ring.element_bytes)
    bits = np.unpackbits(raw, axis=1, bitorder="little")
    assert abs(bits[:, :used].mean() - 0.5) < 0.005
    assert not bits[:, used:].any()
    for ends in (bits[:, :8], bits[:, used - 8 : used]):
        assert ((ends.mean(axis=0) > 0) & (ends.mean(axis=0) < 1)).all()


@every_ring
def test_two_elements_have_two_masks(ring: Ring) -> None:
    """Equal numbers side by side do not look equal."""
    masked = masks.mask(ring, secrets.token_bytes(32), b"c", 20)
    assert len(np.unique(masked, axis=0)) > 15


def test_mask_vectors() -> None:
    """The expansion of a fixed key, as HMAC and `openssl enc -aes-256-ctr` give it too, never changes."""
    stream = "c4f05796846a0e6fc3b8824a2639d3d1914a1faba8ce8a1203577ba56c1fe593"
    for ring, n in ((Z256, 1), (Wide(4), 8), (Wide(10), 3)):
        mask = ring.to_bytes(masks.mask(ring, bytes(range(32)), b"run", n)).hex()
        assert mask == stream[: 2 * n * ring.element_bytes]
    # The low 61 bits of each eight bytes.
    assert FIELD61.to_bytes(masks.mask(FIELD61, bytes(range(32)), b"run", 4)).hex() == (
        "c4f05796846a0e0fc3b8824a2639d311914a1faba8ce8a1203577ba56c1fe513"
    )


def test_masked_vector() -> None:
    """Fixed keys give fixed bytes: sites of two releases add the same masks."""
    ring = Wide(4)
    masked = masks.apply(ring, ring.from_integers([1, 2]), "a", {"b": bytes(32), "0": bytes(range(32))}, b"context")
    assert ring.to_bytes(masked).hex() == "9569c85d0f9c5af1"


def test_both_sites_of_a_pair_have_its_key_and_no_other_roster_gives_it() -> None:
    """The key is the same on both sides, and is bound to the roster."""
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    key = masks.pair_key(one, other.public_key(), b"roster")
    assert masks.pair_key(other, one.public_key(), b"roster") == key
    assert masks.pair_key(other, one.public_key(), b"another") != key


field_vectors = st.integers(1, 20).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, field61.PRIME - 1), min_size=n, max_size=n), min_size=1, max_size=5)
)


@given(field_vectors)
def test_checks_are_linear(vectors: list[list[int]]) -> None:
    """The combinations of a sum are the sums of the combinations."""
    made = [np.array(values, dtype=np.uint64) for values in vectors]
    parts = [checks.linear(vector, bytes(32), b"c", 3) for vector in made]
    assert (checks.linear(FIELD61.add_all(made), bytes(32), b"c", 3) == FIELD61.add_all(parts)).all()


@pytest.mark.parametrize("length", [0, 1, 20_001])
def test_checks_are_weighted_sums(length: int) -> None:
    """As Python's integers give them, with the weights of the key."""
    vector = FIELD61.random(length)
    weights = masks.mask(FIELD61, bytes(32), b"check\0\0\0\0\0c", length)
    expected = sum(w * x for w, x in zip(weights.tolist(), vector.tolist(), strict=True)) % field61.PRIME
    assert checks.linear(vector, bytes(32), b"c").tolist() == [expected]


@settings(max_examples=200)
@given(st.integers(0, 9), st.integers(1, field61.PRIME - 1))
def test_any_change_is_noticed_by_one_check(place: int, change: int) -> None:
    """Also one by 2^60, which modulo 2^61 would be missed by every second weight."""
    key, vector = secrets.token_bytes(32), FIELD61.random(10)
    for by in (change, 1 << 60):
        changed = FIELD61.zeros(10)
        changed[place] = by
        assert checks.linear(FIELD61.add(vector, changed), key, b"c") != checks.linear(vector, key, b"c")


def test_checks_have_weights_of_their_own() -> None:
    """For each check, key and context."""
    vector, key = FIELD61.random(5), secrets.token_bytes(32)
    found = np.concatenate(
        [
            checks.linear(vector, key, b"c", 3),
            checks.linear(vector, key, b"d", 3),
            checks.linear(vector, bytes(32), b"c"),
        ]
    )
    assert len(set(found.tolist())) == 7


def test_check_vector() -> None:
    """Fixed keys give fixed checks, as HMAC, single blocks of AES and Python's integers give them too."""
    found = checks.linear(np.arange(5, dtype=np.uint64), bytes(range(32)), b"run", 2)
    assert found.tolist() == [580532593656701885, 647856487212815143]
