"""The rings that secure sums are formed in: vectors of elements, behind one interface.

FIELD61      integers modulo the prime 2^61 - 1: counts, answers, model vectors; an array of shape (n,)
Z256         integers modulo 2^256: fixed point (crypto.fixed_point); shape (n, 4), 64-bit limbs, lowest first
Wide(w)      integers modulo 256^w, a few numbers of any size: shape (n, ceil(w / 8)); Z256 is Wide(32)

Elements are kept reduced. No function changes its arguments. Arrays made from bytes may be views of these bytes,
and read-only.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto import field61

Vector = NDArray[np.uint64]
RandomBytes = Callable[[int], bytes]
Bytes = bytes | bytearray | memoryview

_LIMB_BYTES = 8
_FULL = np.uint64(2**64 - 1)
# So many carries out of one limb are counted in one byte.
_MOST_AT_ONCE = 255


class BadElementsError(ValueError):
    """Bytes that are not the elements that were expected."""


class Ring(Protocol):
    """What masks, shares and sums need of the numbers they work on. The first axis of a vector is the element."""

    @property
    def element_bytes(self) -> int:
        """Bytes per element, on the wire and of randomness."""

    def zeros(self, n: int) -> Vector:
        """The zero vector."""

    def add(self, a: Vector, b: Vector) -> Vector:
        """A + b."""

    def subtract(self, a: Vector, b: Vector) -> Vector:
        """A - b."""

    def add_all(self, vectors: Sequence[Vector]) -> Vector:
        """The sum of at least one vector; quicker than adding them one by one."""

    def random(self, n: int, random_bytes: RandomBytes = secrets.token_bytes) -> Vector:
        """Uniformly random elements."""

    def uniform(self, raw: Bytes, n: int) -> Vector:
        """Uniform elements from n · element_bytes uniform bytes."""

    def masked(self, vector: Vector, added: Sequence[Bytes], subtracted: Sequence[Bytes]) -> Vector:
        """A vector plus uniform elements from some bytes, minus those from others."""

    def to_bytes(self, vector: Vector) -> bytes:
        """The elements as they are sent: little-endian, side by side."""

    def from_bytes(self, raw: Bytes, n: int) -> Vector:
        """Inverse of to_bytes; raises BadElementsError unless these are exactly n elements."""


def _expect(raw: Bytes, n: int, element_bytes: int) -> None:
    if len(raw) != n * element_bytes:
        raise BadElementsError(f"{len(raw)} bytes are not {n} elements of {element_bytes} bytes")


def _check_shapes(vectors: Iterable[Vector]) -> None:
    """Numpy would silently stretch the shorter one."""
    shapes = {vector.shape for vector in vectors}
    if len(shapes) != 1:
        raise ValueError(f"vectors of shapes {sorted(shapes)} cannot be added")


class Field61:
    """The prime field modulo p = 2^61 - 1, elements below p in 8 bytes."""

    element_bytes = 8

    def zeros(self, n: int) -> Vector:
        """The zero vector."""
        return np.zeros(n, dtype=np.uint64)

    def add(self, a: Vector, b: Vector) -> Vector:
        """A + b mod p."""
        _check_shapes((a, b))
        return field61.add(a, b)

    def subtract(self, a: Vector, b: Vector) -> Vector:
        """A - b mod p."""
        _check_shapes((a, b))
        return field61.subtract(a, b)

    def add_all(self, vectors: Sequence[Vector]) -> Vector:
        """The sum mod p, reduced once per seven addends."""
        _check_shapes(vectors)
        return field61.add_all(vectors)

    def random(self, n: int, random_bytes: RandomBytes = secrets.token_bytes) -> Vector:
        """Random elements, as uniform as those of `uniform`."""
        return self.uniform(random_bytes(n * self.element_bytes), n)

    def uniform(self, raw: Bytes, n: int) -> Vector:
        """The low 61 bits of 8 bytes each, with p itself counted as 0.

        0 comes up twice as often as any other element: a statistical distance from uniform of 2^-61 per element.
        """
        return field61.from_low_bits(self._words(raw, n))

    def masked(self, vector: Vector, added: Sequence[Bytes], subtracted: Sequence[Bytes]) -> Vector:
        """The low 61 bits are added as they are: p itself counts as 0 in a sum."""
        plus, minus = ([self._words(raw, len(vector)) for raw in many] for many in (added, subtracted))
        total = field61.add_low_bits([vector, *plus])
        return field61.subtract(total, field61.add_low_bits(minus)) if minus else total

    def _words(self, raw: Bytes, n: int) -> Vector:
        _expect(raw, n, self.element_bytes)
        return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False)

    def to_bytes(self, vector: Vector) -> bytes:
        """8 bytes per element."""
        return vector.astype("<u8", copy=False).tobytes()

    def from_bytes(self, raw: Bytes, n: int) -> Vector:
        """Inverse of to_bytes; a number of p or more is no element."""
        found = self._words(raw, n)
        if n and found.max() >= field61.PRIME:
            raise BadElementsError("a number of 2^61 - 1 or more is no element of the field")
        return found


@dataclass(frozen=True)
class Wide:
    """Integers modulo 256^element_bytes, as 64-bit limbs, lowest first; unused bits of the last limb are zero."""

    element_bytes: int

    def __post_init__(self) -> None:
        if self.element_bytes < 1:
            raise ValueError(f"no integer has {self.element_bytes} bytes")

    @property
    def limbs(self) -> int:
        """64-bit limbs per element."""
        return -(-self.element_bytes // _LIMB_BYTES)

    def zeros(self, n: int) -> Vector:
        """The zero vector."""
        return np.zeros((n, self.limbs), dtype=np.uint64)

    def add(self, a: Vector, b: Vector) -> Vector:
        """A + b."""
        return self.add_all((a, b))

    def subtract(self, a: Vector, b: Vector) -> Vector:
        """A - b = a + ~b + 1: two's complement."""
        return self._sum((a, ~b), carry_in=1)

    def add_all(self, vectors: Sequence[Vector]) -> Vector:
        """The sum; carries are counted, and passed on once, at the end."""
        total = self._sum(vectors[:_MOST_AT_ONCE], carry_in=0)
        for at in range(_MOST_AT_ONCE, len(vectors), _MOST_AT_ONCE - 1):
            total = self._sum((total, *vectors[at : at + _MOST_AT_ONCE - 1]), carry_in=0)
        return total

    def _sum(self, vectors: Sequence[Vector], carry_in: int) -> Vector:
        _check_shapes(vectors)
        total = vectors[0].copy()
        counted = np.zeros(total.shape, dtype=np.uint8)
        for vector in vectors[1:]:
            total += vector
            counted += (total < vector).view(np.uint8)
        carries = np.empty_like(total)
        carries[:, 0] = carry_in
        carries[:, 1:] = counted[:, :-1]
        total += carries
        over = total < carries
        if over[:, :-1].any():
            _ripple(total, over)
        return self._cut(total)

    def _cut(self, total: Vector) -> Vector:
        spare = _LIMB_BYTES * self.limbs - self.element_bytes
        if spare:
            total[:, -1] &= _FULL >> np.uint64(8 * spare)
        return total

    def random(self, n: int, random_bytes: RandomBytes = secrets.token_bytes) -> Vector:
        """Uniformly random elements."""
        return self.uniform(random_bytes(n * self.element_bytes), n)

    def uniform(self, raw: Bytes, n: int) -> Vector:
        """Any bytes are elements: exactly uniform."""
        return self.from_bytes(raw, n)

    def masked(self, vector: Vector, added: Sequence[Bytes], subtracted: Sequence[Bytes]) -> Vector:
        """Carries are passed on once for each direction."""
        plus, minus = ([self.uniform(raw, len(vector)) for raw in many] for many in (added, subtracted))
        total = self.add_all([vector, *plus])
        return self.subtract(total, self.add_all(minus)) if minus else total

    def to_bytes(self, vector: Vector) -> bytes:
        """`element_bytes` per element."""
        limbs = np.ascontiguousarray(vector, dtype="<u8")
        if self.element_bytes % _LIMB_BYTES == 0:
            return limbs.tobytes()
        return limbs.view(np.uint8)[:, : self.element_bytes].tobytes()

    def from_bytes(self, raw: Bytes, n: int) -> Vector:
        """Inverse of to_bytes."""
        _expect(raw, n, self.element_bytes)
        found = np.frombuffer(raw, np.uint8).reshape(n, self.element_bytes)
        if self.element_bytes % _LIMB_BYTES:
            padded = np.zeros((n, _LIMB_BYTES * self.limbs), dtype=np.uint8)
            padded[:, : self.element_bytes] = found
            found = padded
        return found.view("<u8").astype(np.uint64, copy=False)

    def from_integers(self, values: Sequence[int]) -> Vector:
        """Python's integers, modulo 256^element_bytes; negative ones in two's complement."""
        most = (1 << (8 * self.element_bytes)) - 1
        return self.from_bytes(
            b"".join((value & most).to_bytes(self.element_bytes, "little") for value in values), len(values)
        )

    def to_integers(self, vector: Vector, *, signed: bool = False) -> list[int]:
        """Python's integers, from 0, or signed as in two's complement."""
        raw, width = self.to_bytes(vector), self.element_bytes
        return [int.from_bytes(raw[at : at + width], "little", signed=signed) for at in range(0, len(raw), width)]


def _ripple(total: Vector, over: NDArray[np.bool_]) -> None:
    """Pass on the carries out of limbs (`over`), in place, through limbs that are all ones, within each element.

    With a bit per limb, one addition of two Python integers finds all limbs that a carry gets to: adding `over` to
    itself makes the carries, and the ones let them through. So no row of ones is too long, whoever chose the numbers.
    """
    ones = total == _FULL
    # Nothing leaves an element.
    over[:, -1] = ones[:, -1] = False
    start, through = _bits(over), _bits(ones)
    reached = ((start | through) + start) ^ through
    flags = np.frombuffer(reached.to_bytes(-(-total.size // 8), "little"), np.uint8)
    total += np.unpackbits(flags, count=total.size, bitorder="little").reshape(total.shape)


def _bits(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


FIELD61 = Field61()
Z256 = Wide(32)
