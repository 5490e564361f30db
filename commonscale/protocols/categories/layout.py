"""The layout that all sites end with: positions in use, numbered without gaps, the same everywhere.

Whatever protocol went before, every site now has a position for each of its values, equal positions for equal values.
1. Where a job is extended, each site says what it remembers of it; those that do must remember the same.
2. A hidden sum (see hidden_sum) tells the sites which positions are in use: a private OR, or pooled counts if rare
   values are to share an identifier.
3. Where a job is extended, another hidden sum tells the sites the old identifier of a position: its holders put in
   w and w·(identifier + 1) for random w; of the two sums the quotient is the identifier, and nothing says how many
   held it.
4. Positions in use are numbered: old identifiers stay, the others follow in the order of their positions.
5. Each site sends the sizes and a keyed hash of the whole layout; all must be equal, and all sites confirm that they
   are (agreement).

Reveals: to all sites, which positions are in use, so how many different values there are (after a ring also how many
of each site's identifiers: those that no earlier site has), or, where rare values are grouped, the pooled count of each
position. To the coordinator and the analyst, how many identifiers there are.
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
from crypto import ring
from crypto.masks import Integers

UNUSED = -1

IN_USE = "how many different values each column has at all sites together, and which anonymous positions are in use"
COUNTS = "how often each anonymous identifier occurs at all sites together"
SIZES = "how many identifiers each column has, and a keyed hash of their layout"


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
    old = await _party_old(ch, values, wish, remembered) if wish.extends else _nothing(values)  # 1.
    mapping: list[NDArray[np.int64]] = [np.arange(domain, dtype=np.int64) for domain in domains]
    infrequent: list[NDArray[np.int64]] = [np.zeros(0, np.int64) for _ in domains]
    if wish.compact:
        flat = Flat(positions, domains)
        counts = await _party_in_use(ch, key, flat, values, wish)  # 2.
        numbers = await _party_numbers(ch, key, flat, values, old) if wish.extends else flat.nothing()  # 3.
        mapping = [  # 4.
            _number(ch, used, kept, size)
            for used, kept, size in zip(flat.split(counts), flat.split(numbers), old.sizes, strict=True)
        ]
        if wish.min_frequency:
            rare = [column < wish.min_frequency for column in flat.split(counts)]
            infrequent = [np.sort(m[r & (m != UNUSED)]) for m, r in zip(mapping, rare, strict=True)]
    public = _public(key, values.columns, mapping, infrequent, old)
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
            await hidden_sum.coordinator_vector(ch.scope("numbers"), 2 * sum(domains))  # 3.
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
    mine = _own_numbers(values, old)

    def contribution() -> ring.Vector:
        vector = np.zeros((2 * flat.length, ring.LIMBS), dtype=np.uint64)
        for position, number in zip(flat.mine.tolist(), mine, strict=True):
            if number != UNUSED:
                weight = secrets.randbelow(ring.MODULUS)
                pair = (weight, weight * (number + 1) % ring.MODULUS)
                raw = b"".join(value.to_bytes(ring.ELEMENT_BYTES, "little") for value in pair)
                vector[[2 * position, 2 * position + 1]] = ring.from_bytes(raw)
        return vector

    total = await hidden_sum.party_vector(ch.scope("numbers"), key, 2 * flat.length, contribution)
    sums = ring.to_bytes(total)
    found = flat.nothing()
    for position in np.flatnonzero(total[0::2].any(axis=1)).tolist():
        at = 2 * position * ring.ELEMENT_BYTES
        weight = int.from_bytes(sums[at : at + ring.ELEMENT_BYTES], "little")
        product = int.from_bytes(sums[at + ring.ELEMENT_BYTES : at + 2 * ring.ELEMENT_BYTES], "little")
        found[position] = _quotient(ch, weight, product) - 1
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


def _quotient(ch: Channel, weight: int, product: int) -> int:
    """product/weight modulo 2^256, for a quotient below 2^64: factors of two in the weight cost digits at the top."""
    twos = (weight & -weight).bit_length() - 1
    modulus = ring.MODULUS >> twos
    found = (product >> twos) * pow(weight >> twos, -1, modulus) % modulus
    if not 0 < found < 1 << 62:
        raise BadMessage(f"The sites put different old identifiers on one value in {ch.run}.")
    return found


def _number(ch: Channel, used: NDArray[np.int64], kept: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Step 4: the identifier of every position of a column, or UNUSED."""
    mapping = kept.copy()
    there = kept[kept != UNUSED]
    if (there >= size).any() or len(np.unique(there)) != len(there):
        raise BadMessage(f"Two values have one old identifier in {ch.run}, or one has none that was given out.")
    fresh = (used != 0) & (kept == UNUSED)
    mapping[fresh] = size + np.arange(fresh.sum())
    return mapping


def _public(
    key: bytes,
    columns: Sequence[str],
    mapping: Sequence[NDArray[np.int64]],
    infrequent: Sequence[NDArray[np.int64]],
    old: _Old,
) -> Public:
    sizes = [max(size, int(m.max(initial=UNUSED)) + 1) for m, size in zip(mapping, old.sizes, strict=True)]
    digest = hashlib.sha256(old.layout)
    for name, ids, rare, size in zip(columns, mapping, infrequent, sizes, strict=True):
        for part in (name.encode(), ids.astype("<i8").tobytes(), rare.astype("<i8").tobytes(), size.to_bytes(8, "big")):
            digest.update(len(part).to_bytes(8, "big") + part)
    return Public(tuple(sizes), tuple(map(len, infrequent)), group_key.authenticate(key, digest.digest()))


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
