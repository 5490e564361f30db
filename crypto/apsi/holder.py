"""The holder's steps: it has tokens with labels, and chooses the hash seed.

build   every item stands in all of its three bins. A bin is P bundles of d places; random numbers fill the empty
        ones. The items of a bundle differ in each field element, so that L exists. A hash seed is drawn until all
        items fit.
answer  for every row and bundle, in each slot: M(x) = Π (x - z) and L with L(z) = (label, 48 zero bits) ⊕ pad(z),
        as Σ a_k·Enc(x^k) + a_0

Learns nothing but the public bounds. The querier learns the labels of common items, and of the others numbers that
depend on their tokens. That the hash seed was drawn until they fit says next to nothing: tokens are pseudo-random.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.apsi import items, polynomials
from crypto.apsi.context import SEED_BYTES, USED_SLOTS, Context, context_of, with_sentinel
from crypto.apsi.items import HASH_SEED_BYTES, Felts, Indices, PlacementError, RandomBytes
from crypto.apsi.parameters import BINS_PER_ROW, FELTS, HASHES, Parameters
from crypto.apsi.polynomials import Integers
from crypto.ckks.skeleton import BadCoefficientsError, to_bytes

# Each draw succeeds with probability 0.9; two tokens with equal field elements (one pair in 2^80) never do.
_DRAWS = 64


@dataclass(frozen=True, eq=False)
class Database:
    """The points (z, L(z)) of all bundles: arrays [bin, bundle, place, field element]."""

    parameters: Parameters
    hash_seed: bytes
    points: Felts = field(repr=False)
    values: Felts = field(repr=False)

    @classmethod
    def build(
        cls,
        parameters: Parameters,
        tokens: Sequence[bytes],
        labels: Sequence[int],
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> Database:
        """Labels are 0 … 2^32 - 1, one a token. The same random bytes give the same database."""
        items.check(tokens, parameters.held)
        if len(labels) != len(tokens) or not all(0 <= label < 1 << 32 for label in labels):
            raise ValueError("every token has a label of 32 bits")
        felts, pads = items.felts_and_pads(tokens)
        hash_seed, owner = _placed(parameters, tokens, felts, random_bytes)
        shape = (parameters.bins, parameters.bundles, parameters.powers)
        points = items.random_felts((*shape, FELTS), random_bytes)
        values = items.random_felts((*shape, FELTS), random_bytes)
        used = owner >= 0
        points[used] = felts[owner[used]]
        values[used] = (_with_check(labels) ^ pads)[owner[used]]
        _separate(points, used, random_bytes)
        return cls(parameters, hash_seed, points, values)

    def row(self, row: int) -> tuple[Integers, Integers]:
        """Points and values of one row: arrays [place, bundle, slot]."""
        bins = slice(row * BINS_PER_ROW, (row + 1) * BINS_PER_ROW)
        shape = (self.parameters.powers, self.parameters.bundles, USED_SLOTS)
        points, values = (
            whole[bins].transpose(2, 1, 0, 3).astype(np.int64).reshape(shape) for whole in (self.points, self.values)
        )
        return points, values


def gen_answer(database: Database, query: Sequence[bytes]) -> list[bytes]:
    """Enc(M) and Enc(L) of every bundle of the first row, then of the second, and so on."""
    parameters = database.parameters
    if len(query) != parameters.query_messages or len(query[0]) != SEED_BYTES:
        raise BadCoefficientsError(f"{len(query)} messages instead of a seed and {parameters.query_messages - 1}")
    ctx = context_of(parameters)
    answer: list[bytes] = []
    for row in range(parameters.rows):
        first = 1 + row * parameters.powers
        powers = _powers(ctx, query[0], query[first : first + parameters.powers], row)
        points, values = database.row(row)
        match, label = polynomials.from_roots(points), polynomials.interpolate(points, values)
        for bundle in range(parameters.bundles):
            for coefficients, monic in ((match, True), (label, False)):
                whole = with_sentinel(coefficients[:, bundle], len(answer))
                answer.append(to_bytes(ctx.ciphertext.strip(ctx.evaluate(powers, whole, monic))))
    return answer


def _powers(ctx: Context, seed: bytes, raw: Sequence[bytes], row: int) -> list[Any]:
    """Enc(x^1) … Enc(x^d) of one row, from a peer's bytes."""
    pairs = (np.vstack([ctx.polynomial.parse(c0), ctx.expand(seed, row, k)]) for k, c0 in enumerate(raw))
    return [ctx.ciphertext.wrap(pair) for pair in pairs]


