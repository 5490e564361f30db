"""Shares of the collective keys. s = s_1 + … + s_P is never in one place.

public key       b_i = e_i - a·s_i; b = Σ b_i, with a from the common reference string
relinearization  round 1: h0_i = g·s_i - a·u_i + e and h1_i = a·s_i + e', each added up, with an ephemeral secret u_i;
                 round 2: r_i = s_i·h0 + (u_i - s_i)·h1 + e''; the key is (h1, Σ r_i)
rotation by r    g·φ_r(s_i) - a·s_i + e_i, added up

All aggregation is Shape.add: rows modulo their primes.

OpenFHE's MultiKeySwitchGen and MultiEvalAutomorphismKeyGen draw errors of standard deviation 1 (its key switching loses
the parameter between threads), where 128 bits of security are reckoned with 3.19. MultiMultEvalKey draws the right one,
also where it multiplies by zero: that half is an error alone, and is added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openfhe

from crypto.ckks import reference
from crypto.ckks.context import Context
from crypto.ckks.skeleton import Coefficients

_TAG = "commonscale"


@dataclass(frozen=True)
class SecretShare:
    """s_i: one party's share of the secret key."""

    key: Any = field(repr=False)

    def to_bytes(self) -> bytes:
        """For the party's own, encrypted storage; never for a wire."""
        return bytes(openfhe.Serialize(self.key, openfhe.BINARY))

    @classmethod
    def from_bytes(cls, raw: bytes) -> SecretShare:
        """From the party's own, authenticated storage."""
        return cls(openfhe.DeserializePrivateKeyString(raw, openfhe.BINARY))


def gen_key_share(ctx: Context, seed: bytes) -> tuple[SecretShare, Coefficients]:
    """A fresh s_i, and b_i = e_i - a·s_i."""
    reference_key = ctx.public_key(ctx.key_shape.zeros(), seed)
    pair = ctx.cc.MultipartyKeyGen(reference_key, False, True)
    return SecretShare(pair.secretKey), ctx.strip_public(pair.publicKey)


def gen_ephemeral_secret(ctx: Context) -> SecretShare:
    """u_i: of the same distribution as s_i, for one relinearization key only."""
    return SecretShare(ctx.cc.KeyGen().secretKey)


def gen_relin_share(
    ctx: Context, share: SecretShare, ephemeral: SecretShare, seed: bytes
) -> tuple[Coefficients, Coefficients]:
    """Round 1: h0_i = g·s_i - a·u_i + e and h1_i = a·s_i + e'.

    The two must not hide behind the same secret: g·s_i - a·s_i and a·s_i add up to g·s_i, which shows s_i.
    """
    a = reference.expand(ctx.switch_half, seed, "relinearization")
    key = _switch_key(ctx, a, ctx.switch_half.zeros())
    _, h0 = _halves(ctx, ctx.cc.MultiKeySwitchGen(share.key, ephemeral.key, key))
    h1, error = _halves(ctx, ctx.cc.MultiMultEvalKey(share.key, key, _TAG))
    return ctx.switch_half.add([h0, error]), h1


def gen_relin_product(
    ctx: Context, share: SecretShare, ephemeral: SecretShare, h0: Coefficients, h1: Coefficients
) -> Coefficients:
    """Round 2: r_i = s_i·h0 + (u_i - s_i)·h1 + e'' for the joint h0 and h1; once for one u_i."""
    # MultiMultEvalKey multiplies both halves, and adds an error of its own to each: e'' is the sum of three.
    with_h0, with_h1 = _halves(ctx, ctx.cc.MultiMultEvalKey(share.key, _switch_key(ctx, h0, h1), _TAG))
    masked, _ = _halves(ctx, ctx.cc.MultiMultEvalKey(ephemeral.key, _switch_key(ctx, h1, h1), _TAG))
    return ctx.switch_half.add([with_h0, masked, ctx.switch_half.negative(with_h1)])


def relin_key(h1: Coefficients, products: Coefficients) -> Coefficients:
    """The joint key (h1, Σ r_i): Σ r_i + h1·s = g·s² + noise."""
    return np.vstack([h1, products])


def _switch_key(ctx: Context, first: Coefficients, second: Coefficients) -> Any:
    return ctx.switch_key.wrap(np.vstack([first, second]))


def _halves(ctx: Context, key: Any) -> tuple[Coefficients, Coefficients]:
    rows = ctx.switch_key.strip(key)
    return rows[: len(ctx.switch_half.moduli)], rows[len(ctx.switch_half.moduli) :]


def gen_rotation_share(ctx: Context, share: SecretShare, steps: int, seed: bytes) -> Coefficients:
    """A share of the key that rotates by `steps` slots."""
    index = ctx.automorphism(steps)
    half = ctx.switch_half
    a = reference.expand(half, seed, f"rotation-{steps}")
    skeleton = ctx.rotation_key(index)
    keys = skeleton.wrap(np.vstack([a, half.zeros()]))
    made = ctx.cc.MultiEvalAutomorphismKeyGen(share.key, keys, [index], _TAG)
    nothing = _switch_key(ctx, half.zeros(), half.zeros())
    error, _ = _halves(ctx, ctx.cc.MultiMultEvalKey(share.key, nothing, _TAG))
    return half.add([skeleton.strip(made)[len(half.moduli) :], error])


def rotation_key(ctx: Context, steps: int, joint: Coefficients, seed: bytes) -> Any:
    """The joint key of a rotation."""
    a = reference.expand(ctx.switch_half, seed, f"rotation-{steps}")
    return ctx.rotation_key(ctx.automorphism(steps)).wrap(np.vstack([a, joint]))
