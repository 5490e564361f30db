"""Shares that show which values at least t sites hold, and nothing of the others (over-threshold intersection).

Mahdavi et al. 2020, with shares from an OPRF token T of each value and two lanes over GF(2^61 - 1):

coefficients  c_1 … c_{t-1} = H(T, table)
share         f(x_i) = c_1·x_i + … + c_{t-1}·x_i^{t-1} of site i: f(0) = 0
table         a site's shares in bins, at most one per bin, and random numbers in all others
hit           t sites whose shares in one bin of one table interpolate to 0 at 0, in both lanes

Fewer than t shares of a value in a table are uniform, and those in two tables have nothing to do with each other: if a
share came back in another table, it would stand out from the random numbers. A second lane makes false hits as rare as
2^-122 a try.

Bins hold one share, so that t sites cost one interpolation a bin instead of β^t. A value that loses its bin to another
of its site would not be found there; so there are 30 tables in pairs. In the first of a pair the smaller hash wins a
bin, in the second, with other bins, the larger one. With t·M bins for M values, a value that t sites hold is in its
bin at all of them in a table with probability e^-u or e^-(1-u), u its hash's place in (0, 1): it misses both of a pair
with 3/e - 1 = 0.104, and all fifteen pairs with 2^-49.
"""

import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto import field61
from crypto.field61 import Elements

TABLES = 30
LANES = 2
SHARE_BYTES = 8 * LANES
EMPTY = -1

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """Public: the same at all sites."""

    threshold: int
    # The most values that a site has, over all columns.
    items: int

    @property
    def bins(self) -> int:
        """In each table."""
        return self.threshold * self.items

    @property
    def cells(self) -> int:
        """In all tables."""
        return TABLES * self.bins

    @property
    def size_bytes(self) -> int:
        """Of a site's tables."""
        return SHARE_BYTES * self.cells


def place_key(token: bytes) -> bytes:
    """What says where a value belongs; one-way, so that it does not give away the shares."""
    return hashlib.sha256(b"commonscale/v1/otmppsi/place\0" + token).digest()


def gen_shares(tokens: Sequence[bytes], x: int, threshold: int) -> Elements:
    """f(x) of each token in each table: (tokens, tables, lanes)."""
    total: Elements = np.zeros((len(tokens), TABLES, LANES), dtype=np.uint64)
    coefficients = _coefficients(tokens, threshold)
    power = np.uint64(x)
    for k in range(threshold - 1):
        total = field61.add(total, field61.multiply(coefficients[:, :, k], np.full_like(total, power)))
        power = np.uint64(int(power) * x % field61.PRIME)
    return total


def _coefficients(tokens: Sequence[bytes], threshold: int) -> Elements:
    """Sixteen bytes for every table, coefficient and lane: what is left of 2^128 modulo p is uniform up to 2^-67."""
    size = 16 * TABLES * LANES * (threshold - 1)
    raw = b"".join(hashlib.shake_256(b"commonscale/v1/otmppsi/share\0" + t).digest(size) for t in tokens)
    words = np.frombuffer(raw, "<u8").reshape(len(tokens), TABLES, threshold - 1, LANES, 2).astype(np.uint64)
    # high·2^64 + low, and 2^64 is 8.
    high, low = field61.reduce(words[..., 1]), field61.reduce(words[..., 0])
    return field61.add(field61.multiply(high, np.full_like(high, np.uint64(8))), low)


def occupants(places: Sequence[bytes], shape: Shape) -> Places:
    """Which of a site's items is in each cell, or EMPTY: (tables, bins). Follows from the places alone."""
    raw = b"".join(hashlib.shake_256(b"commonscale/v1/otmppsi/bin\0" + p).digest(16 * TABLES) for p in places)
    words = np.frombuffer(raw, "<u8").reshape(len(places), TABLES, 2).astype(np.uint64)
    bins = (words[..., 0] % np.uint64(shape.bins)).astype(np.int64)
    # One rank for both tables of a pair.
    ranks = words[:, 0::2, 1].repeat(2, axis=1)
    found = np.full((TABLES, shape.bins), EMPTY, dtype=np.int64)
    for table in range(TABLES):
        order = np.argsort(ranks[:, table], kind="stable")
        # Assigned in this order, the last to come keeps the bin.
        order = order[::-1] if table % 2 == 0 else order
        found[table, bins[order, table]] = order
    return found


def fill(
    shares: Elements, occupied: Places, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> NDArray[np.uint64]:
    """The tables: shares where there are any, random elements elsewhere."""
    noise = np.frombuffer(random_bytes(16 * LANES * occupied.size), "<u8").reshape(-1, 2).astype(np.uint64)
    high, low = field61.reduce(noise[:, 1]), field61.reduce(noise[:, 0])
    filled = field61.add(field61.multiply(high, np.full_like(high, np.uint64(8))), low).reshape(-1, LANES)
    there = np.flatnonzero(occupied.ravel() != EMPTY)
    filled[there] = shares[occupied.ravel()[there], there // (occupied.size // TABLES)]
    return filled


@dataclass(frozen=True)
class Hit:
    """A cell in which these sites (places in the ring) hold the same value."""

    cell: int
    members: frozenset[int]


def reconstruct(tables: Mapping[int, NDArray[np.uint64]], threshold: int) -> list[Hit]:
    """Try every t sites on every cell. Sites are numbered from 0; x_i = i + 1."""
    found: dict[int, list[set[int]]] = {}
    for chosen in itertools.combinations(sorted(tables), threshold):
        weights = field61.lagrange_at_zero([site + 1 for site in chosen])
        for cell in _zeros(tables, chosen, weights):
            _join(found.setdefault(cell, []), set(chosen))
    return [Hit(cell, frozenset(group)) for cell, groups in sorted(found.items()) for group in groups]


def _zeros(tables: Mapping[int, NDArray[np.uint64]], chosen: Sequence[int], weights: Sequence[int]) -> Iterator[int]:
    """Cells where the chosen sites' shares interpolate to zero; the second lane only where the first does."""
    candidates = np.arange(len(tables[chosen[0]]))
    for lane in range(LANES):
        total: Elements = np.zeros(len(candidates), dtype=np.uint64)
        for site, weight in zip(chosen, weights, strict=True):
            column = tables[site][candidates, lane]
            total = field61.add(total, field61.multiply(column, np.full_like(column, np.uint64(weight))))
        candidates = candidates[total == 0]
    return iter(candidates.tolist())


def _join(groups: list[set[int]], chosen: set[int]) -> None:
    """A site has one item in a cell: groups that share a site hold the same value."""
    touching = [group for group in groups if group & chosen]
    for group in touching:
        groups.remove(group)
        chosen |= group
    groups.append(chosen)


def to_bytes(table: NDArray[np.uint64]) -> bytes:
    """For the wire."""
    return table.astype("<u8", copy=False).tobytes()


def from_bytes(raw: bytes, rows: int) -> NDArray[np.uint64]:
    """A peer's shares, checked."""
    if len(raw) != SHARE_BYTES * rows:
        raise ValueError(f"{len(raw)} bytes instead of {SHARE_BYTES * rows}")
    found = np.frombuffer(raw, "<u8").astype(np.uint64).reshape(rows, LANES)
    if (found >= np.uint64(field61.PRIME)).any():
        raise ValueError("a share is not below the prime")
    return found