def _with_check(labels: Sequence[int]) -> Felts:
    """(label, 48 zero bits) as field elements."""
    whole = np.zeros((len(labels), FELTS), dtype=np.uint16)
    numbers = np.array(labels, dtype=np.int64)
    whole[:, 0], whole[:, 1] = numbers & 0xFFFF, numbers >> 16
    return whole


def _placed(
    parameters: Parameters, tokens: Sequence[bytes], felts: Felts, random_bytes: RandomBytes
) -> tuple[bytes, Indices]:
    """A hash seed, and the item of each place [bin, bundle, place]; -1 where none is."""
    for _ in range(_DRAWS):
        hash_seed = random_bytes(HASH_SEED_BYTES)
        owner = _spread(parameters, items.bins_of(tokens, hash_seed, parameters.bins))
        if owner is not None and _regroup(owner, felts):
            return hash_seed, owner
    raise PlacementError(f"the items fit with none of {_DRAWS} hash seeds")


def _spread(parameters: Parameters, bins: Indices) -> Indices | None:
    """The items of a bin go to its bundles in turn; None if a bin overflows."""
    flat = bins.reshape(-1)
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=parameters.bins)
    if counts.max() > parameters.bundles * parameters.powers:
        return None
    rank = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    owner = np.full((parameters.bins, parameters.bundles, parameters.powers), -1, dtype=np.int64)
    owner[flat[order], rank % parameters.bundles, rank // parameters.bundles] = order // HASHES
    return owner


def _regroup(owner: Indices, felts: Felts) -> bool:
    """Repairs, in place, the bins where items of one bundle share a field element; False if one cannot be."""
    # Empty places get numbers that no item has, each another one.
    points = np.empty((*owner.shape, FELTS), dtype=np.int32)
    points[:] = -1 - np.arange(owner.shape[2], dtype=np.int32)[:, np.newaxis]
    used = owner >= 0
    points[used] = felts[owner[used]]
    marks = felts.astype(np.int64) + (np.arange(FELTS) << 16)
    for at in np.flatnonzero(_clashes(points).any(axis=1)):
        regrouped = _regrouped(owner[at], marks)
        if regrouped is None:
            return False
        owner[at] = regrouped
    return True


def _regrouped(bin_: Indices, marks: Indices) -> list[list[int]] | None:
    """One bin: an item with a mark (element and its number) that its bundle already has moves to another bundle."""
    places = bin_.shape[1]
    bundles: list[list[int]] = [[] for _ in bin_]
    seen: list[set[int]] = [set() for _ in bin_]
    moving: list[tuple[int, list[int]]] = []
    for line, bundle, known in zip(bin_, bundles, seen, strict=True):
        members = line[line >= 0]
        for item, mine in zip(members.tolist(), marks[members].tolist(), strict=True):
            if known.isdisjoint(mine):
                bundle.append(item)
                known.update(mine)
            else:
                moving.append((item, mine))
    for item, mine in moving:
        fitting = (k for k in range(len(bundles)) if len(bundles[k]) < places and seen[k].isdisjoint(mine))
        chosen = next(fitting, None)
        if chosen is None:
            return None
        bundles[chosen].append(item)
        seen[chosen].update(mine)
    return [bundle + [-1] * (places - len(bundle)) for bundle in bundles]


def _separate(points: Felts, used: NDArray[np.bool_], random_bytes: RandomBytes) -> None:
    """Draws the random points of a bundle again, in place, until all of its points differ."""
    clashing = np.argwhere(_clashes(points))
    while len(clashing):
        at = tuple(clashing.T)
        free = ~used[at]
        redrawn = points[at]
        redrawn[free] = items.random_felts((int(free.sum()), FELTS), random_bytes)
        points[at] = redrawn
        clashing = clashing[_clashes(redrawn)]


def _clashes(points: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether two points of a bundle share a field element: [bin, bundle], from [bin, bundle, place, element]."""
    ordered = np.sort(points, axis=-2)
    found: NDArray[np.bool_] = (ordered[..., 1:, :] == ordered[..., :-1, :]).any(axis=(-2, -1))
    return found
