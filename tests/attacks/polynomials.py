"""Polynomials modulo one prime, as an attacker computes with them.

Messages hold polynomials in evaluation form: their values at the odd powers of a root of unity, bit-reversed. A secret
has small coefficients, not small values, so an attack has to go back. Any root will do: another one than OpenFHE's
permutes the coefficients and changes signs, for all polynomials alike.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Below 2^61, so that the sum of two fits.
Row = NDArray[np.uint64]


@dataclass(frozen=True)
class Field:
    """Polynomials of degree below `ring_dim` modulo X^ring_dim + 1 and a prime."""

    prime: int
    ring_dim: int

    @cached_property
    def _inverse_powers(self) -> NDArray[np.object_]:
        """Powers of the inverse root, bit-reversed: the factors of the inverse transform."""
        q, n = self.prime, self.ring_dim
        exponent = (q - 1) // (2 * n)
        root = next(x for x in (pow(g, exponent, q) for g in range(2, 1000)) if pow(x, n, q) == q - 1)
        inverse, bits = pow(root, -1, q), n.bit_length() - 1
        powers = [1]
        for _ in range(n - 1):
            powers.append(powers[-1] * inverse % q)
        return np.array([powers[int(f"{i:0{bits}b}"[::-1], 2)] for i in range(n)], dtype=object)

    def coefficients(self, values: Row) -> Row:
        """From evaluation form (Gentleman and Sande's inverse transform)."""
        q, found = self.prime, values.astype(object)
        half, length = self.ring_dim // 2, 1
        while half:
            blocks = found.reshape(half, 2, length)
            low, high = blocks[:, 0], blocks[:, 1]
            factors = self._inverse_powers[half : 2 * half, np.newaxis]
            found = np.stack([(low + high) % q, (low - high) * factors % q], axis=1).reshape(-1)
            half, length = half // 2, length * 2
        return (found * pow(self.ring_dim, -1, q) % q).astype(np.uint64)

    def values_of(self, formula: Any) -> Row:
        """What Python's integers gave, modulo the prime."""
        return (np.asarray(formula, dtype=object) % self.prime).astype(np.uint64)

    def add(self, a: Row, b: Row) -> Row:
        """A + b."""
        total = a + b
        return np.minimum(total, total - np.uint64(self.prime))

    def sub(self, a: Row, b: Row) -> Row:
        """A - b."""
        total = a - b
        return np.minimum(total, total + np.uint64(self.prime))

    def centred(self, a: Row) -> NDArray[np.int64]:
        """Between minus and plus half of the prime."""
        signed = a.astype(np.int64)
        return np.where(signed > self.prime // 2, signed - self.prime, signed)
