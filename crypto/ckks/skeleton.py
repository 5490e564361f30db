"""Coefficients on the wire: a peer sends numbers only, and the receiver wraps them in a header of its own.

OpenFHE's deserializer trusts its input: bytes that were changed can end the process, and so can well-formed objects
of another shape. So no peer's bytes ever reach it. A skeleton is made from an object of our own: it knows where the
coefficients stand in the serialized form. `strip` takes them out; `parse` checks a peer's for length and range;
`wrap` puts them between our own header bytes.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openfhe
from numpy.typing import NDArray

# One row a polynomial and tower, all coefficients below that tower's prime.
Coefficients = NDArray[np.uint64]


class BadCoefficientsError(ValueError):
    """Bytes that are not the coefficients they should be."""


@dataclass(frozen=True)
class Shape:
    """The primes of the rows, in order, and the length of a row."""

    moduli: tuple[int, ...]
    ring_dim: int

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return 8 * len(self.moduli) * self.ring_dim

    def __add__(self, other: Shape) -> Shape:
        return Shape(self.moduli + other.moduli, self.ring_dim)

    def rows(self, start: int, stop: int) -> Shape:
        """A part of it."""
        return Shape(self.moduli[start:stop], self.ring_dim)

    def column(self) -> Coefficients:
        """The primes as a column, to compute with whole matrices."""
        return np.array(self.moduli, dtype=np.uint64)[:, np.newaxis]

    def parse(self, raw: bytes) -> Coefficients:
        """A peer's bytes, checked."""
        if len(raw) != self.size_bytes:
            raise BadCoefficientsError(f"{len(raw)} bytes instead of {self.size_bytes}")
        found = np.frombuffer(raw, dtype="<u8").reshape(len(self.moduli), self.ring_dim)
        if (found >= self.column()).any():
            raise BadCoefficientsError("a coefficient is not below its prime")
        return found

    def zeros(self) -> Coefficients:
        """All zero."""
        return np.zeros((len(self.moduli), self.ring_dim), dtype=np.uint64)

    def add(self, terms: Sequence[Coefficients]) -> Coefficients:
        """The sum, row by row modulo its prime: how shares of any kind are aggregated."""
        total = terms[0].astype(np.uint64)
        moduli = self.column()
        for term in terms[1:]:
            total += term
            # Both are below a prime of at most 60 bits, so the sum fits. Less the prime, a sum below it wraps around
            # and is the larger of the two.
            np.minimum(total, total - moduli, out=total)
        return total

    def negative(self, term: Coefficients) -> Coefficients:
        """What adds up to zero with it."""
        moduli = self.column()
        return np.where(term == 0, term, moduli - term)


def to_bytes(coefficients: Coefficients) -> bytes:
    """For the wire."""
    return coefficients.astype("<u8", copy=False).tobytes()


class Skeleton:
    """What surrounds the coefficients of one kind of object."""

    def __init__(self, template: Any, ring_dim: int, load: Callable[[bytes], Any]) -> None:
        raw = openfhe.Serialize(template, openfhe.BINARY)
        regions = _regions(raw, ring_dim)
        self.shape = Shape(tuple(modulus for _, modulus in regions), ring_dim)
        ends = [0, *(start + 8 * ring_dim for start, _ in regions)]
        starts = [*(start for start, _ in regions), len(raw)]
        self._between = [raw[end:start] for end, start in zip(ends, starts, strict=True)]
        self._load = load

    @property
    def header(self) -> bytes:
        """What stands before the first coefficient."""
        return bytes(self._between[0])

    def patched(self, at: int, field: bytes) -> Skeleton:
        """The same with one field of the header replaced."""
        made = copy.copy(self)
        made._between = [self.header[:at] + field + self.header[at + len(field) :], *self._between[1:]]
        return made

    def strip(self, thing: Any) -> Coefficients:
        """The coefficients of an object of ours."""
        raw = openfhe.Serialize(thing, openfhe.BINARY)
        ring_dim = self.shape.ring_dim
        regions = _regions(raw, ring_dim)
        if tuple(modulus for _, modulus in regions) != self.shape.moduli:
            raise ValueError("the object has another shape than its skeleton")
        return np.stack([np.frombuffer(raw, "<u8", ring_dim, start) for start, _ in regions])

    def wrap(self, coefficients: Coefficients) -> Any:
        """An object with these coefficients, which were checked before."""
        if coefficients.shape != (len(self.shape.moduli), self.shape.ring_dim):
            raise ValueError("the coefficients have another shape than the skeleton")
        pieces = [self._between[0]]
        for row, after in zip(coefficients, self._between[1:], strict=True):
            pieces += (to_bytes(row), after)
        return self._load(b"".join(pieces))


def _regions(raw: bytes, ring_dim: int) -> list[tuple[int, int]]:
    """Where rows of coefficients begin, and their primes: a row is (length, coefficients, prime)."""
    length = struct.pack("<Q", ring_dim)
    found: list[tuple[int, int]] = []
    at = 0
    while (at := raw.find(length, at)) >= 0:
        start, end = at + 8, at + 8 + 8 * ring_dim
        at += 1
        if end + 8 > len(raw):
            continue
        (modulus,) = struct.unpack_from("<Q", raw, end)
        # The primes of the number-theoretic transform are 1 modulo 2N; the length also stands elsewhere.
        if modulus >> 20 and modulus % (2 * ring_dim) == 1 and modulus < 1 << 61:
            row = np.frombuffer(raw, "<u8", ring_dim, start)
            if (row < modulus).all():
                found.append((start, modulus))
                at = end
    return found
