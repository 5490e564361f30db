"""Parameters from the public bounds of both sets: the same on both sides, and no secret in them.

table    rows · 409 bins of 5 slots, at least 1.5 bins an item of the querier
load     the fullest bin holds at most m of the holder's items with probability 0.9:
         bins · P(Binomial(held, 3 / bins) > m) <= 0.1; the holder draws hash seeds until it is so
bundles  P · d >= m. A query is d polynomials a row, an answer 4·P: the d that makes d + 4·P smallest

Noise. A fresh ciphertext is q·m/t + r + e: r in [0, 1) from rounding, e of deviation 3.19. Times a plaintext with
coefficients in [0, t), added over d powers, the noise is d·N·t/4 from the means and, but for 2^-50, at most
8·(3.19 + 1)·t·√(d·N/3) around it. It must stay below q/2t; two bits are kept in reserve.

Security. N = 2048 allows 54 bits of q at 128 bits (HomomorphicEncryption.org, ternary secret); 51 suffice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

PLAIN_MODULUS = 65537
RING_DIM = 2048
FELTS = 5  # field elements of 16 bits an item: a foreign item matches with probability (d / 2^16)^5
HASHES = 3
BINS_PER_ROW = (RING_DIM - 1) // FELTS  # at least one slot stays spare, for the sentinel
LARGEST_SET = 200_000

_SECURE_BITS = 54
_MODULUS_BITS = 51
_DEVIATION = 3.19
_RESERVE_BITS = 2.0
_OVERFLOW = 0.1
# Polynomials on the wire: a power is one (the other comes from a seed), a bundle two ciphertexts of two.
_BUNDLE_COST = 4


class ParametersError(ValueError):
    """Parameters that would not be secure, or not leave the noise enough room."""


@dataclass(frozen=True)
class Parameters:
    """The bounds of both sets, and what follows from them."""

    queried: int
    held: int
    rows: int
    """Ciphertexts a power: each carries BINS_PER_ROW bins."""
    powers: int
    """d: the items of a bundle, and the powers of a query."""
    bundles: int
    """P: bundles a bin."""
    modulus_bits: int = _MODULUS_BITS

    def __post_init__(self) -> None:
        if not (1 <= self.queried <= LARGEST_SET and 1 <= self.held <= LARGEST_SET):
            raise ParametersError(f"a set has 1 to {LARGEST_SET} items")
        if self.rows < 1 or 2 * self.bins < 3 * self.queried:
            raise ParametersError("the table has fewer than 1.5 bins an item")
        if self.powers < 2 or self.bundles < 1:
            raise ParametersError("a bin has at least one bundle of two items")
        if self.modulus_bits > _SECURE_BITS:
            raise ParametersError(f"a modulus of {self.modulus_bits} bits is not secure with ring dimension {RING_DIM}")
        if self.margin_bits < _RESERVE_BITS:
            raise ParametersError(f"{self.margin_bits:.1f} bits are left for noise, {_RESERVE_BITS} are needed")

    @property
    def bins(self) -> int:
        """Of the whole table."""
        return self.rows * BINS_PER_ROW

    @property
    def margin_bits(self) -> float:
        """log2 of what the noise of an answer leaves of q/2t; below 0 it does not decrypt."""
        terms = self.powers * RING_DIM
        noise = PLAIN_MODULUS * (terms / 4 + 8 * (_DEVIATION + 1) * math.sqrt(terms / 3))
        return self.modulus_bits - 1 - math.log2(PLAIN_MODULUS) - math.log2(noise)

    @property
    def query_messages(self) -> int:
        """The seed, and one polynomial a power and row."""
        return 1 + self.rows * self.powers

    @property
    def answer_messages(self) -> int:
        """Two ciphertexts a bundle and row."""
        return 2 * self.rows * self.bundles


def choose(queried: int, held: int) -> Parameters:
    """The parameters for at most so many items on each side."""
    if not (1 <= queried <= LARGEST_SET and 1 <= held <= LARGEST_SET):
        raise ParametersError(f"a set has 1 to {LARGEST_SET} items")
    rows = -(-3 * queried // (2 * BINS_PER_ROW))
    load = fullest_bin(held, rows * BINS_PER_ROW)
    # Least bytes; among equals the fewest ciphertexts to answer with.
    _, bundles, powers = min(
        (powers + _BUNDLE_COST * bundles, bundles, powers)
        for bundles in range(1, load + 1)
        for powers in [max(2, -(-load // bundles))]
    )
    return Parameters(queried, held, rows, powers, bundles)


def fullest_bin(held: int, bins: int) -> int:
    """The smallest m with bins · P(Binomial(held, 3 / bins) > m) <= 0.1.

    Only additions, multiplications and divisions: both sides must come to the same number on any machine.
    """
    mode = held * HASHES // bins
    below = list(_weights(held, bins, mode, -1))
    above = list(_weights(held, bins, mode, +1))
    total = sum(below) + sum(above) - 1.0  # the mode, of weight 1, is in both
    tail = 0.0
    for step in range(len(above) - 1, 0, -1):
        tail += above[step]
        if bins * tail > _OVERFLOW * total:
            return mode + step
    return max(mode, 1)


def _weights(held: int, bins: int, mode: int, direction: int) -> Iterator[float]:
    """Probabilities from the mode up or down, relative to it, as long as they count."""
    weight, k = 1.0, mode
    odds = HASHES / (bins - HASHES)
    while weight > 1e-18 and 0 <= k <= held:
        yield weight
        weight *= (held - k) / (k + 1) * odds if direction > 0 else k / (held - k + 1) / odds
        k += direction
