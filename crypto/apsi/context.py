"""BFV contexts, what crosses the wire in them, and the sentinel.

fresh ciphertext  (c0, c1) with c0 + c1·s = q·m/t + e
seeded            (c0 + (c1 - a)·s, a): the same message and noise with a uniform a from a seed, which is sent for it

Sentinel: the spare slots of each ciphertext. The querier puts 2, 3, … there, the holder the polynomial
x + x^2 + … + 1 + (number of the ciphertext in the answer). Noise above its bound is an error in some coefficients, and
so a random change of all slots, these included.
"""

import os
import threading
from typing import Any

# Daemons share their machine: one thread per process, unless the operator says otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import openfhe

from crypto.apsi import polynomials
from crypto.apsi.parameters import BINS_PER_ROW, FELTS, PLAIN_MODULUS, RING_DIM, Parameters
from crypto.apsi.polynomials import Integers
from crypto.ckks import reference
from crypto.ckks.skeleton import Coefficients, Shape, Skeleton

SEED_BYTES = 32
USED_SLOTS = FELTS * BINS_PER_ROW
SENTINELS: Integers = np.arange(2, 2 + RING_DIM - USED_SLOTS, dtype=np.int64)


class Context:
    """Everything that depends on the modulus alone. Nothing changes after it is made, so threads may share it."""

    def __init__(self, modulus_bits: int) -> None:
        self.cc: Any = _crypto_context(modulus_bits)
        # A key of no meaning: objects under it show us the headers of each kind.
        spare = self.cc.KeyGen().secretKey
        self.secret = Skeleton(spare, RING_DIM, _loader(openfhe.DeserializePrivateKeyString))
        template = self.cc.Encrypt(spare, self.encode(np.zeros(RING_DIM, dtype=np.int64)))
        self.ciphertext = Skeleton(template, RING_DIM, _loader(openfhe.DeserializeCiphertextString))
        self.polynomial: Shape = self.secret.shape
        if self.ciphertext.shape != self.polynomial + self.polynomial or len(self.polynomial.moduli) != 1:
            raise ValueError("OpenFHE made another modulus than asked for")
        openfhe.DisablePrecomputeCRTTablesAfterDeserializaton()

    def expand(self, seed: bytes, row: int, k: int) -> Coefficients:
        """The second polynomial of one ciphertext of a query."""
        return reference.expand(self.polynomial, seed, f"apsi/{row}/{k}")

    def encode(self, slots: Integers) -> Any:
        """A plaintext of numbers modulo t, one a slot."""
        # OpenFHE wants them centered around zero.
        centered = np.where(slots > PLAIN_MODULUS // 2, slots - PLAIN_MODULUS, slots)
        return self.cc.MakePackedPlaintext(np.ascontiguousarray(centered))

    def encrypt(self, secret_key: Any, s: Coefficients, slots: Integers, a: Coefficients) -> Coefficients:
        """The first polynomial of a ciphertext whose second is `a`."""
        c0, c1 = self.ciphertext.strip(self.cc.Encrypt(secret_key, self.encode(slots)))
        modulus = np.uint64(self.polynomial.moduli[0])
        product = _multiply((c1 + modulus - a[0]) % modulus, s[0], modulus)
        made: Coefficients = (c0 + product) % modulus
        return made[np.newaxis]

    def decrypt(self, secret_key: Any, ciphertext: Any) -> Integers:
        """The numbers of all slots, 0 … t - 1."""
        plain = self.cc.Decrypt(secret_key, ciphertext)
        plain.SetLength(RING_DIM)
        found: Integers = plain.GetPackedValueArray().astype(np.int64)
        return found % PLAIN_MODULUS

    def evaluate(self, powers: list[Any], coefficients: Integers, monic: bool) -> Any:
        """Σ a_k·Enc(x^k) + a_0; monic: plus the next power of x."""
        total = self.cc.EvalMult(powers[0], self.encode(coefficients[1]))
        for power, row in zip(powers[1:], coefficients[2:], strict=False):
            total = self.cc.EvalAdd(total, self.cc.EvalMult(power, self.encode(row)))
        if monic:
            total = self.cc.EvalAdd(total, powers[len(coefficients) - 1])
        return self.cc.EvalAdd(total, self.encode(coefficients[0]))


def with_sentinel(coefficients: Integers, number: int) -> Integers:
    """Coefficients of used slots, and those of the sentinel behind them."""
    spare = np.ones((len(coefficients), len(SENTINELS)), dtype=np.int64)
    spare[0] = (1 + number) % PLAIN_MODULUS
    return np.concatenate([coefficients, spare], axis=1)


def sentinel_intact(slots: Integers, degree: int, number: int) -> bool:
    """Whether the spare slots hold what that polynomial gives."""
    expected = polynomials.powers(SENTINELS, degree).sum(axis=0) + 1 + number
    return bool((slots[USED_SLOTS:] == expected % PLAIN_MODULUS).all())


_contexts: dict[int, Context] = {}
_making = threading.Lock()


def context_of(parameters: Parameters) -> Context:
    """The context of these parameters, made once per process."""
    bits = parameters.modulus_bits
    with _making:
        if bits not in _contexts:
            _contexts[bits] = Context(bits)
        return _contexts[bits]


def _crypto_context(modulus_bits: int) -> Any:
    parameters = openfhe.CCParamsBFVRNS()
    parameters.SetSecurityLevel(openfhe.HEStd_128_classic)
    parameters.SetPlaintextModulus(PLAIN_MODULUS)
    parameters.SetRingDim(RING_DIM)
    # No ciphertexts are multiplied, no keys switched: one prime of this size is the whole modulus.
    parameters.SetMultiplicativeDepth(0)
    parameters.SetKeySwitchCount(0)
    parameters.SetEvalAddCount(8)
    parameters.SetScalingModSize(modulus_bits)
    made = openfhe.GenCryptoContext(parameters)
    for feature in (openfhe.PKE, openfhe.LEVELEDSHE):
        made.Enable(feature)
    return made


def _multiply(a: Coefficients, b: Coefficients, modulus: np.uint64) -> Coefficients:
    """a·b, element by element, for a modulus of at most 54 bits."""
    # The quotient as a float is off by a few, so the remainder, exact modulo 2^64, is a few moduli, or less than zero.
    quotient = np.floor(a.astype(np.float64) * b.astype(np.float64) / float(modulus)).astype(np.uint64)
    remainder = (a * b - quotient * modulus).view(np.int64)
    return (remainder % np.int64(modulus)).astype(np.uint64)


def _loader(function: Any) -> Any:
    def load(raw: bytes) -> Any:
        return function(raw, openfhe.BINARY)

    return load
