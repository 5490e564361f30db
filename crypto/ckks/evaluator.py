"""Arithmetic on ciphertexts under one set of joint keys: what the coordinator does. No secret, no randomness.

A ciphertext has `levels` multiplications left before it must be refreshed; asking for more raises TooFewLevelsError,
because OpenFHE would go on and give numbers that mean nothing.
"""

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import openfhe
from numpy.typing import NDArray

from crypto.ckks import keys, opening
from crypto.ckks.arithmetic import TooFewLevelsError
from crypto.ckks.context import Context
from crypto.ckks.profiles import REFRESH_TOWERS
from crypto.ckks.skeleton import Coefficients

Numbers = NDArray[np.float64]


class OnlyNoiseError(RuntimeError):
    """The shares of a decryption open no numbers."""


@dataclass(frozen=True)
class PublicKeys:
    """The joint keys of a set of parties, as coefficients."""

    seed: bytes
    public: Coefficients
    relinearization: Coefficients | None = None
    rotations: Mapping[int, Coefficients] | None = None


class Evaluator:
    """Ciphertexts under one set of keys, which stand in OpenFHE's tables under a tag until close."""

    _table = threading.Lock()
    _tags: ClassVar[set[str]] = set()
    _numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, ctx: Context, joint: PublicKeys, tag: str) -> None:
        self.ctx = ctx
        # Never the same again: a job that is driven a second time may find its first keys still there.
        self.tag = tag = f"{tag}#{next(self._numbers)}"
        self.public_key = ctx.public_key(joint.public, joint.seed)
        self.public_key.SetKeyTag(tag)
        with self._table:
            self._tags.add(tag)
            if joint.relinearization is not None:
                key = ctx.switch_key.wrap(joint.relinearization)
                key.SetKeyTag(tag)
                ctx.cc.InsertEvalMultKey([key], tag)
            for steps, half in (joint.rotations or {}).items():
                ctx.cc.InsertEvalAutomorphismKey(keys.rotation_key(ctx, steps, half, joint.seed), tag)

    def close(self) -> None:
        """Forget the keys. OpenFHE can only forget all at once: they go when nobody uses any."""
        with self._table:
            self._tags.discard(self.tag)
            if not self._tags:
                openfhe.ClearEvalMultKeys()
                self.ctx.cc.ClearEvalAutomorphismKeys()

    # Ciphertexts

    def load(self, coefficients: Coefficients) -> Any:
        """A fresh ciphertext from checked coefficients."""
        found = self.ctx.ciphertext(len(coefficients) // 2).wrap(coefficients)
        found.SetKeyTag(self.tag)
        return found

    def levels(self, ciphertext: Any) -> int:
        """Multiplications that it still allows with a refresh after them."""
        used = int(ciphertext.GetLevel() + ciphertext.GetNoiseScaleDeg() - 1)
        return len(self.ctx.key_shape.moduli) - REFRESH_TOWERS + 1 - used

    def add(self, a: Any, b: Any) -> Any:
        """A + b, where b may be a number or a vector of numbers."""
        return self.ctx.cc.EvalAdd(a, self._operand(b))

    def sub(self, a: Any, b: Any) -> Any:
        """A - b."""
        return self.ctx.cc.EvalSub(a, self._operand(b))

    def mul(self, a: Any, b: Any) -> Any:
        """A · b; uses a level, of a number or vector of numbers too."""
        self._need(a, 1)
        if not isinstance(b, float | int | np.ndarray | list):
            self._need(b, 1)
        return self.ctx.cc.EvalMult(a, self._operand(b))

    def double(self, a: Any) -> Any:
        """2a, without using a level."""
        return self.ctx.cc.EvalAdd(a, a)

    def square(self, a: Any) -> Any:
        """A²."""
        self._need(a, 1)
        return self.ctx.cc.EvalSquare(a)

    def rotate(self, a: Any, steps: int) -> Any:
        """Slot i takes what was in slot i + steps."""
        return self.ctx.cc.EvalRotate(a, steps)

    def _operand(self, b: Any) -> Any:
        if isinstance(b, np.ndarray | list):
            return self.ctx.encode(b)
        return float(b) if isinstance(b, int) else b

    def _need(self, ciphertext: Any, levels: int) -> None:
        if self.levels(ciphertext) < levels:
            raise TooFewLevelsError("the ciphertext must be refreshed before another multiplication")

    # Decryption

    def decrypt_request(self, ciphertext: Any, towers: int) -> tuple[Any, Coefficients]:
        """(what we keep, the c1 that the parties need)."""
        compressed = self.ctx.cc.Compress(ciphertext, towers)
        c0, c1 = compressed.Clone(), compressed.Clone()
        c0.RemoveElement(1)
        c1.RemoveElement(0)
        return c0, self.ctx.ciphertext(towers, polynomials=1).strip(c1)

    def decrypt(self, kept: Any, joint_share: Coefficients, towers: int, length: int) -> Numbers:
        """The numbers, from what we kept and the sum of all decryption shares."""
        share = self.ctx.ciphertext(towers, polynomials=1).wrap(joint_share)
        share.SetKeyTag(self.tag)
        try:
            plaintext = self.ctx.cc.MultipartyDecryptFusion([kept, share])
        except RuntimeError:
            # The imaginary parts, which should be zero, are as large as the real ones.
            raise OnlyNoiseError("the decryption gives only noise") from None
        plaintext.SetLength(length)
        return np.array(plaintext.GetRealPackedValue()[:length])

    # Refresh

    def refresh_request(self, ciphertext: Any) -> tuple[Any, Coefficients]:
        """(what we keep, the c1 that the parties need)."""
        if self.levels(ciphertext) < 0:
            raise TooFewLevelsError("too few primes are left for a refresh")
        adjusted = self.ctx.cc.IntMPBootAdjustScale(ciphertext)
        c1 = adjusted.Clone()
        c1.RemoveElement(0)
        return adjusted, self.ctx.ciphertext(self.ctx.refresh_towers, polynomials=1).strip(c1)

    def refresh(self, kept: Any, joint_share: Coefficients, seed: bytes, label: str) -> Any:
        """The ciphertext at full height, from the sum of all refresh shares."""
        first, second = self.ctx.refresh_share
        rows = len(first.shape.moduli)
        shares = [first.wrap(joint_share[:rows]), second.wrap(joint_share[rows:])]
        random = opening.refresh_random(self.ctx, seed, label)
        fresh = self.ctx.cc.IntMPBootEncrypt(self.public_key, shares, random, kept)
        fresh.SetKeyTag(self.tag)
        return fresh
