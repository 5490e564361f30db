"""Count, mean and variance of pooled columns.

Section 6 of "Privacy-Preserving Tabular Data Transformation in FL", formula 5, all columns in one run; methods
**masks**, **shares** and **sac-proportional** (protocols.sums):
1. Each site computes the count n_i and sum s_i of every column; sums give n = Σ n_i and Σ s_i.
2. Everyone computes the pooled mean μ = Σ s_i / n.
3. Each site computes Σ (x - μ)² of every column; a sum gives the variance.

In one round, sums of squares are added to step 1 and step 3 is skipped, if every column keeps enough digits of its
variance; otherwise step 3 follows for all columns.

Method **ckks** does not even reveal the counts (protocols.ckks.zscore).

Differs from the paper: n_i counts the present values of each column (missing ones are skipped, as scikit-learn does);
step 3 also sums x - μ, to correct for the rounding of μ. A coordinator that showed one site another μ could read that
site's sum out of step 3, if the masks of step 3 did not depend on everything announced before.

Reveals: to all sites and the coordinator, per column, the pooled count, mean and variance. Nothing of one site, unless
all others pool what they know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from commonscale.errors import OutOfRange
from commonscale.options import CkksOptions
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.protocols.ckks import zscore
from commonscale.reveal import Reveal
from commonscale.sources.queries import Deviations, Sums
from commonscale.statistics import bounds

# One-round variance: squares of numbers far from zero cancel. Up to this ratio of the mean square to the
# variance, float64 squares still leave about 12 digits of the variance.
SAFE_CANCELLATION = 1e3
# Under encryption a spread below this part of a column's bound is noise.
_PRECISION = 1e-5


@dataclass(frozen=True)
class Moments:
    """Pooled count, mean and variance (divided by the count) per column. A count may be kept secret: None."""

    columns: tuple[str, ...]
    count: tuple[int, ...] | None
    mean: tuple[float, ...]
    variance: tuple[float, ...]


async def moments(
    pool: Pool, mean: Reveal, variance: Reveal, columns: Sequence[str], method: str, *, one_round: bool = False
) -> Moments:
    """By exact sums."""
    names = tuple(columns)
    count, total, *squares = await pool.sum(mean, Sums(names), rows=2 + one_round, method=method)  # 1.
    centre = tuple(map(mean_of, count, total))  # 2.
    found: list[float | None] = [None]
    if one_round:
        found = list(map(variance_from_squares, count, total, squares[0]))
    if None in found:  # 3.
        around = tuple(0.0 if not n else value for n, value in zip(count, centre, strict=True))
        shift, squared = await pool.sum(variance, Deviations(names, around), method=method)
        found = list(map(variance_from_deviations, count, shift, squared))
    return Moments(names, tuple(map(int, count)), centre, tuple(value for value in found if value is not None))


async def moments_under_encryption(
    pool: Pool, mean: Reveal, variance: Reveal, columns: Sequence[str], ckks: CkksOptions, max_rows: int
) -> Moments:
    """Without the counts."""
    names, most = tuple(columns), max_rows // len(pool.sites)
    found = await bounds.magnitudes(pool, names, ckks.max_abs)
    answer = pool.ask(Sums(names))

    def sums() -> tuple[Floats, Floats]:
        count, total, _ = answer()
        for column, rows in zip(names, count, strict=True):
            if rows > most:
                raise OutOfRange(
                    f"{pool.me}: column {column!r} has more values than max_rows = {max_rows} leaves to a site.",
                    "Declare more max_rows.",
                )
        return count, total

    def deviations(centre: Floats) -> Callable[[], Floats]:
        return pool.ask(Deviations(names, tuple(centre.tolist())))

    async with pool.circuit(ckks, "inverse") as circuit:
        centre, spread = await zscore.moments(
            circuit, (mean, variance), found.bounds, found.present, max_rows, sums, deviations
        )
    spread = np.where(spread <= np.square(_PRECISION * found.bounds), 0.0, spread)
    centre, spread = (np.where(found.present, numbers, np.nan) for numbers in (centre, spread))
    return Moments(names, None, tuple(centre.tolist()), tuple(spread.tolist()))


def mean_of(count: Fraction, total: Fraction) -> float:
    """Correctly rounded; not a number where there is nothing to average."""
    return float(total / count) if count else np.nan


def variance_from_deviations(count: Fraction, deviation: Fraction, squared: Fraction) -> float:
    """Two-pass variance with the correction for a rounded mean: (sum d² - (sum d)²/n) / n."""
    return float(max((squared - deviation * deviation / count) / count, Fraction(0))) if count else np.nan


def variance_from_squares(count: Fraction, total: Fraction, squares: Fraction) -> float | None:
    """One-pass variance, or None where cancellation would cost more digits than can be spared."""
    if not count:
        return np.nan
    mean_square = squares / count
    variance = mean_square - (total / count) ** 2
    if mean_square == 0:
        return 0.0
    return float(variance) if variance * Fraction(SAFE_CANCELLATION) >= mean_square else None


def is_constant(variance: float, mean: float, count: int) -> bool:
    """Whether a column has no spread beyond rounding, by scikit-learn's own rule."""
    eps = float(np.finfo(np.float64).eps)
    return variance <= count * eps * variance + (count * mean * eps) ** 2
