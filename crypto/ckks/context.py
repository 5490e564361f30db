"""One profile's OpenFHE context, and the skeletons of everything that crosses the wire in it."""

import os
import struct
import threading
from collections.abc import Iterable
from functools import cached_property
from typing import Any

# Daemons share their machine: one thread per process, unless the operator says otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import openfhe

from crypto.ckks import reference
from crypto.ckks.profiles import Profile
from crypto.ckks.skeleton import Coefficients, Shape, Skeleton

_FEATURES = (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE, openfhe.ADVANCEDSHE, openfhe.MULTIPARTY)


class Context:
    """Everything that depends on the profile alone: no secret, no joint key."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cc: Any = _crypto_context(profile)
        self.ring_dim: int = self.cc.GetRingDimension()
        # A key of no meaning: objects under it show us the headers of each kind.
        self._spare = self.cc.KeyGen()
        self._lock = threading.Lock()
        self._by_towers: dict[tuple[str, int], Skeleton] = {}
        self._rotations: dict[int, Skeleton] = {}
        openfhe.DisablePrecomputeCRTTablesAfterDeserializaton()

    def public_key(self, b: Coefficients, seed: bytes) -> Any:
        """The key (b, a) with a from the common reference string."""
        a = reference.expand(self.key_shape, seed, "public-key")
        return self._public_key.wrap(np.vstack([b, a]))

    @cached_property
    def _public_key(self) -> Skeleton:
        return Skeleton(self._spare.publicKey, self.ring_dim, _loader(openfhe.DeserializePublicKeyString))

    @cached_property
    def key_shape(self) -> Shape:
        """One polynomial over all primes of the ciphertext modulus."""
        whole = self._public_key.shape
        return whole.rows(0, len(whole.moduli) // 2)

    def strip_public(self, key: Any) -> Coefficients:
        """The first half of a public key: b."""
        return self._public_key.strip(key)[: len(self.key_shape.moduli)]

    @cached_property
    def switch_key(self) -> Skeleton:
        """A key-switching key: the vectors a and b, over the extended primes."""
        template = self.cc.KeySwitchGen(self._spare.secretKey, self._spare.secretKey)
        return Skeleton(template, self.ring_dim, _loader(openfhe.DeserializeEvalKeyString))

    @cached_property
    def switch_half(self) -> Shape:
        """One of its two vectors."""
        whole = self.switch_key.shape
        return whole.rows(0, len(whole.moduli) // 2)

    def rotation_key(self, index: int) -> Skeleton:
        """A key-switching key for one automorphism, in the map that OpenFHE keeps it in."""
        with self._lock:
            if index not in self._rotations:
                skeleton, at = self._some_rotation
                self._rotations[index] = skeleton.patched(at, struct.pack("<I", index))
            return self._rotations[index]

    @cached_property
    def _some_rotation(self) -> tuple[Skeleton, int]:
        """A map with one key, and where its header names the automorphism: there alone two maps differ."""
        load = _loader(openfhe.DeserializeEvalKeyMapString)
        maps = (self.cc.EvalAutomorphismKeyGen(self._spare.secretKey, [index]) for index in (5, 25))
        one, other = (Skeleton(made, self.ring_dim, load) for made in maps)
        return one, next(at for at, (x, y) in enumerate(zip(one.header, other.header, strict=True)) if x != y)

    def automorphism(self, steps: int) -> int:
        """OpenFHE's index of a rotation by so many slots to the left."""
        return int(self.cc.FindAutomorphismIndex(steps))

    def ciphertext(self, towers: int, polynomials: int = 2) -> Skeleton:
        """A ciphertext of scale degree 1 with so many primes left."""
        key = (f"ciphertext-{polynomials}", towers)
        with self._lock:
            if key not in self._by_towers:
                whole = len(self.key_shape.moduli)
                template = self.cc.Encrypt(self._spare.publicKey, self.encode([0.0]))
                if towers < whole:
                    template = self.cc.Compress(template, towers)
                if polynomials == 1:
                    template.RemoveElement(0)
                self._by_towers[key] = Skeleton(template, self.ring_dim, _loader(openfhe.DeserializeCiphertextString))
            return self._by_towers[key]

    @cached_property
    def refresh_towers(self) -> int:
        """The primes that a ciphertext keeps for a refresh."""
        adjusted = self.cc.IntMPBootAdjustScale(self.cc.Encrypt(self._spare.publicKey, self.encode([0.0])))
        return len(_shape_of(adjusted, self.ring_dim).moduli) // 2

    @cached_property
    def refresh_random(self) -> Skeleton:
        """The public random element of a refresh."""
        template = self.cc.IntMPBootRandomElementGen(self._spare.publicKey)
        return Skeleton(template, self.ring_dim, _loader(openfhe.DeserializeCiphertextString))

    @cached_property
    def refresh_share(self) -> tuple[Skeleton, Skeleton]:
        """The two parts of a refresh share: a masked decryption and the mask, encrypted."""
        adjusted = self.cc.IntMPBootAdjustScale(self.cc.Encrypt(self._spare.publicKey, self.encode([0.0])))
        adjusted.RemoveElement(0)
        random = self.cc.IntMPBootRandomElementGen(self._spare.publicKey)
        parts = self.cc.IntMPBootDecrypt(self._spare.secretKey, adjusted, random)
        load = _loader(openfhe.DeserializeCiphertextString)
        first, second = (Skeleton(part, self.ring_dim, load) for part in parts)
        return first, second

    def encode(self, values: Iterable[float]) -> Any:
        """A plaintext with one number a slot; the other slots hold 0."""
        return self.cc.MakeCKKSPackedPlaintext(list(map(float, values)))

    def encrypt(self, public_key: Any, values: Iterable[float]) -> Coefficients:
        """Numbers, encrypted to the joint key."""
        towers = len(self.key_shape.moduli)
        return self.ciphertext(towers).strip(self.cc.Encrypt(public_key, self.encode(values)))

    @property
    def fresh_shape(self) -> Shape:
        """Of a fresh ciphertext."""
        return self.ciphertext(len(self.key_shape.moduli)).shape


