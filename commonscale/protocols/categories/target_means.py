"""Pooled means of a target for every common identifier: target encoding as if the tables were one.

Formula 7 of "Privacy-Preserving Tabular Data Transformation in FL", which the paper computes at each site alone because
sharing the means would show the values; over common identifiers it shows none:
1. The sites find common identifiers (see identifiers).
2. Each site sums, for each identifier, 1 and the target over its rows; a hidden sum adds up, for the sites alone.
3. All sites agree on a keyed hash of the sums.
4. Each site encodes its own values: (s_x + α·μ) / (n_x + α) with the pooled n_x, s_x and mean μ of the target.

Differs from the paper: its formula has p(f = x | c = 1), its text the mean of the target where f = x; this is the
latter, the former is `formula = "printed"`.

Reveals: to all sites, the pooled count and sum of the target for each anonymous identifier; nothing to the coordinator.
For a value that one site alone holds, these are that site's own numbers. After `oprf` nobody knows whose; after a ring
(`apsi`, `otmppsi`) the order of the identifiers says it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from commonscale.channel import Channel
from commonscale.errors import Overflow
from commonscale.protocols import agreement
from commonscale.protocols.categories import group_key, hidden_sum
from commonscale.protocols.categories.layout import Layout
from crypto import ring

REVEALS = "pooled count and sum of the target for each anonymous identifier"
REVEALS_ALONE = "; of a value that one site alone holds, that site's own, and the ring's order says whose"

# (rows, sum of the target) of a value.
Sums = tuple[int, float]


@dataclass(frozen=True)
class Means:
    """What a site ends with: the encoded number of each of its values, a column each, and the mean of the target."""

    tables: tuple[dict[str | None, float], ...]
    mean: float


async def party(
    ch: Channel, found: Layout, sums: Sequence[Mapping[str | None, Sums]], smoothing: float, formula: str
) -> Means:
    """Role of a site, after the identifiers are known."""
    length = 2 * sum(found.public.sizes)
    values = _flat(found, sums)

    def encode() -> ring.Vector:
        try:
            return ring.encode(values, addends=len(ch.parties), random_below=secrets.randbelow)
        except ring.FixedPointOverflowError:
            raise Overflow(f"{ch.me}: the target's sums are too large to be added.", "Rescale it.") from None

    scope = ch.scope("target")
    total = await hidden_sum.party_vector(scope, found.group_key, length, encode)  # 2.
    await agreement.party(scope, group_key.authenticate(found.group_key, ring.to_bytes(total)))  # 3.
    return _means(found, ring.decode(total), smoothing, formula)  # 4.


async def coordinator(ch: Channel, sizes: Sequence[int]) -> None:
    """Role of the coordinator."""
    await hidden_sum.coordinator_vector(ch.scope("target"), 2 * sum(sizes))
    await agreement.coordinator(ch.scope("target"))


def local(sums: Sequence[Mapping[str | None, Sums]], smoothing: float, formula: str) -> Means:
    """Formula 7 over one site's own rows."""
    tables, mean = [], 0.0
    for column in sums:
        counts = {text: (Fraction(count), Fraction(total)) for text, (count, total) in column.items()}
        encode, mean = _encoder(list(counts.values()), smoothing, formula)
        tables.append({text: encode(*pair) for text, pair in counts.items()})
    return Means(tuple(tables), mean)


def _flat(found: Layout, sums: Sequence[Mapping[str | None, Sums]]) -> list[float]:
    """Counts (exact) and sums by identifier, column after column."""
    flat: list[float] = []
    for dictionary, column in zip(found.dictionaries, sums, strict=True):
        part: list[float] = [0] * (2 * dictionary.size)
        for text, identifier in zip(dictionary.values, dictionary.identifiers, strict=True):
            part[2 * identifier], part[2 * identifier + 1] = column.get(text, (0, 0.0))
        flat += part
    return flat


def _means(found: Layout, totals: Sequence[Fraction], smoothing: float, formula: str) -> Means:
    tables, at, mean = [], 0, 0.0
    for dictionary in found.dictionaries:
        part = totals[at : at + 2 * dictionary.size]
        at += len(part)
        pairs = list(zip(part[0::2], part[1::2], strict=True))
        encode, mean = _encoder(pairs, smoothing, formula)
        held = zip(dictionary.values, dictionary.identifiers, strict=True)
        tables.append({text: encode(*pairs[identifier]) for text, identifier in held})
    return Means(tuple(tables), mean)


def _encoder(
    pairs: Sequence[tuple[Fraction, Fraction]], smoothing: float, formula: str
) -> tuple[Callable[[Fraction, Fraction], float], float]:
    """Formula 7 for one column with these (count, sum), and the mean of the target."""
    count, total = sum((n for n, _ in pairs), Fraction(0)), sum((s for _, s in pairs), Fraction(0))
    mean = total / count if count else Fraction(0)
    alpha = Fraction(smoothing)

    def encode(n: Fraction, s: Fraction) -> float:
        if not n + alpha:
            return float(mean)
        part = s if formula == "mean" else (n * s / total if total else Fraction(0))
        return float((part + alpha * mean) / (n + alpha))

    return encode, float(mean)
