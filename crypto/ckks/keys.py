"""Shares of the collective keys. s = s_1 + … + s_P is never in one place.

public key       b_i = e_i - a·s_i; b = Σ b_i, with a from the common reference string
relinearization  round 1: h_i = g·s_i - a·s_i + e_i, h = Σ h_i; round 2: (a·s_i + e, h·s_i + e'), added up
rotation by r    g·φ_r(s_i) - a·s_i + e_i, added up

All aggregation is Shape.add: rows modulo their primes.
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


def gen_relin_share(ctx: Context, share: SecretShare, seed: bytes) -> Coefficients:
    """Round 1: h_i."""
    half = ctx.switch_half
    a = reference.expand(half, seed, "relinearization")
    key = ctx.switch_key.wrap(np.vstack([a, half.zeros()]))
    made = ctx.cc.MultiKeySwitchGen(share.key, share.key, key)
    return ctx.switch_key.strip(made)[len(half.moduli) :]


def gen_relin_product(ctx: Context, share: SecretShare, joint: Coefficients, seed: bytes) -> Coefficients:
    """Round 2: (a·s_i + e, h·s_i + e') for the joint h."""
    a = reference.expand(ctx.switch_half, seed, "relinearization")
    key = ctx.switch_key.wrap(np.vstack([a, joint]))
    return ctx.switch_key.strip(ctx.cc.MultiMultEvalKey(share.key, key, _TAG))


def gen_rotation_share(ctx: Context, share: SecretShare, steps: int, seed: bytes) -> Coefficients:
    """A share of the key that rotates by `steps` slots."""
    index = ctx.automorphism(steps)
    half = ctx.switch_half
    a = reference.expand(half, seed, f"rotation-{steps}")
    skeleton = ctx.rotation_key(index)
    keys = skeleton.wrap(np.vstack([a, half.zeros()]))
    made = ctx.cc.MultiEvalAutomorphismKeyGen(share.key, keys, [index], _TAG)
    return skeleton.strip(made)[len(half.moduli) :]


def rotation_key(ctx: Context, steps: int, joint: Coefficients, seed: bytes) -> Any:
    """The joint key of a rotation."""
    a = reference.expand(ctx.switch_half, seed, f"rotation-{steps}")
    return ctx.rotation_key(ctx.automorphism(steps)).wrap(np.vstack([a, joint]))
