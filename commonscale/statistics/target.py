"""Pooled means of a target for every common identifier: target encoding as if the tables were one.

Formula 7 of "Privacy-Preserving Tabular Data Transformation in FL", which the paper computes at each site alone because
sharing the means would show the values; over common identifiers it shows none:
1. The sites find common identifiers (statistics.identifiers).
2. Each site sums, for each identifier, 1 and the target over its rows; a hidden sum adds up, for the sites alone, who
   agree on it at the end of the run.
3. Each site encodes its own values: (s_x + α·μ) / (n_x + α) with the pooled n_x, s_x and mean μ of the target.

Differs from the paper: its formula has p(f = x | c = 1), its text the mean of the target where f = x; this is the
latter, the former is `formula = "printed"`.

Reveals: to all sites, the pooled count and sum of the target for each anonymous identifier; nothing to the coordinator.
For a value that one site alone holds, these are that site's own numbers. After `oprf` nobody knows whose; after a ring
(`apsi`, `otmppsi`) the order of the identifiers says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from commonscale.concurrency import offload
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import TargetSum, TargetSums
from crypto import fixed_point
from crypto.rings import Z256, Vector

if TYPE_CHECKING:
    from commonscale.statistics.layout import Layout

_WHAT = "pooled count and sum of the target for each anonymous identifier"
SUMS = Reveal("target", _WHAT, "sites")
SUMS_OF_ONE = Reveal(
    "target",
    f"{_WHAT}; of a value that one site alone holds, that site's own, and the ring's order says whose",
    "sites",
)

# How many rows with a target, and its sum over them.
Pair = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class TargetMeans:
    """What a site ends with: the encoded number of each of its values, per column, and the mean of the target."""

    tables: tuple[dict[str | None, float], ...] = field(repr=False)
    mean: float


async def target_means(
    pool: Pool, reveal: Reveal, query: TargetSums, found: Layout, smoothing: float, formula: str
) -> TargetMeans | Hidden:
    """All roles: the means, at a site, after the identifiers are known."""
    answer = pool.ask(query)

    def mine() -> Vector:
        # Counts (exact) and sums by identifier, column after column.
        sums, at = np.zeros((sum(found.sizes), 2)), 0
        for dictionary, column in zip(known(found.dictionaries), answer(), strict=True):
            for text, identifier in zip(dictionary.values, dictionary.identifiers, strict=True):
                sums[at + identifier] = column.get(text, (0, 0.0))
            at += dictionary.size
        exact = np.arange(sums.size) % 2 == 0
        return pool.encoded(sums.ravel(), exact, lambda _: f"a sum of the target in column {query.target!r}")

    total = await pool.add_hidden(reveal, Z256, 2 * sum(found.sizes), mine)  # 2.
    if isinstance(total, Hidden):
        return HIDDEN

    def means() -> TargetMeans:
        numbers = fixed_point.decode(total)
        pairs, columns = list(zip(numbers[0::2], numbers[1::2], strict=True)), []
        for dictionary in known(found.dictionaries):
            part, pairs = pairs[: dictionary.size], pairs[dictionary.size :]
            held = zip(dictionary.values, dictionary.identifiers, strict=True)
            columns.append((part, {text: part[identifier] for text, identifier in held}))
        return _means(columns, smoothing, formula)

    return await offload(means)  # 3.


def local_means(sums: Sequence[TargetSum], smoothing: float, formula: str) -> TargetMeans:
    """Formula 7 over one site's own rows."""
    columns = [{text: (Fraction(n), Fraction(s)) for text, (n, s) in column.items()} for column in sums]
    return _means([(list(column.values()), column) for column in columns], smoothing, formula)


def _means(
    columns: Sequence[tuple[Sequence[Pair], Mapping[str | None, Pair]]], smoothing: float, formula: str
) -> TargetMeans:
    """Formula 7, from the counts and sums of all values of a column, and of those that the site holds."""
    tables, alpha, mean = [], Fraction(smoothing), Fraction(0)
    for pairs, held in columns:
        count, total = sum((n for n, _ in pairs), Fraction(0)), sum((s for _, s in pairs), Fraction(0))
        mean = total / count if count else Fraction(0)
        table = {}
        for text, (n, s) in held.items():
            part = s if formula == "mean" else (n * s / total if total else Fraction(0))
            table[text] = float((part + alpha * mean) / (n + alpha) if n + alpha else mean)
        tables.append(table)
    return TargetMeans(tuple(tables), float(mean))
