"""A coordinator that follows the protocol and adds up what it was sent for the relinearization key.

If two messages hide g·s_i behind the same mask, their sum or difference is g·s_i and a little noise: as s_i has
coefficients -1, 0 and 1 only, every one of them can be read. The attack tries all sums and differences of up to three
polynomials of the whole key generation, and looks whether any coefficient lies at a multiple of g.

One prime is enough: a secret is the same modulo every prime.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import openfhe
import pytest
from numpy.typing import NDArray

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.pipeline import Pipeline
from commonscale.protocols.ckks import key_set, relinearization_key
from commonscale.protocols.ckks.gathering import announce, collect
from commonscale.v1 import protocols_pb2
from commonscale.v1.protocols_pb2 import RelinJoint, RelinProduct, RelinShare
from crypto.ckks import reference
from crypto.ckks.context import Context, context_of
from crypto.ckks.keys import (
    SecretShare,
    gen_ephemeral_secret,
    gen_key_share,
    gen_relin_product,
    gen_relin_share,
    gen_rotation_share,
)
from crypto.ckks.profiles import PROFILES
from crypto.ckks.skeleton import Coefficients, Skeleton
from tests.attacks.polynomials import Field, Row
from tests.federation import Federation

SITES = ("east", "north", "west")
JOB = Pipeline.model_validate({"sites": list(SITES), "steps": [{"transform": "zscore", "columns": ["x"]}]})
# Errors have a standard deviation of 3.2; a few of them added up stay far below this. A coefficient of a mask is as
# near to a multiple of g by chance once in 2^45.
NOISE = 1 << 10
# The least standard deviation of an error: 3.19, less what chance does to 2,048 of them.
ERROR = 3.19 * 0.9


class WithoutEphemeralSecret:
    """The protocol of before: h_i = g·s_i - a·s_i + e, then (a·s_i + e', h·s_i + e''), with the same a."""

    @staticmethod
    async def make(
        ch: Channel, ctx: Context, share: SecretShare | None, seed: bytes
    ) -> tuple[list[Coefficients], Coefficients | None]:
        """All roles."""
        half = ctx.switch_half
        a = reference.expand(half, seed, "relinearization")

        def first() -> list[Coefficients]:
            key = ctx.switch_key.wrap(np.vstack([a, half.zeros()]))
            made = ctx.cc.MultiKeySwitchGen(share.key, share.key, key)
            return [ctx.switch_key.strip(made)[len(half.moduli) :]]

        (joint,) = await announce(ch, RelinShare, RelinJoint, half, 1, first)

        def second() -> list[Coefficients]:
            key = ctx.switch_key.wrap(np.vstack([a, joint]))
            return [ctx.switch_key.strip(ctx.cc.MultiMultEvalKey(share.key, key, "before"))]

        products = await collect(ch, RelinProduct, ctx.switch_key.shape, 1, second)
        return [joint], products[0] if products is not None else None


@dataclass(frozen=True)
class KeyGeneration:
    """What passed the coordinator, and what it must not learn."""

    ctx: Context
    seed: bytes
    messages: Mapping[Slot, bytes]
    shares: Mapping[str, SecretShare]

    @cached_property
    def field(self) -> Field:
        """Of the first prime, which is in the first digit of a key-switching key."""
        return Field(self.ctx.key_shape.moduli[0], self.ctx.ring_dim)

    @property
    def gadget(self) -> int:
        """G at the first digit and the first prime: the product of the primes that key switching adds."""
        return prod(set(self.ctx.switch_half.moduli) - set(self.ctx.key_shape.moduli)) % self.field.prime

    def share(self, site: str) -> NDArray[np.int64]:
        """The true coefficients of s_i."""
        return self.field.centred(self.field.coefficients(secret_values(self.shares[site])))

    @cached_property
    def view(self) -> dict[str, Row]:
        """The coordinator's polynomials modulo the first prime: all that it is sent, sends, and can compute alone."""
        found = {
            f"{slot.sender} {slot.kind.rpartition('.')[2]} {number}": row
            for slot, payload in self.messages.items()
            for number, row in enumerate(self._first_rows(slot, payload))
        }
        for name in [name for name in found if name.split(" ")[1] in ("RelinProduct", "RotationShare")]:
            _, _, what = name.partition(" ")
            found[f"all {what}"] = reduce(self.field.add, [found[f"{site} {what}"] for site in SITES])
        for label in ("public-key", "relinearization", "rotation-1"):
            found[f"reference {label}"] = reference.expand(self.ctx.switch_half.rows(0, 1), self.seed, label)[0]
        return {name: self.field.coefficients(row) for name, row in found.items()}

    def _first_rows(self, slot: Slot, payload: bytes) -> Iterator[Row]:
        kind = getattr(protocols_pb2, slot.kind.rpartition(".")[2])
        if "polynomials" not in kind.DESCRIPTOR.fields_by_name:
            return
        half = len(self.ctx.switch_half.moduli)
        for raw in kind.FromString(payload).polynomials:
            rows = np.frombuffer(raw, "<u8").astype(np.uint64).reshape(-1, self.ctx.ring_dim)
            yield from rows[::half]


def secret_values(share: SecretShare) -> Row:
    """A share in evaluation form modulo the first prime."""
    ring_dim = share.key.GetCryptoContext().GetRingDimension()
    skeleton = Skeleton(share.key, ring_dim, lambda raw: openfhe.DeserializePrivateKeyString(raw, openfhe.BINARY))
    return skeleton.strip(share.key)[0]


def recorded(directory: Path, profile: str, protocol: Any, monkeypatch: pytest.MonkeyPatch) -> KeyGeneration:
    """A real key generation among three sites, with a rotation key."""
    monkeypatch.setattr(key_set, "relinearization_key", protocol)
    federation = Federation(directory, SITES)
    needs = key_set.Needs(PROFILES[profile], rotations=(1,))
    shares: dict[str, SecretShare] = {}
    seeds: set[bytes] = set()

    async def site(name: str) -> None:
        ch = await federation.admitted_site(name, JOB)
        shares[name] = key_set.site_keys(needs, await key_set.obtain(ch, needs)).share

    async def coordinator() -> None:
        ch = await federation.admitted_coordinator()
        seeds.add(key_set.crs_seed(ch))
        await key_set.obtain(ch, needs)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(coordinator)
            for name in SITES:
                tasks.start_soon(site, name)

    anyio.run(work)
    (seed,) = seeds
    return KeyGeneration(context_of(PROFILES[profile]), seed, federation.mailbox.slots, shares)


def combinations(view: Mapping[str, Row], field: Field) -> Iterator[tuple[str, Row]]:
    """All sums and differences of up to three polynomials."""
    for number in (1, 2, 3):
        for names in itertools.combinations(view, number):
            for signs in itertools.product("+-", repeat=number - 1):
                total = view[names[0]]
                for sign, name in zip(signs, names[1:], strict=True):
                    total = (field.add if sign == "+" else field.sub)(total, view[name])
                yield " ".join([names[0], *(f"{s} {n}" for s, n in zip(signs, names[1:], strict=True))]), total


def multiples(total: Row, gadget: int, field: Field) -> NDArray[np.int64]:
    """The k of every coefficient that is k·g and noise, |k| up to the number of sites; elsewhere a value beyond."""
    found = np.full(len(total), len(SITES) + 1, dtype=np.int64)
    for k in range(-len(SITES), len(SITES) + 1):
        # Shifted by the noise, so that what is near k·g from either side comes to lie just above zero.
        away = field.sub(total, np.uint64((k * gadget - NOISE) % field.prime))
        found[away <= 2 * NOISE] = k
    return found


def attack(seen: KeyGeneration) -> dict[str, NDArray[np.int64]]:
    """Combinations of which at least one coefficient can be read, with what is read."""
    found = {}
    for name, total in combinations(seen.view, seen.field):
        read = multiples(total, seen.gadget, seen.field)
        # What is zero throughout is a sum that the coordinator made itself.
        if total.any() and (read <= len(SITES)).any():
            found[name] = read
    return found


@pytest.mark.parametrize("profile", ["test", "comparison"])
def test_no_messages_together_show_a_coefficient(tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a coordinator adds up of what it sees, no coefficient of any site's share, or of their sum, shows."""
    seen = recorded(tmp_path, profile, relinearization_key, monkeypatch)
    kinds = {name.split(" ")[1] for name in seen.view}
    assert {"KeyShare", "JointKey", "RelinShare", "RelinJoint", "RelinProduct", "RotationShare"} <= kinds
    assert len(seen.view) == 3 * (1 + 2 + 1 + 1) + (1 + 2) + 2 + 3
    assert list(attack(seen)) == []


@pytest.mark.parametrize("profile", ["test", "comparison"])
def test_the_attack_reads_the_shares_of_the_protocol_of_before(
    tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every coefficient of every site's share, and of the whole secret key: the test above could fail."""
    seen = recorded(tmp_path, profile, WithoutEphemeralSecret, monkeypatch)
    read = attack(seen)
    for site in SITES:
        true = seen.share(site)
        assert set(np.unique(true)) == {-1, 0, 1}
        np.testing.assert_array_equal(read[f"{site} RelinShare 0 + {site} RelinProduct 0"], true)
    whole = sum(seen.share(site) for site in SITES)
    np.testing.assert_array_equal(read[f"{COORDINATOR} RelinJoint 0 + all RelinProduct 0"], whole)


def test_every_message_has_an_error_of_its_own() -> None:
    """Without secrets and masks there remain errors as large as 128 bits of security ask for, others at each call."""
    seen = KeyGeneration(context_of(PROFILES["test"]), b"seed", {}, {})
    ctx, field = seen.ctx, seen.field
    (share, b), ephemeral = gen_key_share(ctx, seen.seed), gen_ephemeral_secret(ctx)
    s, u = (secret_values(key).astype(object) for key in (share, ephemeral))
    a = reference.expand(ctx.switch_half, seen.seed, "relinearization")[0].astype(object)
    a_public = reference.expand(ctx.key_shape, seen.seed, "public-key")[0].astype(object)

    def errors() -> list[NDArray[np.int64]]:
        h0, h1 = gen_relin_share(ctx, share, ephemeral, seen.seed)
        product = gen_relin_product(ctx, share, ephemeral, h0, h1)
        v0, v1, r = (half[0].astype(object) for half in (h0, h1, product))
        left = [v0 - (seen.gadget * s - a * u), v1 - a * s, r - (s * v0 + (u - s) * v1)]
        return [field.centred(field.coefficients(field.values_of(one))) for one in left]

    first, second = errors(), errors()
    for one, other in zip(first, second, strict=True):
        assert ERROR < one.std() < 2 * ERROR
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.15
    for one, other in itertools.combinations(first, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.15
    assert ERROR < field.centred(field.coefficients(field.values_of(b[0] + a_public * s))).std() < 2 * ERROR
    # Of rotations, the difference of two shares with the same mask; it has two errors.
    turned = [gen_rotation_share(ctx, share, 1, seen.seed)[0] for _ in range(2)]
    assert ERROR < field.centred(field.coefficients(field.sub(*turned))).std() / 2**0.5 < 2 * ERROR
