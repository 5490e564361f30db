"""Threshold CKKS, all parties in one process: formulas against numpy, hostile bytes, levels, secrets."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.ckks import keys, opening, reference
from crypto.ckks import sign as signs
from crypto.ckks.context import Context, context_of
from crypto.ckks.evaluator import Evaluator, PublicKeys, TooFewLevelsError
from crypto.ckks.inverse import inverse, line
from crypto.ckks.profiles import PROFILES
from crypto.ckks.skeleton import BadCoefficientsError, to_bytes

SEED = b"a public seed"


class Parties:
    """Three parties and an evaluator that asks them: Arithmetic without a network."""

    def __init__(self, profile: str, tag: str, rotations: Sequence[int] = ()) -> None:
        self.ctx: Context = context_of(PROFILES[profile])
        made = [keys.gen_key_share(self.ctx, SEED) for _ in range(3)]
        self.shares = [share for share, _ in made]
        half = self.ctx.switch_half
        secrets = [(share, keys.gen_ephemeral_secret(self.ctx)) for share in self.shares]
        first = [keys.gen_relin_share(self.ctx, *pair, SEED) for pair in secrets]
        h0, h1 = (half.add(terms) for terms in zip(*first, strict=True))
        products = half.add([keys.gen_relin_product(self.ctx, *pair, h0, h1) for pair in secrets])
        turned = {
            steps: half.add([keys.gen_rotation_share(self.ctx, share, steps, SEED) for share in self.shares])
            for steps in rotations
        }
        public = self.ctx.key_shape.add([b for _, b in made])
        joint = PublicKeys(SEED, public, keys.relin_key(h1, products), turned)
        self.evaluator = Evaluator(self.ctx, joint, tag)
        self.refreshes = 0

    def encrypt(self, values: Any) -> Any:
        return self.evaluator.load(self.ctx.encrypt(self.evaluator.public_key, values))

    def open(self, ciphertext: Any, length: int, towers: int = 1) -> Any:
        kept, c1 = self.evaluator.decrypt_request(ciphertext, towers)
        parts = [opening.gen_decrypt_share(self.ctx, share, c1, towers) for share in self.shares]
        return self.evaluator.decrypt(kept, opening.opening_shape(self.ctx, towers).add(parts), towers, length)

    def levels(self, a: Any) -> int:
        return self.evaluator.levels(a)

    async def add(self, a: Any, b: Any) -> Any:
        return self.evaluator.add(a, b)

    async def sub(self, a: Any, b: Any) -> Any:
        return self.evaluator.sub(a, b)

    async def mul(self, a: Any, b: Any) -> Any:
        return self.evaluator.mul(a, b)

    async def mul_all(self, pairs: Any) -> Any:
        return [self.evaluator.mul(a, b) for a, b in pairs]

    async def rotate(self, a: Any, steps: int) -> Any:
        return self.evaluator.rotate(a, steps)

    async def refresh(self, handles: Any) -> Any:
        return [self.refreshed(handle) for handle in handles]

    def refreshed(self, handle: Any) -> Any:
        self.refreshes += 1
        kept, c1 = self.evaluator.refresh_request(handle)
        label = str(self.refreshes)
        parts = [opening.gen_refresh_share(self.ctx, share, c1, SEED, label) for share in self.shares]
        return self.evaluator.refresh(kept, opening.refresh_share_shape(self.ctx).add(parts), SEED, label)


@pytest.fixture(scope="module")
def parties() -> Parties:
    return Parties("test", "unit", rotations=(3,))


def test_sums_products_and_rotations_are_those_of_numpy(parties: Parties) -> None:
    """Addition, multiplication by numbers, vectors and ciphertexts, rotation."""
    x, y = np.random.default_rng(1).uniform(-1, 1, (2, parties.ctx.profile.slots))
    a, b = parties.encrypt(x), parties.encrypt(y)
    evaluator, slots = parties.evaluator, len(x)
    for got, expected in (
        (evaluator.add(a, b), x + y),
        (evaluator.sub(a, 0.25), x - 0.25),
        (evaluator.mul(a, b), x * y),
        (evaluator.mul(a, y), x * y),
        (evaluator.rotate(a, 3), np.roll(x, -3)),
    ):
        np.testing.assert_allclose(parties.open(got, slots), expected, atol=2e-6)


def test_a_refresh_keeps_the_numbers_and_gives_back_all_levels(parties: Parties) -> None:
    """From full height and from the lowest."""
    x = np.random.default_rng(2).uniform(-1, 1, 20)
    low = parties.encrypt(x)
    while parties.levels(low):
        low = parties.evaluator.mul(low, 1.0)
    for ciphertext in (parties.encrypt(x), low):
        fresh = parties.refreshed(ciphertext)
        assert parties.levels(fresh) == parties.ctx.profile.levels
        np.testing.assert_allclose(parties.open(fresh, 20), x, atol=2e-6)


def test_too_few_levels_are_an_error_and_not_garbage(parties: Parties) -> None:
    """OpenFHE would go on and give numbers that mean nothing."""
    low = parties.encrypt([0.5])
    while parties.levels(low):
        low = parties.evaluator.mul(low, 1.0)
    with pytest.raises(TooFewLevelsError):
        parties.evaluator.mul(low, low)
    spent = parties.ctx.cc.EvalMult(parties.ctx.cc.EvalMult(low, low), low)
    with pytest.raises(TooFewLevelsError):
        parties.evaluator.refresh_request(spent)


def test_no_two_parties_open_anything(parties: Parties) -> None:
    """Without the third share the numbers are nowhere near."""
    x = np.linspace(-1, 1, 16)
    kept, c1 = parties.evaluator.decrypt_request(parties.encrypt(x), 1)
    two = [opening.gen_decrypt_share(parties.ctx, share, c1, 1) for share in parties.shares[:2]]
    try:
        found = parties.evaluator.decrypt(kept, opening.opening_shape(parties.ctx, 1).add(two), 1, 16)
    except RuntimeError:
        return  # OpenFHE notices that the noise is too large.
    assert np.abs(found - x).min() > 1.0


def test_every_share_of_the_same_ciphertext_differs(parties: Parties) -> None:
    """Decryption and refresh shares carry fresh noise and masks: that is why one is made only once."""
    _, c1 = parties.evaluator.decrypt_request(parties.encrypt([0.5]), 1)
    first, second = (opening.gen_decrypt_share(parties.ctx, parties.shares[0], c1, 1) for _ in range(2))
    assert (first != second).mean() > 0.99
    _, low = parties.evaluator.refresh_request(parties.encrypt([0.5]))
    a, b = (opening.gen_refresh_share(parties.ctx, parties.shares[0], low, SEED, "x") for _ in range(2))
    assert (a != b).mean() > 0.99


@settings(max_examples=60)
@given(data=st.data())
def test_hostile_coefficients_raise_or_load_but_never_crash(parties: Parties, data: st.DataObject) -> None:
    """Bit flips, truncation, random bytes: a typed error, or an object that computes to something."""
    good = to_bytes(parties.ctx.encrypt(parties.evaluator.public_key, [0.1, 0.2]))
    shape = parties.ctx.fresh_shape
    how = data.draw(st.sampled_from(["flip", "cut", "extend", "noise", "ones"]))
    if how == "flip":
        at = data.draw(st.integers(0, len(good) - 1))
        raw = good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1 :]
    elif how == "cut":
        raw = good[: data.draw(st.integers(0, len(good) - 1))]
    elif how == "extend":
        raw = good + data.draw(st.binary(min_size=1, max_size=64))
    elif how == "noise":
        raw = np.random.default_rng(data.draw(st.integers(0, 2**32))).bytes(len(good))
    else:
        raw = b"\xff" * len(good)
    try:
        parsed = shape.parse(raw)
    except BadCoefficientsError:
        return
    parties.evaluator.mul(parties.evaluator.load(parsed), parties.encrypt([0.3]))


def test_coefficients_survive_the_wire(parties: Parties) -> None:
    """Strip and wrap are inverse, for every kind of object."""
    ciphertext = parties.ctx.encrypt(parties.evaluator.public_key, [0.25, -0.5])
    again = parties.ctx.fresh_shape.parse(to_bytes(ciphertext))
    np.testing.assert_array_equal(again, ciphertext)
    np.testing.assert_allclose(parties.open(parties.evaluator.load(again), 2), [0.25, -0.5], atol=1e-6)
    skeleton = parties.ctx.switch_key
    random = reference.expand(skeleton.shape, b"s", "l")
    np.testing.assert_array_equal(skeleton.strip(skeleton.wrap(random)), random)


def test_the_reference_string_is_uniform_and_the_same_everywhere(parties: Parties) -> None:
    """Below each prime, reproducible, different for every label."""
    shape = parties.ctx.key_shape
    a = reference.expand(shape, SEED, "one")
    np.testing.assert_array_equal(a, reference.expand(shape, SEED, "one"))
    assert (a != reference.expand(shape, SEED, "two")).mean() > 0.99
    assert (a < shape.column()).all()
    np.testing.assert_allclose((a / shape.column()).mean(), 0.5, atol=0.02)


def test_the_sum_of_shares_is_exact_at_the_edge_of_a_prime(parties: Parties) -> None:
    """Q - 1 + q - 1 = q - 2, without overflow."""
    shape = parties.ctx.key_shape
    largest = np.broadcast_to(shape.column() - np.uint64(1), (len(shape.moduli), shape.ring_dim))
    total = shape.add([largest, largest, largest])
    np.testing.assert_array_equal(total, largest - np.uint64(2))


def test_a_secret_share_shows_nothing() -> None:
    """Not in a repr, not in an error."""
    ctx = context_of(PROFILES["test"])
    share, _ = keys.gen_key_share(ctx, SEED)
    assert repr(share) == "SecretShare()"
    again = keys.SecretShare.from_bytes(share.to_bytes())
    assert all(half.any() for half in keys.gen_relin_share(ctx, again, keys.gen_ephemeral_secret(ctx), SEED))


def test_a_polynomial_and_its_negative_add_up_to_zero() -> None:
    """Row by row modulo its prime, zeros included."""
    shape = context_of(PROFILES["test"]).switch_half
    term = reference.expand(shape, SEED, "any")
    term[:, :5] = 0
    negative = shape.negative(term)
    assert (negative < shape.column()).all()
    assert not shape.add([term, negative]).any()


def test_the_sign_polynomials_never_dip() -> None:
    """From the resolution on every intermediate value stays above 0.09; below it they only rise."""
    x = np.concatenate([np.geomspace(1e-9, 1, 200_001)])
    for resolution in (2.0**-10, signs.COMPARE_RESOLUTION, 2.0**-20):
        values = x.copy()
        for number, (c1, c3, c5, c7) in enumerate(signs.stages(resolution)):
            values = values * (c1 + values**2 * (c3 + values**2 * (c5 + values**2 * c7)))
            assert values.min() > 0
            assert values.max() < 1.91
            if number == len(signs.stages(resolution)) - len(signs.FINISH) - 1:
                assert values[x >= resolution].min() > 0.09
        assert np.abs(1 - values[x >= resolution]).max() < 1e-8
    compare = x.copy()
    for c1, c3, c5, c7 in signs.stages(signs.COMPARE_RESOLUTION):
        compare = compare * (c1 + compare**2 * (c3 + compare**2 * (c5 + compare**2 * c7)))
    assert (x * (1 - compare)).max() < 2.2e-6


def test_the_sign_of_encrypted_numbers(parties: Parties) -> None:
    """Right wherever it must be, ties included."""
    generator = np.random.default_rng(3)
    size = parties.ctx.profile.slots
    x = generator.choice([-1, 1], size) * np.exp(generator.uniform(np.log(signs.COMPARE_RESOLUTION), 0, size))
    x[:4] = [0.126, -0.126, 1, -1]
    found = parties.open(asyncio.run(signs.sign(parties, parties.encrypt(x))), size)
    np.testing.assert_allclose(found, np.sign(x), atol=1e-5)
    zero = asyncio.run(signs.sign(parties, parties.encrypt(np.zeros(4))))
    assert np.abs(parties.open(zero, 4)).max() < 0.01


@pytest.mark.parametrize(("bits", "least"), [(12, 20), (20, 100)])
def test_the_inverse_of_encrypted_counts(bits: int, least: int) -> None:
    """To 1e-7 from twenty rows of at most 4,096 on, or from a hundred of a million."""
    parties = Parties("test-inverse", f"inverse-{bits}")
    most = 2.0**bits
    slope, offset = line(most)
    counts = np.full(parties.ctx.profile.slots, most)
    counts[:50] = np.geomspace(least, most, 50)
    share = asyncio.run(inverse(parties, parties.encrypt(offset + slope * counts / most), most))
    (share,) = asyncio.run(parties.refresh([share]))
    total = parties.evaluator.mul(parties.encrypt(counts / most * 0.37 * 2.0**24), share)
    np.testing.assert_allclose(parties.open(total, 50, 2) / 2.0**24, 0.37, rtol=1e-7)
