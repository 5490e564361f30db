"""Encodings that compute a number or a vector from a category's text, without a dictionary.

Sections 7.2 (Bytes-Norm, Mod-Norm) and 7.3 (Rolling Hash, FastText) of "Privacy-Preserving Tabular Data
Transformation in FL". Where it says `int(bytes(x))`, that is the canonical text in UTF-8, read as one big-endian
integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonscale.categories import text_integer
from commonscale.estimators import fasttext
from commonscale.estimators.encoder import Encoder, hot
from commonscale.ordering import Floats

Ratio = tuple[int, int]


class BytesNormEncoder(Encoder):
    """z = (x - mean) / sqrt(variance), x = int(bytes(text)): exact in integers, rounded once.

    A text so much longer than the fitted ones that its z is beyond float64 becomes infinite.
    """

    @classmethod
    def fitted(
        cls, columns: Sequence[str], means: Sequence[Ratio], variances: Sequence[Ratio], **params: Any
    ) -> BytesNormEncoder:
        """From numerators and denominators, one pair a column. A variance of zero counts as 1."""
        if not len(columns) == len(means) == len(variances):
            raise ValueError("There must be one mean and one variance a column.")
        if any(ratio[1] < 1 for ratio in (*means, *variances)) or any(variance[0] < 0 for variance in variances):
            raise ValueError("Denominators are positive, and variances are not negative.")
        made = cls._of(columns, params)
        # Hexadecimal: an integer of thousands of digits cannot be written to JSON.
        made.mean_ = [[hex(part) for part in mean] for mean in means]
        made.variance_ = [[hex(part) for part in variance] for variance in variances]
        return made

    def _numbers(self, index: int, texts: Sequence[str | None]) -> Floats:
        mean, variance = _ratio(self.mean_[index]), _ratio(self.variance_[index])
        found = [math.nan if text is None else zscore(text_integer(text), mean, variance) for text in texts]
        return np.array(found, dtype=np.float64)


def _ratio(texts: Sequence[str]) -> Ratio:
    numerator, denominator = texts
    return int(numerator, 16), int(denominator, 16)


def zscore(x: int, mean: Ratio, variance: Ratio) -> float:
    """(x - mean) / sqrt(variance), correctly rounded; / 1 if the variance is zero."""
    difference = x * mean[1] - mean[0]
    if variance[0] == 0:
        return _quotient(difference, mean[1])
    # z² = N / D. A root of 64 bits and more, with a last bit for what is cut off, rounds as the exact root would.
    squared, over = difference**2 * variance[1], mean[1] ** 2 * variance[0]
    shift = max(0, 130 - squared.bit_length() + over.bit_length())
    shift += shift % 2
    scaled, rest = divmod(squared << shift, over)
    root = math.isqrt(scaled)
    sticky = rest != 0 or root * root != scaled
    magnitude = _quotient(2 * root + sticky, 1 << (shift // 2 + 1))
    return -magnitude if difference < 0 else magnitude


def _quotient(numerator: int, denominator: int) -> float:
    """Python rounds the quotient of two integers correctly, whatever their size."""
    try:
        return numerator / denominator
    except OverflowError:
        return -math.inf if numerator < 0 else math.inf


class ModNormEncoder(Encoder):
    """int(bytes(text)) mod 2s, with s the sum over the sites of their numbers of distinct values."""

    @classmethod
    def fitted(cls, columns: Sequence[str], sums: Sequence[int], **params: Any) -> ModNormEncoder:
        """From s, one per column."""
        # Beyond 2^53, two remainders could be the same float.
        if len(columns) != len(sums) or not all(1 <= s <= 2**52 for s in sums):
            raise ValueError("There must be one sum a column, between 1 and 2^52.")
        made = cls._of(columns, params)
        made.sums_ = [int(s) for s in sums]
        return made

    def _numbers(self, index: int, texts: Sequence[str | None]) -> Floats:
        found = [math.nan if text is None else text_integer(text) % (2 * self.sums_[index]) for text in texts]
        return np.array(found, dtype=np.float64)


# A letter is its place in the alphabet; this announces a character that has none.
_OTHER = 27


class RollingHashEncoder(Encoder):
    """One vector for all columns, with 1 at H = Σ s_i · P^i mod M of each cell, i from 1. Needs no fitting.

    The paper knows only a–z, s_i = 1 … 26, in lower case. Any other character is spelt in six symbols, all below P:
    27, then the five digits of its code point in base 26, each plus 1. Texts differ wherever their spellings do.
    """

    def __init__(
        self,
        *,
        prime: int = 31,
        buckets: int = 5000,
        sparse_output: bool = False,
        strip: bool = True,
        casefold: bool = False,
    ) -> None:
        super().__init__(strip=strip, casefold=casefold)
        self.prime = prime
        self.buckets = buckets
        self.sparse_output = sparse_output

    @classmethod
    def fitted(cls, columns: Sequence[str], **params: Any) -> RollingHashEncoder:
        """For these columns."""
        made = cls._of(columns, params)
        made._check_params()
        return made

    def _check_params(self) -> None:
        if self.prime <= _OTHER or self.buckets < 1:
            raise ValueError("prime must be above 27, and buckets at least 1.")

    def transform(self, X: Any) -> Any:  # noqa: N803
        """`buckets` columns of zeros and ones; a missing cell sets none."""
        return hot(self._encoded(X), self.buckets, np.float64, self.sparse_output)

    def _numbers(self, index: int, texts: Sequence[str | None]) -> npt.NDArray[np.int64]:
        hashes = [-1 if text is None else rolling_hash(text, self.prime, self.buckets) for text in texts]
        return np.array(hashes, dtype=np.int64)

    def _names(self) -> list[str]:
        return [f"hash_{position}" for position in range(self.buckets)]


def rolling_hash(text: str, prime: int, buckets: int) -> int:
    """H of a text, by Horner's rule from its last symbol."""
    found = 0
    for symbol in reversed([symbol for character in text.lower() for symbol in _symbols(character)]):
        found = (found + symbol) * prime % buckets
    return found


def _symbols(character: str) -> tuple[int, ...]:
    if "a" <= character <= "z":
        return (ord(character) - ord("a") + 1,)
    return (_OTHER, *(ord(character) // 26**place % 26 + 1 for place in (4, 3, 2, 1, 0)))


class FastTextEncoder(Encoder):
    """A fastText vector a column, side by side; zeros for a missing cell.

    Sites agree on the model by its hash; `model` is where this site keeps the file, and may be set anew.
    """

    def __init__(self, *, model: str = "", strip: bool = True, casefold: bool = False) -> None:
        super().__init__(strip=strip, casefold=casefold)
        self.model = model

    @classmethod
    def fitted(cls, columns: Sequence[str], model: str, dimension: int, sha256: str, **params: Any) -> FastTextEncoder:
        """For the model with this hash; the file is opened at the first transform."""
        made = cls._of(columns, {"model": model, **params})
        made.dimension_ = int(dimension)
        made.sha256_ = sha256.lower()
        return made

    def _numbers(self, index: int, texts: Sequence[str | None]) -> Floats:
        model = fasttext.verified(Path(self.model), self.sha256_)
        if model.dimension != self.dimension_:
            raise ValueError(f"The fastText model has {model.dimension} dimensions, not {self.dimension_}.")
        nothing = np.zeros(self.dimension_)
        vectors = [nothing if text is None else model.vector(text) for text in texts]
        return np.array(vectors, dtype=np.float64).reshape(-1, self.dimension_)

    def _names(self) -> list[str]:
        return [f"{column}_{place}" for column in self.feature_names_in_ for place in range(self.dimension_)]
