"""The layout that all sites end with: positions in use, numbered without gaps, the same everywhere.

Whatever protocol went before, every site now has a position for each of its values, equal positions for equal values.
1. Where a job is extended, each site says what it remembers of it; those that do must remember the same.
2. A hidden sum (see hidden_sum) tells the sites which positions are in use: a private OR, or pooled counts if rare
   values are to share an identifier.
3. Where a job is extended, another hidden sum tells the sites the old identifier of a position: its holders put in
   w and w·(identifier + 1) modulo 2^64 for random w, twice; of two sums the quotient is the identifier, and nothing
   says how many held it. (Factors of two in the sum of w cost digits; the pair with fewer of them counts.)
4. Positions in use are numbered: old identifiers stay, the others follow in the order of their positions.
5. Each site sends the sizes and a keyed hash of the whole layout; all must be equal, and all sites confirm that they
   are (agreement).

Reveals: to all sites, which positions are in use, so how many different values there are (after a ring also how many
of each site's identifiers: those that no earlier site has), or, where rare values are grouped, the pooled count of each
position; after a ring, a position that one site alone uses is that site's, and so is its count. Where a job is
extended, to each site, which of its new values a site of the earlier job holds. To the coordinator and the analyst,
how many identifiers there are and how many of them are of rare values; where a job is extended, who was in the earlier
one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.errors import BadMessage, Disagreement, StateLost
from commonscale.protocols import agreement
from commonscale.protocols.categories import group_key, hidden_sum
from commonscale.protocols.categories.items import Identifiers, Values
from commonscale.slot import HUB
from commonscale.transforms.categories import Dictionary
from commonscale.v1 import protocols_pb2 as wire
from crypto.masks import Integers

UNUSED = -1
# Identifiers of a column.
MOST = 1 << 30

IN_USE = "how many different values each column has at all sites together, and which anonymous positions are in use"
COUNTS = "how often each anonymous identifier occurs at all sites together"
SIZES = "how many identifiers each column has, how many of them rare values share, and a keyed hash of their layout"
KNOWN = "which sites were in the job that is extended, and how many identifiers it had"
NUMBERS = "of its values that the extended job did not give it: which of them a site of that job holds"


@dataclass(frozen=True)
class Remembered:
    """What a site kept of the job that is extended: a dictionary a column, and the layout that all ended with."""

    dictionaries: tuple[Dictionary, ...]
    layout: bytes


@dataclass(frozen=True)
class Wish:
    """What the step asks for; public."""

    # Number positions without gaps; a ring without intersection keeps them as they are.
    compact: bool
    min_frequency: int = 0
    extends: str = ""


@dataclass(frozen=True)
class Public:
    """What everyone ends with."""

    sizes: tuple[int, ...]
    infrequent: tuple[int, ...]
    digest: bytes


@dataclass(frozen=True)
class Layout:
    """What a site ends with."""

    public: Public
    dictionaries: tuple[Dictionary, ...]
    # For sums over the identifiers that only the sites may read.
    group_key: bytes = field(repr=False)


@dataclass(frozen=True)
class _Old:
    """What the extended job left: sizes (zeros if there is none), and at a site its own old identifiers."""

    sizes: list[int]
    layout: bytes = b""
    mine: Remembered | None = None


async def party(
    ch: Channel,
    values: Values,
    positions: Sequence[Identifiers],
    domains: Sequence[int],
    wish: Wish,
    remembered: Remembered | None = None,
) -> Layout:
    """Role of a site: `domains` says how many positions a column has."""
    key = await group_key.party(ch)
    if not wish.compact:
        public = _public(key, values.columns, domains, [], [], _nothing(values))
        await _party_agree(ch, public)
        own = zip(values.texts, positions, domains, strict=True)
        return Layout(public, tuple(Dictionary(texts, tuple(p.tolist()), size) for texts, p, size in own), key)
    old = await _party_old(ch, values, wish, remembered) if wish.extends else _nothing(values)  # 1.
    flat = Flat(positions, domains)
    counts = await _party_in_use(ch, key, flat, values, wish)  # 2.
    numbers = await _party_numbers(ch, key, flat, values, old) if wish.extends else flat.nothing()  # 3.
    columns = zip(flat.split(counts), flat.split(numbers), old.sizes, strict=True)
    mapping = [_number(ch, used, kept, size) for used, kept, size in columns]  # 4.
    infrequent = [_rare(ids, used, wish) for ids, used in zip(mapping, flat.split(counts), strict=True)]
    sizes = [max(size, int(m.max(initial=UNUSED)) + 1) for m, size in zip(mapping, old.sizes, strict=True)]
    public = _public(key, values.columns, sizes, mapping, infrequent, old)
    await _party_agree(ch, public)  # 5.
    return Layout(public, _dictionaries(values, positions, mapping, infrequent, public), key)


async def coordinator(ch: Channel, domains: Sequence[int], wish: Wish) -> Public:
    """Role of the coordinator, who sees none of it."""
    if wish.extends:
        known = await ch.gather(wire.Known)  # 1.
        await ch.broadcast(wire.KnownByAll(known=known.values()))
    if wish.compact:
        await hidden_sum.coordinator_counts(ch.scope("in-use"), sum(domains))  # 2.
        if wish.extends:
            await hidden_sum.coordinator_counts(ch.scope("numbers"), 4 * sum(domains))  # 3.
    gathered = await ch.gather(wire.Layout)  # 5.
    found = {site: Public(tuple(m.sizes), tuple(m.infrequent), m.digest) for site, m in gathered.items()}
    first = ch.parties[0]
    for site, public in found.items():
        if public != found[first]:
            raise Disagreement(f"{site} has another layout than {first} in {ch.run}.")
    await ch.broadcast(wire.Confirmations(confirmations=[m.confirmation for m in gathered.values()]))
    return found[first]


class Flat:
    """Positions of all columns one after the other."""

    def __init__(self, positions: Sequence[Identifiers], domains: Sequence[int]) -> None:
        self._ends = np.cumsum(domains)
        self.length = int(self._ends[-1])
        starts = self._ends - np.array(domains)
        self.mine: Identifiers = np.concatenate([p + start for p, start in zip(positions, starts, strict=True)])

    def split(self, vector: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """A vector over all positions as one a column."""
        return np.split(vector, self._ends[:-1])

    def nothing(self) -> NDArray[np.int64]:
        """No old identifier anywhere."""
        return np.full(self.length, UNUSED, dtype=np.int64)


def _nothing(values: Values) -> _Old:
    return _Old([0] * len(values.columns))


async def _party_old(ch: Channel, values: Values, wish: Wish, remembered: Remembered | None) -> _Old:
    """Step 1: what those who were there remember, once all of them remember the same."""
    mine = wire.Known()
    if remembered is not None:
        sizes = [dictionary.size for dictionary in remembered.dictionaries]
        mine = wire.Known(present=True, sizes=sizes, layout=remembered.layout)
    await ch.send(HUB, wire.Known, lambda: mine)
    everyone = (await ch.recv_broadcast(wire.KnownByAll)).known
    there = [known for known in everyone if known.present]
    if len(everyone) != len(ch.parties) or everyone[ch.parties.index(ch.me)] != mine:
        raise Disagreement(f"The coordinator shows other words on job {wish.extends} than were sent.")
    if not there:
        raise StateLost(f"No site remembers job {wish.extends}.", "Submit the job without `extends`.")
    if any(known != there[0] for known in there) or len(there[0].sizes) != len(values.columns):
        raise Disagreement(
            f"The sites remember different layouts of job {wish.extends}.", "Name a job that all of them were in."
        )
    if any(size > MOST for size in there[0].sizes):
        raise BadMessage(f"Job {wish.extends} cannot have had so many identifiers.", "The coordinator is faulty.")
    return _Old(list(there[0].sizes), there[0].layout, remembered)


async def _party_in_use(ch: Channel, key: bytes, flat: Flat, values: Values, wish: Wish) -> NDArray[np.int64]:
    """Step 2: above zero where a position is in use; the pooled count, where that is asked for."""

    def contribution() -> Integers:
        vector = np.zeros(flat.length, dtype=np.uint64)
        if wish.min_frequency:
            vector[flat.mine] = [count for column in values.counts for count in column]
        else:
            vector[flat.mine] = np.frombuffer(secrets.token_bytes(8 * len(flat.mine)), "<u8")
        return vector

    total = await hidden_sum.party_counts(ch.scope("in-use"), key, flat.length, contribution)
    if wish.min_frequency:
        if (total >> np.uint64(62)).any():
            raise BadMessage(f"What the sites sent in {ch.prefix}in-use of {ch.run} adds up to no counts.")
        return total.astype(np.int64)
    in_use: NDArray[np.int64] = np.asarray(total != 0, dtype=np.int64)
    return in_use


async def _party_numbers(ch: Channel, key: bytes, flat: Flat, values: Values, old: _Old) -> NDArray[np.int64]:
    """Step 3: the old identifier of every position, or UNUSED."""
    mine = np.array(_own_numbers(values, old), dtype=np.int64)
    there = mine != UNUSED

    def contribution() -> Integers:
        vector = np.zeros((flat.length, 2, 2), dtype=np.uint64)
        weights = np.frombuffer(secrets.token_bytes(16 * int(there.sum())), "<u8").reshape(-1, 2).astype(np.uint64)
        vector[flat.mine[there], :, 0] = weights
        vector[flat.mine[there], :, 1] = weights * (mine[there, np.newaxis] + 1).astype(np.uint64)
        return vector.ravel()

    total = await hidden_sum.party_counts(ch.scope("numbers"), key, 4 * flat.length, contribution)
    pairs = total.reshape(flat.length, 2, 2)
    used = np.flatnonzero(pairs[:, :, 0].any(axis=1))
    found = flat.nothing()
    found[used] = _quotients(ch, pairs[used]) - 1
    return found


def _own_numbers(values: Values, old: _Old) -> list[int]:
    """My old identifiers, in the order of my values."""
    if old.mine is None:
        return [UNUSED] * sum(values.sizes)
    numbers = []
    for texts, dictionary in zip(values.texts, old.mine.dictionaries, strict=True):
        known = dict(zip(dictionary.values, dictionary.identifiers, strict=True))
        numbers += [known.get(text, UNUSED) for text in texts]
    return numbers


def _quotients(ch: Channel, pairs: Integers) -> NDArray[np.int64]:
    """product/weight modulo 2^64 of the pair whose weight has fewer factors of two; the other must say the same."""
    found = np.zeros((len(pairs), 2), dtype=np.uint64)
    bits = np.zeros((len(pairs), 2), dtype=np.int64)
    for which in (0, 1):
        weight, product = pairs[:, which, 0], pairs[:, which, 1]
        lowest = weight & (~weight + np.uint64(1))
        twos = np.where(weight == 0, 63, np.log2(np.maximum(lowest, 1).astype(np.float64))).astype(np.uint64)
        odd = np.where(weight == 0, np.uint64(1), weight >> twos)
        inverse = odd.copy()
        for _ in range(5):  # Newton: each step doubles the digits, of which three are right at first
            inverse *= np.uint64(2) - odd * inverse
        bits[:, which] = 64 - twos.astype(np.int64)
        found[:, which] = ((product >> twos) * inverse) & _low_bits(bits[:, which])
    best = found[np.arange(len(pairs)), bits.argmax(axis=1)]
    agreed = ((found ^ best[:, np.newaxis]) & _low_bits(bits)) == 0
    if not agreed.all() or (best == 0).any() or (best >> np.uint64(31)).any():
        raise BadMessage(f"The sites put different old identifiers on one value in {ch.run}.")
    quotients: NDArray[np.int64] = best.astype(np.int64)
    return quotients


def _low_bits(count: NDArray[np.int64]) -> Integers:
    ones: Integers = np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> (64 - count).clip(0, 63).astype(np.uint64)
    return ones


def _number(ch: Channel, used: NDArray[np.int64], kept: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Step 4: the identifier of every position of a column, or UNUSED."""
    mapping = kept.copy()
    there = kept[kept != UNUSED]
    if (there >= size).any() or len(np.unique(there)) != len(there):
        raise BadMessage(f"Two values have one old identifier in {ch.run}, or one has none that was given out.")
    fresh = (used != 0) & (kept == UNUSED)
    mapping[fresh] = size + np.arange(fresh.sum())
    return mapping


