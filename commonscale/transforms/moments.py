"""Count, mean and variance of pooled columns, and what a site must know of its own table to get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

# One-round variance: squares of numbers far from zero cancel. Up to this ratio of the mean square to the
# variance, float64 squares still leave about 12 digits of the variance.
SAFE_CANCELLATION = 1e3


class TableStatistics(Protocol):
    """A site's table, as far as the moments need it. One pass over the data a call; missing values are skipped."""

    def sums(self, columns: Sequence[str]) -> list[tuple[int, float, float]]:
        """For each column: the count of present values, their sum, and the sum of their squares."""

    def deviations(self, columns: Sequence[str], means: Sequence[float]) -> list[tuple[float, float]]:
        """For each column: the sum of x - mean and the sum of (x - mean)², over present values."""


@dataclass(frozen=True)
class Moments:
    """Pooled count, mean and variance (divided by the count), a value a column. A count may be kept secret: None."""

    columns: tuple[str, ...]
    count: tuple[int, ...] | None
    mean: tuple[float, ...]
    variance: tuple[float, ...]


NAN = float("nan")


def mean_of(count: Fraction, total: Fraction) -> float:
    """Correctly rounded; not a number where there is nothing to average."""
    return float(total / count) if count else NAN


def variance_from_deviations(count: Fraction, deviation: Fraction, squared: Fraction) -> float:
    """Two-pass variance with the correction for a rounded mean: (sum d² - (sum d)²/n) / n."""
    return float(max((squared - deviation * deviation / count) / count, Fraction(0))) if count else NAN


def variance_from_squares(count: Fraction, total: Fraction, squares: Fraction) -> float | None:
    """One-pass variance, or None where cancellation would cost more digits than can be spared."""
    if not count:
        return NAN
    mean_square = squares / count
    variance = mean_square - (total / count) ** 2
    if mean_square == 0:
        return 0.0
    return float(variance) if variance * Fraction(SAFE_CANCELLATION) >= mean_square else None
