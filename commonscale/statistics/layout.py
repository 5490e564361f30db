"""The layout that all sites end with: positions in use, numbered without gaps, the same everywhere.

Whatever protocol went before, every site now has a position for each of its values, equal positions for equal values.
1. Where a job is extended, each site says what it remembers of it; those that do must remember the same.
2. A hidden sum (protocols.sums) tells the sites which positions are in use: a private OR, or pooled counts if rare
   values are to share an identifier.
3. Where a job is extended, another hidden sum tells the sites the old identifier of a position: its holders put in
   w and w·(identifier + 1) modulo the prime for random w, twice; of two sums the quotient is the identifier, and
   nothing says how many held it. Both quotients must be the same, or two holders remember different identifiers.
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
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from commonscale.categories import Dictionary
from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Disagreement, StateLost
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.protocols import agreement
from commonscale.protocols.psi.items import Identifiers, Values
from commonscale.reveal import Reveal
from commonscale.v1 import protocols_pb2 as wire
from crypto import field61
from crypto.rings import FIELD61, Vector

if TYPE_CHECKING:
    from commonscale.running import RunningPool
    from commonscale.statistics.identifiers import IdentifierOptions

UNUSED = -1
# Identifiers of a column.
MOST = 1 << 30

IN_USE = Reveal(
    "in-use",
    "how many different values each column has at all sites together, and which anonymous positions are in use",
    "sites",
)
COUNTS = Reveal("in-use", "how often each anonymous identifier occurs at all sites together", "sites")
SIZES = Reveal(
    "layout",
    "how many identifiers each column has, how many of them rare values share, and a keyed hash of their layout",
)
KNOWN = Reveal("known", "which sites were in the job that is extended, and how many identifiers it had")
NUMBERS = Reveal(
    "numbers", "of its values that the extended job did not give it: which of them a site of that job holds", "sites"
)


@dataclass(frozen=True)
class Remembered:
    """What a site kept of the job that is extended: one dictionary per column, and the layout that all ended with."""

    dictionaries: tuple[Dictionary, ...]
    layout: bytes


@dataclass(frozen=True)
class Layout:
    """What everyone ends with; and what only a site does."""

    sizes: tuple[int, ...]
    infrequent: tuple[int, ...]
    digest: bytes
    dictionaries: tuple[Dictionary, ...] | Hidden


async def lay_out(
    pool: RunningPool,
    values: Values | Hidden,
    positions: Identifiers | Hidden,
    domains: Sequence[int],
    options: IdentifierOptions,
    remembered: Remembered | None,
) -> Layout:
    """All roles: `domains` says how many positions a column has; at a site, `positions` says which are its own."""
    key, old = await pool.group_key(), wire.Known(sizes=[0] * len(domains))
    if options.extends:
        old = await _old(pool, len(domains), options.extends, remembered)  # 1.
    # Positions of all columns one after the other.
    ends, length = np.cumsum(domains), sum(domains)
    mine = await pool.at_sites(lambda: known(positions) + np.repeat(ends - domains, known(values).sizes))
    # A ring alone keeps identifiers as they were allocated: as if all were in use.
    counts: Identifiers | Hidden = await pool.at_sites(lambda: np.ones(length, dtype=np.int64))
    if options.method != "ring":
        counts = await _in_use(pool, mine, values, length, options.min_frequency)  # 2.
    kept: Identifiers | Hidden = await pool.at_sites(lambda: np.full(length, UNUSED, dtype=np.int64))
    if options.extends:
        kept = await _old_numbers(pool, mine, values, length, remembered)  # 3.
    if pool.ch.is_coordinator:
        return await _compared(pool)  # 5.
    own = known(values)

    def numbered() -> Layout:
        used, before = (np.split(known(vector), ends[:-1]) for vector in (counts, kept))
        columns = zip(own.counts, own.split(known(positions)), used, before, old.sizes, strict=True)
        found = [_number(pool.ch, options.min_frequency, *column) for column in columns]
        return _layout(key, own.columns, found, old.layout, options.method)

    return await _agreed(pool, await offload(numbered))  # 4. and 5.


async def _old(pool: RunningPool, columns: int, job: str, remembered: Remembered | None) -> wire.Known:
    """Step 1: what those who were there remember, once all of them remember the same; nothing at the coordinator."""
    ch = pool.ch.under(KNOWN)
    if ch.is_coordinator:
        known_by = await ch.gather(wire.Known)
        await ch.broadcast(wire.KnownByAll(known=known_by.values()))
        return wire.Known()
    mine = wire.Known()
    if remembered is not None:
        sizes = [dictionary.size for dictionary in remembered.dictionaries]
        mine = wire.Known(present=True, sizes=sizes, layout=remembered.layout)
    await ch.deliver(COORDINATOR, mine)
    everyone = (await ch.recv_broadcast(wire.KnownByAll)).known
    there = [one for one in everyone if one.present]
    if len(everyone) != len(ch.sites) or everyone[ch.sites.index(ch.me)] != mine:
        raise Disagreement(f"The coordinator shows other words on job {job} than were sent.")
    if not there:
        raise StateLost(f"No site remembers job {job}.", "Submit the job without `extends`.")
    if any(one != there[0] for one in there) or len(there[0].sizes) != columns:
        raise Disagreement(
            f"The sites remember different layouts of job {job}.", "Name a job that all of them were in."
        )
    if any(size > MOST for size in there[0].sizes):
        raise BadMessage(f"Job {job} cannot have had so many identifiers.", "The coordinator is faulty.")
    return there[0]


async def _in_use(
    pool: RunningPool, mine: Identifiers | Hidden, values: Values | Hidden, length: int, min_frequency: int
) -> Identifiers | Hidden:
    """Step 2: above zero where a position is in use; the pooled count, where that is asked for."""

    def addend() -> Vector:
        vector, own = FIELD61.zeros(length), known(mine)
        if min_frequency:
            vector[own] = [count for column in known(values).counts for count in column.values()]
        else:
            vector[own] = FIELD61.random(len(own))
        return vector

    total = await pool.add_hidden(COUNTS if min_frequency else IN_USE, FIELD61, length, addend)
    if isinstance(total, Hidden):
        return HIDDEN
    if not min_frequency:
        return np.asarray(total != 0, dtype=np.int64)
    if (total >> np.uint64(60)).any():
        raise BadMessage(f"What the sites sent in {COUNTS.scope} of {pool.ch.run} adds up to no counts.")
    return total.astype(np.int64)


async def _old_numbers(
    pool: RunningPool, mine: Identifiers | Hidden, values: Values | Hidden, length: int, remembered: Remembered | None
) -> Identifiers | Hidden:
    """Step 3: the old identifier of every position, or UNUSED."""

    def addend() -> Vector:
        numbers = np.array(_own_numbers(known(values), remembered), dtype=np.int64)
        there = numbers != UNUSED
        vector = np.zeros((length, 2, 2), dtype=np.uint64)
        own = known(mine)[there]
        weights = FIELD61.random(2 * len(own)).reshape(-1, 2)
        vector[own, :, 0] = weights
        vector[own, :, 1] = field61.multiply(weights, (numbers[there, np.newaxis] + 1).astype(np.uint64))
        return vector.ravel()

    total = await pool.add_hidden(NUMBERS, FIELD61, 4 * length, addend)
    return HIDDEN if isinstance(total, Hidden) else await offload(_quotients, pool.ch, total)


def _quotients(ch: Channel, total: Vector) -> Identifiers:
    """Of every position: product/weight modulo the prime, less 1; both pairs must say the same."""
    length = len(total) // 4
    pairs = total.reshape(length, 2, 2)
    used = np.flatnonzero(pairs[:, :, 0].any(axis=1))
    found = field61.multiply(pairs[used, :, 1], field61.inverses(pairs[used, :, 0]))
    if (found[:, 0] != found[:, 1]).any() or (found == 0).any() or (found > MOST).any():
        raise BadMessage(f"The sites put different old identifiers on one value in {ch.run}.")
    numbers = np.full(length, UNUSED, dtype=np.int64)
    numbers[used] = found[:, 0].astype(np.int64) - 1
    return numbers


def _own_numbers(values: Values, remembered: Remembered | None) -> list[int]:
    """My old identifiers, in the order of my values."""
    if remembered is None:
        return [UNUSED] * sum(values.sizes)
    numbers = []
    for texts, dictionary in zip(values.counts, remembered.dictionaries, strict=True):
        identifiers = dict(zip(dictionary.values, dictionary.identifiers, strict=True))
        numbers += [identifiers.get(text, UNUSED) for text in texts]
    return numbers


def _number(
    ch: Channel,
    min_frequency: int,
    texts: Iterable[str | None],
    own: Identifiers,
    used: Identifiers,
    kept: Identifiers,
    size: int,
) -> tuple[Identifiers, Dictionary]:
    """Step 4 for one column: the identifier of every position, or UNUSED; and the dictionary of my values."""
    there = kept[kept != UNUSED]
    if (there >= size).any() or len(np.unique(there)) != len(there):
        raise BadMessage(f"Two values have one old identifier in {ch.run}, or one has none that was given out.")
    ids, fresh = kept.copy(), (used != 0) & (kept == UNUSED)
    ids[fresh] = size + np.arange(fresh.sum())
    rare = np.sort(ids[(used < min_frequency) & (ids != UNUSED)])
    dictionary = Dictionary(tuple(texts), tuple(ids[own].tolist()), size + int(fresh.sum()), tuple(rare.tolist()))
    return ids, dictionary


def _layout(
    key: bytes, columns: Sequence[str], numbered: Sequence[tuple[Identifiers, Dictionary]], before: bytes, method: str
) -> Layout:
    """Sizes, and a hash of everything that sites must have alike, which says nothing to whoever lacks the key."""
    dictionaries = tuple(dictionary for _, dictionary in numbered)
    sizes, rare = [d.size for d in dictionaries], [d.infrequent for d in dictionaries]
    # The sizes of a ring alone say which positions have which identifiers.
    arrays: list[ArrayLike] = [sizes] if method == "ring" else [sizes, *(ids for ids, _ in numbered), *rare]
    digest = hashlib.sha256(before)
    for part in (*map(str.encode, columns), *(np.asarray(array, dtype="<i8").tobytes() for array in arrays)):
        digest.update(len(part).to_bytes(8, "big") + part)
    keyed = hmac.digest(key, b"commonscale/v1/layout\0" + digest.digest(), hashlib.sha256)
    return Layout(tuple(sizes), tuple(map(len, rare)), keyed, dictionaries)


async def _agreed(pool: RunningPool, layout: Layout) -> Layout:
    """Step 5 at a site: my layout with my signed word on it, and on everything announced before; then everyone's."""
    ch = pool.ch.under(SIZES)
    mine = wire.Layout(sizes=layout.sizes, infrequent=layout.infrequent, digest=layout.digest)
    value = mine.SerializeToString(deterministic=True) + pool.transcript.digest

    def confirmed() -> wire.Layout:
        mine.confirmation.CopyFrom(agreement.confirm(ch, value))
        return mine

    await ch.send(COORDINATOR, wire.Layout, confirmed)
    agreement.verify(ch, (await ch.recv_broadcast(wire.Confirmations)).confirmations, value)
    pool.transcript.settle()
    return layout


async def _compared(pool: RunningPool) -> Layout:
    """Step 5 at the coordinator, who sees sizes and a keyed hash."""
    ch = pool.ch.under(SIZES)
    gathered = await ch.gather(wire.Layout)
    found = {site: Layout(tuple(m.sizes), tuple(m.infrequent), m.digest, HIDDEN) for site, m in gathered.items()}
    first = ch.sites[0]
    for site, layout in found.items():
        if layout != found[first]:
            raise Disagreement(f"{site} has another layout than {first} in {ch.run}.")
    await ch.broadcast(wire.Confirmations(confirmations=[m.confirmation for m in gathered.values()]))
    pool.transcript.settle()
    return found[first]