def _rare(ids: NDArray[np.int64], counts: NDArray[np.int64], wish: Wish) -> NDArray[np.int64]:
    """Identifiers that occur less often than asked for."""
    return np.sort(ids[(counts < wish.min_frequency) & (ids != UNUSED)])


def _public(
    key: bytes,
    columns: Sequence[str],
    sizes: Sequence[int],
    mapping: Sequence[NDArray[np.int64]],
    infrequent: Sequence[NDArray[np.int64]],
    old: _Old,
) -> Public:
    """Sizes, and a keyed hash of everything that sites must have alike."""
    digest = hashlib.sha256(old.layout)
    names = [name.encode() for name in columns]
    numbers = [np.array(sizes), *mapping, *infrequent]
    for part in (*names, *(np.asarray(array).astype("<i8").tobytes() for array in numbers)):
        digest.update(len(part).to_bytes(8, "big") + part)
    rare = tuple(map(len, infrequent)) or (0,) * len(columns)
    return Public(tuple(sizes), rare, group_key.authenticate(key, digest.digest()))


async def _party_agree(ch: Channel, public: Public) -> None:
    """Step 5: my layout with my signed word on it; then everyone's word."""
    mine = wire.Layout(sizes=public.sizes, infrequent=public.infrequent, digest=public.digest)
    value = mine.SerializeToString(deterministic=True)

    def confirmed() -> wire.Layout:
        mine.confirmation.CopyFrom(agreement.confirm(ch, value))
        return mine

    await ch.send(HUB, wire.Layout, confirmed)
    agreement.verify(ch, (await ch.recv_broadcast(wire.Confirmations)).confirmations, value)


def _dictionaries(
    values: Values,
    positions: Sequence[Identifiers],
    mapping: Sequence[NDArray[np.int64]],
    infrequent: Sequence[NDArray[np.int64]],
    public: Public,
) -> tuple[Dictionary, ...]:
    return tuple(
        Dictionary(texts, tuple(m[p].tolist()), size, tuple(rare.tolist()))
        for texts, p, m, rare, size in zip(values.texts, positions, mapping, infrequent, public.sizes, strict=True)
    )
