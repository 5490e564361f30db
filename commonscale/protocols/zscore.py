"""Z-score: the mean and variance of pooled columns from secure sums.

Section 6 of "Privacy-Preserving Tabular Data Transformation in FL", formula 5, all columns in one run:
1. Each site computes the count n_i and sum s_i of every column; secure sums give n = Σ n_i and Σ s_i.
2. Everyone computes the pooled mean μ = Σ s_i / n.
3. Each site computes Σ (x - μ)² of every column; a secure sum gives the variance.

The one-round variant adds sums of squares to step 1 and skips step 3, if every column keeps enough digits
of its variance; otherwise step 3 follows for all columns.

Differs from the paper: n_i counts the present values of each column (missing ones are skipped, as
scikit-learn does); step 3 also sums x - μ, to correct for the rounding of μ; and all sites confirm that
they were shown the same total before they use it, because a coordinator that showed one site another μ
could read that site's sum out of step 3.

Reveals: to all sites and the coordinator, per column, the pooled count, mean and variance. Nothing of one
site, unless all others pool what they know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols import secure_sum
from commonscale.protocols.secure_sum import SecureSum
from commonscale.transforms.moments import (
    Moments,
    TableStatistics,
    mean_of,
    variance_from_deviations,
    variance_from_squares,
)


def reveals(one_round: bool) -> dict[str, str]:
    """What everyone learns when a message of a kind is sent to all."""
    first = "count of present values, mean and mean square" if one_round else "count of present values and mean"
    return {"mean.Total": f"pooled {first} of each column", "variance.Total": "pooled variance of each column"}


async def party(
    ch: Channel, table: TableStatistics, columns: Sequence[str], way: SecureSum, *, one_round: bool = False
) -> Moments:
    """Role of a site."""
    # 1. Counts and sums (and squares, if they may spare the second sum).
    sums = await offload(table.sums, columns)
    totals = await secure_sum.party(
        ch.scope("mean"), way, _names(columns, one_round), _flatten(row[: 2 + one_round] for row in sums)
    )
    first = _FirstSum(columns, totals, one_round)
    if first.variance is not None:
        return first.moments(first.variance)
    # 2. and 3. Squared deviations from the pooled mean.
    around = [0.0 if not count else mean for count, mean in zip(first.count, first.mean, strict=True)]
    deviations = await offload(table.deviations, columns, around)
    names = [f"{what} of column {column!r}" for column in columns for what in ("deviation", "squared deviation")]
    totals = await secure_sum.party(ch.scope("variance"), way, names, _flatten(deviations))
    return first.moments(_variances(first.count, totals))


async def coordinator(ch: Channel, columns: Sequence[str], way: SecureSum, *, one_round: bool = False) -> Moments:
    """Role of the coordinator: adds, and follows the same arithmetic."""
    totals = await secure_sum.coordinator(ch.scope("mean"), way, len(_names(columns, one_round)))  # 1.
    first = _FirstSum(columns, totals, one_round)
    if first.variance is not None:
        return first.moments(first.variance)
    totals = await secure_sum.coordinator(ch.scope("variance"), way, 2 * len(columns))  # 3.
    return first.moments(_variances(first.count, totals))


class _FirstSum:
    """What everyone knows after step 1."""

    def __init__(self, columns: Sequence[str], totals: Sequence[Fraction], one_round: bool) -> None:
        width = 2 + one_round
        self.columns = tuple(columns)
        self.count = tuple(totals[0::width])
        secure_sum.check_counts(columns, self.count)
        self.mean = tuple(map(mean_of, self.count, totals[1::width]))
        self.variance: tuple[float, ...] | None = None
        if one_round:
            found = [variance_from_squares(*totals[at : at + 3]) for at in range(0, len(totals), 3)]
            safe = [variance for variance in found if variance is not None]
            self.variance = tuple(safe) if len(safe) == len(found) else None

    def moments(self, variance: Sequence[float]) -> Moments:
        return Moments(self.columns, tuple(map(int, self.count)), self.mean, tuple(variance))


def _variances(counts: Sequence[Fraction], totals: Sequence[Fraction]) -> list[float]:
    return list(map(variance_from_deviations, counts, totals[0::2], totals[1::2]))


def _names(columns: Sequence[str], one_round: bool) -> list[str]:
    quantities = ("count", "sum", "sum of squares")[: 2 + one_round]
    return [f"{quantity} of column {column!r}" for column in columns for quantity in quantities]


def _flatten(rows: Iterable[Iterable[float]]) -> list[float]:
    return [value for row in rows for value in row]