_contexts: dict[str, Context] = {}
_making = threading.Lock()


def context_of(profile: Profile) -> Context:
    """The context of a profile, made once per process."""
    with _making:
        if profile.name not in _contexts:
            _contexts[profile.name] = Context(profile)
        return _contexts[profile.name]


def _crypto_context(profile: Profile) -> Any:
    parameters = openfhe.CCParamsCKKSRNS()
    parameters.SetSecurityLevel(openfhe.HEStd_128_classic if profile.secure else openfhe.HEStd_NotSet)
    parameters.SetRingDim(1 << profile.ring_bits)
    parameters.SetBatchSize(profile.slots)
    parameters.SetMultiplicativeDepth(profile.depth)
    parameters.SetScalingModSize(profile.scale_bits)
    parameters.SetFirstModSize(profile.first_bits)
    parameters.SetScalingTechnique(openfhe.FIXEDAUTO)
    parameters.SetKeySwitchTechnique(openfhe.HYBRID if profile.hybrid else openfhe.BV)
    parameters.SetInteractiveBootCompressionLevel(openfhe.COMPACT)
    if profile.digits:
        parameters.SetNumLargeDigits(profile.digits)
    made = openfhe.GenCryptoContext(parameters)
    for feature in _FEATURES:
        made.Enable(feature)
    return made


def _shape_of(thing: Any, ring_dim: int) -> Shape:
    return Skeleton(thing, ring_dim, _loader(openfhe.DeserializeCiphertextString)).shape


def _loader(function: Any) -> Any:
    def load(raw: bytes) -> Any:
        return function(raw, openfhe.BINARY)

    return load
